"""`bcppo diagnose`: measure, store, read, write; one diagnostic or all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from bcppo.diagnostics import SUMMARIES
from bcppo.diagnostics.report import write_report
from bcppo.diagnostics.runs import find_runs
from bcppo.diagnostics.store import load, save
from bcppo.errors import BcppoError, unknown_name

ALL = "all"


RETRAINED = ("coverage", "target-noise")
"""Diagnostics that train critics anew, for as long as it takes or for so many updates at most."""


def diagnose(
    name: str, runs: Sequence[str | Path], out: str | Path, *, device: str = "cpu", jobs: int = 1, max_updates: int = 0
) -> str:
    """Run a diagnostic, or all, over run folders (or folders of them) into `out`/NAME; returns the report's text."""
    if name not in (*SUMMARIES, ALL):
        raise unknown_name("diagnostic", name, [*SUMMARIES, ALL])
    if name == ALL:
        return _diagnose_all(runs, Path(out), jobs, ["--device", device, "--max-updates", str(max_updates)])
    module = name.replace("-", "_")
    folder = Path(out) / name
    limit = {"max_updates": max_updates} if name in RETRAINED else {}
    measured = import_module(f"bcppo.diagnostics.measure.{module}").measure(find_runs(runs), device, **limit)
    save(folder, measured)
    return read_again(name, out)


def read_again(name: str, out: str | Path) -> str:
    """Table and plots from the rows in `out`/NAME alone; imports no torch."""
    folder = Path(out) / name
    measured = load(folder)
    report = import_module(f"bcppo.diagnostics.read.{name.replace('-', '_')}").read(measured)
    return write_report(folder, report, measured)


def _diagnose_all(runs: Sequence[str | Path], out: Path, jobs: int, options: Sequence[str]) -> str:
    """Each diagnostic in a process of its own, `jobs` at a time; one that fails takes no other with it."""
    find_runs(runs)  # what is wrong with the folders is said once

    def one(name: str) -> tuple[str, str | None]:
        command = [sys.executable, "-m", "bcppo", "diagnose", name, *map(str, runs), "--out", str(out)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        lines = done.stderr.strip().splitlines()
        return name, None if done.returncode == 0 else (lines[-1] if lines else f"it ended with code {done.returncode}")

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        failures = {name: reason for name, reason in pool.map(one, SUMMARIES) if reason is not None}
    texts = [(out / name / "report.md").read_text() for name in SUMMARIES if name not in failures]
    if failures:
        said = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise BcppoError(f"{len(failures)} of {len(SUMMARIES)} diagnostics failed ({said}); the others are in {out}.")
    return "\n".join(texts)
