"""The constrained step in a trust region, against the problem it solves; divergences and conjugate gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.distributions import Normal, kl_divergence

from bcppo.math.trust_region import Step, conjugate_gradients, constrained_step, gaussian_kl

SIZE = 0.01


def problem(seed: int, width: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """H, g and b."""
    random = np.random.default_rng(seed)
    root = random.standard_normal((width, width))
    return root @ root.T / width + 0.5 * np.eye(width), random.standard_normal(width), random.standard_normal(width)


def solve(h: np.ndarray, g: np.ndarray, b: np.ndarray, excess: float, *, reverse: bool = False) -> Step:
    x, p = np.linalg.solve(h, g), np.linalg.solve(h, b)

    def one(value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64)

    return constrained_step(
        torch.from_numpy(x)[None],
        torch.from_numpy(p)[None],
        q=one(g @ x),
        r=one(g @ p),
        s=one(b @ p),
        excess=one(excess),
        cost_gradient_square=one(b @ b),
        size=one(SIZE),
        reverse=torch.tensor([reverse]),
    )


def edge(h: np.ndarray, b: np.ndarray) -> float:
    """The excess beyond which the bound no longer cuts the region: √(2δ·bᵀH⁻¹b)."""
    return float(np.sqrt(2 * SIZE * b @ np.linalg.solve(h, b)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [-0.9, -0.5, -0.05, 0.05, 0.5, 0.9])
def test_step_solves_the_constrained_problem(seed: int, share: float) -> None:
    """Against a general solver, on problems whose bound cuts the region at a share of its radius."""
    h, g, b = problem(seed)
    excess = share * edge(h, b)
    step = solve(h, g, b, excess)
    assert step.case.item() == (2 if share < 0 else 1)
    x = step.direction[0].numpy()
    assert excess + b @ x <= 1e-6
    assert 0.5 * x @ h @ x <= SIZE * (1 + 1e-5)
    bounds = [
        {"type": "ineq", "fun": lambda v: -(excess + b @ v)},
        {"type": "ineq", "fun": lambda v: SIZE - 0.5 * v @ h @ v},
    ]
    start = -excess * np.linalg.solve(h, b) / (b @ np.linalg.solve(h, b))
    best = minimize(lambda v: -(g @ v), start, constraints=bounds, method="SLSQP", options={"ftol": 1e-12})
    assert g @ x == pytest.approx(-best.fun, abs=1e-5)


def test_the_releases_dual_walks_down_the_reward_where_it_should_not() -> None:
    """Reward and cost rise together, safely: the published step gains reward, OmniSafe 0.5.0's loses it."""
    h, g, b = np.eye(2), np.array([1.0, 0.0]), np.array([1.0, 1.0])
    excess = -0.5 * edge(h, b)
    assert g @ solve(h, g, b, excess).direction[0].numpy() > 0.05
    assert g @ solve(h, g, b, excess, reverse=True).direction[0].numpy() < 0.0


def test_safe_and_lost_regions() -> None:
    h, g, b = problem(3)
    x, p = np.linalg.solve(h, g), np.linalg.solve(h, b)
    safe, lost, flat = solve(h, g, b, -2 * edge(h, b)), solve(h, g, b, 2 * edge(h, b)), solve(h, g, 1e-4 * b, -1.0)
    assert [step.case.item() for step in (safe, lost, flat)] == [3, 0, 4]
    np.testing.assert_allclose(safe.direction[0], np.sqrt(2 * SIZE / (g @ x)) * x, rtol=1e-6)
    np.testing.assert_allclose(lost.direction[0], -np.sqrt(2 * SIZE / (b @ p)) * p, rtol=1e-6)
    np.testing.assert_allclose(flat.direction[0], safe.direction[0])
    assert safe.cost_multiplier.item() == flat.cost_multiplier.item() == 0.0
    assert lost.cost_multiplier.item() > 0.0


def test_conjugate_gradients_solve_each_runs_system() -> None:
    systems = [problem(seed, width=6) for seed in (0, 1)]
    h = torch.from_numpy(np.stack([system[0] for system in systems]))
    g = torch.from_numpy(np.stack([system[1] for system in systems]))
    found = conjugate_gradients(lambda v: (h @ v.unsqueeze(-1)).squeeze(-1), g, 20)
    np.testing.assert_allclose(found, torch.linalg.solve(h, g), atol=1e-3)  # its ε leaves that much
    alone = conjugate_gradients(lambda v: (h[1:] @ v.unsqueeze(-1)).squeeze(-1), g[1:], 20)
    assert torch.equal(found[1:], alone)


def test_gaussian_kl_is_torchs() -> None:
    random = torch.Generator().manual_seed(0)
    mean, other = torch.randn(2, 3, 5, 2, generator=random, dtype=torch.float64)
    log_std, other_log_std = torch.randn(2, 3, 2, generator=random, dtype=torch.float64)
    expected = kl_divergence(Normal(mean, log_std.exp()[:, None]), Normal(other, other_log_std.exp()[:, None]))
    torch.testing.assert_close(gaussian_kl(mean, log_std, other, other_log_std), expected)
