"""A policy in an environment, episode by episode, without torch."""

from __future__ import annotations

from collections.abc import Iterable

import gymnasium
import numpy as np

from bcppo.errors import BcppoError
from bcppo.policy import NumpyPolicy

Episode = dict[str, float]


def evaluate_policy(
    policy: NumpyPolicy | None, env: gymnasium.Env, seeds: Iterable[int], *, stochastic: bool = False
) -> list[Episode]:
    """One row an episode: reset seed, return (undiscounted sum), cost rate (mean cost per step), native cost (sum),
    boundary hits (steps), length (steps).

    `stochastic` samples actions instead of taking the mean, with noise seeded by the episode. `policy` None acts
    uniformly at random in the action space.
    """
    env.reset(seed=0)  # see Collector: a fresh environment may differ from a used one
    return [_episode(policy, env, seed, stochastic) for seed in seeds]


def _episode(policy: NumpyPolicy | None, env: gymnasium.Env, seed: int, stochastic: bool) -> Episode:
    noise = np.random.default_rng([seed, 1])
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    observation, _ = env.reset(seed=seed)
    total = cost = native = hits = 0.0
    length, over = 0, False
    while not over:
        if policy is None:
            action = noise.uniform(low, high)
        elif stochastic:
            action = policy.sample(observation, noise.standard_normal(low.shape, dtype=np.float32))
        else:
            action = policy.act(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        cost += float(info["cost"])
        native += float(info["native_cost"])
        hits += float(info["boundary_hit"])
        length += 1
        over = terminated or truncated
        if length > 1_000_000:
            raise BcppoError("An evaluation episode did not end in a million steps: the environment needs a limit.")
    return {
        "episode_seed": seed,
        "episode_return": total,
        "cost_rate": cost / length,
        "native_cost": native,
        "boundary_hits": hits,
        "length": length,
    }
