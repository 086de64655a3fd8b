"""Curves of training: smoothed run by run, then averaged over the training seeds of a cell."""

from __future__ import annotations

import polars as pl

from bcppo.report.load import StudyRecords
from bcppo.report.stats import CELL, CVAR_LEVEL, conditional_value_at_risk

POINTS = 200
"""Points a drawn curve has at most; they are picked evenly, the last one always."""

QUANTITIES = {
    "episode_return": "Return",
    "episode_cost_rate": "Cost per step",
    "cost_cvar95": "CVaR@95 of cost per step",
    "sigma_c": "Critic disagreement σ",
    "multiplier": "Multiplier λ",
}
"""The first three are over the last 100 finished training episodes, the others are of the update."""


def smooth(progress: pl.DataFrame, quantity: str, window: int) -> pl.DataFrame:
    """run, step, value: the mean over the last `window` updates of a run, fewer at its start.

    A thinned row stands for several updates and counts as many times.
    """
    value, weight = pl.col(quantity), pl.col("records").cast(pl.Float64)
    known = progress.filter(value.is_not_null() & value.is_not_nan())
    if window <= 1:
        return known.select("run", "step", value=quantity)
    rows = max(1, round(window / max(1, int(progress["records"].max() or 1))))  # type: ignore[arg-type]
    total = (value * weight).rolling_sum(rows, min_samples=1).over("run")
    return known.select("run", "step", value=total / weight.rolling_sum(rows, min_samples=1).over("run"))


def curves(records: StudyRecords, quantity: str, *, window: int = 1, spread: str = "sem") -> pl.DataFrame:
    """CELL, step, mean, spread, seeds: over the seeds that have a record at that step.

    `spread` is the sample standard deviation over seeds (std), or that over the root of their number (sem).
    """
    smoothed = smooth(records.progress, quantity, window)
    runs = records.runs.select(*CELL, run="id")
    table = smoothed.join(runs, on="run", how="inner").group_by(*CELL, "step").agg(
        mean=pl.col("value").mean(), spread=pl.col("value").std(ddof=1), seeds=pl.len()
    )  # fmt: skip
    if spread == "sem":
        table = table.with_columns(spread=pl.col("spread") / pl.col("seeds").sqrt())
    return _pick(table.sort(*CELL, "step"))


def _pick(table: pl.DataFrame) -> pl.DataFrame:
    every = pl.max_horizontal(pl.lit(1), (pl.len().over(CELL) / POINTS).ceil().cast(pl.Int64))
    from_end = pl.len().over(CELL) - 1 - pl.int_range(pl.len()).over(CELL)
    return table.filter(from_end % every == 0)


def evaluation_points(records: StudyRecords) -> pl.DataFrame:
    """CELL, step, mean and spread (standard error) over seeds of the CVaR@95 of each recorded evaluation's episodes."""
    each = records.evaluations.group_by("run", "step", maintain_order=True).agg(rates=pl.col("cost_rate"))
    tails = [conditional_value_at_risk(rates, CVAR_LEVEL) for rates in each["rates"].to_list()]
    each = each.with_columns(value=pl.Series(tails, dtype=pl.Float64))
    table = each.join(records.runs.select(*CELL, run="id"), on="run", how="inner").group_by(*CELL, "step").agg(
        mean=pl.col("value").mean(), spread=pl.col("value").std(ddof=1) / pl.len().sqrt(), seeds=pl.len()
    )  # fmt: skip
    return table.sort(*CELL, "step")
