"""WCSAC's targets, losses and gradients, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bcppo.math.cvar import gaussian_tail_mean
from bcppo.math.wcsac import (
    constraint_weight,
    cost_target,
    gaussian_risk,
    multiplier_gradient,
    policy_loss,
    reward_target,
    squashed_log_prob,
    temperature_gradient,
    variance_loss,
    variance_of,
    variance_target,
)
from bcppo.settings import WCSACConfig


def row(*numbers: float) -> Tensor:
    """One run: [1, B]."""
    return torch.tensor([numbers], dtype=torch.float64)


GAMMA = row(0.9)


def test_reward_target_by_hand() -> None:
    """1 + 0.9·(10 − 0.5·(−2)) = 10.9; a terminal state has no future."""
    target = reward_target(row(1, 1), row(0, 1), row(10, 10), row(-2, -2), temperature=row(0.5), discount=GAMMA)
    torch.testing.assert_close(target, row(10.9, 1.0))


def test_cost_target_by_hand() -> None:
    """2 + 0.9·5 = 6.5"""
    torch.testing.assert_close(cost_target(row(2, 2), row(0, 1), row(5, 5), discount=GAMMA), row(6.5, 2.0))


def test_variance_target_by_hand() -> None:
    """4 + 2·0.9·2·5 + 0.81·3 + 0.81·25 − 36 = 8.68; terminal, 4 − 1 = 3; and terminal 4 − 36 is clipped to 1e-8."""
    target = variance_target(
        row(2, 2, 2), row(0, 1, 1), row(5, 5, 5), row(3, 3, 3), row(6, 1, 6), discount=GAMMA
    )  # fmt: skip
    torch.testing.assert_close(target, row(8.68, 3.0, 1e-8))
    huge = variance_target(row(1e5), row(0), row(0), row(0), row(0), discount=GAMMA)
    assert huge.item() == 1e8


def test_variance_target_is_the_second_moment_about_the_predicted_mean() -> None:
    """With Q_c = y_c it is γ²V̄': what is left of a known cost and an uncertain future."""
    mean = cost_target(row(2), row(0), row(5), discount=GAMMA)
    assert variance_target(row(2), row(0), row(5), row(3), mean, discount=GAMMA).item() == pytest.approx(0.81 * 3)


def test_variance_loss_by_hand() -> None:
    """½(4 + 9 − 2·√36) = ½ = ½(2 − 3)², and 0 where both agree: their mean is ¼."""
    torch.testing.assert_close(variance_loss(row(4, 5), row(9, 5)), torch.tensor([0.25], dtype=torch.float64))


def test_variance_is_positive_and_bounded() -> None:
    """softplus(0) = log 2; far below it is the floor, far above the ceiling."""
    torch.testing.assert_close(variance_of(row(0, -100, 1e9)), row(math.log(2), 1e-8, 1e8))


def test_risk_is_the_gaussians_cvar() -> None:
    """At risk level 0.05, k = φ(Φ⁻¹(0.05)) / 0.05 = 0.103136 / 0.05 = 2.06271: 1 + 2.06271·√4."""
    k = gaussian_tail_mean(0.95)
    assert k == pytest.approx(2.062713, abs=1e-6)
    assert gaussian_risk(row(1), row(4), row(k)).item() == pytest.approx(1 + 2 * 2.062713, abs=1e-5)
    samples = np.sort(1 + 2 * np.random.default_rng(0).standard_normal(400_000))
    assert gaussian_risk(row(1), row(4), row(k)).item() == pytest.approx(samples[-20_000:].mean(), abs=0.02)


def test_constraint_weight_by_hand() -> None:
    """Γ = 2, 4: 0.5 − 10·(5 − 3) = −19.5 with slack, 0.5 − 10·(2 − 3) = 10.5 beyond the limit."""
    for limit, weight in ((5, -19.5), (2, 10.5)):
        assert constraint_weight(row(0.5), row(2, 4), row(limit), row(10)).item() == pytest.approx(weight)


def test_policy_loss_by_hand() -> None:
    """(0.5·(−1) − 2 + 0.1·2 + 0.5·(−3) − 4 + 0.1·4) / 2 = (−2.3 − 5.1) / 2 = −3.7"""
    loss = policy_loss(row(-1, -3), row(2, 4), row(2, 4), row(0.5), row(0.1))
    assert loss.item() == pytest.approx(-3.7)


def test_log_prob_by_hand() -> None:
    """u = 0: the normal's −½log 2π. u = atanh ½: less log(1 − ¼). Two axes add."""
    half = math.atanh(0.5)
    at_mean = -0.5 * math.log(2 * math.pi)
    drawn = torch.tensor([[[0.0, 0.0], [half, half]]], dtype=torch.float64)
    found = squashed_log_prob(torch.zeros_like(drawn), drawn, torch.zeros_like(drawn))
    torch.testing.assert_close(found, row(2 * at_mean, 2 * (at_mean - math.log(0.75))))


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.0, 0.2), (-2.0, 0.5)])
def test_density_of_the_squashed_action_integrates_to_one(mean: float, log_std: float) -> None:
    """Over the noise, with da = (1 − a²)·std·dnoise: a grid over a itself would cut off what lies beside −1."""
    noise = torch.linspace(-9, 9, 400_001, dtype=torch.float64)
    drawn = mean + math.exp(log_std) * noise
    density = squashed_log_prob(noise[:, None], drawn[:, None], torch.full_like(drawn, log_std)[:, None]).exp()
    measure = (1.0 - torch.tanh(drawn).square()) * math.exp(log_std)
    assert torch.trapezoid(density * measure, noise).item() == pytest.approx(1.0, abs=1e-9)


def test_log_prob_is_finite_where_tanh_is_one() -> None:
    drawn = torch.tensor([[[50.0], [-50.0]]])
    assert torch.isfinite(squashed_log_prob(torch.zeros_like(drawn), drawn, torch.zeros_like(drawn))).all()


def test_gradients_of_the_two_temperatures_are_those_of_their_losses() -> None:
    log_prob, risk, entropy, limit = row(-1, 3, 0.5), row(4, 7, 1), row(-2), row(3)
    for gradient, loss in (
        (temperature_gradient(row(0.3), log_prob, entropy), lambda x: -softplus(x) * (log_prob + entropy).mean()),
        (multiplier_gradient(row(0.3), risk, limit), lambda x: softplus(x) * (limit - risk).mean()),
    ):
        x = row(0.3).requires_grad_()
        (expected,) = torch.autograd.grad(loss(x).sum(), x)
        torch.testing.assert_close(gradient, expected)


def test_limit_on_the_discounted_scale() -> None:
    """0.65 · (1 − 0.99¹⁰⁰⁰) / 0.01 = 65 · (1 − 4.32e-5); three steps at ½: 0.4 · (1 + ½ + ¼) = 0.7; γ = 1: 1.2."""
    assert WCSACConfig(task="goal1").discounted_limit == pytest.approx(65 * (1 - 4.317e-5), rel=1e-6)
    assert WCSACConfig(cost_limit_rate=0.4, discount=0.5, horizon=3).discounted_limit == pytest.approx(0.7)
    assert WCSACConfig(cost_limit_rate=0.4, discount=1.0, horizon=3).discounted_limit == pytest.approx(1.2)
