"""How runs in lock-step gather experience and learn from it: a rollout at a time, or after every step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bcppo.algorithms.batch import stack_rollouts
from bcppo.errors import BcppoError, RunError, of_run
from bcppo.nets import LOG_STD_BOUNDS
from bcppo.policy import NumpyPolicy
from bcppo.queued import Arriving, Awaited, Queue
from bcppo.records import REPLAY
from bcppo.replay import ReplayFile
from bcppo.rollout import Rollout

if TYPE_CHECKING:
    from bcppo.run import Run


Waiting = Generator[Sequence[Any], None, "Advance"]
"""Hands over what it waits for, as often as it does: collectors' answers, an update; goes on when all is there."""


class Advance(NamedTuple):
    """What came of some steps of every run."""

    rollouts: list[list[Rollout]]
    """Of each run, of each of its environments."""
    metrics: dict[str, np.ndarray]
    """Name → [R]"""
    learned: bool
    """Whether there was an update: without one, metrics of updates are NaN."""
    seconds: dict[str, float]


class OnPolicyLoop:
    """Collect a rollout, update, forget it."""

    def __init__(
        self, runs: Sequence[Run], learner: Any, policies: Callable[..., list[NumpyPolicy]], device: torch.device
    ) -> None:
        self._runs, self._learner, self._policies, self._device = runs, learner, policies, device
        self._queue = Queue(device)
        self._weights: torch.Tensor | None = None  # of the policies, as the last update left them

    def advance(self) -> Waiting:
        config: Any = self._runs[0].config
        before = perf_counter()
        for run, policy in zip(self._runs, self._policies(self._weights)):
            for collector in run.collectors:
                collector.start(policy, config.rollout // config.num_envs)
        yield [collector for run in self._runs for collector in run.collectors]
        rollouts = [[_finish(collector, index) for collector in run.collectors] for index, run in enumerate(self._runs)]
        collected = perf_counter()
        with self._queue.entered():
            batch = stack_rollouts(rollouts, *self._runs[0].bounds, self._device)
        updated = yield from self._queued(self._learner.updating(batch))
        with self._queue.entered():
            arriving = Arriving(updated, self._learner.policy.flat)
        yield [arriving]
        metrics, (self._weights,) = arriving.get()
        return Advance(rollouts, metrics, True, {"collect": collected - before, "update": perf_counter() - collected})

    def _queued(self, work: Generator[Awaited, None, Any]) -> Generator[Sequence[Any], None, Any]:
        """Work of the learner's in its queue; others' may go on while it waits."""
        while True:
            with self._queue.entered():
                try:
                    awaited = next(work)
                except StopIteration as end:
                    return end.value
            yield [awaited]

    def notes(self, index: int) -> dict[str, str]:
        """What a run's checkpoint says beside the learner's state."""
        return {}

    def restore(self, index: int, notes: dict[str, str]) -> None:
        """Back to where a checkpoint was written."""

    def finish(self, index: int) -> None:
        """A run is done: nothing will be resumed."""


def _finish(collector: Any, run: int) -> Rollout:
    with of_run(run):
        return collector.finish()


class OffPolicyLoop:
    """Step, store, update, for a window of steps; the window is what is recorded and checkpointed."""

    def __init__(
        self, runs: Sequence[Run], learner: Any, policies: Callable[..., list[NumpyPolicy]], device: torch.device
    ) -> None:
        self._runs, self._learner, self._policies = runs, learner, policies
        # Elsewhere than on the CPU, weights stay on the device and the policies are asked there, all at once.
        self.overlap: Any = None if device.type == "cpu" else learner.overlapped()
        self._log_std_bounds = np.array(LOG_STD_BOUNDS, np.float32)
        low, high = (bound.astype(np.float32) for bound in runs[0].bounds)
        self._centre, self._half = (high + low) / 2, (high - low) / 2
        observation, action = runs[0].widths
        self._files = [ReplayFile(run.folder / REPLAY, 2 * observation + action + 3) for run in runs]

    def advance(self) -> Waiting:
        collectors = [run.collectors[0] for run in self._runs]
        try:
            for collector in collectors:
                collector.start_lockstep(self._log_std_bounds)
            yield from _settled(collectors)
            advance = yield from self._window(collectors)
            for collector in collectors:
                collector.end_lockstep()
            yield from _settled(collectors)
        except BcppoError:
            for collector in collectors:
                collector.abandon_lockstep()
            raise
        return advance

    def _window(self, collectors: Sequence[Any]) -> Waiting:
        config: Any = self._runs[0].config
        begun = self._runs[0].step
        window = _Window(min(config.window, config.steps - begun), len(collectors), self._runs[0].widths)
        collecting = updating = 0.0
        for row in range(window.steps):
            before = perf_counter()
            learns = begun + row >= config.random_steps
            for collector, heads in zip(collectors, self._heads(collectors, learns)):
                collector.start_step(heads)
            if learns and self.overlap is not None:
                self.overlap.prepare()
            yield collectors[:1]  # the others' answers come about when the first one does
            for index, (collector, rollout) in enumerate(zip(collectors, window.rollouts)):
                _finish_step(collector, rollout, row, index)
            transitions = window.complete(row, self._centre, self._half)
            collected = perf_counter()
            self._learn(transitions, collectors, learns)
            if learns and self.overlap is not None and row + 1 < window.steps:
                self.overlap.prepare()  # while the device is at the policy
            collecting += collected - before
            updating += perf_counter() - collected
        for index, file in enumerate(self._files):
            for transition in window.transitions[:, index]:
                file.add(transition)
        metrics, _ = Arriving(self._learner.metrics()).get()
        metrics["mean_cost"] = np.array([rollout.cost.mean() for rollout in window.rollouts])
        rollouts = [[rollout] for rollout in window.rollouts]
        return Advance(rollouts, metrics, learns, {"collect": collecting, "update": updating})

    def _heads(self, collectors: Sequence[Any], learns: bool) -> Sequence[np.ndarray | None]:
        """Of each run, the policy's last layer for its current observation; None for a uniform action."""
        if not learns:
            return [None] * len(collectors)
        if self.overlap is None:
            return [one.last_layer(collector.observation) for one, collector in zip(self._policies(), collectors)]
        if self.overlap.launched:
            return self.overlap.heads()
        return self._learner.heads(np.stack([collector.observation for collector in collectors]))

    def _learn(self, transitions: np.ndarray, collectors: Sequence[Any], learns: bool) -> None:
        """Store the runs' transitions [R, width] and, unless actions are still uniform, update."""
        if learns and self.overlap is not None:
            self.overlap.launch(transitions, [collector.observation for collector in collectors])
            return
        self._learner.store(transitions)
        if learns:
            self._learner.update()

    def notes(self, index: int) -> dict[str, str]:
        return {"replay": self._files[index].flush()}

    def restore(self, index: int, notes: dict[str, str]) -> None:
        run = self._runs[index]
        self._learner.stored = run.step
        if not run.finished:
            load = self._learner.load_transitions
            self._files[index].restore(notes["replay"], lambda first, rows: load(index, first, rows))

    def finish(self, index: int) -> None:
        self._files[index].remove()


class _Window:
    """Steps of every run, in arrays that are filled row by row."""

    def __init__(self, steps: int, runs: int, widths: tuple[int, int]) -> None:
        observation, action = widths
        self.steps, self._action = steps, slice(observation, observation + action)
        self.transitions = np.zeros((steps, runs, 2 * observation + action + 3), np.float32)
        self._actions = np.zeros((runs, steps, action), np.float32)
        self._reward, self._cost = (np.zeros((runs, steps)) for _ in range(2))
        self._terminated, truncated = (np.zeros((runs, steps), bool) for _ in range(2))
        self.rollouts = [
            Rollout(
                observation=self.transitions[:, run, :observation],
                next_observation=self.transitions[:, run, observation + action : -3],
                action=self._actions[run],
                reward=self._reward[run],
                cost=self._cost[run],
                terminated=self._terminated[run],
                truncated=truncated[run],
                episodes=[],
                native_cost=0.0,
                seconds={"act": 0.0, "simulate": 0.0},
            )
            for run in range(runs)
        ]

    def complete(self, row: int, centre: np.ndarray, half: np.ndarray) -> np.ndarray:
        """[R, width] float32; the action as the learner has it, in [−1, 1]. A time limit is no termination."""
        transitions = self.transitions[row]
        transitions[:, self._action] = (self._actions[:, row] - centre) / half
        for column, outcome in ((-3, self._reward), (-2, self._cost), (-1, self._terminated)):
            transitions[:, column] = outcome[:, row]
        return transitions


def _settled(collectors: Sequence[Any]) -> Generator[Sequence[Any], None, None]:
    """Until all are in lock-step, or all out of it."""
    yield collectors
    for index, collector in enumerate(collectors):
        with of_run(index):
            collector.await_lockstep()


def _finish_step(collector: Any, rollout: Rollout, row: int, run: int) -> None:
    try:
        collector.finish_step(rollout, row)
    except RunError as error:
        error.run = run
        raise
