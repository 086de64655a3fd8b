"""The runs to diagnose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bcppo.algorithms import CONFIGS
from bcppo.config import RunConfig
from bcppo.diagnostics.store import Columns
from bcppo.errors import BcppoError
from bcppo.kept import MANIFEST, check_kept
from bcppo.records import RunFolder


@dataclass(frozen=True)
class Found:
    """A run to diagnose."""

    name: str
    folder: RunFolder
    method: str
    config: RunConfig

    @property
    def task(self) -> str:
        return self.config.task

    @property
    def trained_steps(self) -> int:
        """Environment steps behind its newest checkpoint: rows are written with it."""
        try:
            return max(self.folder.read_rows("progress").get("step", ()), default=0)
        except BcppoError:
            return 0


def find_runs(paths: Sequence[str | Path]) -> list[Found]:
    """The runs at `paths`: run folders, kept runs, folders of either, or studies' folders."""
    folders: list[Path] = []
    for path in map(Path, paths):
        if path.name == MANIFEST and path.is_file():  # kept/* names it too
            continue
        inside = [path] if RunFolder(path).exists else _below(path) or _below(path / "runs")
        if not inside:
            raise BcppoError(
                f"{path} is no run folder and holds none: no config.json is in it, right below it or in runs/."
            )
        folders += [folder for folder in inside if folder not in folders]
    if not folders:
        raise BcppoError("A diagnostic needs at least one run folder.")
    found = []
    for folder in folders:
        check_kept(folder)
        method, config = RunFolder(folder).load_config(CONFIGS)
        found.append(Found(folder.name, RunFolder(folder), method, config))
    if len({run.name for run in found}) < len(found):  # tell runs of one name apart
        found = [Found(str(run.folder.path), run.folder, run.method, run.config) for run in found]
    return found


def _below(path: Path) -> list[Path]:
    return sorted(config.parent for config in path.glob("[!.]*/config.json"))


def runs_table(runs: Sequence[Found]) -> Columns:
    return {
        "name": [run.name for run in runs],
        "task": [run.task for run in runs],
        "seed": [run.config.seed for run in runs],
        "method": [run.method for run in runs],
        "steps": [run.config.steps for run in runs],
        "state": [run.folder.status()["state"] for run in runs],
        "trained_steps": [run.trained_steps for run in runs],
    }
