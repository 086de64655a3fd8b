"""Helpers of the report's tests."""

from __future__ import annotations

import polars as pl

from bcppo.report import StudyRecords
from bcppo.report.paper_tables import FAVOURED, POSITIVE_SHARE, paper_points, paper_value
from bcppo.report.stats import CELL, METRICS, Statistics, statistics


def cells_of(records: StudyRecords) -> dict[tuple[str, ...], dict]:
    """(task, method, variant) → its statistics; few draws, since equality is what counts."""
    rows = statistics(records, draws=20).cells.iter_rows(named=True)
    return {tuple(row[name] for name in CELL): row for row in rows}


def frames_equal(first: pl.DataFrame, second: pl.DataFrame) -> bool:
    return first.schema == second.schema and first.equals(second)


def runs_table(rows: list[tuple]) -> pl.DataFrame:
    table = pl.DataFrame(
        rows, schema=["task", "method", "seed", "return", "cvar95", "cost", "limit_rate"], orient="row"
    )
    return table.with_columns(variant=pl.lit(""))


def paper_statistics() -> Statistics:
    """The paper's main table as if it were a study's statistics; of runs it says nothing."""
    rows = []
    for point in paper_points().iter_rows(named=True):
        row: dict = dict.fromkeys(f"{metric}{end}" for metric in METRICS for end in ("", "_std", "_low", "_high"))
        row |= {"task": point["task"], "method": point["method"], "variant": "", "seeds": 5, "expected": 5}
        row["paper"] = "main"
        for metric in ("return", "cost", "cvar95"):
            row[metric], row[f"{metric}_std"] = paper_value("main", point["task"], point["method"], "", metric)
        row["positive_share"] = POSITIVE_SHARE[point["task"]] if point["method"] == "bcppo" else None
        rows.append(row)
    favoured = [{"task": task, "method": method, "favours": True} for task, method in FAVOURED]
    runs = runs_table([("ant", "bcppo", 0, 1.0, 1.1 if number < 18 else 0.5, 0.9, 1.0) for number in range(175)])
    return Statistics(runs, pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(favoured))
