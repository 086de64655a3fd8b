"""`bcppo diagnose`: measure, store, read, write. All of them at once: `bcppo.study.diagnostics`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from bcppo.diagnostics import SUMMARIES
from bcppo.diagnostics.report import write_report
from bcppo.diagnostics.runs import find_runs
from bcppo.diagnostics.store import load, save
from bcppo.errors import unknown_name

ALL = "all"

RETRAINED = ("coverage", "target-noise")
"""Diagnostics that train critics anew, for as long as it takes or for so many updates at most."""


def diagnose(
    name: str, runs: Sequence[str | Path], out: str | Path, *, device: str = "cpu", max_updates: int = 0
) -> str:
    """Run a diagnostic over run folders (or folders of them) into `out`/NAME; returns the report's text."""
    if name not in SUMMARIES:
        raise unknown_name("diagnostic", name, [*SUMMARIES, ALL])
    limit = {"max_updates": max_updates} if name in RETRAINED else {}
    measure = import_module(f"bcppo.diagnostics.measure.{name.replace('-', '_')}").measure
    save(Path(out) / name, measure(find_runs(runs), device, **limit))
    return read_again(name, out)


def diagnose_retrained(
    runs: Sequence[str | Path], out: str | Path, *, device: str = "cpu", max_updates: int = 0
) -> list[str]:
    """Coverage and target noise by one retraining; returns the reports' texts."""
    from bcppo.diagnostics.measure.target_noise import measure_both

    for name, measured in measure_both(find_runs(runs), device, max_updates).items():
        save(Path(out) / name, measured)
    return [read_again(name, out) for name in RETRAINED]


def read_again(name: str, out: str | Path) -> str:
    """Table and plots from the rows in `out`/NAME alone; imports no torch."""
    folder = Path(out) / name
    measured = load(folder)
    report = import_module(f"bcppo.diagnostics.read.{name.replace('-', '_')}").read(measured)
    return write_report(folder, report, measured)
