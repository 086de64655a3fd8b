"""Watching runs: a live progress bar, TensorBoard curves, warnings. Nothing here changes a result."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bcppo.run import Run

_CURVES = (
    "episode_return", "episode_cost_rate", "mean_cost", "cost_cvar95", "multiplier", "sigma_c", "mu_c", "penalty", "kl",
    "clip_fraction", "loss_policy", "loss_value_reward", "loss_value_cost", "loss_critics", "native_cost_rate",
    "cumulative_cost", "multiplier_positive_share", "pid_error", "integral", "log_std",
)  # fmt: skip
_LINES = 20
"""Lines printed over a run where there is no terminal to draw a bar on."""


_AROUND = 6
"""Lines of a fleet's table that are not runs: its title, its head with two rules, its last rule, the cursor's."""

_RUNNING, _WAITING, _DONE = "running", "waiting", "done"


class Watch:
    """What is shown of a run while it trains."""

    def __init__(self, *, bar: bool = True, curves: bool = True) -> None:
        self._bar, self._curves = bar, curves
        self._progress: Any = None
        self._tasks: dict[int, Any] = {}
        self._writers: dict[int, _Curves] = {}
        self._logged: dict[int, int] = {}
        self._printed: dict[int, int] = {}
        self._start = (0.0, 0)

    @contextmanager
    def watching(self, runs: Sequence[Run]) -> Iterator[None]:
        self._start = (perf_counter(), runs[0].step)
        for run in runs:
            self._open_curves(run)
            self._printed[id(run)] = run.step
        if not (self._bar and sys.stderr.isatty()):
            try:
                yield
            finally:
                self._close()
            return
        with _progress_bar() as self._progress:
            for run in runs:
                self._tasks[id(run)] = self._progress.add_task(
                    f"{run.method} {run.config.task} seed {run.config.seed}",
                    total=run.config.steps, completed=run.step, facts="", rate="",
                )  # fmt: skip
            try:
                yield
            finally:
                self._close()

    def update(self, run: Run) -> None:
        """Called after every update of a run."""
        row = {name: values[-1] for name, values in run.rows["progress"].items()}
        if id(run) in self._writers and run.step - self._logged[id(run)] >= run.config.log_every:
            self._logged[id(run)] = run.step
            with self._whole_disk(run):
                self._writers[id(run)].add(run.step, {name: row[name] for name in _CURVES if name in row})
        if not self._bar:
            return
        if self._progress is not None:
            self._progress.update(
                self._tasks[id(run)], completed=run.step, facts=_facts(row, run), rate=f"{self._rate(run):,.0f} steps/s"
            )
        elif run.finished or run.step - self._printed[id(run)] >= run.config.steps / _LINES:
            self._printed[id(run)] = run.step
            left = (run.config.steps - run.step) / max(self._rate(run), 1e-9)
            print(
                f"{run.step:>9,} steps  {_facts(row, run)}  {self._rate(run):,.0f} steps/s  {_duration(left)} left",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def warn(self, sentence: str) -> None:
        print(f"warning: {sentence}", file=sys.stderr, flush=True)

    def _rate(self, run: Run) -> float:
        began, step = self._start
        return (run.step - step) / max(perf_counter() - began, 1e-9)

    def _open_curves(self, run: Run) -> None:
        self._logged[id(run)] = run.step
        if not (self._curves and run.config.tensorboard):
            return
        try:
            with self._whole_disk(run):
                self._writers[id(run)] = _Curves(run.folder / "tensorboard", run.step)
        except ModuleNotFoundError as error:
            self._curves = False
            package = (error.name or "").partition(".")[0]
            self.warn(f"No curves for TensorBoard are written: the package '{package}' is not installed.")

    @contextmanager
    def _whole_disk(self, run: Run) -> Iterator[None]:
        """Curves that cannot be written are no reason to stop a run: they end, with a warning."""
        try:
            yield
        except OSError as error:
            self._writers.pop(id(run), None)
            self.warn(f"The TensorBoard curves of {run.folder.path} end here: {error.strerror or error}.")

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class _Curves:
    """A TensorBoard event file, written in this thread: torch's writer fails in another one, with a traceback."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time():.6f}.{node()}.{os.getpid()}").open("ab")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        # What an earlier life of the run wrote beyond the checkpoint it goes on from is taken back.
        self._write(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=x) for name, x in values.items() if math.isfinite(x)]
        self._write(Event(step=step, summary=Summary(value=points)))

    def _write(self, event: Any) -> None:
        event.wall_time = time()
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


def facts(run: Run) -> dict[str, float]:
    """What a table of runs shows of one."""
    row = {name: values[-1] for name, values in run.rows["progress"].items()}
    shown = {name: row.get(name, math.nan) for name in ("episode_return", "mean_cost", "cost_cvar95", "multiplier")}
    return {"step": run.step, **shown}


