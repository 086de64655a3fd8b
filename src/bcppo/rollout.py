"""Collecting experience, without torch.

A collector steps one environment with a NumPy copy of the policy. Episodes run on across rollouts. Each episode is
begun with a seed of its own, so an unfinished one can be rebuilt exactly in another process from its seed and its
actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from bcppo.episodes import evaluate_policy
from bcppo.errors import ConfigError, Diverged
from bcppo.policy import HeadPolicy, NumpyPolicy, Sampler, UniformPolicy

MakeEnv = Callable[[], gymnasium.Env]

EPISODE_FIELDS = ("episode_return", "cost_rate", "native_cost", "boundary_hits", "length")
"""Of a finished episode: undiscounted return; mean cost per step; the simulator's own cost, summed; steps taken beyond
the boundary; steps."""


Taken = tuple[np.ndarray, Any, Any, Any, Any]
"""A step as the environment answered it: action, reward, cost, the simulator's own cost, beyond the boundary or not."""


class Step(NamedTuple):
    """One step of one environment."""

    action: np.ndarray  # [act], as sampled: not clipped
    following: np.ndarray  # [obs]; the true final one where an episode is cut
    reward: float
    cost: float
    native_cost: float
    """The simulator's own."""
    terminated: bool
    truncated: bool
    """False where the episode terminated: an episode ends once."""
    summary: dict[str, float] | None
    """Of the episode, where this step ended it; see EPISODE_FIELDS."""
    acting: float
    simulating: float
    """Seconds: never part of a result."""


@dataclass
class Rollout:
    """T steps of one environment."""

    observation: np.ndarray  # [T, obs] float32
    next_observation: np.ndarray  # [T, obs]; the true final one where an episode is cut
    action: np.ndarray  # [T, act], as sampled: not clipped
    reward: np.ndarray  # [T] float64
    cost: np.ndarray  # [T] float64, per step
    terminated: np.ndarray  # [T] bool
    truncated: np.ndarray  # [T] bool
    episodes: list[dict[str, float]]
    """The episodes that ended in this rollout, in order; see EPISODE_FIELDS, and `end` (the row of the last step)."""
    native_cost: float
    """The simulator's own cost, summed over the rollout."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent acting and simulating: never part of a result."""

    def put(self, row: int, seen: np.ndarray, step: Step) -> None:
        """A step's row of a rollout that is filled row by row, from flags of False and sums of 0."""
        self.observation[row], self.next_observation[row], self.action[row] = seen, step.following, step.action
        self.reward[row], self.cost[row] = step.reward, step.cost
        self.native_cost += step.native_cost
        self.seconds["act"] += step.acting
        self.seconds["simulate"] += step.simulating
        if step.summary is not None:
            (self.terminated if step.terminated else self.truncated)[row] = True
            self.episodes.append(step.summary | {"end": row})


