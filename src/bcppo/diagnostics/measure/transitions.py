"""The transitions of a policy's evaluation episodes, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import gymnasium
import numpy as np

from bcppo.config import EVAL_FIRST_SEED
from bcppo.policy import NumpyPolicy

EPISODES = 20
"""The paper's protocol: reset seeds 10000 … 10019."""
PERTURBATION = 0.25
"""Std of a perturbed action's noise, in ranges of the action."""


@dataclass(frozen=True)
class Transitions:
    """Steps of whole episodes, one after the other."""

    observation: np.ndarray  # [T, obs] float32
    next_observation: np.ndarray  # [T, obs] float32
    action: np.ndarray  # [T, act] float32, as executed
    cost: np.ndarray  # [T] float64, per step
    boundary_hit: np.ndarray  # [T] bool
    terminated: np.ndarray  # [T] bool
    episode: np.ndarray  # [T] int, 0, 1, …

    def __len__(self) -> int:
        return len(self.cost)

    def cost_to_go(self, discount: float) -> np.ndarray:
        """Σ_{j ≥ t} γ^{j−t} c_j to the episode's end, [T] float64, discounted; nothing is bootstrapped."""
        total, following = np.empty(len(self)), 0.0
        for t in range(len(self) - 1, -1, -1):
            last = t == len(self) - 1 or self.episode[t + 1] != self.episode[t]
            following = total[t] = self.cost[t] + (0.0 if last else discount * following)
        return total


def evaluation_transitions(
    policy: NumpyPolicy, env: gymnasium.Env, seeds: Iterable[int] = range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + EPISODES)
) -> Transitions:
    """Deterministic episodes reset with `seeds`: those of the protocol's evaluation, step by step."""
    env.reset(seed=0)  # see Collector: a fresh environment may differ from a used one
    rows: list[tuple] = []
    for episode, seed in enumerate(seeds):
        observation, _ = env.reset(seed=seed)
        observation, over = np.array(observation, np.float32), False
        while not over:
            action = policy.act(observation)
            following, _, terminated, truncated, info = env.step(action)
            following = np.array(following, np.float32)  # a copy: some environments write into one array
            rows.append((observation, following, action, info["cost"], info["boundary_hit"], terminated, episode))
            observation, over = following, terminated or truncated
    columns = list(zip(*rows))
    kinds = (np.float32, np.float32, np.float32, np.float64, bool, bool, np.int64)
    return Transitions(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds)))


def perturbed(action: np.ndarray, policy: NumpyPolicy, random: np.random.Generator) -> np.ndarray:
    """Actions with Gaussian noise of std 0.25 × (high − low), clipped to the action space; never executed."""
    noise = random.standard_normal(action.shape, dtype=np.float32)
    moved = action + PERTURBATION * (policy.high - policy.low) * noise
    return np.minimum(np.maximum(moved, policy.low), policy.high)


def thinned(count: int, most: int) -> np.ndarray:
    """At most `most` of `count` row numbers, evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)
