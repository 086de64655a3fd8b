"""PPO on the reward alone, and PPO with the PID multiplier: BCPPO's loop with nothing added to the cost branch.

PPO with the multiplier is BCPPO with β = 0, bit for bit, without the critics: what disagreement adds is the difference
between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms.batch import Batch


class NoSignal:
    """Adds nothing to the cost advantage and trains no critic."""

    shared_fields: tuple[str, ...] = ()
    constrained = True
    """Whether the multiplier acts; without it the update is reward PPO."""
    bonus = False

    def __init__(self, configs: Sequence[Any], widths: tuple[int, int], streams: Sequence[Any], device: torch.device):
        """Every signal takes these; this one needs none."""

    def weigh(self, batch: Batch, cost_advantage: Tensor) -> Tensor:
        """The cost advantage [R, T] as the rollout as a whole weighs it."""
        return cost_advantage

    def shape(self, observation: Tensor, executed: Tensor) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """(what is added to the cost advantage [R, B], what `descend` needs, metrics)"""
        return torch.zeros(observation.shape[:2], device=observation.device), None, {}

    def draw(self, minibatches: int, rows: int) -> tuple[np.ndarray, ...]:
        """What is random in K minibatches of so many rows, each run's from its own stream; [K, R, …]."""
        return ()

    def descend(self, predictions: Any, target: Tensor, *drawn: Tensor) -> dict[str, Tensor]:
        """A step of the signal's own critic, with what was drawn for this minibatch."""
        return {}

    def optimizers(self) -> dict[str, Adam]:
        return {}


class Unconstrained(NoSignal):
    """Reward PPO: the multiplier stays 0, whatever the cost."""

    constrained = False