class Collector:
    """One environment, between its reset and the next."""

    def __init__(self, make_env: MakeEnv, seeds: np.random.Generator, noise: np.random.Generator) -> None:
        self._make_env, self.env = make_env, make_env()
        self._evaluation_env: gymnasium.Env | None = None
        self._seeds, self._noise = seeds, noise
        # A fresh environment may differ from a used one (the navigation tasks solve their first world once less); since
        # a resumed run has a fresh one, every run begins with a used one.
        self.env.reset(seed=0)
        self._taken: list[Taken] = []
        self._begin(int(self._seeds.integers(2**31)))

    def _begin(self, seed: int) -> None:
        self.episode_seed = seed
        self._taken.clear()
        observation, _ = self.env.reset(seed=seed)
        self.observation = np.array(observation, dtype=np.float32)

    def state(self) -> tuple[int, np.ndarray]:
        """The unfinished episode: its seed and the actions taken so far [n, act]."""
        shape = (len(self._taken), *self.env.action_space.shape)  # type: ignore[misc]
        return self.episode_seed, np.array([taken[0] for taken in self._taken], dtype=np.float32).reshape(shape)

    def restore(self, seed: int, actions: np.ndarray) -> None:
        """Rebuild an unfinished episode by taking its actions again."""
        self._begin(seed)
        for action in actions.astype(np.float32):
            self._step(action)

    def _step(self, action: np.ndarray) -> tuple[Taken, bool, bool]:
        """(the step, whether the episode terminated, whether it was truncated)"""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except ConfigError:
            if np.isfinite(action).all():
                raise
            if np.isfinite(self.observation).all():
                raise Diverged("Training diverged: the policy's action is not finite.") from None
            raise Diverged("Training diverged: the environment's observation is not finite.") from None
        taken = action, reward, info["cost"], info["native_cost"], info["boundary_hit"]
        self._taken.append(taken)  # summed when the episode ends: here, after the physics, nothing is in the cache
        self.observation = np.array(observation, dtype=np.float32)  # a copy: some environments write into one array
        return taken, terminated, truncated

    def start(self, policy: Sampler, steps: int) -> None:
        """Ask for the next steps; `finish` hands them over. (In another process, they are collected meanwhile.)"""
        self._asked = policy, steps

    def finish(self) -> Rollout:
        return self.collect(*self._asked)

    def ready(self) -> bool:
        """Whether `finish` hands over at once; a collector in another process may still be at work."""
        return True

    def start_evaluation(self, policy: NumpyPolicy, seeds: Iterable[int]) -> None:
        """Ask for evaluation episodes; `finish_evaluation` hands them over."""
        self._asked_evaluation = policy, seeds

    def finish_evaluation(self) -> list[dict[str, float]]:
        return self.evaluate(*self._asked_evaluation)

    def evaluate(self, policy: NumpyPolicy, seeds: Iterable[int]) -> list[dict[str, float]]:
        """Evaluation episodes in an environment of their own: the one that collects is in the middle of something."""
        if self._evaluation_env is None:
            self._evaluation_env = self._make_env()
        return evaluate_policy(policy, self._evaluation_env, seeds)

    @property
    def spaces(self) -> tuple[int, np.ndarray, np.ndarray]:
        """(observation width, lowest action, highest action)"""
        action: Any = self.env.action_space
        return self.env.observation_space.shape[0], action.low, action.high  # type: ignore[index]

    def close(self) -> None:
        self.env.close()
        if self._evaluation_env is not None:
            self._evaluation_env.close()

    def collect(self, policy: Sampler, steps: int) -> Rollout:
        """The next `steps` steps under a policy."""
        noise = self._noise.standard_normal((steps, policy.low.shape[0]), dtype=np.float32)
        # Rows are gathered in lists and turned into arrays at once: writing them one by one costs more than a lidar.
        seen: list[np.ndarray] = []
        rows: list[Taken] = []
        ends: list[tuple[int, bool, np.ndarray]] = []  # row, whether it terminated, the final observation
        episodes, acting, start = [], 0.0, perf_counter()
        for row, drawn in enumerate(noise):
            seen.append(self.observation)
            before = perf_counter()
            action = policy.sample(self.observation, drawn)
            acting += perf_counter() - before
            taken, terminated, truncated = self._step(action)
            rows.append(taken)
            if terminated or truncated:
                ends.append((row, terminated, self.observation))
                episodes.append(self._summary() | {"end": row})
                self._begin(int(self._seeds.integers(2**31)))
        actions, rewards, costs, natives, _ = zip(*rows)
        following = [*seen[1:], self.observation]
        out = Rollout(
            observation=np.array(seen, dtype=np.float32),
            next_observation=np.array(following, dtype=np.float32),
            action=np.array(actions, dtype=np.float32),
            reward=np.array(rewards, dtype=np.float64),
            cost=np.array(costs, dtype=np.float64),
            terminated=np.zeros(steps, bool),
            truncated=np.zeros(steps, bool),
            episodes=episodes,
            native_cost=_sum(natives),
        )
        for row, terminated, final in ends:
            out.next_observation[row] = final
            (out.terminated if terminated else out.truncated)[row] = True
        out.seconds = {"act": acting, "simulate": perf_counter() - start - acting}
        return out

    def _summary(self) -> dict[str, float]:
        _, rewards, costs, natives, hits = zip(*self._taken)
        length = float(len(rewards))
        sums = _sum(rewards), _sum(costs) / length, _sum(natives), _sum(hits), length
        return dict(zip(EPISODE_FIELDS, sums))

    # --- one step at a time ---

    def step(self, policy: Sampler, noise: np.ndarray, next_seed: Callable[[], int]) -> Step:
        """The next step under a policy; `next_seed` is asked for the next episode's where this one ends."""
        before = perf_counter()
        action = policy.sample(self.observation, noise)
        acted = perf_counter()
        (_, reward, cost, native, _), terminated, truncated = self._step(action)
        following, summary = self.observation, None
        if terminated or truncated:
            summary = self._summary()
            self._begin(next_seed())
        return Step(
            action, following, reward, cost, float(native), bool(terminated),
            bool(truncated and not terminated), summary, acted - before, perf_counter() - acted,
        )  # fmt: skip

    def start_lockstep(self, log_std_bounds: np.ndarray) -> None:
        """From now on one step at a time, by `start_step` and `finish_step`, until `end_lockstep`."""
        _, low, high = self.spaces
        self._uniform, self._log_std_bounds = UniformPolicy(low, high), log_std_bounds

    def await_lockstep(self) -> None:
        """Until what `start_lockstep` or `end_lockstep` asked for is so: at once."""

    def end_lockstep(self) -> None:
        """Whole rollouts again."""

    def abandon_lockstep(self) -> None:
        """This collector will not be asked again."""

    def start_step(self, heads: np.ndarray | None) -> None:
        """Ask for a step with the policy's last layer for the current observation; without one, a uniform action."""
        low, high = self._uniform.low, self._uniform.high
        self._asked_step = self._uniform if heads is None else HeadPolicy(heads, self._log_std_bounds, low, high)

    def finish_step(self, rollout: Rollout, row: int) -> None:
        """Put the step that was asked for into a row of a rollout."""
        noise = self._noise.standard_normal((1, self._uniform.low.shape[0]), dtype=np.float32)[0]
        seen = self.observation
        rollout.put(row, seen, self.step(self._asked_step, noise, lambda: int(self._seeds.integers(2**31))))


def _sum(values: Iterable[Any]) -> float:
    """One after another in float64: environments may return float32, and Python's own `sum` differs by release."""
    total = 0.0
    for value in values:
        total += float(value)
    return total
