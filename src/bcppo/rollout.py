"""Collecting experience, without torch.

A collector steps one environment with a NumPy copy of the policy. Episodes run on across rollouts. Each episode is
begun with a seed of its own, so an unfinished one can be rebuilt exactly in another process from its seed and its
actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from bcppo.episodes import evaluate_policy
from bcppo.errors import ConfigError, Diverged
from bcppo.policy import NumpyPolicy, Sampler

MakeEnv = Callable[[], gymnasium.Env]

EPISODE_FIELDS = ("episode_return", "cost_rate", "native_cost", "boundary_hits", "length")
"""Of a finished episode: undiscounted return; mean cost per step; the simulator's own cost, summed; steps taken beyond
the boundary; steps."""


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

    def kept(self) -> Rollout:
        """A copy that outlasts the next rollout, which may be written over this one in shared memory."""
        return replace(self, **{name: getattr(self, name).copy() for name in ARRAYS})


ARRAYS = ("observation", "next_observation", "action", "reward", "cost", "terminated", "truncated")
"""Fields of a rollout with a row a step."""


def join(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts of one environment that follow one another, as one."""
    episodes, row = [], 0
    for rollout in rollouts:
        episodes += [episode | {"end": row + episode["end"]} for episode in rollout.episodes]
        row += len(rollout.reward)
    return Rollout(
        **{name: np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in ARRAYS},
        episodes=episodes,
        native_cost=sum(rollout.native_cost for rollout in rollouts),
        seconds={name: sum(rollout.seconds[name] for rollout in rollouts) for name in ("act", "simulate")},
    )


class Collector:
    """One environment, between its reset and the next."""

    def __init__(self, make_env: MakeEnv, seeds: np.random.Generator, noise: np.random.Generator) -> None:
        self._make_env, self.env = make_env, make_env()
        self._evaluation_env: gymnasium.Env | None = None
        self._seeds, self._noise = seeds, noise
        # A fresh environment may differ from a used one (the navigation tasks solve their first world once less); since
        # a resumed run has a fresh one, every run begins with a used one.
        self.env.reset(seed=0)
        self._actions: list[np.ndarray] = []
        self._begin(int(self._seeds.integers(2**31)))

    def _begin(self, seed: int) -> None:
        self.episode_seed = seed
        self._actions.clear()
        self._sums = dict.fromkeys(EPISODE_FIELDS, 0.0)
        observation, _ = self.env.reset(seed=seed)
        self.observation = np.array(observation, dtype=np.float32)

    def state(self) -> tuple[int, np.ndarray]:
        """The unfinished episode: its seed and the actions taken so far [n, act]."""
        shape = (len(self._actions), *self.env.action_space.shape)  # type: ignore[misc]
        return self.episode_seed, np.array(self._actions, dtype=np.float32).reshape(shape)

    def restore(self, seed: int, actions: np.ndarray) -> None:
        """Rebuild an unfinished episode by taking its actions again."""
        self._begin(seed)
        for action in actions.astype(np.float32):
            self._step(action)

    def _step(self, action: np.ndarray):
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except ConfigError:
            if np.isfinite(action).all():
                raise
            if np.isfinite(self.observation).all():
                raise Diverged("Training diverged: the policy's action is not finite.") from None
            raise Diverged("Training diverged: the environment's observation is not finite.") from None
        self._actions.append(action)
        self.observation = np.array(observation, dtype=np.float32)  # a copy: some environments write into one array
        sums = self._sums
        # Environments may return float32 numbers, in which a sum over an episode loses digits.
        sums["episode_return"] += float(reward)
        sums["cost_rate"] += float(info["cost"])
        sums["native_cost"] += float(info["native_cost"])
        sums["boundary_hits"] += float(info["boundary_hit"])
        sums["length"] += 1
        return reward, terminated, truncated, info

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
        seen, following, actions, rewards, costs = [], [], [], [], []
        ends: list[tuple[int, bool]] = []
        episodes, native, acting, start = [], 0.0, 0.0, perf_counter()
        for row in range(steps):
            seen.append(self.observation)
            before = perf_counter()
            action = policy.sample(self.observation, noise[row])
            acting += perf_counter() - before
            reward, terminated, truncated, info = self._step(action)
            following.append(self.observation)
            actions.append(action)
            rewards.append(reward)
            costs.append(info["cost"])
            native += float(info["native_cost"])
            if terminated or truncated:
                ends.append((row, terminated))
                episodes.append(self._summary(row))
                self._begin(int(self._seeds.integers(2**31)))
        out = Rollout(
            observation=np.array(seen, dtype=np.float32),
            next_observation=np.array(following, dtype=np.float32),
            action=np.array(actions, dtype=np.float32),
            reward=np.array(rewards, dtype=np.float64),
            cost=np.array(costs, dtype=np.float64),
            terminated=np.zeros(steps, bool),
            truncated=np.zeros(steps, bool),
            episodes=episodes,
            native_cost=native,
        )
        for row, terminated in ends:
            (out.terminated if terminated else out.truncated)[row] = True
        out.seconds = {"act": acting, "simulate": perf_counter() - start - acting}
        return out

    def _summary(self, row: int) -> dict[str, float]:
        summary = dict(self._sums)
        summary["cost_rate"] /= summary["length"]
        summary["end"] = row
        return summary
