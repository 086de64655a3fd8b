"""The table of CVaR@95 from many more episodes than the protocol's, beside those of the final evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from bcppo.report.load import StudyRecords
from bcppo.report.names import METHODS, OURS, PAPER_METHODS, TASKS, aside, in_order, label, task_label, variant_key
from bcppo.report.stats import MANY, LongTails, Statistics, meets_mean_not_tail
from bcppo.report.table import Table, Value

NAME = "cvar95_many_episodes"
DIGITS = 4
"""One more than the paper's tables: between 20 and 200 episodes Hopper's CVaR@95 may differ in the fourth."""


def long_table(records: StudyRecords, stats: Statistics) -> list[Table]:
    """A row a task and method, then how many runs meet the mean budget and not the tail's; none without any rows."""
    long = stats.long
    if long is None:
        return []
    few = _recorded_episodes(records, long)
    lines = [_line(row, long) for row in _in_order(long.cells)]
    totals = _totals(records, long)
    header = (
        "Task", "Method", "Runs", f"CVaR@95, {long.episodes} episodes", f"CVaR@95 interval, {long.episodes} episodes",
        f"CVaR@95, {few}", f"CVaR@95 interval, {few}", f"Mean met, tail not, {long.episodes} episodes",
        f"Mean met, tail not, {few}",
    )  # fmt: skip
    rules = (len(lines) - 1,) if totals else ()
    title = f"CVaR@95 from {long.episodes} episodes"
    return [Table(NAME, _caption(long, few), header, (*lines, *totals), rules, title)]


def _caption(long: LongTails, few: str) -> str:
    return (
        f"CVaR@95 (per step; lower is better) of each policy from {long.episodes} evaluation episodes, reset with "
        "seeds 10000 upwards, deterministic actions: mean ± sample standard deviation over training seeds, and mean "
        "[95 % percentile bootstrap interval over training seeds, 10,000 seeded draws]. Beside it the same runs' "
        f"CVaR@95 from their final evaluation ({few}), which of 20 episodes is the worst one. Mean met, tail not: "
        "runs whose Cost is within the limit while their CVaR@95 exceeds it, both from that many episodes."
    )


def _recorded_episodes(records: StudyRecords, long: LongTails) -> str:
    """How many episodes the final evaluations had."""
    own = records.runs.filter(pl.col("id").is_in(long.runs["run"].to_list()))
    counts = own["eval_episodes"].unique().to_list()
    return f"{counts[0]} episodes" if len(counts) == 1 else "final evaluation"


def _in_order(cells: pl.DataFrame) -> list[dict[str, Any]]:
    tasks, methods = in_order(cells["task"], TASKS), in_order(cells["method"], METHODS)

    def place(row: dict[str, Any]) -> tuple:
        return tasks.index(row["task"]), methods.index(row["method"]), variant_key(row["variant"])

    return sorted(cells.iter_rows(named=True), key=place)


def _line(row: dict[str, Any], long: LongTails) -> tuple[str | Value, ...]:
    own = long.runs.filter(pl.col(name) == row[name] for name in ("task", "method", "variant"))
    note = _lacking(row, long)
    values: list[Value] = []
    for metric in (f"{MANY}cvar95", "cvar95"):
        ends = (row[f"{metric}_low"], row[f"{metric}_high"])
        values.append(Value(row[metric], row[f"{metric}_std"], DIGITS, note=note))
        values.append(Value(row[metric], digits=DIGITS, interval=ends))
    runs = f"{row['seeds']} of {row['expected']}"
    return task_label(row["task"]), label(row["method"], row["variant"]), runs, *values, *_counts(own)


def _lacking(row: dict[str, Any], long: LongTails) -> str:
    """Which runs are not in a cell's figures."""
    if row["seeds"] == row["expected"]:
        return ""
    named = f" of {', '.join(row['absent'])}" if row["absent"] else ""
    return f"{row['seeds']} of {row['expected']} runs: {long.episodes} episodes{named} are missing"


def _counts(runs: pl.DataFrame) -> tuple[str, str]:
    """By many episodes and by the final evaluation: runs that meet the mean budget while the tail exceeds it."""
    if not runs.height:
        return "–", "–"
    by_many, by_few = (meets_mean_not_tail(runs, prefix).height for prefix in (MANY, ""))
    return f"{by_many} of {runs.height}", f"{by_few} of {runs.height}"


def _totals(records: StudyRecords, long: LongTails) -> list[tuple[str | Value, ...]]:
    """Over all tasks; our own row beside the paper's comparators is counted by itself."""
    ours = aside(records.runs["method"])
    methods = set(records.runs["method"])
    others = "the paper's methods" if methods <= {OURS, *PAPER_METHODS} else "the other methods" if ours else "all"
    groups: list[tuple[str, Sequence[str]]] = [(others, sorted(methods - ours))]
    groups += [(label(method), [method]) for method in sorted(ours)]
    lines: list[tuple[str | Value, ...]] = []
    for name, members in groups:
        member = pl.col("method").is_in(members)
        own, cells = long.runs.filter(member), long.cells.filter(member)
        runs = f"{own.height} of {cells['expected'].sum()}"
        lines.append(("All tasks", name, runs, *(Value(None) for _ in range(4)), *_counts(own)))
    return lines
