"""The actor's advantage and clipped objective, and the loss of the cost critics.

A leading axis R counts runs. Every loss keeps it: the runs are independent, so the gradient of the losses' sum is each
run's own gradient. Advantages, targets and critic outputs are discounted sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NORM_EPSILON = 1e-8
"""What norm() adds to the std, so that a constant branch becomes zero rather than NaN."""


def standardize(x: Tensor, eps: float = NORM_EPSILON) -> Tensor:
    """norm(x) = (x - mean) / (std + eps) over the last axis, population std  (eq:hybrid_advantage). [R, B] -> [R, B].

    Taken from the differences to the first entry, so that a constant branch is exactly zero: the rounding error of its
    mean may exceed eps. The std is spelled out because torch.std has another algorithm for a single result, which in
    float64 would set a run alone apart from the same run in a stack.
    """
    relative = x.contiguous() - x[..., :1]
    centred = relative - relative.mean(dim=-1, keepdim=True)
    std = centred.square().mean(dim=-1, keepdim=True).sqrt()
    return centred / (std + eps)


def hybrid_advantage(
    reward_advantage: Tensor,
    cost_advantage: Tensor,
    shaping: Tensor,
    multiplier: Tensor,
    *,
    bonus: bool = False,
    normalize: bool = True,
) -> Tensor:
    """A_BP = norm(A_r) - lambda * norm(A_c + beta R_B)  (eq:hybrid_advantage). [R, B]; the multiplier [R].

    `shaping` is beta R_B = beta_eff * sigma_c, detached from the critics. The ablations of tab:ablation_components:
    bonus      norm(A_r + beta R_B) - lambda * norm(A_c)
    normalize  False leaves norm() out: A_r - lambda * (A_c + beta R_B)

    Where a run's lambda is 0, its result is the reward branch bit for bit, whatever the cost branch holds.
    """
    reward_branch = reward_advantage + shaping if bonus else reward_advantage
    cost_branch = cost_advantage if bonus else cost_advantage + shaping
    if normalize:
        # One call for both branches: at minibatch size the time goes into the number of kernels.
        reward_branch, cost_branch = standardize(torch.stack([reward_branch, cost_branch])).unbind(0)
    weight = multiplier.to(reward_branch.dtype).unsqueeze(-1)
    return torch.where(weight == 0.0, reward_branch, reward_branch - weight * cost_branch)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """L_actor = -E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)]  (eq:ppo_loss), a loss a run. [R, B] -> [R]."""
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)  # type: ignore[arg-type]
    return -torch.minimum(ratio * advantage, clipped * advantage).mean(dim=-1)


def gaussian_log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(a; mean, diag(std^2)), summed over the action's axis. Actions, means [R, B, A], log-std [R, A] -> [R, B].

    The log-std does not depend on the state. It gets its axis B here: left to broadcasting, [R, A] against [R, B, A]
    would pair runs with rows wherever R = B.
    """
    if log_std.dim() == mean.dim() - 1:
        log_std = log_std.unsqueeze(-2)
    standard = (action - mean) * torch.exp(-log_std)
    return (-0.5 * standard.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """E[(rho - 1) - log rho], an estimate of KL(old || new) that is never negative. log rho [R, B] -> [R]."""
    return (torch.expm1(log_ratio) - log_ratio).mean(dim=-1)


def clip_fraction(ratio: Tensor, clip: float | Tensor) -> Tensor:
    """The share of samples whose ratio lies outside [1 - eps, 1 + eps]. [R, B] -> [R]."""
    return ((ratio - 1.0).abs() > clip).to(ratio.dtype).mean(dim=-1)


def masked_td_loss(predictions: Tensor, target: Tensor, masks: Tensor) -> Tensor:
    """L_cost^(m) = sum_t z_t (Q^(m) - y_t)^2 / max{1, sum_t z_t}  (eq:critic_loss), a loss a member.

    Predictions and masks z [R, M, B] (masks boolean or 0/1), targets y [R, B], detached -> [R, M].
    """
    kept = masks.to(predictions.dtype)
    squared_error = (predictions - target.unsqueeze(-2)).square()
    return (kept * squared_error).sum(dim=-1) / kept.sum(dim=-1).clamp(min=1.0)
