"""Divergence of Gaussian policies, and the step of a trust region with one linear constraint (CPO).

A leading axis R counts runs, P a policy's parameters in one row. Runs are independent: each has its own case, its own
multipliers, and leaves an iteration on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_TINY = 1e-8


def gaussian_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL(N(mean, std²) ‖ N(other_mean, other_std²)) on each axis of the action. Means [R, B, A], log-stds [R, A].

    log(σ'/σ) + (σ² + (μ − μ')²) / 2σ'² − ½
    """
    log_ratio = (log_std - other_log_std).unsqueeze(1)
    distance = (mean - other_mean) * torch.exp(-other_log_std).unsqueeze(1)
    return 0.5 * ((2.0 * log_ratio).exp() + distance.square() - 1.0) - log_ratio


def dot(one: Tensor, other: Tensor) -> Tensor:
    """[R, P], [R, P] → [R]"""
    return (one * other).sum(-1)


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, steps: int, *, tolerance: float = 1e-10, eps: float = 1e-6
) -> Tensor:
    """x ≈ H⁻¹·right for each run, `product` being v ↦ H·v. [R, P]. OmniSafe's recursion, its ε included.

    A run whose residual has fallen under the tolerance stays where it is.
    """
    x = torch.zeros_like(right)
    residual, direction = right.clone(), right.clone()
    squared = dot(residual, residual)
    going = torch.ones_like(squared, dtype=torch.bool)
    for _ in range(steps):
        image = product(direction)
        length = torch.where(going, squared / (dot(direction, image) + eps), 0.0).unsqueeze(1)
        x = x + length * direction
        residual = residual - length * image
        squared_now = dot(residual, residual)
        going = going & (squared_now.sqrt() >= tolerance)
        direction = residual + (squared_now / (squared + eps)).unsqueeze(1) * direction
        squared = squared_now
        if not bool(going.any()):
            break
    return x


class Step(NamedTuple):
    """The solution of CPO's problem, for each run."""

    direction: Tensor  # [R, P], the full step
    case: Tensor  # [R]: 4 no cost gradient; of the region 3 all is safe, 2 part, 1 part but not the centre, 0 none
    trust_multiplier: Tensor  # [R], λ* of the trust region
    cost_multiplier: Tensor  # [R], ν* of the cost


@torch.no_grad()
def constrained_step(
    natural: Tensor,
    natural_cost: Tensor,
    *,
    q: Tensor,
    r: Tensor,
    s: Tensor,
    excess: Tensor,
    cost_gradient_square: Tensor,
    size: Tensor,
    reverse: Tensor,
) -> Step:
    """max gᵀx  subject to  c + bᵀx ≤ 0,  ½·xᵀHx ≤ δ  (Achiam et al. 2017, theorem 2).

    natural = H⁻¹g and natural_cost = H⁻¹b [R, P]; q = gᵀH⁻¹g, r = gᵀH⁻¹b, s = bᵀH⁻¹b, excess = c, size = δ, each [R].
    Where the bound cuts the region (cases 1, 2):

        x = H⁻¹(g − ν·b) / λ,   ν = max(0, λ·c + r) / s,   λ the better of
        λ_a = √(A/B) inside the λ with λ·c + r > 0,   λ_b = √(q/2δ) inside the others;   A = q − r²/s,  B = 2δ − c²/s

    `reverse` [R] gives r the other sign and orders the bounds of an empty interval the other way, which is what
    OmniSafe 0.5.0 computes: its g is that of the reward, where the published formulas have that of a loss.
    """
    area = (q - r.square() / (s + _TINY)).clamp(min=0.0)  # A
    slack = 2.0 * size - excess.square() / (s + _TINY)  # B
    safe, cut = excess < 0.0, slack >= 0.0
    case = torch.where(safe, torch.where(cut, 2, 3), torch.where(cut, 1, 0))
    case = torch.where((cost_gradient_square <= 1e-6) & safe, 4, case)

    loss_r = torch.where(reverse, r, -r)  # the published r, of a loss
    split = loss_r / (excess + _TINY)
    zero, infinity = torch.zeros_like(split), torch.full_like(split, torch.inf)

    def project(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
        above = torch.maximum(torch.minimum(value, high), low)
        return torch.where(reverse, torch.minimum(torch.maximum(value, low), high), above)

    lambda_a, lambda_b = (area / slack).sqrt(), (q / (2.0 * size)).sqrt()
    lambda_a = project(lambda_a, torch.where(safe, zero, split), torch.where(safe, split, infinity))
    lambda_b = project(lambda_b, torch.where(safe, split, zero), torch.where(safe, infinity, split))
    value_a = -0.5 * (area / (lambda_a + _TINY) + slack * lambda_a) - loss_r * excess / (s + _TINY)
    value_b = -0.5 * (q / (lambda_b + _TINY) + 2.0 * size * lambda_b)
    dual = torch.where(value_a >= value_b, lambda_a, lambda_b)
    price = (dual * excess - loss_r).clamp(min=0.0) / (s + _TINY)

    plain = (2.0 * size / (q + _TINY)).sqrt()
    recovery = (2.0 * size / (s + _TINY)).sqrt()
    free, lost = case >= 3, case == 0
    trust = torch.where(free, 1.0 / (plain + _TINY), torch.where(lost, zero, dual))
    price = torch.where(free, zero, torch.where(lost, recovery, price))
    along = torch.where(free, plain, torch.where(lost, zero, 1.0 / (dual + _TINY)))
    against = torch.where(free, zero, torch.where(lost, recovery, price / (dual + _TINY)))
    direction = along.to(natural.dtype).unsqueeze(1) * natural - against.to(natural.dtype).unsqueeze(1) * natural_cost
    return Step(direction, case, trust, price)
