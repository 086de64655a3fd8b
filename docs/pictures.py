"""The pictures of concepts.md, from the code's own functions: `python docs/pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from bcppo.math.bachelier import excess_factor, reference_level
from bcppo.math.pid import PidGains, pid_start, pid_step
from bcppo.settings import BCPPOConfig

IMAGES = Path(__file__).parent / "images"
INK, BLUE, RED, GREY = "#333333", "#2f6db3", "#d1493b", "#b9bec7"
plt.rcParams.update({
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "figure.dpi": 140,
})  # fmt: skip


def draw_lambda() -> None:
    """The controller on a mean cost that is above the limit for a while."""
    config = BCPPOConfig()
    cycles, limit = np.arange(90), 0.65
    cost = limit * np.where(cycles < 8, 0.3, np.where(cycles < 28, 1.9, 0.35)) + 0.03 * np.sin(cycles)
    gains = PidGains(
        *(torch.tensor([x], dtype=torch.float64) for x in (0.2, 0.02, 0.05, config.multiplier_max)),
        torch.tensor([config.anti_windup]),
    )
    state, multiplier = pid_start(1), []
    for value in cost:
        state, _ = pid_step(state, torch.tensor([value], dtype=torch.float64), limit, gains)
        multiplier.append(float(state.multiplier))
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(5.6, 3.2), sharex=True)
    top.plot(cycles, cost, color=BLUE)
    top.axhline(limit, color=INK, linewidth=0.8, linestyle="--")
    top.text(88, limit + 0.04, "limit", ha="right")
    top.set_ylabel("mean cost per step")
    bottom.plot(cycles, multiplier, color=RED)
    bottom.fill_between(cycles, 0, 1, where=np.array(multiplier) > 0, color=GREY, alpha=0.35, linewidth=0,
                        transform=bottom.get_xaxis_transform())  # fmt: skip
    bottom.set_ylabel("λ")
    bottom.set_xlabel("cycle (one rollout, one update)")
    save(figure, "lambda")


def draw_excess() -> None:
    """Two Gaussians of one mean with their excess beyond the strike; and the penalty as a function of σ_c."""
    c0 = reference_level(0.95, 0.15)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.7))
    x, mean = np.linspace(52, 82, 600), 65.0
    for sigma, colour, height in ((2.0, BLUE, 0.12), (5.0, RED, 0.05)):
        density = np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
        strike = mean + c0 * sigma
        left.plot(x, density, color=colour, label=f"σ = {sigma:g}")
        left.fill_between(x, 0, density, where=x >= strike, color=colour, alpha=0.45, linewidth=0)
        left.plot([strike, strike], [0, height], color=colour, linewidth=1, linestyle=":")
        left.text(strike + 0.4, height, f"K = {strike:.1f}", color=colour)
    left.set_xlabel("a critic's prediction, discounted cost")
    left.set_yticks([])
    left.legend(frameon=False)
    sigma = np.linspace(0, 6, 2)
    for alpha, kappa, colour in ((0.9, 0.0, GREY), (0.95, 0.15, RED), (0.99, 0.15, BLUE)):
        label = f"α = {alpha:g}, κ = {kappa:g}"
        right.plot(sigma, excess_factor(reference_level(alpha, kappa)) * sigma, color=colour, label=label)
    right.set_xlabel("disagreement σ_c")
    right.set_ylabel("penalty R_B")
    right.legend(frameon=False)
    save(figure, "excess")


def draw_sigma() -> None:
    """Five bootstrapped regressions of a curve that is known in the middle only."""
    rng = np.random.default_rng(3)
    x, seen = np.linspace(-3, 3, 400), rng.uniform(-1.2, 1.6, 60)

    def truth(z: np.ndarray) -> np.ndarray:
        return np.sin(1.7 * z) + np.where(z < -1.2, 1.2 * (z + 1.2) ** 2, 0.0)

    def features(z: np.ndarray) -> np.ndarray:
        centres = np.linspace(-3, 3, 13)
        return np.exp(-0.5 * ((z[:, None] - centres) / 0.6) ** 2)

    values = truth(seen) + rng.normal(0, 0.12, seen.size)
    members = []
    for _ in range(5):
        kept = rng.random(seen.size) < 0.8
        prior = rng.normal(0, 0.7, 13)  # where a member starts, and stays without data
        matrix = features(seen[kept])
        residual = values[kept] - matrix @ prior
        correction = np.linalg.solve(matrix.T @ matrix + 0.05 * np.eye(13), matrix.T @ residual)
        members.append(features(x) @ (prior + correction))
    mean, sigma = np.mean(members, 0), np.std(members, 0)
    figure, axes = plt.subplots(figsize=(5.6, 2.8))
    axes.plot(x, np.transpose(members), color=GREY, linewidth=0.8)
    axes.fill_between(x, mean - sigma, mean + sigma, color=RED, alpha=0.25, linewidth=0, label="μ ± σ of five fits")
    axes.plot(x, truth(x), color=INK, linewidth=1.2, label="truth")
    axes.plot(seen, values, ".", color=BLUE, markersize=3, label="data")
    for edge in (-1.2, 1.6):
        axes.axvline(edge, ymax=0.8, color=INK, linewidth=0.7, linestyle="--")
    axes.set_ylim(-2.5, 4)
    axes.set_yticks([])
    axes.set_xlabel("state and action")
    axes.legend(frameon=False, loc="upper center", ncols=3)
    save(figure, "sigma")


def save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / f"concepts-{name}.png")
    plt.close(figure)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    draw_lambda()
    draw_excess()
    draw_sigma()
