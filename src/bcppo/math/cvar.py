"""Value at risk and conditional value at risk, of samples and of a Gaussian.

These serve statistics (20 evaluation episodes, the audits), so they take NumPy arrays or floats and import no torch.
The unit is whatever the samples are in: for CVaR@95 of the paper's tables, the episode-mean cost per step.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from bcppo.errors import ConfigError

LEVEL_TOLERANCE = 1e-12
"""Levels this close are one level: 0.95 means 19/20, though (1 - 0.95) * 20 is 1.0000000000000009 in floating point."""

Number = TypeVar("Number", float, NDArray[np.float64])


def check_level(alpha: float) -> float:
    """The confidence level alpha, refused unless it lies in the open interval (0, 1)."""
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"The confidence level alpha must lie strictly between 0 and 1, not {alpha}.")
    return float(alpha)


def value_at_risk(samples: ArrayLike, alpha: float) -> float:
    """VaR_alpha(X) = inf{z : P(X <= z) >= alpha} for the empirical distribution of samples [N]: always a sample."""
    ordered = _ordered(samples)
    rank, _ = _boundary(ordered.size, alpha)
    return float(ordered[rank - 1])


def conditional_value_at_risk(samples: ArrayLike, alpha: float) -> float:
    """CVaR_alpha(X) = inf_eta {eta + E[(X - eta)_+] / (1 - alpha)} (eq:cvar_general) for samples [N].

    The infimum is attained at VaR. Written out, it is the mean of the worst (1 - alpha) * N samples, where the sample
    on the boundary counts with the fraction of it that lies in the tail. Of 20 at 0.95: the largest, exactly.
    """
    ordered = _ordered(samples)
    rank, boundary_weight = _boundary(ordered.size, alpha)
    boundary, tail = float(ordered[rank - 1]), ordered[rank:]
    mean_of_tail = (float(tail.sum()) + boundary_weight * boundary) / (tail.size + boundary_weight)
    return min(max(mean_of_tail, boundary), float(ordered[-1]))  # rounding may carry it past either by an ulp


def gaussian_value_at_risk(mean: Number, std: Number, alpha: float) -> Number:
    """VaR_alpha of N(mean, std^2) = mean + Phi^-1(alpha) * std. Floats or arrays of one shape."""
    return mean + float(ndtri(check_level(alpha))) * std


def gaussian_conditional_value_at_risk(mean: Number, std: Number, alpha: float) -> Number:
    """CVaR_alpha of N(mean, std^2) = mean + std * phi(Phi^-1(alpha)) / (1 - alpha). Floats or arrays of one shape."""
    return mean + gaussian_tail_mean(alpha) * std


def gaussian_tail_mean(alpha: float) -> float:
    """CVaR_alpha of N(0, 1) = phi(Phi^-1(alpha)) / (1 - alpha): how many std the tail's mean lies above the mean."""
    quantile = float(ndtri(check_level(alpha)))
    return math.exp(-0.5 * quantile**2) / math.sqrt(2.0 * math.pi) / (1.0 - alpha)


def _ordered(samples: ArrayLike) -> NDArray[np.float64]:
    """The samples in ascending order, refused where no quantile is defined."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ConfigError(f"A tail statistic needs a non-empty list of samples, not an array of shape {values.shape}.")
    broken = int(np.count_nonzero(~np.isfinite(values)))
    if broken:
        raise ConfigError(f"A tail statistic needs finite samples; {broken} of {values.size} are NaN or infinite.")
    return np.sort(values)


def _boundary(count: int, alpha: float) -> tuple[int, float]:
    """The rank (1-based, ascending) of VaR among `count` samples, and that sample's weight in the tail, in [0, 1)."""
    mass_below = check_level(alpha) * count
    if abs(mass_below - round(mass_below)) <= LEVEL_TOLERANCE * count and round(mass_below) in range(1, count):
        return round(mass_below), 0.0
    rank = max(1, math.ceil(mass_below))
    return rank, rank - mass_below
