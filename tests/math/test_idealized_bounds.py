"""The appendix's inequalities over critic outputs and score estimators: prop:tail_bound,
prop:finite_sample_concentration, and the algebraic pieces of prop:bachelier_variance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from bcppo.errors import ConfigError
from bcppo.math.bachelier import (
    concentration_radius,
    disagreement,
    exceedance_cantelli,
    exceedance_gaussian,
    excess_factor,
    mean_prediction,
    reference_level,
)
from bcppo.math.cvar import value_at_risk

quick = settings(max_examples=60, deadline=None, derandomize=True)


@settings(quick, max_examples=200)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12), st.floats(0.01, 4.0))
def test_cantelli_bounds_the_share_of_members_above_the_strike(outputs: list[int], c: float) -> None:
    members = torch.tensor(outputs, dtype=torch.float64)[None, :, None]
    mean, std = mean_prediction(members).item(), disagreement(members, floor=0.0).item()
    if std == 0.0:
        return
    share = sum(output >= mean + c * std for output in outputs) / len(outputs)
    assert share <= exceedance_cantelli(c) + 1e-12


def test_cantelli_is_attained_by_one_member_apart() -> None:
    # Of M = 5, one at 4 and four at -1: mean 0, variance (16 + 4) / 5 = 4, std 2; the outlier is c = 2 std up.
    members = torch.tensor([4.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64)[None, :, None]
    assert disagreement(members).item() == 2.0
    assert exceedance_cantelli(2.0) == 1 / 5  # exactly the share of members at or above mean + 2 std


def test_cantelli_is_refused_below_the_mean() -> None:
    with pytest.raises(ConfigError, match="above the mean"):
        exceedance_cantelli(-0.5)


@quick
@given(st.floats(-6.0, 8.0))
def test_gaussian_exceedance_is_the_normal_tail(c: float) -> None:
    assert exceedance_gaussian(c) == pytest.approx(norm.sf(c), rel=1e-12)
    if c >= 0.0:
        assert exceedance_gaussian(c) < exceedance_cantelli(c)


def test_exceedance_of_the_default_strike() -> None:
    c0 = reference_level(0.95, 0.15)
    assert exceedance_gaussian(c0) == pytest.approx(0.03634, abs=5e-6)  # Phi(-1.794854)
    assert exceedance_cantelli(c0) == pytest.approx(0.23688, abs=5e-6)  # 1 / (1 + 3.221499)


def test_concentration_radius_by_hand() -> None:
    # V = 2, Q_max = 1, M = 8, delta = 4/e: L = 1, so sqrt(2 * 2 / 8) + 10 / 24. (delta < 1 needs L > log 4.)
    delta = 4.0 * math.exp(-2.0)  # L = 2: sqrt(2 * 2 * 2 / 8) + 10 * 2 / 24 = 1 + 0.8333333
    assert concentration_radius(2.0, 1.0, 8, delta) == pytest.approx(1.0 + 5.0 / 6.0, rel=1e-14)


@pytest.mark.parametrize(("members", "delta"), [(5, 0.0), (5, 1.0), (0, 0.1)])
def test_impossible_ensembles_and_probabilities_are_refused(members: int, delta: float) -> None:
    with pytest.raises(ConfigError):
        concentration_radius(1.0, 1.0, members, delta)


@pytest.mark.parametrize("members", [5, 50, 500])
@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_ensemble_variance_of_iid_outputs_stays_within_the_radius(members: int, delta: float) -> None:
    # Outputs +-1 with probability 0.9 / 0.1: mean 0.8, variance 0.36; (Q - mu)^2 is 0.04 or 3.24,
    # so V = 0.9 * 0.04^2 + 0.1 * 3.24^2 - 0.36^2 = 0.00144 + 1.04976 - 0.1296 = 0.9216.
    draws = np.where(np.random.default_rng(7).random((1, members, 2000)) < 0.9, 1.0, -1.0)
    variance = disagreement(torch.from_numpy(draws), floor=0.0).square().numpy()
    radius = concentration_radius(0.9216, 1.0, members, delta)
    assert (np.abs(variance - 0.36) >= radius).mean() <= delta
    if members == 500:  # where the radius is informative, a tenth of it must fail: the test can fail
        assert (np.abs(variance - 0.36) >= 0.1 * radius).mean() > delta


def test_radius_contracts_with_the_ensemble() -> None:
    radii = [concentration_radius(0.9216, 1.0, members, 0.1) for members in (5, 10, 20, 40)]
    assert all(smaller < larger / math.sqrt(2.0) for larger, smaller in itertools.pairwise(radii))


@quick
@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60), st.floats(0.05, 0.98))
def test_tail_score_second_moment_carries_one_over_tail_mass(costs: list[float], alpha: float) -> None:
    # With |w| = W = 1: E[((C - z)_+ / (1 - alpha))^2] <= C_max^2 / (1 - alpha), since P(C > z) <= 1 - alpha.
    excess = np.maximum(np.array(costs) - value_at_risk(costs, alpha), 0.0)
    assert np.mean((excess / (1.0 - alpha)) ** 2) <= 10.0**2 / (1.0 - alpha) * (1 + 1e-9)


@quick
@given(
    st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(0.0, 5.0)), min_size=1, max_size=6),
    st.floats(-3.0, 3.0),
    st.floats(0.5, 0.999),
    st.floats(0.0, 2.0),
)
def test_spread_estimator_error_is_squared_bias_plus_bounded_variance(
    trajectories: list[tuple[float, float]], true_gradient: float, alpha: float, kappa: float
) -> None:
    # Trajectories equally likely, each a (score w in [-1, 1], spread S >= 0); N = 2 draws, enumerated exactly.
    h = excess_factor(reference_level(alpha, kappa))
    estimates = [h / 2 * (w1 * s1 + w2 * s2) for (w1, s1), (w2, s2) in itertools.product(trajectories, repeat=2)]
    error = np.mean((np.array(estimates) - true_gradient) ** 2)
    bias, variance = np.mean(estimates) - true_gradient, np.var(estimates)
    assert error == pytest.approx(bias**2 + variance, abs=1e-9)
    assert variance <= h**2 / 2 * np.mean([s**2 for _, s in trajectories]) + 1e-12
    assert h <= 1.0 / math.sqrt(2.0 * math.pi)
