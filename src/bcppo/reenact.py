"""A run's recorded evaluation episodes, lived through again: what an export and a film are checked against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from bcppo.algorithms import CONFIGS
from bcppo.config import RunConfig
from bcppo.errors import BcppoError
from bcppo.evaluation import Episode, require_policy
from bcppo.records import RunFolder, read_json
from bcppo.rollout import MakeEnv
from bcppo.worker import run_environment

MEASURES = ("episode_return", "cost_rate", "native_cost", "boundary_hits", "length")


class ReplayMismatch(BcppoError):
    """An episode that did not go as it was recorded."""


def open_finished_run(folder: str | Path) -> tuple[RunFolder, str, RunConfig]:
    """(folder, method, config) of a run that has left a policy."""
    run = RunFolder(folder)
    method, config = run.load_config(CONFIGS)
    require_policy(run)
    return run, method, config


def make_environment(config: RunConfig, make_env: MakeEnv | None) -> gymnasium.Env:
    """The run's environment; `make_env` where it was trained with one."""
    return run_environment(config, make_env)()


def recorded_episodes(run: RunFolder) -> list[Episode]:
    """The episodes of the evaluation at the run's end."""
    rows = run.read_rows("evaluations")
    episodes = [
        {name: values[index] for name, values in rows.items()}
        for index, final in enumerate(rows.get("final", []))
        if final
    ]
    if not episodes:
        raise BcppoError(f"The run in {run.path} has recorded no evaluation at its end, so nothing can be replayed.")
    return episodes


def require_same(
    run: RunFolder, recorded: Episode, replayed: Episode, *, what: str = "The replay", tolerance: float = 0.0
) -> None:
    """Refuse a replay whose return, costs or length differ from the recorded by more than a relative tolerance."""
    for name in MEASURES:
        was, now = float(recorded[name]), float(replayed[name])
        if abs(now - was) > tolerance * max(1.0, abs(was)):
            raise ReplayMismatch(
                f"{what} of episode {recorded['episode_seed']:.0f} has {name} {now:.9g}, but {was:.9g} was "
                f"recorded{_other_stack(run)}."
            )


def _other_stack(run: RunFolder) -> str:
    """What may explain it: a simulator of another version computes other trajectories."""
    from importlib import metadata

    versions: dict[str, Any] = read_json(run / "provenance.json").get("versions", {})
    differ = []
    for name in ("mujoco", "gymnasium", "numpy"):
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if versions.get(name) not in (None, "", here):
            differ.append(f"{name} {versions[name]} then, {here} now")
    if differ:
        return f" ({'; '.join(differ)}: replay it on the stack it was made on)"
    return " (with the same versions: the file was changed, or this is another kind of CPU, which rounds differently)"
