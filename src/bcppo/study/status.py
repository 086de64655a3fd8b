"""How far a study is, and how long it has still to go: read from its run folders alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean
from typing import Any

from bcppo.study.folder import DONE, FAILED, STOPPED, WAITING, WORKING, StudyFolder
from bcppo.study.plan import Entry

STATES = (DONE, WORKING, STOPPED, WAITING, FAILED)
_PHASES = ("collect", "update", "evaluate", "checkpoint")
"""Columns of timings.parquet that add up to the time a run took."""


@dataclass(frozen=True)
class RunStatus:
    """How far one run is."""

    entry: Entry
    state: str
    step: int
    """Steps done when the run was last written down, at a checkpoint."""
    failures: int
    """Attempts that failed, over the life of the study."""
    error: str
    """What the last of them failed of."""
    seconds_per_step: float | None
    """Measured on the run itself; None before its first checkpoint."""

    @property
    def left(self) -> int:
        """Steps still to do; none of a run that was given up."""
        return 0 if self.state in (DONE, FAILED) else max(0, self.entry.config.steps - self.step)


def look(folder: StudyFolder) -> list[RunStatus]:
    """Every run of a study."""
    return [_look_at(folder, entry) for entry in folder.study().runs]


def _look_at(folder: StudyFolder, entry: Entry) -> RunStatus:
    failures, run = folder.failures(entry.id), folder.run(entry.id)
    # Before the rows: a run that ends in between is then still called running, not finished with rows missing.
    state = folder.state(entry.id)
    steps = run.read_rows("progress").get("step", [0])
    error = failures[-1]["error"] if failures else run.status()["message"] if state == FAILED else ""
    return RunStatus(entry, state, steps[-1], len(failures), error, _pace(run.read_rows("timings")))


def _pace(timings: dict[str, list]) -> float | None:
    """Seconds a step of a run, from all its rows: it may have lived more than once."""
    steps = timings.get("step", [])
    rows = len(steps)
    if not rows:
        return None
    rollout = steps[0] if rows == 1 else (steps[-1] - steps[0]) / (rows - 1)
    return sum(sum(timings[name]) for name in _PHASES) / (rollout * rows)


def seconds_left(runs: list[RunStatus]) -> float | None:
    """Seconds until all are done if as many work as do now; None where nothing was measured yet.

    A run's own pace where it has one, else that of runs like it: same task and method, else task, else any.
    """
    left = [run.left * pace for run in runs if run.left and (pace := _expected_pace(run, runs)) is not None]
    if not left:
        return 0.0 if all(run.left == 0 for run in runs) else None
    workers = max(1, sum(run.state == WORKING for run in runs))
    return max(sum(left) / workers, *left)


def _expected_pace(run: RunStatus, runs: list[RunStatus]) -> float | None:
    if run.seconds_per_step is not None:
        return run.seconds_per_step

    def like(*names: str) -> list[float]:
        own = [_key(run, name) for name in names]
        return [
            other.seconds_per_step
            for other in runs
            if other.seconds_per_step is not None and [_key(other, name) for name in names] == own
        ]

    for paces in (like("task", "method"), like("task"), like()):
        if paces:
            return mean(paces)
    return None


def _key(run: RunStatus, name: str) -> str:
    return run.entry.method if name == "method" else run.entry.config.task


def tables(folder: StudyFolder, runs: list[RunStatus]) -> list[Any]:
    """What `bcppo study status` shows: a line for each task and arm, and one for each run at work or failed."""
    shown = [run for run in runs if run.state in (WORKING, STOPPED, FAILED) or run.failures]
    return [_overview(folder, runs), *([_details(shown)] if shown else [])]


def _overview(folder: StudyFolder, runs: list[RunStatus]) -> Any:
    from rich.table import Table

    table = Table(title=f"{folder.study().title} ({folder.path})", caption=summary(runs))
    for title in ("task", "method", "variant"):
        table.add_column(title)
    for title in ("runs", *STATES, "time left"):
        table.add_column(title, justify="right")
    for key in dict.fromkeys(map(_arm, runs)):
        own = [run for run in runs if _arm(run) == key]
        counts = Counter(run.state for run in own)
        table.add_row(*key, str(len(own)), *(str(counts[state] or "") for state in STATES), _work_left(own, runs))
    return table


def _details(runs: list[RunStatus]) -> Any:
    from rich.table import Table

    table = Table(title="Runs at work, stopped, or with a failure behind them")
    for title, justify in (("run", "left"), ("state", "left"), ("steps", "right"), ("failures", "right")):
        table.add_column(title, justify=justify, no_wrap=title == "run")  # type: ignore[arg-type]
    table.add_column("last error")
    for run in runs:
        progress = f"{run.step:,} of {run.entry.config.steps:,}"
        table.add_row(run.entry.id, run.state, progress, str(run.failures or ""), run.error)
    return table


def summary(runs: list[RunStatus]) -> str:
    """One line: how many of what, and how long still."""
    counts = Counter(run.state for run in runs)
    parts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    seconds = seconds_left(runs)
    left = "time left unknown yet" if seconds is None else f"about {duration(seconds)} left"
    over = counts[DONE] + counts[FAILED] == len(runs)
    return f"{len(runs)} run{'s'[: len(runs) > 1]}: {', '.join(parts)}" + ("" if over else f"; {left}")


def _arm(run: RunStatus) -> tuple[str, str, str]:
    return run.entry.config.task, run.entry.method, run.entry.variant


def _work_left(own: Iterable[RunStatus], runs: list[RunStatus]) -> str:
    """Time left for some runs, one after another."""
    paces = [(run.left, _expected_pace(run, runs)) for run in own if run.left]
    if any(pace is None for _, pace in paces):
        return "?"
    return duration(sum(left * pace for left, pace in paces if pace is not None)) if paces else ""


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