class FleetWatch(Watch):
    """What is shown of a fleet while it trains: one live table, or a line now and then where there is no terminal."""

    def __init__(self, *, bar: bool = True, curves: bool = True, every: float = 10.0) -> None:
        super().__init__(bar=False, curves=curves)
        self._shown, self._every = bar, every
        self._facts: dict[str, dict[str, float]] = {}
        self._configs: dict[str, Any] = {}
        self._over: dict[str, str] = {}
        self._live: Any = None
        self._spoke = self._began = perf_counter()
        self._first: dict[str, float] = {}

    @contextmanager
    def fleet(self, members: Sequence[tuple[str, Any]]) -> Iterator[None]:
        self._configs = dict(members)
        self._began = self._spoke = perf_counter()
        if not (self._shown and sys.stderr.isatty()):
            yield
            self._close()
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        table = lambda: self._table(console.size.height - _AROUND)  # noqa: E731
        with Live(console=console, get_renderable=table, refresh_per_second=2) as self._live:
            yield
        self._close()

    def update(self, run: Run) -> None:
        if id(run) not in self._logged:  # curves are opened as runs come
            self._open_curves(run)
        super().update(run)
        self.hear(run.folder.path.name, facts(run))

    def hear(self, name: str, news: dict[str, Any]) -> None:
        """News of a run, from here or from another process."""
        if "warning" in news:
            self.warn(f"{name}: {news['warning']}")
            return
        self._first.setdefault(name, news["step"])
        self._facts[name] = news
        if self._shown and self._live is None and perf_counter() - self._spoke >= self._every:
            self._spoke = perf_counter()
            print(self._summary(), file=sys.stderr, flush=True)

    def over(self, name: str, state: str) -> None:
        """A run that goes no further, though it is not finished."""
        self._over[name] = state

    def _state(self, name: str) -> str:
        if name in self._over:
            return self._over[name]
        if name not in self._facts:
            return _WAITING
        return _DONE if self._facts[name]["step"] >= self._configs[name].steps else _RUNNING

    def _summary(self) -> str:
        states = Counter(map(self._state, self._configs))
        ahead = sum(
            config.steps - self._facts.get(name, {}).get("step", 0)
            for name, config in self._configs.items()
            if name not in self._over
        )
        steps = sum(news["step"] for news in self._facts.values())
        rate = (steps - sum(self._first.values())) / max(perf_counter() - self._began, 1e-9)
        left = _duration(ahead / rate) if rate > 0 else "?"
        lost = "".join(f", {states[state]} {state}" for state in dict.fromkeys(self._over.values()))
        runs = f"{states[_DONE]} of {len(self._configs)} runs done{lost}"
        return f"{runs}, {steps:,} steps, {rate:,.0f} steps/s, {left} left"

    def _table(self, room: int) -> Any:
        """As many runs as there is room for: what went wrong first, then those at work; the rest are counted."""
        from rich.table import Table

        table = Table(title=self._summary(), title_justify="left")
        for title in ("run", "steps", "return", "cost / limit", "CVaR", "λ", "state"):
            table.add_column(title, justify="left" if title in ("run", "state") else "right")
        names = list(self._configs)
        if len(names) > room:
            urgent = (_RUNNING, _WAITING, _DONE)  # a state that is none of these comes before them
            names.sort(key=lambda name: urgent.index(self._state(name)) if self._state(name) in urgent else -1)
        shown = names if len(names) <= room else names[: max(room - 1, 1)]
        for name in shown:
            table.add_row(name, *self._cells(name), self._state(name))
        if left := Counter(map(self._state, names[len(shown) :])):
            table.add_row("… and " + ", ".join(f"{count} {state}" for state, count in left.items()))
        return table

    def _cells(self, name: str) -> list[str]:
        news = self._facts.get(name)
        if news is None:
            return [""] * 5
        return [
            f"{news['step']:,}", f"{news['episode_return']:.2f}",
            f"{news['mean_cost']:.3f} / {self._configs[name].limit_rate:g}", f"{news['cost_cvar95']:.3f}",
            f"{news['multiplier']:.3f}",
        ]  # fmt: skip


def silent() -> Watch:
    """Curves in the folder, nothing on the screen."""
    return Watch(bar=False)


def _facts(row: dict[str, float], run: Run) -> str:
    disagreement = f"  σ {row['sigma_c']:.3g}" if "sigma_c" in row else ""  # of methods with several critics
    return (
        f"return {row['episode_return']:8.2f}  cost {row['mean_cost']:.3f}/{run.config.limit_rate:g}  "
        f"CVaR {row['cost_cvar95']:.3f}  λ {row['multiplier']:.3f}{disagreement}"
    )


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(max(0, int(seconds)), 60)  # the last rollout may go beyond the steps asked for
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _progress_bar():
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn(),
        TextColumn("{task.fields[facts]}"), TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
        console=Console(stderr=True), refresh_per_second=4,
    )  # fmt: skip
