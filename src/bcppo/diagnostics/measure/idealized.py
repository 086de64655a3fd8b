"""The two statements of the appendix that can only be simulated: score estimators and i.i.d. ensembles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from bcppo.diagnostics.store import Columns
from bcppo.math.bachelier import concentration_radius, excess_factor, reference_level

STEPS, CHANCE = 8, 0.3
"""Of the model below: steps of a trajectory, chance of the costly action in each."""


class Model(NamedTuple):
    """prop:bachelier_variance's setting with everything known: K ~ Bin(8, p) costly actions, p = sigmoid(θ),
    cost C = (K + U) / 9 with U uniform on [0, 1): continuous, in [0, 1]. Score w = K − 8p. Spread S = 0.1·(1 + K/8)."""

    level: float  # α
    quantile: float  # z_α of C
    gradient: float  # g* = d CVaR_α / dθ


def exact_model(alpha: float) -> Model:
    """z_α and g* in closed form."""
    k = np.arange(STEPS + 1)
    mass = binom.pmf(k, STEPS, CHANCE)
    below = np.concatenate([[0.0], np.cumsum(mass)])
    cell = int(np.searchsorted(below, alpha, side="right") - 1)
    z = cell + (alpha - below[cell]) / mass[cell]  # of K + U
    # E_U[(k + U − z)_+]: k + ½ − z wholly above, (k + 1 − z)²/2 where z cuts the cell, 0 below.
    excess = np.where(k >= z, k + 0.5 - z, np.where(k + 1 <= z, 0.0, (k + 1 - z) ** 2 / 2)) / (STEPS + 1)
    gradient = float((mass * (k - STEPS * CHANCE) * excess).sum() / (1.0 - alpha))
    return Model(alpha, z / (STEPS + 1), gradient)


def score_estimators(
    random: np.random.Generator, alphas=(0.8, 0.9, 0.95, 0.99), sizes=(10, 30, 100, 300, 1000), replications: int = 2000
) -> Columns:
    """Variance and bias of the tail-indicator and the spread score against N and α, each beside its bound."""
    factor_of = {alpha: excess_factor(reference_level(alpha, 0.15)) for alpha in alphas}
    largest_score = STEPS * max(CHANCE, 1.0 - CHANCE)  # W
    k = np.arange(STEPS + 1)
    spread_square = float((binom.pmf(k, STEPS, CHANCE) * (0.1 * (1 + k / STEPS)) ** 2).sum())
    rows: list[dict[str, float]] = []
    for alpha in alphas:
        model, factor = exact_model(alpha), factor_of[alpha]
        sampled = float(_tail_scores(random, model, (1_000_000,)).mean())
        for size in sizes:
            tail = _tail_scores(random, model, (replications, size)).mean(1)
            count = random.binomial(STEPS, CHANCE, (replications, size))
            spread = factor * ((count - STEPS * CHANCE) * 0.1 * (1 + count / STEPS)).mean(1)
            rows.append(
                {
                    "alpha": alpha,
                    "trajectories": size,
                    "reference": model.gradient,
                    "sampled_reference": sampled,
                    "tail_variance": tail.var(),
                    "tail_bound": largest_score**2 / (size * (1 - alpha)),  # C_max = 1
                    "tail_bias": tail.mean() - model.gradient,
                    "spread_variance": spread.var(),
                    "spread_bound": factor**2 * largest_score**2 / size * spread_square,
                    "spread_bias": spread.mean() - model.gradient,
                }
            )
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def _tail_scores(random: np.random.Generator, model: Model, shape: tuple[int, ...]) -> np.ndarray:
    """w·(C − z_α)_+ / (1 − α) of sampled trajectories."""
    count = random.binomial(STEPS, CHANCE, shape)
    cost = (count + random.random(shape)) / (STEPS + 1)
    return (count - STEPS * CHANCE) * np.maximum(cost - model.quantile, 0.0) / (1.0 - model.level)


OUTPUTS = {
    # name: (draw in [−1, 1], variance, V = Var((Q − mean)²))
    "uniform": (lambda random, shape: random.uniform(-1, 1, shape), 1 / 3, 4 / 45),
    "two points": (lambda random, shape: random.integers(0, 2, shape) * 2.0 - 1.0, 1.0, 0.0),
    # −1 with chance 0.9 and 1 with 0.1: mean −0.8, squares 0.04 and 3.24, so variance 0.36 and V = 0.9·0.1·3.2².
    "rare": (lambda random, shape: np.where(random.random(shape) < 0.1, 1.0, -1.0), 0.36, 0.9216),
}


def concentration(
    random: np.random.Generator, sizes=(2, 5, 20, 100, 500), delta: float = 0.05, replications: int = 4000
) -> Columns:
    """How often the ensemble variance of i.i.d. bounded outputs leaves the bound's radius (prop:finite_sample_…)."""
    rows: dict[str, list] = {name: [] for name in ("outputs", "members", "delta", "outside", "radius", "error")}
    for name, (draw, variance, of_square) in OUTPUTS.items():
        for members in sizes:
            found = draw(random, (replications, members)).var(axis=1)
            radius = concentration_radius(of_square, 1.0, members, delta)
            error = float(np.sqrt(np.mean((np.sqrt(found) - variance**0.5) ** 2)) / variance**0.5)
            outside = float(np.mean(np.abs(found - variance) >= radius))
            for key, value in zip(rows, (name, members, delta, outside, radius, error)):
                rows[key].append(value)
    return rows


def correlated_spread(
    random: np.random.Generator, correlations=(0.0, 0.5, 0.9, 0.99), sizes=(2, 5, 20, 100), replications: int = 4000
) -> Columns:
    """Relative error of σ^(M) for Q_m = √ρ·common + √(1−ρ)·own (uniform parts, unit variance, hence bounded)."""
    half = 3**0.5
    rows: dict[str, list] = {"correlation": [], "members": [], "error": [], "ratio": []}
    for rho in correlations:
        for members in sizes:
            common = random.uniform(-half, half, (replications, 1))
            own = random.uniform(-half, half, (replications, members))
            found = (rho**0.5 * common + (1 - rho) ** 0.5 * own).std(axis=1)
            error, ratio = float(np.sqrt(np.mean((found - 1.0) ** 2))), float(np.sqrt(np.mean(found**2)))
            for key, value in zip(rows, (rho, members, error, ratio)):
                rows[key].append(value)
    return rows
