"""Helpers of the report's tests."""

from __future__ import annotations

import polars as pl

from bcppo.report import StudyRecords
from bcppo.report.stats import CELL, statistics


def cells_of(records: StudyRecords) -> dict[tuple[str, ...], dict]:
    """(task, method, variant) → its statistics; few draws, since equality is what counts."""
    rows = statistics(records, draws=20).cells.iter_rows(named=True)
    return {tuple(row[name] for name in CELL): row for row in rows}


def frames_equal(first: pl.DataFrame, second: pl.DataFrame) -> bool:
    return first.schema == second.schema and first.equals(second)
