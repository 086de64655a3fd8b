"""A study's statistics, all from raw evaluation episodes. Costs are means per step; randomness is seeded.

A *run metric* is one number a trained policy; a *cell* is a task, a method and a variant: the training seeds of one row
and column of a table.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import trim_mean

from bcppo.config import EVAL_FIRST_SEED
from bcppo.math.cvar import conditional_value_at_risk
from bcppo.report.load import StudyRecords
from bcppo.report.names import COMPARATORS, aside
from bcppo.report.schema import join_in_order

CVAR_LEVEL = 0.95
DRAWS = 10_000
"""Bootstrap draws."""
INTERVAL = (0.025, 0.975)
METRICS = ("return", "cost", "cvar95", "safety_rate", "worst_gap", "positive_share")
"""Return per episode (undiscounted sum); cost, CVaR@95 and worst gap per step; safety rate and λ>0 share of 1."""
CELL = ("task", "method", "variant")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Everything the tables, figures and verdicts are made from."""

    runs: pl.DataFrame
    """One row a usable run: CELL, seed, limit_rate, paper and METRICS."""
    cells: pl.DataFrame
    """One row a cell of the study: seeds, expected, and of each metric m: m, m_std, m_low, m_high; IQMs."""
    comparisons: pl.DataFrame
    """BCPPO against each other method of a task; see `compare`."""
    long: LongTails | None = None
    """The same of many more episodes, where runs were evaluated on them."""
    effects: pl.DataFrame = field(default_factory=lambda: compare_variants(pl.DataFrame(schema=["task", "method"])))
    """Each variant of a method against the method itself; see `compare_variants`."""


@dataclass(frozen=True)
class LongTails:
    """What many more episodes of the same policies say of their tails, beside the final evaluations of those runs."""

    episodes: int
    """Of each run: the number most runs have; more are left away, and a run with fewer takes no part."""
    runs: pl.DataFrame
    """One row a run that has them: CELL, seed, limit_rate; cost and cvar95 by its final evaluation, many_… by many."""
    cells: pl.DataFrame
    """One row a cell: seeds, expected; of cvar95 and many_cvar95 mean, _std, _low, _high; absent, the other runs."""


def statistics(records: StudyRecords, draws: int = DRAWS) -> Statistics:
    runs = run_metrics(records)
    long = long_tails(records, runs, draws)
    cells = cell_statistics(records, runs, draws)
    return Statistics(runs, cells, compare(runs, draws), long, compare_variants(runs, draws))


# --- runs ---


