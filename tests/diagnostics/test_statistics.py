"""Statistics against brute force and against what theory says of synthetic ensembles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bcppo.diagnostics.read.coverage import per_fit
from bcppo.diagnostics.statistics import (
    auc,
    bootstrap_mean,
    mean_pairwise_correlation,
    normalized_effective_rank,
    partial_rank_correlation,
    spearman,
    standardized_slope,
    upper_share,
)
from bcppo.diagnostics.store import Measured
from bcppo.math.bachelier import disagreement


def test_auc_is_the_share_of_ordered_pairs_with_ties_at_half() -> None:
    random = np.random.default_rng(0)
    score, positive = random.integers(0, 6, 40).astype(float), random.random(40) < 0.3
    pairs = list(itertools.product(score[positive], score[~positive]))
    expected = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert auc(score, positive) == pytest.approx(expected, abs=1e-12)


def test_auc_by_hand() -> None:
    # Positives 3 and 1, negatives 2 and 0: of four pairs 3>2, 3>0, 1>0 are in order, 1<2 is not.
    assert auc([3.0, 1.0, 2.0, 0.0], [True, True, False, False]) == 0.75


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(auc([1.0, 2.0], [True, True]))


def test_auc_of_two_gaussians_is_what_theory_says() -> None:
    # P(X > Y) for X ~ N(1, 1), Y ~ N(0, 1) is Φ(1/√2) = 0.7602; the standard error here is about 0.003.
    random = np.random.default_rng(1)
    score = np.concatenate([random.normal(1, 1, 10_000), random.normal(0, 1, 10_000)])
    assert auc(score, np.repeat([True, False], 10_000)) == pytest.approx(norm.cdf(1 / 2**0.5), abs=0.015)


def test_spearman_is_pearson_of_ranks() -> None:
    # Ranks 1 2 3 4 against 2 1 4 3: Σd² = 4, so 1 − 6·4 / (4·15) = 0.6.
    assert spearman([1.0, 5.0, 9.0, 70.0], [2.0, 1.0, 40.0, 3.0]) == pytest.approx(0.6)
    assert np.isnan(spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))


def test_upper_share_takes_the_largest_tenth() -> None:
    assert np.flatnonzero(upper_share(np.arange(100.0)[::-1], 0.1)).tolist() == list(range(10))


def test_slope_is_the_regression_coefficient_of_standardised_variables() -> None:
    random = np.random.default_rng(2)
    given = random.normal(size=200)
    x = given + random.normal(size=200)
    y = -0.7 * x + 0.4 * given + random.normal(size=200)
    x_s, y_s, g_s = ((v - v.mean()) / v.std() for v in (x, y, given))
    expected = np.linalg.lstsq(np.stack([x_s, g_s], axis=1), y_s, rcond=None)[0][0]
    assert standardized_slope(x, y, given) == pytest.approx(expected, rel=1e-10)


def test_partial_rank_correlation_is_the_correlation_of_rank_residuals() -> None:
    random = np.random.default_rng(3)
    given = random.normal(size=60)
    x, y = given + random.normal(size=60), given**3 + random.normal(size=60)
    ranks = [np.argsort(np.argsort(v)).astype(float) for v in (x, y, given)]
    design = np.stack([ranks[2], np.ones(60)], axis=1)
    residuals = [r - design @ np.linalg.lstsq(design, r, rcond=None)[0] for r in ranks[:2]]
    assert partial_rank_correlation(x, y, given) == pytest.approx(np.corrcoef(*residuals)[0, 1], rel=1e-10)


def test_what_goes_through_the_given_variable_alone_has_no_partial_association() -> None:
    random = np.random.default_rng(4)
    given = random.normal(size=20_000)
    x, y = given + random.normal(size=20_000), given + random.normal(size=20_000)
    assert spearman(x, y) > 0.4
    assert abs(partial_rank_correlation(x, y, given)) < 0.05
    assert abs(standardized_slope(x, y, given)) < 0.05


def test_bootstrap_repeats_with_its_seed_and_resamples_policies() -> None:
    values = [0.1, 0.5, 0.9, 0.3]
    interval = bootstrap_mean(values)
    assert interval == bootstrap_mean(values)
    many = np.random.default_rng(8).normal(size=15)
    assert bootstrap_mean(many) != bootstrap_mean(many, seed=1)
    assert interval.mean == pytest.approx(0.45)
    # All 4⁴ resamples, equally likely: the exact percentile interval that the draws approach.
    means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
    assert (interval.low, interval.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.03)


def test_one_policy_has_no_interval() -> None:
    interval = bootstrap_mean([0.4, float("nan")])
    assert (interval.mean, interval.policies) == (0.4, 1)
    assert np.isnan(interval.low)
    assert not interval.above_zero


def test_pooling_transitions_would_answer_otherwise() -> None:
    # Within each policy σ ranks the errors backwards; across policies the one with more error has more σ.
    error = np.arange(10.0)
    policies = [(10 - error, error), (110 - error, 100 + error)]
    each = [spearman(spread, errors) for spread, errors in policies]
    pooled = spearman(*(np.concatenate(column) for column in zip(*policies)))
    assert bootstrap_mean(each).mean == pytest.approx(-1.0)
    # Ranks within a half run backwards: Σd² = 2·330, so 1 − 6·660 / (20·399) = 0.504.
    assert pooled == pytest.approx(1 - 6 * 660 / (20 * 399))


@pytest.mark.parametrize(("patterns", "expected"), [(1, 1 / 4), (4, 1.0)])
def test_effective_rank_counts_directions_of_deviation(patterns: int, expected: float) -> None:
    # M = 5. Orthonormal contrasts of the members: with one the deviations have rank 1, with all four of equal energy 4.
    contrasts = np.linalg.svd(np.eye(5) - 1 / 5)[0][:, :4].T  # [4, 5], rows sum to 0
    loads = np.linalg.qr(np.random.default_rng(5).normal(size=(200, 4)))[0][:, :patterns]  # equal energy, orthogonal
    common = 50 * np.random.default_rng(6).normal(size=(200, 1))
    assert normalized_effective_rank(common + loads @ contrasts[:patterns]) == pytest.approx(expected, rel=1e-9)


def test_correlation_of_members_that_share_a_known_part() -> None:
    # Q_m = common + own, variances 9 and 1: every pair correlates at 9 / 10.
    random = np.random.default_rng(7)
    predictions = 3 * random.normal(size=(40_000, 1)) + random.normal(size=(40_000, 5))
    assert mean_pairwise_correlation(predictions) == pytest.approx(0.9, abs=0.005)


def test_spread_of_a_known_ensemble_marks_the_region_as_often_as_theory_says() -> None:
    # Members N(0, 4) in the omitted region and N(0, 1) elsewhere, M = 5: s² is σ²·χ²(4)/5, so the AUC is
    # P(F(4, 4) > 1/4) = 1 − I(1/5; 2, 2) = 1 − (3/25 − 2/125) = 0.896.
    random = np.random.default_rng(9)
    omitted = np.arange(20_000) % 2 == 0
    members = np.where(omitted, 2.0, 1.0) * random.normal(size=(5, 20_000))
    spread = disagreement(torch.from_numpy(members).unsqueeze(0))[0].numpy()
    count = len(omitted)
    rows = {
        "run": np.zeros(count, int), "score": ["norm"] * count, "kind": ["control"] * count, "target": ["td"] * count,
        "noise": np.zeros(count), "omitted": omitted, "boundary_hit": ~omitted, "mean": members.mean(0),
        "spread": spread, "cost_to_go": members.mean(0) - spread, "members_above_strike": np.zeros(count),
    }  # fmt: skip
    (found,) = per_fit(Measured({"held_out": rows})).values()
    assert found["ood_auc"] == pytest.approx(0.896, abs=0.008)
    assert found["hit_auc"] == pytest.approx(0.104, abs=0.008)  # hits are where members agree
    assert found["error_rho"] == pytest.approx(1.0)  # the error was made to be the spread


def test_identical_members_have_no_rank() -> None:
    assert np.isnan(normalized_effective_rank(np.repeat(np.arange(10.0)[:, None], 5, axis=1)))
