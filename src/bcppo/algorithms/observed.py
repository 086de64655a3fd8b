"""Observations less their running mean, over their running standard deviation, by OmniSafe 0.5.0's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

OBSERVATION_BOUND = 5.0
"""Normalised observations are clipped to this."""
STD_FLOOR = 1e-2
"""No observation is divided by less."""


class Seen(NamedTuple):
    """Running statistics of R runs, on the host."""

    mean: Tensor  # [R, obs] float64, of the observations so far
    squares: Tensor  # [R, obs] float64, their summed squared distances from the mean
    observations: Tensor  # [R] int64, how many these are


def nothing_seen(runs: int, width: int) -> Seen:
    """A tensor each: a stored state is put back in place."""
    return Seen(
        mean=torch.zeros(runs, width, dtype=torch.float64),
        squares=torch.zeros(runs, width, dtype=torch.float64),
        observations=torch.zeros(runs, dtype=torch.int64),
    )


def absorb(seen: Seen, observation: Tensor, chosen: Sequence[bool]) -> Seen:
    """Merge the observations [R, T, obs] of the chosen runs into the statistics (Chan, Golub and LeVeque)."""
    mean, squares, count = (part.clone() for part in seen)
    for run, rows in enumerate(observation.double().cpu().numpy()):
        if not chosen[run]:
            continue
        before, after = int(count[run]), int(count[run]) + len(rows)
        centre = rows.mean(0)
        spread = np.square(rows - centre).sum(0)
        shift = centre - mean[run].numpy()
        mean[run] += torch.from_numpy(shift * len(rows) / after)
        squares[run] += torch.from_numpy(spread + np.square(shift) * before * len(rows) / after)
        count[run] = after
    return Seen(mean, squares, count)


def normalization(seen: Seen) -> tuple[Tensor, Tensor]:
    """(offset, scale) [R, obs] float64; 0 and 1 where nothing has been seen."""
    std = (seen.squares / (seen.observations - 1).clamp(min=1).unsqueeze(1)).sqrt().clamp(min=STD_FLOOR)
    return seen.mean, torch.where(seen.observations.unsqueeze(1) > 0, std, 1.0)


def normalized(observation: Tensor, offset: Tensor, scale: Tensor) -> Tensor:
    """[R, T, obs] as the networks see it."""
    return ((observation - offset.unsqueeze(1)) / scale.unsqueeze(1)).clamp(-OBSERVATION_BOUND, OBSERVATION_BOUND)


def policy_normalization(offset: Tensor, scale: Tensor, run: int) -> dict[str, np.ndarray]:
    """What a policy without torch needs to see the same."""
    bound = np.array([OBSERVATION_BOUND], np.float32)
    return {"offset": offset[run].cpu().numpy(), "scale": scale[run].cpu().numpy(), "bound": bound}