def run_metrics(records: StudyRecords, episodes: pl.DataFrame | None = None) -> pl.DataFrame:
    """The protocol's metrics of each usable run, from its final evaluation episodes, or from others of it."""
    shares = records.progress.group_by("run").agg(positive_share=pl.col("multiplier_positive_share").last())
    columns = ["episode_return", "cost_rate", "native_cost", "length"]
    episodes = records.episodes if episodes is None else episodes
    by_run = episodes.group_by("run", maintain_order=True).agg(columns)
    runs = records.runs.filter("usable").select(*CELL, "seed", "limit_rate", "paper", run="id")
    table = join_in_order(runs, by_run, ["run"]).join(shares, on="run", how="left")
    metrics = [_metrics(row) for row in table.iter_rows(named=True)]
    schema = dict.fromkeys(
        ("return", "cost", "native_cost", "length", "cvar95", "safety_rate", "worst_gap"), pl.Float64
    )
    return table.drop(columns).hstack(pl.DataFrame(metrics, schema=schema))


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    """One policy's metrics. Sums are exact, so that the order of episodes does not matter."""
    rates, limit = row["cost_rate"], row["limit_rate"]
    tail = conditional_value_at_risk(rates, CVAR_LEVEL)
    return {
        "return": _mean(row["episode_return"]),
        "cost": _mean(rates),
        "native_cost": _mean(row["native_cost"]),
        "length": _mean(row["length"]),
        "cvar95": tail,
        "safety_rate": sum(rate <= limit for rate in rates) / len(rates),
        "worst_gap": tail - limit,
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def meets_mean_not_tail(runs: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
    """Runs whose mean cost is within the limit while their CVaR@95 exceeds it."""
    cost, tail, limit = pl.col(f"{prefix}cost"), pl.col(f"{prefix}cvar95"), pl.col("limit_rate")
    return runs.filter((cost <= limit) & (tail > limit))


# --- cells ---


def cell_statistics(records: StudyRecords, runs: pl.DataFrame, draws: int = DRAWS) -> pl.DataFrame:
    """Mean, sample standard deviation and bootstrap interval over training seeds, of every cell in the study.

    `seeds` of `expected` are there: a cell with fewer is incomplete and says so wherever it is shown.
    """
    rows = []
    for key in records.runs.select(CELL).unique(maintain_order=True).iter_rows():
        own = runs.filter(*(pl.col(name) == value for name, value in zip(CELL, key))).sort("seed")
        row: dict[str, Any] = dict(zip(CELL, key)) | {"seeds": own.height}
        row["expected"] = records.expected_seeds(*key[:2])
        row["paper"] = own["paper"][0] if own.height and own["paper"].n_unique() == 1 else ""
        row["limit_rate"] = own["limit_rate"][0] if own.height else None
        for metric in METRICS:
            row |= _summary(metric, own[metric].drop_nulls().to_numpy(), generator(*key), draws)
        for metric in ("return", "cvar95"):
            row[f"{metric}_iqm"] = interquartile_mean(own[metric].to_numpy()) if own.height else None
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _summary(metric: str, values: Array, rng: np.random.Generator, draws: int) -> dict[str, float | None]:
    low, high = bootstrap_interval(values, rng, draws)
    return {
        metric: float(values.mean()) if values.size else None,
        f"{metric}_std": float(values.std(ddof=1)) if values.size > 1 else None,
        f"{metric}_low": low,
        f"{metric}_high": high,
    }


def generator(*key: str) -> np.random.Generator:
    """A stream of its own for each cell, so that no interval depends on what else a study holds."""
    return np.random.default_rng([zlib.crc32("\0".join(key).encode()), 20])


def bootstrap_interval(
    values: Array, rng: np.random.Generator, draws: int = DRAWS
) -> tuple[float | None, float | None]:
    """Percentile interval (95 %) of the mean of values [n], resampled with replacement; none for fewer than two."""
    if values.size < 2:
        return None, None
    means = values[rng.integers(0, values.size, (draws, values.size))].mean(axis=1)
    low, high = np.quantile(means, INTERVAL)
    return float(low), float(high)


def interquartile_mean(values: Array) -> float:
    """The mean of the middle half: a quarter of the values, rounded down, is left out at either end."""
    return float(trim_mean(values, 0.25))


# --- many more episodes ---

MANY = "many_"
"""Before the name of a metric: from a run's many episodes."""


def long_tails(records: StudyRecords, runs: pl.DataFrame, draws: int = DRAWS) -> LongTails | None:
    """CVaR@95 of runs by their many episodes and by their final evaluation, and of cells over training seeds.

    The resampled seeds are the same for both. None where no run has many episodes.
    """
    counts = records.long.group_by("run").len()
    if not counts.height:
        return None
    often = counts.group_by("len").len("runs").sort("runs", "len", descending=True)
    episodes = int(often["len"][0])
    enough = counts.filter(pl.col("len") >= episodes).select("run")
    rows = records.long.filter(pl.col("run").is_in(enough["run"].to_list()))
    rows = rows.filter(pl.col("episode_seed") < EVAL_FIRST_SEED + episodes)
    many = run_metrics(records, rows).select("run", many_cost="cost", many_cvar95="cvar95")
    both = join_in_order(runs, many, ["run"])
    keys = records.runs.select(CELL).unique(maintain_order=True).rows()
    cells = pl.DataFrame([_long_cell(records, both, key, draws) for key in keys], infer_schema_length=None)
    return LongTails(episodes, both, cells)


def _long_cell(records: StudyRecords, runs: pl.DataFrame, key: tuple[str, ...], draws: int) -> dict[str, Any]:
    here = [pl.col(name) == value for name, value in zip(CELL, key)]
    own, listed = runs.filter(*here).sort("seed"), records.runs.filter(*here)
    row: dict[str, Any] = dict(zip(CELL, key)) | {"seeds": own.height}
    row["expected"] = records.expected_seeds(*key[:2])
    row["absent"] = listed.filter(~pl.col("id").is_in(own["run"].to_list())).sort("seed")["id"].to_list()
    for metric in ("cvar95", f"{MANY}cvar95"):
        row |= _summary(metric, own[metric].to_numpy(), generator(*key), draws)
    return row


# --- comparisons ---


def compare(runs: pl.DataFrame, draws: int = DRAWS) -> pl.DataFrame:
    """BCPPO against every other method, task by task, where both have runs (variants apart).

    `…_difference` of return, CVaR@95 and cost are BCPPO's less the other's, paired by training seed, with percentile
    intervals over the pairs; `favours` is true where the first two lie on BCPPO's side of zero. `dominates` compares
    the cells' means over all their seeds. `improves_…` is the probability that a run of BCPPO's is better than one of
    the other's, over all pairs of runs, ties counting half.
    """
    plain = runs.filter(pl.col("variant") == "")
    rows = []
    for task in plain["task"].unique(maintain_order=True):
        own = plain.filter(pl.col("task") == task, pl.col("method") == "bcppo")
        for method in plain.filter(pl.col("task") == task)["method"].unique(maintain_order=True):
            other = plain.filter(pl.col("task") == task, pl.col("method") == method)
            if method != "bcppo" and own.height:
                rows.append({"task": task, "method": method} | _comparison(own, other, generator(task, method), draws))
    return pl.DataFrame(rows, schema=COMPARISONS)


def compare_variants(runs: pl.DataFrame, draws: int = DRAWS) -> pl.DataFrame:
    """Every variant of a method against the method as it is, task by task: columns as `compare`'s, and `variant`.

    What a change does: the variant is the first here, so differences are its values less the method's own.
    """
    rows = []
    for (task, method), group in runs.group_by("task", "method", maintain_order=True):
        plain = group.filter(pl.col("variant") == "")
        for variant in group.filter(pl.col("variant") != "")["variant"].unique(maintain_order=True):
            key = {"task": str(task), "method": str(method), "variant": variant}
            changed = group.filter(pl.col("variant") == variant)
            if plain.height:
                rows.append(key | _comparison(changed, plain, generator(*key.values()), draws))
    return pl.DataFrame(rows, schema={"variant": pl.String, **COMPARISONS})


COMPARISONS = {
    "task": pl.String, "method": pl.String, "pairs": pl.Int64,
    "return_difference": pl.Float64, "return_low": pl.Float64, "return_high": pl.Float64,
    "cvar95_difference": pl.Float64, "cvar95_low": pl.Float64, "cvar95_high": pl.Float64,
    "cost_difference": pl.Float64, "cost_low": pl.Float64, "cost_high": pl.Float64,
    "favours": pl.Boolean, "dominates": pl.Boolean, "dominated": pl.Boolean,
    "improves_return": pl.Float64, "improves_cvar95": pl.Float64,
}  # fmt: skip


def _comparison(own: pl.DataFrame, other: pl.DataFrame, rng: np.random.Generator, draws: int) -> dict[str, Any]:
    pairs = own.join(other, on="seed", suffix="_other", how="inner").sort("seed")
    row: dict[str, Any] = {"pairs": pairs.height}
    for metric in ("return", "cvar95", "cost"):
        difference = (pairs[metric] - pairs[f"{metric}_other"]).to_numpy()
        low, high = bootstrap_interval(difference, rng, draws)
        row |= {f"{metric}_difference": float(difference.mean()) if difference.size else None}
        row |= {f"{metric}_low": low, f"{metric}_high": high}
    row["favours"] = None if row["return_low"] is None else row["return_low"] > 0 and row["cvar95_high"] < 0
    ours, theirs = _point(own), _point(other)
    row |= {"dominates": dominates(ours, theirs), "dominated": dominates(theirs, ours)}
    row["improves_return"] = probability_of_improvement(own["return"].to_numpy(), other["return"].to_numpy())
    row["improves_cvar95"] = probability_of_improvement(-own["cvar95"].to_numpy(), -other["cvar95"].to_numpy())
    return row


def _point(runs: pl.DataFrame) -> tuple[float, float]:
    return float(runs["return"].to_numpy().mean()), float(runs["cvar95"].to_numpy().mean())


def probability_of_improvement(own: Array, other: Array) -> float:
    """P(X > Y) + P(X = Y) / 2 over all pairs of own [n] and other [m]: Mann and Whitney's U, over n·m."""
    return float((np.sign(own[:, None] - other[None, :]) + 1).mean() / 2)


# --- dominance ---


def dominates(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Whether (return, CVaR) `first` has no lower return and no higher CVaR than `second`, and one of them strictly."""
    return first[0] >= second[0] and first[1] <= second[1] and first != second


def frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which of a finite set of (return, CVaR) no other one dominates (app:pareto)."""
    return [not any(dominates(other, point) for other in points) for point in points]


def with_frontier(cells: pl.DataFrame) -> pl.DataFrame:
    """Cells that have a mean, with a column `frontier`: not dominated among its task's methods (variants apart).

    Our own row beside the paper's comparators takes no part in it; its `frontier` is null.
    """
    plain = cells.filter(pl.col("variant") == "", pl.col("return").is_not_null())
    ours = pl.col("method").is_in(list(aside(cells["method"])))
    parts = []
    for _, group in plain.filter(~ours).group_by("task", maintain_order=True):
        points = list(group.select("return", "cvar95").iter_rows())
        parts.append(group.with_columns(frontier=pl.Series(frontier(points), dtype=pl.Boolean)))
    return pl.concat([*parts, plain.filter(ours).with_columns(frontier=pl.lit(None, pl.Boolean))])


def dominance_counts(points: pl.DataFrame, comparators: Sequence[str] = COMPARATORS) -> dict[str, tuple[int, int]]:
    """Task → (comparators BCPPO's mean dominates, comparators there are), from task, method, return and cvar95."""
    counts = {}
    for task in points["task"].unique(maintain_order=True):
        means = {
            row["method"]: (row["return"], row["cvar95"])
            for row in points.filter(pl.col("task") == task).iter_rows(named=True)
        }
        others = [means[method] for method in comparators if method in means]
        if "bcppo" in means:
            counts[task] = (sum(dominates(means["bcppo"], other) for other in others), len(others))
    return counts
