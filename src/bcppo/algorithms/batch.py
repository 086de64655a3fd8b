"""A rollout as the learner sees it: tensors with the run axis in front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bcppo.rollout import Rollout


@dataclass
class Batch:
    """R runs × T steps. With E environments a run, T = E × (steps of each), and `environments` is E."""

    observation: Tensor  # [R, T, obs] float32
    next_observation: Tensor  # [R, T, obs]
    action: Tensor  # [R, T, act] as sampled
    executed: Tensor  # [R, T, act] clipped to the action space
    reward: Tensor  # [R, T] float64
    cost: Tensor  # [R, T] float64, per step
    terminated: Tensor  # [R, T] bool
    ended: Tensor  # [R, T] bool: terminated or truncated
    environments: int
    episodes: Sequence[Sequence[tuple[float, float]]] = ()
    """Of each run, (summed cost, length) of every episode that ended in the rollout, in order."""

    def trajectories(self, values: Tensor) -> Tensor:
        """[R, T] → [R·E, T/E]: one row an environment, so that no trace runs from one into the next."""
        return values.reshape(values.shape[0] * self.environments, -1)


def stack_rollouts(
    rollouts: Sequence[Sequence[Rollout]], low: np.ndarray, high: np.ndarray, device: torch.device
) -> Batch:
    """rollouts[run][environment] → one batch."""

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(
            np.stack([np.concatenate([getattr(rollout, name) for rollout in run]) for run in rollouts])
        ).to(device)

    action = tensor("action")
    bounds = [torch.as_tensor(bound, dtype=torch.float32, device=device) for bound in (low, high)]
    terminated = tensor("terminated")
    return Batch(
        observation=tensor("observation"),
        next_observation=tensor("next_observation"),
        action=action,
        executed=torch.minimum(torch.maximum(action, bounds[0]), bounds[1]),
        reward=tensor("reward"),
        cost=tensor("cost"),
        terminated=terminated,
        ended=terminated | tensor("truncated"),
        environments=len(rollouts[0]),
        episodes=[_ended_episodes(run) for run in rollouts],
    )


def _ended_episodes(rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
    """Environments are stepped side by side, so their episodes are put in the order of their last rows."""
    ended = [(episode["end"], index, episode) for index, one in enumerate(rollouts) for episode in one.episodes]
    ordered = [episode for _, _, episode in sorted(ended, key=lambda item: item[:2])]
    return [(episode["cost_rate"] * episode["length"], episode["length"]) for episode in ordered]


def take(values: Tensor, rows: Tensor) -> Tensor:
    """values [R, T, …] at each run's own rows [R, B] → [R, B, …]"""
    runs, length = values.shape[:2]
    flat = rows + torch.arange(runs, device=rows.device).unsqueeze(1) * length
    return values.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, rows.shape)
