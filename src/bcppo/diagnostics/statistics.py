"""The statistics of the diagnostics, on NumPy arrays: each is taken per policy, then averaged over policies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

BOOTSTRAP_DRAWS = 10_000
BOOTSTRAP_SEED = 0


class Interval(NamedTuple):
    """A mean over policies with its 95 % percentile bootstrap interval; NaN bounds where there are under two."""

    mean: float
    low: float
    high: float
    policies: int

    def __str__(self) -> str:
        if self.policies == 0:
            return "–"
        if self.policies == 1:
            return f"{self.mean:.3g} (1 policy: no interval)"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    @property
    def above_zero(self) -> bool:
        return self.low > 0

    @property
    def below_zero(self) -> bool:
        return self.high < 0


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation; NaN where one of the two is constant."""
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.size < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(stats.spearmanr(first, second).statistic)


def auc(score: ArrayLike, positive: ArrayLike) -> float:
    """P(score of a positive > score of a negative) + ½ P(equal): the Mann-Whitney statistic; NaN for one class only."""
    chosen = np.asarray(positive, bool)
    positives, negatives = int(chosen.sum()), int((~chosen).sum())
    if not positives or not negatives:
        return float("nan")
    values = np.asarray(score, np.float64)
    u = stats.mannwhitneyu(values[chosen], values[~chosen], method="asymptotic").statistic  # of the p-value, unused
    return float(u / (positives * negatives))


def upper_share(values: ArrayLike, share: float) -> NDArray[np.bool_]:
    """Which values are among the largest `share` of them: those above the (1 − share) quantile."""
    numbers = np.asarray(values, np.float64)
    return numbers > np.quantile(numbers, 1.0 - share)


def partial_rank_correlation(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> float:
    """Correlation of the ranks of x and y once the ranks of `given` are regressed out of both."""
    return _partial(*(stats.rankdata(values) for values in (x, y, given)))


def standardized_slope(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> float:
    """The slope of x in the linear regression of y on x and `given`, all three at mean 0 and variance 1.

    From the normal equations of two standardised regressors: (r_xy − r_xg r_yg) / (1 − r_xg²).
    """
    xy, xg, yg = _correlations(x, y, given)
    return (xy - xg * yg) / (1.0 - xg**2) if 1.0 - xg**2 > 1e-12 else float("nan")


def _partial(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> float:
    xy, xg, yg = _correlations(x, y, given)
    left = (1.0 - xg**2) * (1.0 - yg**2)
    return (xy - xg * yg) / left**0.5 if left > 1e-12 else float("nan")


def _correlations(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> tuple[float, float, float]:
    columns = [np.asarray(values, np.float64) for values in (x, y, given)]
    if any(np.ptp(column) == 0 for column in columns):
        return (float("nan"),) * 3
    matrix = np.corrcoef(columns)
    return float(matrix[0, 1]), float(matrix[0, 2]), float(matrix[1, 2])


def bootstrap_mean(values: ArrayLike, seed: int = BOOTSTRAP_SEED) -> Interval:
    """The mean of one number a policy, and a seeded percentile bootstrap that resamples policies. NaNs do not count."""
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if numbers.size < 2:
        mean = float(numbers.mean()) if numbers.size else float("nan")
        return Interval(mean, float("nan"), float("nan"), numbers.size)
    if np.ptp(numbers) == 0:
        return Interval(float(numbers[0]), float(numbers[0]), float(numbers[0]), numbers.size)
    result = stats.bootstrap(
        (numbers,), np.mean, n_resamples=BOOTSTRAP_DRAWS, method="percentile", random_state=np.random.default_rng(seed)
    )
    low, high = result.confidence_interval
    return Interval(float(numbers.mean()), float(low), float(high), numbers.size)


def mean_pairwise_correlation(predictions: NDArray[np.floating]) -> float:
    """The mean of Pearson's correlation over the pairs of members; predictions [probes, M]."""
    members = predictions.shape[1]
    if members < 2 or (np.ptp(predictions, axis=0) == 0).any():
        return float("nan")
    return float(np.corrcoef(predictions.T.astype(np.float64))[np.triu_indices(members, 1)].mean())


def normalized_effective_rank(predictions: NDArray[np.floating]) -> float:
    """exp(entropy of the normalised squared singular values of the members' deviations from their mean) / (M − 1).

    Predictions [probes, M]. 1/(M − 1): all deviations along one pattern; 1: spread evenly over all M − 1 of them.
    """
    values = predictions.astype(np.float64)
    deviations = values - values.mean(axis=1, keepdims=True)
    energy = np.linalg.svd(deviations, compute_uv=False) ** 2
    if energy.sum() == 0:
        return float("nan")
    share = energy / energy.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()) / (values.shape[1] - 1))
