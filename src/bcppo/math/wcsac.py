"""Gaussian WCSAC: soft actor-critic with a mean and a variance critic of the discounted cost.

The discounted sum of costs from (s, a) on is taken to be N(Q_c, V), so that its CVaR is Γ = Q_c + k·√V with k the
tail mean of a standard normal (`cvar.gaussian_tail_mean`). Costs here are discounted sums throughout, except c itself,
the cost of a step. d is termination alone: a time limit has a future.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

VARIANCE_BOUNDS = (1e-8, 1e8)
"""Variances and their targets are clipped to these."""


def variance_of(output: Tensor) -> Tensor:
    """V = softplus of the variance network's output, clipped to VARIANCE_BOUNDS."""
    return softplus(output).clamp(*VARIANCE_BOUNDS)


def gaussian_risk(mean: Tensor, variance: Tensor, tail_mean: Tensor) -> Tensor:
    """Γ = Q_c + k·√V, the CVaR of N(Q_c, V). [R, B] with k [R, 1]."""
    return mean + tail_mean * variance.sqrt()


def squashed_log_prob(noise: Tensor, drawn: Tensor, log_std: Tensor) -> Tensor:
    """log π of tanh(u), u = mean + std·noise: Σ log N(u) − log(1 − tanh²u), over the action's axes. [R, B]

    The density is that of the action in [−1, 1], before it is stretched to the action space, and
    log(1 − tanh²u) = 2(log 2 − u − softplus(−2u)), which does not underflow.
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    return (gaussian - 2.0 * (math.log(2.0) - drawn - softplus(-2.0 * drawn))).sum(-1)


def reward_target(
    reward: Tensor,
    terminated: Tensor,
    next_value: Tensor,
    next_log_prob: Tensor,
    *,
    temperature: Tensor,
    discount: Tensor,
) -> Tensor:
    """y_r = r + γ(1 − d)(min Q̄' − α·log π'). [R, B]"""
    return reward + discount * (1.0 - terminated) * (next_value - temperature * next_log_prob)


def cost_target(cost: Tensor, terminated: Tensor, next_mean: Tensor, *, discount: Tensor) -> Tensor:
    """y_c = c + γ(1 − d)·Q̄_c'. [R, B]"""
    return cost + discount * (1.0 - terminated) * next_mean


def variance_target(
    cost: Tensor, terminated: Tensor, next_mean: Tensor, next_variance: Tensor, mean: Tensor, *, discount: Tensor
) -> Tensor:
    """y_V = c² + (1 − d)·(2γc·Q̄_c' + γ²V̄' + γ²Q̄_c'²) − Q_c(s, a)², clipped. [R, B]

    The second moment of c + γ(1 − d)·N(Q̄_c', V̄') about the mean that the online critic predicts.
    """
    following = 2.0 * discount * cost * next_mean + discount.square() * (next_variance + next_mean.square())
    return (cost.square() + (1.0 - terminated) * following - mean.square()).clamp(*VARIANCE_BOUNDS)


def variance_loss(variance: Tensor, target: Tensor) -> Tensor:
    """½·mean(V + y − 2√(V·y)): half the squared difference of the two standard deviations. [R, B] → [R]

    That is the part of the 2-Wasserstein distance between Gaussians that their standard deviations make. Over random
    targets it is least at V = (E√y)², not at E[y].
    """
    return 0.5 * (variance + target - 2.0 * (variance * target).sqrt()).mean(-1)


def constraint_weight(multiplier: Tensor, risk: Tensor, limit: Tensor, damp: Tensor) -> Tensor:
    """β − damp·mean(D − Γ(s, a)) over stored actions: the price of risk in the policy's objective. [R, 1], Γ [R, B]"""
    return multiplier - damp * (limit - risk.mean(-1, keepdim=True))


def policy_loss(log_prob: Tensor, value: Tensor, risk: Tensor, temperature: Tensor, weight: Tensor) -> Tensor:
    """mean[α·log π − min Q + weight·Γ(s, π)]. [R, B] → [R], with α and weight [R, 1]"""
    return (temperature * log_prob - value + weight * risk).mean(-1)


def temperature_gradient(parameter: Tensor, log_prob: Tensor, target_entropy: Tensor) -> Tensor:
    """d/dx of −softplus(x)·mean(log π + H̄). x and H̄ [R, 1], log π [R, B]"""
    return -torch.sigmoid(parameter) * (log_prob.mean(-1, keepdim=True) + target_entropy)


def multiplier_gradient(parameter: Tensor, risk: Tensor, limit: Tensor) -> Tensor:
    """d/dx of softplus(x)·mean(D − Γ). x and D [R, 1], Γ [R, B] of stored actions"""
    return torch.sigmoid(parameter) * (limit - risk.mean(-1, keepdim=True))
