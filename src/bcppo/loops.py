"""How runs in lock-step gather experience and learn from it: a rollout at a time, or after every step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bcppo.algorithms.batch import stack_rollouts
from bcppo.errors import Diverged
from bcppo.nets import LOG_STD_BOUNDS
from bcppo.policy import HeadPolicy, NumpyPolicy, Sampler, UniformPolicy
from bcppo.replay import ReplayFile
from bcppo.rollout import Rollout, join

if TYPE_CHECKING:
    from bcppo.run import Run


Waiting = Generator[Sequence[Any], None, "Advance"]
"""Hands over the collectors whose answers it waits for, as often as it does; goes on when all are there."""


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
        self, runs: Sequence[Run], learner: Any, policy: Callable[[int], NumpyPolicy], device: torch.device
    ) -> None:
        self._runs, self._learner, self._policy, self._device = runs, learner, policy, device

    def advance(self) -> Waiting:
        config: Any = self._runs[0].config
        before = perf_counter()
        for index, run in enumerate(self._runs):
            for collector in run.collectors:
                collector.start(self._policy(index), config.rollout // config.num_envs)
        yield [collector for run in self._runs for collector in run.collectors]
        rollouts = [[_finish(collector, index) for collector in run.collectors] for index, run in enumerate(self._runs)]
        collected = perf_counter()
        batch = stack_rollouts(rollouts, *self._runs[0].bounds, self._device)
        metrics = {name: values.double().cpu().numpy() for name, values in self._learner.update(batch).items()}
        return Advance(rollouts, metrics, True, {"collect": collected - before, "update": perf_counter() - collected})

    def notes(self, index: int) -> dict[str, str]:
        """What a run's checkpoint says beside the learner's state."""
        return {}

    def restore(self, index: int, notes: dict[str, str]) -> None:
        """Back to where a checkpoint was written."""

    def finish(self, index: int) -> None:
        """A run is done: nothing will be resumed."""


def _finish(collector: Any, run: int) -> Rollout:
    try:
        return collector.finish()
    except Diverged as error:
        error.run = run
        raise


class OffPolicyLoop:
    """Step, store, update, for a window of steps; the window is what is recorded and checkpointed."""

    def __init__(
        self, runs: Sequence[Run], learner: Any, policy: Callable[[int], NumpyPolicy], device: torch.device
    ) -> None:
        self._runs, self._learner, self._policy, self._device = runs, learner, policy, device
        self._bounds = np.array(LOG_STD_BOUNDS, np.float32)
        low, high = (bound.astype(np.float32) for bound in runs[0].bounds)
        self._centre, self._half = (high + low) / 2, (high - low) / 2
        self._uniform = UniformPolicy(low, high)
        observation, action = runs[0].widths
        self._files = [ReplayFile(run.folder / "replay.bin", 2 * observation + action + 3) for run in runs]

    def advance(self) -> Waiting:
        config: Any = self._runs[0].config
        begun = self._runs[0].step
        taken: list[list[Rollout]] = [[] for _ in self._runs]
        collecting = updating = 0.0
        for step in range(begun, min(begun + config.window, config.steps)):
            before = perf_counter()
            collectors = [run.collectors[0] for run in self._runs]
            for collector, policy in zip(collectors, self._policies(step)):
                collector.start(policy, 1)
            yield collectors
            for index, collector in enumerate(collectors):
                taken[index].append(_finish(collector, index).kept())
            self._store([own[-1] for own in taken])
            collected = perf_counter()
            if step >= config.random_steps:
                self._learner.update()
            collecting += collected - before
            updating += perf_counter() - collected
        learned = step >= config.random_steps
        metrics = {name: values.double().cpu().numpy() for name, values in self._learner.metrics().items()}
        rollouts = [[join(own)] for own in taken]
        metrics["mean_cost"] = np.array([rollout.cost.mean() for (rollout,) in rollouts])
        return Advance(rollouts, metrics, learned, {"collect": collecting, "update": updating})

    def _policies(self, step: int) -> Sequence[Sampler]:
        """Each run's next action comes from these."""
        if step < self._runs[0].config.random_steps:  # type: ignore[attr-defined]
            return [self._uniform] * len(self._runs)
        if self._device.type == "cpu":
            return [self._policy(index) for index in range(len(self._runs))]
        # Weights stay on the device: the policies are asked there, all at once.
        heads = self._learner.heads(np.stack([run.collectors[0].observation for run in self._runs]))
        return [HeadPolicy(row, self._bounds, self._uniform.low, self._uniform.high) for row in heads]

    def _store(self, steps: Sequence[Rollout]) -> None:
        rows = np.stack([self._transition(step) for step in steps])
        self._learner.store(rows)
        for file, row in zip(self._files, rows):
            file.add(row)

    def _transition(self, step: Rollout) -> np.ndarray:
        """[width] float32; the action as the learner has it, in [−1, 1]. A time limit is no termination."""
        action = (step.action[0] - self._centre) / self._half
        outcome = (step.reward[0], step.cost[0], step.terminated[0])
        return np.concatenate([step.observation[0], action, step.next_observation[0], outcome], dtype=np.float32)

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
