"""The Bachelier formula and the disagreement penalty: hand values, and prop:smoothness, prop:cvar_connection,
prop:kappa_monotonicity and prop:lipschitz_error_propagation of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from bcppo.errors import ConfigError
from bcppo.math.bachelier import (
    DISTANCE_CLIP,
    call,
    call_derivatives,
    disagreement,
    effective_beta,
    exceedance_gaussian,
    excess_factor,
    mean_prediction,
    reference_level,
    strike,
)
from bcppo.math.cvar import gaussian_conditional_value_at_risk, gaussian_value_at_risk
from bcppo.math.surrogate import hybrid_advantage

quick = settings(max_examples=60, deadline=None, derandomize=True)
means = st.floats(-100.0, 100.0)
stds = st.floats(1e-2, 50.0)
distances = st.floats(-6.0, 6.0)
levels = st.floats(0.5, 0.999)
shifts = st.floats(0.0, 3.0)
PEAK = 1.0 / math.sqrt(2.0 * math.pi)


def test_call_at_the_mean_is_std_over_root_two_pi() -> None:
    # d = 0: (mu - K) * 1/2 + sigma * phi(0) = 0 + 2 * 0.3989423
    assert call(7.0, 7.0, 2.0).item() == pytest.approx(2 * 0.3989422804, abs=1e-9)


def test_call_one_std_above_the_strike_by_hand() -> None:
    # mu = 5, K = 3, sigma = 2: d = 1, so 2 * Phi(1) + 2 * phi(1) = 2 * 0.8413447461 + 2 * 0.2419707245
    assert call(3.0, 5.0, 2.0).item() == pytest.approx(1.6826894921 + 0.4839414490, abs=1e-9)


def test_call_is_the_expected_positive_excess_of_a_gaussian() -> None:
    draws = 4.0 + 1.5 * np.random.default_rng(0).standard_normal(400_000)
    excess = np.maximum(draws - 5.0, 0.0)
    assert call(5.0, 4.0, 1.5).item() == pytest.approx(excess.mean(), abs=4 * excess.std() / math.sqrt(excess.size))


def test_distance_is_clipped_but_the_value_stays_right_and_never_negative() -> None:
    std = torch.tensor([1e-6, 1e-6], dtype=torch.float64)
    deep_in, far_out = call(torch.tensor([-5.0, 105.0], dtype=torch.float64), 50.0, std)
    assert deep_in.item() == pytest.approx(55.0)
    assert far_out.item() == 0.0
    assert call_derivatives(-5.0, 50.0, 1e-6).std.item() == pytest.approx(norm.pdf(DISTANCE_CLIP), rel=1e-12)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_tail_probability_keeps_its_precision_down_to_the_clip(dtype: torch.dtype, rtol: float) -> None:
    distance = torch.linspace(-DISTANCE_CLIP, DISTANCE_CLIP, 41, dtype=dtype)
    below = call_derivatives(-distance, torch.zeros(41, dtype=dtype), torch.ones(41, dtype=dtype)).mean
    torch.testing.assert_close(below, torch.from_numpy(norm.cdf(distance.numpy())).to(dtype), rtol=rtol, atol=0)


@quick
@given(means, stds, distances)
def test_derivatives_agree_with_finite_differences_and_keep_their_bounds(mean: float, std: float, d: float) -> None:
    level, step = mean - d * std, 1e-4 * std
    by_mean, by_std, by_strike = (value.item() for value in call_derivatives(level, mean, std))
    numeric_mean = (call(level, mean + step, std) - call(level, mean - step, std)).item() / (2 * step)
    numeric_std = (call(level, mean, std + step) - call(level, mean, std - step)).item() / (2 * step)
    numeric_strike = (call(level + step, mean, std) - call(level - step, mean, std)).item() / (2 * step)
    assert by_mean == pytest.approx(numeric_mean, abs=1e-7)
    assert by_std == pytest.approx(numeric_std, abs=1e-7)
    assert by_strike == pytest.approx(numeric_strike, abs=1e-7)
    assert 0.0 <= by_mean <= 1.0
    assert 0.0 <= by_std <= PEAK
    assert by_strike == -by_mean


def test_paper_defaults_give_the_published_factor() -> None:
    h = excess_factor(reference_level(0.95, 0.15))  # c0 = 1.644854 + 0.15 = 1.794854
    assert round(h, 6) == 0.014462
    assert round(1.0 / h, 2) == 69.15
    assert effective_beta(0.95, 0.15, 0.15) == 0.15 * h
    # phi(1.7948536) = 0.07968385, Phi(-1.7948536) = 0.03633851
    assert h == pytest.approx(0.07968385 - 1.7948536 * 0.03633851, abs=5e-8)


@quick
@given(means, stds, levels, shifts)
def test_moving_strike_cancels_the_mean(mean: float, std: float, alpha: float, kappa: float) -> None:
    c0 = reference_level(alpha, kappa)
    mu, sigma = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    unsimplified = call(strike(mu, sigma, c0), mu, sigma).item()
    # K = mu + c0 sigma rounds at the size of mu; dCall/dK = -Phi(d) carries that into the value.
    rounding = 4e-16 * (abs(mean) + c0 * std + std)
    assert unsimplified == pytest.approx(excess_factor(c0) * std, abs=4 * rounding)


def test_float32_strike_rounds_to_the_mean_which_is_why_training_uses_the_factor() -> None:
    mu, sigma = torch.tensor([65.0]), torch.tensor([1e-6])
    c0 = reference_level(0.95, 0.15)
    assert torch.equal(strike(mu, sigma, c0), mu)
    assert (call(strike(mu, sigma, c0), mu, sigma) / (excess_factor(c0) * sigma)).item() > 25.0


@quick
@given(means, stds, levels)
def test_without_shift_the_penalty_is_the_gaussian_cvar_excess(mean: float, std: float, alpha: float) -> None:
    var, cvar = gaussian_value_at_risk(mean, std, alpha), gaussian_conditional_value_at_risk(mean, std, alpha)
    penalty = excess_factor(reference_level(alpha, 0.0)) * std
    assert penalty == pytest.approx((1.0 - alpha) * (cvar - var), abs=1e-12 * (abs(mean) + std))
    assert call(var, mean, std).item() == pytest.approx(penalty, abs=1e-12 * (abs(mean) + std))


@quick
@given(st.floats(0.05, 0.999), shifts, st.floats(1e-3, 2.0))
def test_a_larger_shift_raises_the_strike_and_lowers_exceedance_and_penalty(
    alpha: float, kappa: float, more: float
) -> None:
    low, high = reference_level(alpha, kappa), reference_level(alpha, kappa + more)
    sigma = torch.tensor([2.0], dtype=torch.float64)
    raised = strike(torch.zeros_like(sigma), sigma, high) - strike(torch.zeros_like(sigma), sigma, low)
    assert raised.item() == pytest.approx(2.0 * more, abs=1e-12)  # dK/dkappa = sigma
    assert exceedance_gaussian(high) < exceedance_gaussian(low)
    assert excess_factor(high) < excess_factor(low)


@quick
@given(st.floats(-2.0, 4.0))
def test_slope_of_the_factor_is_minus_the_exceedance_probability(c0: float) -> None:
    slope = (excess_factor(c0 + 1e-5) - excess_factor(c0 - 1e-5)) / 2e-5
    assert slope == pytest.approx(-exceedance_gaussian(c0), abs=1e-9)


@quick
@given(st.floats(0.0, 30.0))
def test_factor_is_bounded_by_the_density_at_zero(c0: float) -> None:
    assert 0.0 <= excess_factor(c0) <= PEAK
    assert excess_factor(0.0) == PEAK


def test_factor_stays_positive_up_to_the_clip_and_zero_far_beyond() -> None:
    assert excess_factor(DISTANCE_CLIP) > 0.0
    assert excess_factor(40.0) == 0.0
    assert excess_factor(-40.0) == pytest.approx(40.0)


@quick
@given(st.tuples(means, means), st.tuples(stds, stds), levels, shifts)
def test_critic_error_reaches_the_penalty_through_spread_alone(
    both_means: tuple[float, float], both_stds: tuple[float, float], alpha: float, kappa: float
) -> None:
    (mean, other_mean), (std, other_std), c0 = both_means, both_stds, reference_level(alpha, kappa)

    def penalty(mu: float, sigma: float) -> float:
        centre, spread = torch.tensor(mu, dtype=torch.float64), torch.tensor(sigma, dtype=torch.float64)
        return call(strike(centre, spread, c0), centre, spread).item()

    rounding = 1e-13 * (abs(mean) + abs(other_mean) + std + other_std + c0 * (std + other_std))
    assert abs(penalty(other_mean, std) - penalty(mean, std)) <= rounding  # L_mu = 0
    change = abs(penalty(other_mean, other_std) - penalty(mean, std))
    assert change == pytest.approx(excess_factor(c0) * abs(other_std - std), abs=rounding)  # L_sigma = h, attained


@quick
@given(st.tuples(levels, shifts), st.tuples(levels, shifts), st.floats(0.01, 1.0), st.integers(0, 2**31))
def test_settings_of_equal_effective_beta_give_bit_equal_advantages(
    setting: tuple[float, float], other: tuple[float, float], beta: float, seed: int
) -> None:
    (alpha, kappa), (other_alpha, other_kappa) = setting, other
    wanted = effective_beta(alpha, beta, kappa)
    other_beta = wanted / excess_factor(reference_level(other_alpha, other_kappa))
    near = [other_beta, math.nextafter(other_beta, math.inf), math.nextafter(other_beta, 0.0)]
    matched = [b for b in near if effective_beta(other_alpha, b, other_kappa) == wanted]
    assume(matched)  # not every float is a multiple of the other factor
    generator = torch.Generator().manual_seed(seed)
    reward, cost, spread = torch.randn(3, 1, 32, generator=generator).unbind(0)
    multiplier = torch.tensor([0.7], dtype=torch.float64)
    first = hybrid_advantage(reward, cost, effective_beta(alpha, beta, kappa) * spread.abs(), multiplier)
    shaping = effective_beta(other_alpha, matched[0], other_kappa) * spread.abs()
    assert torch.equal(first, hybrid_advantage(reward, cost, shaping, multiplier))


def test_alpha_and_kappa_trade_off_to_the_same_effective_beta() -> None:
    # Phi^-1(0.9) + kappa = Phi^-1(0.95) with kappa = 1.644854 - 1.281552: one c0, hence one coefficient.
    kappa = reference_level(0.95, 0.0) - reference_level(0.9, 0.0)
    assert kappa == pytest.approx(0.363302, abs=1e-6)
    assert effective_beta(0.9, 0.15, kappa) == pytest.approx(effective_beta(0.95, 0.15, 0.0), rel=1e-14)
    assert effective_beta(0.95, 0.25, 0.0) / effective_beta(0.95, 0.05, 0.0) == pytest.approx(5.0, rel=1e-15)


def test_disagreement_and_mean_by_hand() -> None:
    members = torch.tensor([[[1.0, 4.0], [3.0, 4.0], [8.0, 4.0]]])  # [R=1, M=3, B=2]
    # mean 4; deviations -3, -1, 4: (9 + 1 + 16) / 3 = 26 / 3, divided by M and not by M - 1
    assert torch.allclose(mean_prediction(members), torch.tensor([[4.0, 4.0]]))
    assert torch.allclose(disagreement(members), torch.tensor([[math.sqrt(26 / 3), 1e-6]]))


def test_agreeing_members_and_a_single_member_sit_exactly_on_the_floor() -> None:
    agreeing = torch.linspace(60.0, 70.0, 100).expand(1, 5, 100)  # some of their float32 means are an ulp, 8e-6, off
    assert torch.equal(disagreement(agreeing), torch.full((1, 100), 1e-6))
    single = torch.randn(2, 1, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(disagreement(single), torch.full((2, 7), 1e-6))
    assert torch.equal(disagreement(agreeing, floor=0.5), torch.full((1, 100), 0.5))


@quick
@given(st.integers(2, 8), st.floats(-300.0, 300.0), st.floats(0.01, 100.0), st.integers(0, 2**31))
def test_disagreement_ignores_a_common_shift_and_scales(members: int, shift: float, scale: float, seed: int) -> None:
    outputs = torch.randn(2, members, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    spread = disagreement(outputs)
    torch.testing.assert_close(spread, outputs.std(dim=1, correction=0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(disagreement(outputs + shift), spread, rtol=0, atol=1e-10)
    torch.testing.assert_close(disagreement(scale * outputs), scale * spread, rtol=1e-10, atol=1e-12)


def test_disagreement_of_a_run_is_bit_equal_alone_and_stacked() -> None:
    outputs = 40 + torch.randn(5, 5, 513, generator=torch.Generator().manual_seed(3))
    for run in range(5):
        assert torch.equal(disagreement(outputs[run : run + 1].clone()), disagreement(outputs)[run : run + 1])


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, 95.0, math.nan])
def test_an_impossible_confidence_level_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        reference_level(alpha, 0.1)


@pytest.mark.parametrize("kappa", [-0.1, math.inf, math.nan])
def test_an_impossible_shift_is_refused(kappa: float) -> None:
    with pytest.raises(ConfigError, match="kappa"):
        reference_level(0.95, kappa)
