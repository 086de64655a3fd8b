"""Advantages, value targets and discounted sums, for R runs at once.

Two kinds of end are kept apart: `terminated` means that nothing follows (no bootstrap); `ended` means terminated or
truncated (the next row belongs to another episode, so the trace stops). All sums are discounted; rewards and costs are
per step. Everything is computed in float64 and returned in the dtype of the rewards or costs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Advantage(NamedTuple):
    """What a value network and the actor need of a rollout; each [R, T], discounted."""

    advantage: Tensor  # A_t
    value_target: Tensor  # A_t + V(s_t)


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    *,
    discount: float | Tensor,
    trace_decay: float | Tensor,
) -> Advantage:
    """Generalized advantage estimation (of rewards, or of costs) over a rollout of T steps; tensors [R, T].

    delta_t = r_t + gamma * (1 - terminated_t) * V(s_{t+1}) - V(s_t)
    A_t     = delta_t + gamma * lambda * (1 - ended_t) * A_{t+1},   A_T = 0

    `next_value` is V(s_{t+1}) on the true final observation where an episode is cut, and on the observation after the
    rollout at its last step. `discount` and `trace_decay`: floats, or tensors that broadcast to [R, T], such as [R, 1].
    """
    value64, decay = value.double(), _double(discount) * _double(trace_decay)
    delta = reward.double() + _double(discount) * (1.0 - terminated.double()) * next_value.double() - value64
    advantage = _backward_sum(delta, decay * (1.0 - ended.double()))
    return Advantage(advantage.to(reward.dtype), (advantage + value64).to(reward.dtype))


@torch.no_grad()
def td_target(cost: Tensor, next_cost_value: Tensor, terminated: Tensor, discount: float | Tensor) -> Tensor:
    """y_t = c_t + gamma * (1 - d_t) * V_c(s_{t+1}), d_t termination only  (eq:td_target). [R, T], discounted."""
    bootstrap = _double(discount) * (1.0 - terminated.double()) * next_cost_value.double()
    return (cost.double() + bootstrap).to(cost.dtype)


@torch.no_grad()
def discounted_cost_to_go(cost: Tensor, ended: Tensor, discount: float | Tensor) -> Tensor:
    """C_t = c_t + gamma * (1 - ended_t) * C_{t+1}, C_T = 0: what an episode still cost, no bootstrap. [R, T]."""
    return _backward_sum(cost.double(), _double(discount) * (1.0 - ended.double())).to(cost.dtype)


def _double(coefficient: float | Tensor) -> float | Tensor:
    """A coefficient in float64, so that a float and a float64 tensor of the same value give the same bits."""
    return coefficient.double() if isinstance(coefficient, Tensor) else float(coefficient)


def _backward_sum(term: Tensor, weight: Tensor) -> Tensor:
    """S_t = term_t + weight_t * S_{t+1}, S_T = 0, over the last axis in log2(T) passes (a Hillis-Steele scan).

    Before the pass with stride s, total_t holds the first s terms of S_t and weight_t the product of s weights. Each
    pass multiplies and adds elementwise in separate kernels, so an element's bits depend neither on the other runs in
    the stack nor on vectorisation (a fused multiply-add such as addcmul would lose that).
    """
    steps, stride = term.shape[-1], 1
    weight = weight.expand_as(term)
    total = term.clone()
    while stride < steps:
        total[..., :-stride] += weight[..., : steps - stride] * total[..., stride:]
        weight = weight[..., :-stride] * weight[..., stride:]
        stride *= 2
    return total
