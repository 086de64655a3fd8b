"""Quantile regression of a discounted cost, for R runs at once."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_levels(count: int, device: torch.device | str | None = None) -> Tensor:
    """τ_i = (i + ½) / N_q, the midpoints of N_q equal slices of (0, 1). [N_q] float64."""
    return (torch.arange(count, dtype=torch.float64, device=device) + 0.5) / count


def pinball_loss(quantiles: Tensor, target: Tensor, levels: Tensor) -> Tensor:
    """Mean over rows and heads of max(τ·u, (τ − 1)·u), u = y − q: least where q is the τ-quantile of y.

    Quantiles [R, B, N_q], scalar targets y [R, B] (discounted cost, detached), levels τ [N_q] → [R].
    """
    error = target.unsqueeze(-1) - quantiles
    return torch.maximum(levels * error, (levels - 1.0) * error).mean((-2, -1))
