"""The paper's tables, as it prints them, and the figures its claims give."""

from __future__ import annotations

from functools import cache
from importlib import resources

import polars as pl

from bcppo.report.entries import ABLATION, MAIN
from bcppo.report.names import METHODS, TASKS, canonical

METRIC_NAMES = {"Return": "return", "Cost": "cost", "CVaR@95": "cvar95"}
SEEDS = 5
DOMINATED = {"goal1": 2, "button1": 4, "push1": 6, "hopper": 0, "ant": 1}
MEETS_MEAN_NOT_TAIL = (18, 175)
FAVOURED = (("push1", "focops"), ("push1", "wcsac"), ("ant", "wcsac"))
POSITIVE_SHARE = {"goal1": 0.184, "button1": 0.076, "push1": 0.170, "hopper": 0.279, "ant": 0.001}
POSITIVE_SHARE_MEAN = 0.142


@cache
def paper_cells() -> pl.DataFrame:
    """experiment (main or ablation), task, method, variant, metric, mean, std: over five seeds each."""
    tables = [_main(), _ablation("ablation_components.csv"), _ablation("ablation_raw_sigma.csv"), _sensitivity()]
    columns = ["experiment", "task", "method", "variant", "metric", "mean", "std"]
    cells = pl.concat([table.select(columns) for table in tables]).unique(maintain_order=True)
    return cells.with_columns(pl.col("metric").replace_strict(METRIC_NAMES))


def paper_value(experiment: str, task: str, method: str, variant: str, metric: str) -> tuple[float, float] | None:
    """(mean, std) of a cell the paper prints; None where it has none."""
    return _index().get((experiment, task, method, canonical(variant), metric))


def paper_points() -> pl.DataFrame:
    """task, method, return and cvar95: the means of the main table."""
    main = paper_cells().filter(pl.col("experiment") == MAIN)
    wide = main.pivot(on="metric", index=["task", "method"], values="mean", maintain_order=True)
    return wide.select("task", "method", "return", "cvar95")


@cache
def _index() -> dict[tuple[str, ...], tuple[float, float]]:
    keys = ("experiment", "task", "method", "variant", "metric")
    return {tuple(row[key] for key in keys): (row["mean"], row["std"]) for row in paper_cells().iter_rows(named=True)}


def _read(name: str) -> pl.DataFrame:
    return pl.read_csv(resources.files("bcppo.report").joinpath("paper", name).read_bytes())


def _main() -> pl.DataFrame:
    methods = {label: name for name, label in METHODS.items()}
    return _with_tasks(_read("main_table.csv")).with_columns(
        pl.lit(MAIN).alias("experiment"), pl.col("method").replace_strict(methods), pl.lit("").alias("variant")
    )


def _ablation(name: str) -> pl.DataFrame:
    return _with_tasks(_read(name)).with_columns(
        pl.lit(ABLATION).alias("experiment"), pl.lit("bcppo").alias("method"), pl.col("variant").replace("BCPPO", "")
    )


def _sensitivity() -> pl.DataFrame:
    settings = pl.col("setting").replace("Full BCPPO", "").map_elements(canonical, return_dtype=pl.String)
    return _read("sensitivity_push1.csv").with_columns(
        pl.lit(ABLATION).alias("experiment"), pl.lit("push1").alias("task"), pl.lit("bcppo").alias("method"),
        settings.alias("variant"),
    )  # fmt: skip


def _with_tasks(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("task").replace_strict({label: name for name, label in TASKS.items()}))
