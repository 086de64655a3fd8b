"""The Bachelier expected excess, and the disagreement penalty R_B = h(c0) * sigma_c that the paper makes of it.

Critic outputs, hence mean, std, strike and penalty, are discounted cumulative costs; alpha, kappa, beta, c0, h and d
are dimensionless. Coefficients are Python floats (float64); tensors keep their own dtype.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.special import ndtri
from torch import Tensor

from bcppo.errors import ConfigError
from bcppo.math.cvar import check_level

DISTANCE_CLIP = 10.0
"""d is clipped to +-10 before it enters Phi and phi (the paper's "Numerical stability")."""

DISAGREEMENT_FLOOR = 1e-6
"""sigma_min: what is left of the disagreement once all critics agree."""


class CallDerivatives(NamedTuple):
    """Partial derivatives of Call(K; mu, sigma) at a fixed strike, each of the inputs' broadcast shape."""

    mean: Tensor  # Phi(d), in [0, 1]
    std: Tensor  # phi(d), in [0, (2 pi)^-1/2]
    strike: Tensor  # -Phi(d), in [-1, 0]


def call(strike: Tensor | float, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Call(K; mu, sigma) = E[(X - K)_+] = (mu - K) Phi(d) + sigma phi(d), d = (mu - K) / sigma  (eq:bachelier).

    X ~ N(mean, std^2), std > 0; any broadcastable shapes. For tests and diagnostics: training uses `excess_factor`,
    since in float32 a strike a few 1e-6 above a mean of 65 rounds back to the mean.
    At K = `strike(mu_c, sigma_c, c0)` it is the penalty R_B (eq:bachelier_penalty).
    """
    strike, mean, std = _tensors(strike, mean, std)
    distance = _distance(strike, mean, std)
    excess = (mean - strike) * _probability_below(distance) + std * _density(distance)
    return excess.clamp(min=0.0)  # below d = -10 the clip alone would let a positive expectation turn negative


def call_derivatives(strike: Tensor | float, mean: Tensor | float, std: Tensor | float) -> CallDerivatives:
    """dCall/dmu = Phi(d), dCall/dsigma = phi(d), dCall/dK = -Phi(d) at fixed strike  (prop:smoothness)."""
    distance = _distance(*_tensors(strike, mean, std))
    below = _probability_below(distance)
    return CallDerivatives(mean=below, std=_density(distance), strike=-below)


def reference_level(alpha: float, kappa: float) -> float:
    """c0 = Phi^-1(alpha) + kappa  (eq:strike): how many std above the mean the excess begins."""
    if not 0.0 <= kappa < math.inf:
        raise ConfigError(f"The strike shift kappa must be finite and not negative, not {kappa}.")
    return float(ndtri(check_level(alpha))) + kappa


def strike(mean: Tensor, std: Tensor, c0: float) -> Tensor:
    """K = mu_c + c0 * sigma_c  (eq:strike), shapes [..., B]."""
    return mean + c0 * std


def excess_factor(c0: float) -> float:
    """h(c0) = phi(-c0) - c0 * Phi(-c0), so that R_B = h(c0) * sigma_c  (eq:bachelier_simplified); not negative.

    d = -c0 is clipped as in `call`, with the same floor at 0. At kappa = 0, R_B is (1 - alpha) (CVaR - VaR) of the
    Gaussian (eq:cvar_relation).
    """
    distance = min(max(-c0, -DISTANCE_CLIP), DISTANCE_CLIP)
    density = math.exp(-0.5 * distance**2) / math.sqrt(2.0 * math.pi)
    return max(density - c0 * exceedance_gaussian(-distance), 0.0)


def effective_beta(alpha: float, beta: float, kappa: float) -> float:
    """beta_eff = beta * h(c0)  (eq:effective_beta): all of (alpha, beta, kappa) that reaches the actor."""
    return beta * excess_factor(reference_level(alpha, kappa))


def mean_prediction(predictions: Tensor) -> Tensor:
    """mu_c = mean over the M members  (eq:mu). Predictions [R, M, B] -> [R, B], discounted cost."""
    return predictions.mean(dim=-2)


def disagreement(predictions: Tensor, floor: float = DISAGREEMENT_FLOOR) -> Tensor:
    """sigma_c = population std over the M members, at least `floor`  (eq:sigma). [R, M, B] -> [R, B], discounted cost.

    Taken from the differences to the first member, which float32 holds exactly when members are close: five equal
    predictions give exactly the floor, not the rounding error of their mean. (torch.std is also right, and four
    times slower here.)
    """
    relative = predictions - predictions[..., :1, :]
    deviation = relative - relative.mean(dim=-2, keepdim=True)
    return deviation.square().mean(dim=-2).sqrt().clamp(min=floor)


def exceedance_cantelli(c: float) -> float:
    """P(X >= mu + c sigma) <= 1 / (1 + c^2) for every distribution, c >= 0  (prop:tail_bound)."""
    if not c >= 0.0:
        raise ConfigError(f"Cantelli's bound holds for levels above the mean only: c must not be negative, but is {c}.")
    return 1.0 / (1.0 + c * c)


def exceedance_gaussian(c: float) -> float:
    """P(X >= mu + c sigma) = Phi(-c) for a Gaussian  (prop:tail_bound)."""
    return 0.5 * math.erfc(c / math.sqrt(2.0))


def concentration_radius(variance_of_square: float, bound: float, members: int, delta: float) -> float:
    """sqrt(2 V L / M) + 10 Q_max^2 L / (3 M), L = log(4 / delta)  (prop:finite_sample_concentration).

    With probability at least 1 - delta, the ensemble variance of M i.i.d. outputs in [-bound, bound] lies within this
    radius of the population variance; V = Var((Q - mu)^2). In squared units of the outputs.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"The failure probability delta must lie strictly between 0 and 1, not {delta}.")
    if members < 1:
        raise ConfigError(f"An ensemble has at least one member, not {members}.")
    log_term = math.log(4.0 / delta)
    return math.sqrt(2.0 * variance_of_square * log_term / members) + 10.0 * bound**2 * log_term / (3.0 * members)


def _tensors(*values: Tensor | float) -> list[Tensor]:
    """Floats as float64 tensors of no dimension, which leave the dtype of a tensor with dimensions alone."""
    return [value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64) for value in values]


def _distance(strike: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """d = (mu - K) / sigma, clipped."""
    return ((mean - strike) / std).clamp(-DISTANCE_CLIP, DISTANCE_CLIP)


def _probability_below(distance: Tensor) -> Tensor:
    """Phi(d). By erfc, since torch.special.ndtr is 1 + erf: below -6 in float32, and at -10 in float64, it is 0."""
    return 0.5 * torch.erfc(-distance / math.sqrt(2.0))


def _density(distance: Tensor) -> Tensor:
    """phi(d), the standard normal density."""
    return torch.exp(-0.5 * distance.square()) / math.sqrt(2.0 * math.pi)
