"""Helpers of the report's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from bcppo.records import policy_digest, read_rows, write_rows
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


def add_long(run: Path, rates: Sequence[float]) -> None:
    """Give a made-up run a policy file and many episodes with these costs per step; its recorded ones are the first."""
    recorded = read_rows(run / "evaluations.parquet")
    final = [index for index, last in enumerate(recorded["final"]) if last]
    for index, rate in zip(final, rates):
        recorded["cost_rate"][index] = rate
    write_rows(run / "evaluations.parquet", recorded)
    more = len(rates) - len(final)
    columns = {name: [recorded[name][i] for i in final][: len(rates)] + [recorded[name][final[0]]] * more
               for name in ("episode_return", "native_cost", "boundary_hits", "length")}  # fmt: skip
    (run / "policy.safetensors").write_bytes(run.name.encode())
    seeds = list(range(10_000, 10_000 + len(rates)))
    marks = {"policy": [policy_digest(run)] * len(rates), "simulators": ["mujoco 2.3.3"] * len(rates)}
    write_rows(run / "long_evaluation.parquet", {"episode_seed": seeds, "cost_rate": list(rates), **columns, **marks})
