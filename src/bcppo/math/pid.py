"""The anti-windup PID controller of the mean-cost multiplier, as a function from state to state.

Costs, limits and errors are per-step rates; the multiplier, the gains' products and the terms are dimensionless in the
paper's sense (they weigh a normalised branch). All state is float64 with one entry a run, [R].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PidState(NamedTuple):
    """What the controller remembers between cycles, [R] each."""

    multiplier: Tensor  # lambda_k, in [0, ceiling]
    integral: Tensor  # I_{k-1}, the stored sum of errors, per-step cost
    previous_error: Tensor  # e_{k-1}, per-step cost; meaningless until started
    started: Tensor  # bool: whether a previous error exists


class PidGains(NamedTuple):
    """The controller's settings; each a scalar, or [R] where runs differ."""

    proportional: float | Tensor  # K_P
    integral: float | Tensor  # K_I
    derivative: float | Tensor  # K_D
    ceiling: float | Tensor  # lambda_max
    anti_windup: bool | Tensor  # off: the integral always accumulates, neither frozen nor reset


class PidTerms(NamedTuple):
    """What one step was made of, [R] each; for the records, not for the next step."""

    error: Tensor  # e_k, per-step cost
    proportional: Tensor  # K_P e_k
    integral: Tensor  # K_I I~_k
    derivative: Tensor  # K_D (e_k - e_{k-1})
    candidate: Tensor  # u~_k, before projection
    saturated_low: Tensor  # bool: u~_k < 0
    saturated_high: Tensor  # bool: u~_k > lambda_max
    frozen: Tensor  # bool: the candidate integral was rejected
    reset: Tensor  # bool: the stored integral was cleared because the error reversed


def pid_start(runs: int, device: torch.device | str | None = None) -> PidState:
    """lambda_0 = I_0 = 0 and no previous error, for R = `runs` runs."""
    # A tensor each: a stored state is put back in place.
    multiplier, integral, error = torch.zeros(3, runs, dtype=torch.float64, device=device).unbind(0)
    return PidState(multiplier, integral, error, torch.zeros(runs, dtype=torch.bool, device=device))


@torch.no_grad()
def pid_step(state: PidState, mean_cost: Tensor, limit: float | Tensor, gains: PidGains) -> tuple[PidState, PidTerms]:
    """One cycle k, given the rollout's mean cost [R] and the limit, both per step  (eq:pid).

    e_k   = mean_cost - limit
    I~_k  = I_{k-1} + e_k
    u~_k  = lambda_k + K_P e_k + K_I I~_k + K_D (e_k - e_{k-1}),  with no derivative term in the first cycle
    lambda_{k+1} = clip(u~_k, 0, lambda_max)

    Anti-windup has two rules. Freeze (prop:pid_stability): where u~_k lies beyond a bound and e_k points further out,
    I_k = I_{k-1}. Reversal: where lambda_k rests on a bound, e_k points back inside and the stored integral still
    pushes outward, it is cleared before I~_k is formed, so that old errors cannot hold the multiplier on the bound.
    """
    multiplier, stored, previous_error, started = state
    ceiling = torch.as_tensor(gains.ceiling, dtype=torch.float64, device=multiplier.device)
    anti_windup = torch.as_tensor(gains.anti_windup, dtype=torch.bool, device=multiplier.device)
    error = mean_cost.double() - limit

    leaves_floor = (multiplier <= 0.0) & (error > 0.0) & (stored < 0.0)
    leaves_ceiling = (multiplier >= ceiling) & (error < 0.0) & (stored > 0.0)
    reset = anti_windup & (leaves_floor | leaves_ceiling)
    stored = torch.where(reset, 0.0, stored)

    candidate_integral = stored + error
    proportional = gains.proportional * error
    integral = gains.integral * candidate_integral
    derivative = gains.derivative * torch.where(started, error - previous_error, 0.0)
    candidate = multiplier + proportional + integral + derivative

    saturated_low, saturated_high = candidate < 0.0, candidate > ceiling
    frozen = anti_windup & ((saturated_low & (error < 0.0)) | (saturated_high & (error > 0.0)))
    after = PidState(
        multiplier=torch.minimum(candidate.clamp(min=0.0), ceiling),
        integral=torch.where(frozen, stored, candidate_integral),
        previous_error=error,
        started=torch.ones_like(started),
    )
    terms = PidTerms(error, proportional, integral, derivative, candidate, saturated_low, saturated_high, frozen, reset)
    return after, terms
