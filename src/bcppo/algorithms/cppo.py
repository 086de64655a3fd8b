"""CPPO: BCPPO's loop and controller, with a Monte Carlo upper-tail weight on the cost advantage.

    A_c^MC = A_c · clip(1{C ≥ η} / (1 − α), 0, w_max),   η = the empirical α-quantile of C

C is the summed cost of each trajectory segment in the batch, η is taken over the segments of the batch. Two things
follow from the definition and are documented rather than mended: with a single segment in a batch every step has the
same weight, which branch normalisation takes out again, so the update is PPO with PID; and w_max cancels for the same
reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bcppo.algorithms.batch import Batch
from bcppo.algorithms.ppo import NoSignal
from bcppo.math.cvar import value_at_risk
from bcppo.settings import CPPOConfig
from bcppo.streams import Streams


class TailWeight(NoSignal):
    """The cost signal of CPPO."""

    def __init__(
        self, configs: Sequence[CPPOConfig], widths: tuple[int, int], streams: Sequence[Streams], device: torch.device
    ):
        self._levels = [(config.alpha, config.weight_max) for config in configs]

    def weigh(self, batch: Batch, cost_advantage: Tensor) -> Tensor:
        costs = batch.trajectories(batch.cost).cpu().numpy()
        ended = batch.trajectories(batch.ended).cpu().numpy()
        weights = [
            tail_weights(costs[first : first + batch.environments], ended[first : first + batch.environments], *level)
            for first, level in zip(range(0, len(costs), batch.environments), self._levels)
        ]
        return cost_advantage * torch.from_numpy(np.stack(weights)).to(cost_advantage)


def tail_weights(cost: np.ndarray, ended: np.ndarray, alpha: float, weight_max: float) -> np.ndarray:
    """clip(1{C ≥ η} / (1 − α), 0, w_max) of every step of one run: costs and ends [E, T] → weights [E·T]."""
    # A segment ends with its episode or with the rollout; the step after an end opens the next.
    opens = np.zeros_like(ended)
    opens[:, 0] = True
    opens[:, 1:] = ended[:, :-1]
    segment = opens.ravel().cumsum() - 1
    totals = np.bincount(segment, weights=cost.ravel())
    in_tail = totals >= value_at_risk(totals, alpha)
    return np.clip(in_tail / (1.0 - alpha), 0.0, weight_max)[segment]
