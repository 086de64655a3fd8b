"""VaR and CVaR of samples and Gaussians: eq:cvar_general."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from bcppo.errors import ConfigError
from bcppo.math.cvar import (
    conditional_value_at_risk,
    gaussian_conditional_value_at_risk,
    gaussian_tail_mean,
    gaussian_value_at_risk,
    value_at_risk,
)

quick = settings(max_examples=100, deadline=None, derandomize=True)
samples = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)
levels = st.floats(0.01, 0.99)


def infimum(values: list[float], alpha: float) -> float:
    """eq:cvar_general as it stands: the objective is convex and piecewise linear with kinks at the samples."""
    array = np.array(values)
    return min(eta + np.maximum(array - eta, 0.0).mean() / (1.0 - alpha) for eta in array)


def test_worst_twentieth_of_twenty_is_exactly_the_maximum() -> None:
    values = np.random.default_rng(0).random(20) / 3
    assert math.ceil((1 - 0.95) * 20) == 2  # the trap: a naive tail of the worst two
    assert conditional_value_at_risk(values, 0.95) == values.max()
    assert value_at_risk(values, 0.95) == np.sort(values)[18]


def test_var_of_ten_at_decimal_levels_is_the_matching_rank() -> None:
    values = np.arange(1.0, 11.0)
    # P(X <= k) = k / 10, so VaR at k / 10 is k; 0.7 * 10 and 1 - 0.3 must not be pushed to the next rank.
    assert [value_at_risk(values, k / 10) for k in range(1, 10)] == list(range(1, 10))
    assert value_at_risk(values, 1 - 0.7) == 3.0  # 1 - 0.7 = 0.30000000000000004
    assert value_at_risk(values, 0.71) == 8.0


def test_boundary_sample_counts_with_its_fraction() -> None:
    # N = 5 at 0.5: the tail holds 2.5 samples: 5, 4, and half of 3: (5 + 4 + 0.5 * 3) / 2.5 = 10.5 / 2.5
    assert conditional_value_at_risk([5.0, 1.0, 4.0, 2.0, 3.0], 0.5) == pytest.approx(4.2, rel=1e-15)
    # N = 30 at 0.95: 1.5 samples: (30 + 0.5 * 29) / 1.5 = 44.5 / 1.5
    assert conditional_value_at_risk(range(1, 31), 0.95) == pytest.approx(44.5 / 1.5, rel=1e-15)
    # N = 10 at 0.95: half a sample, all of it the largest
    assert conditional_value_at_risk(range(10), 0.95) == 9.0


@quick
@given(samples, levels)
def test_agrees_with_the_infimum_over_kinks(values: list[float], alpha: float) -> None:
    assert conditional_value_at_risk(values, alpha) == pytest.approx(infimum(values, alpha), abs=1e-9)


@settings(quick, max_examples=25)
@given(samples, levels)
def test_agrees_with_numerical_minimisation(values: list[float], alpha: float) -> None:
    array = np.array(values)
    found = minimize_scalar(
        lambda eta: eta + np.maximum(array - eta, 0.0).mean() / (1.0 - alpha),
        bounds=(array.min() - 1.0, array.max() + 1.0),
        method="bounded",
        options={"xatol": 1e-9},
    )
    ours = conditional_value_at_risk(values, alpha)
    assert ours <= found.fun + 1e-6
    assert ours == pytest.approx(found.fun, abs=1e-4)


@quick
@given(samples, levels, st.floats(-100.0, 100.0), st.floats(0.1, 10.0))
def test_translation_and_scale_equivariance(values: list[float], alpha: float, shift: float, scale: float) -> None:
    array = np.array(values)
    for statistic in (value_at_risk, conditional_value_at_risk):
        moved = statistic(scale * array + shift, alpha)
        assert moved == pytest.approx(scale * statistic(array, alpha) + shift, abs=1e-8)


@quick
@given(samples, levels, levels)
def test_cvar_lies_between_var_and_maximum_and_grows_with_the_level(
    values: list[float], alpha: float, other: float
) -> None:
    low, high = sorted((alpha, other))
    assert value_at_risk(values, alpha) <= conditional_value_at_risk(values, alpha) <= max(values)
    assert conditional_value_at_risk(values, alpha) >= np.mean(values) - 1e-9
    assert conditional_value_at_risk(values, low) <= conditional_value_at_risk(values, high) + 1e-9


@quick
@given(samples, levels)
def test_var_is_the_smallest_sample_reaching_the_level(values: list[float], alpha: float) -> None:
    array, var = np.array(values), value_at_risk(values, alpha)
    assert (array <= var).mean() >= alpha - 1e-12
    assert (array < var).mean() < alpha


@quick
@given(st.permutations(list(np.random.default_rng(1).random(12))), levels)
def test_order_of_samples_changes_no_bit(shuffled: list[float], alpha: float) -> None:
    assert conditional_value_at_risk(shuffled, alpha) == conditional_value_at_risk(sorted(shuffled), alpha)


@quick
@given(st.floats(-1e3, 1e3), st.integers(1, 30), levels)
def test_constant_samples_are_their_own_tail(value: float, count: int, alpha: float) -> None:
    assert conditional_value_at_risk([value] * count, alpha) == value == value_at_risk([value] * count, alpha)


def test_extreme_levels_give_mean_and_maximum() -> None:
    values = [1.0, 2.0, 6.0]
    assert conditional_value_at_risk(values, 1e-15) == pytest.approx(3.0)
    assert conditional_value_at_risk(values, math.nextafter(1.0, 0.0)) == 6.0


def test_samples_are_left_as_they_were() -> None:
    values = np.array([3.0, 1.0, 2.0])
    conditional_value_at_risk(values, 0.5)
    assert values.tolist() == [3.0, 1.0, 2.0]


def test_gaussian_values_by_hand() -> None:
    # Phi^-1(0.95) = 1.644854, phi(1.644854) = 0.103136, 0.103136 / 0.05 = 2.062713
    assert gaussian_value_at_risk(10.0, 2.0, 0.95) == pytest.approx(10 + 2 * 1.644854, abs=5e-6)
    assert gaussian_conditional_value_at_risk(10.0, 2.0, 0.95) == pytest.approx(10 + 2 * 2.062713, abs=5e-6)
    assert gaussian_tail_mean(0.5) == pytest.approx(math.sqrt(2 / math.pi))  # half-normal mean


def test_samples_of_a_gaussian_approach_its_tail() -> None:
    draws = np.random.default_rng(2).normal(3.0, 2.0, 200_000)
    assert conditional_value_at_risk(draws, 0.95) == pytest.approx(
        gaussian_conditional_value_at_risk(3.0, 2.0, 0.95), abs=0.05
    )
    assert value_at_risk(draws, 0.95) == pytest.approx(gaussian_value_at_risk(3.0, 2.0, 0.95), abs=0.05)


@pytest.mark.parametrize("statistic", [value_at_risk, conditional_value_at_risk])
@pytest.mark.parametrize(
    ("values", "sentence"),
    [([], "non-empty"), ([[1.0, 2.0]], r"shape \(1, 2\)"), ([1.0, math.nan], "1 of 2"), ([math.inf], "infinite")],
)
def test_samples_without_a_tail_are_refused(statistic, values, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        statistic(values, 0.95)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5, 95, math.nan])
def test_levels_outside_the_open_interval_are_refused(alpha: float) -> None:
    for refused in (value_at_risk, conditional_value_at_risk):
        with pytest.raises(ConfigError, match="strictly between 0 and 1"):
            refused([1.0, 2.0], alpha)
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        gaussian_tail_mean(alpha)


def test_statistics_import_no_torch() -> None:
    check = "import sys, bcppo.math.cvar; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
