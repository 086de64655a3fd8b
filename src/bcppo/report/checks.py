"""What a run's rows must hold, and what runs of one study must not share or mix."""

from __future__ import annotations

from typing import Any

import polars as pl

from bcppo.config import EVAL_FIRST_SEED
from bcppo.report.entries import Problem
from bcppo.report.schema import EVALUATIONS, IN_TURN, MEASURED


def check_values(runs: pl.DataFrame, evaluations: pl.DataFrame, progress: pl.DataFrame) -> list[Problem]:
    """What a run's own rows must hold: finite numbers, exactly the protocol's episodes, updates to the end."""
    measured = [pl.col(name) for name in MEASURED]
    finite = pl.all_horizontal(column.is_finite() for column in measured)
    whole = pl.all_horizontal(pl.col(name).is_not_null() for name in EVALUATIONS)
    sound = finite.fill_null(False) & whole & (pl.col("length") >= 1).fill_null(False)
    by_run = evaluations.group_by("run").agg(
        sound=sound.all(),
        deterministic=(~pl.col("stochastic")).filter("final").all(),
        seeds=pl.col("episode_seed").filter("final").sort(),
        end=pl.col("step").filter("final").unique(),
    )
    updates = progress.group_by("run").agg(
        reached=pl.col("step").max(),
        ordered=(pl.col("step").diff().fill_null(1) > 0).all() & (pl.col("update").diff().fill_null(1) > 0).all(),
        updates_finite=pl.all_horizontal(
            pl.col(name).fill_null(0.0).is_finite() for name in ("mean_cost", "sigma_c", "multiplier")
        ).all(),
    )
    table = runs.select(run="id", steps="steps", eval_episodes="eval_episodes")
    table = table.join(by_run, on="run", how="left").join(updates, on="run", how="left")
    problems = []
    for row in table.iter_rows(named=True):
        reason = _unsound(row)
        if reason:
            problems.append(Problem(row["run"], "damaged", f"{row['run']} is not used: {reason}."))
    return problems


def _unsound(row: dict[str, Any]) -> str:
    """What is wrong with a run's rows; empty where nothing is."""
    if row["sound"] is None or row["reached"] is None:
        return "it has no evaluation episodes or no updates on record"
    if not row["sound"]:
        return "an evaluation episode has a value that is missing or not finite"
    if not row["updates_finite"] or not row["ordered"]:
        return "its updates are out of order or hold a number that is not finite"
    return _not_the_protocol(row)


def _not_the_protocol(row: dict[str, Any]) -> str:
    if not row["deterministic"]:
        return "its final evaluation has sampled actions, not deterministic ones"
    count = row["eval_episodes"]
    if row["seeds"] != list(range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + count)):
        last = EVAL_FIRST_SEED + count - 1
        return f"its final evaluation is not the {count} episodes of seeds {EVAL_FIRST_SEED} to {last}, once each"
    if row["end"] != [row["reached"]] or row["reached"] < row["steps"]:
        return "its final evaluation was not made at the end of its training"
    return ""


def check_copies(runs: pl.DataFrame, evaluations: pl.DataFrame, skip: set[str]) -> list[Problem]:
    """Runs of one cell with other seeds but the same episodes to the last bit: a file was copied."""
    marks = evaluations.filter("final").group_by("run").agg(mark=pl.struct(MEASURED).hash(seed=0).sort())
    table = runs.filter("usable").join(marks, left_on="id", right_on="run", how="inner")
    seen: dict[tuple, list[str]] = {}
    for row in table.iter_rows(named=True):
        if row["id"] not in skip:
            seen.setdefault((row["task"], row["method"], row["variant"], *row["mark"]), []).append(row["id"])
    return [
        Problem(run, "duplicate", f"{run} has the same episodes as {' and '.join(x for x in group if x != run)}: one "
                "is a copy, so neither is used.")
        for group in seen.values() if len(group) > 1 for run in group
    ]  # fmt: skip


def check_protocols(runs: pl.DataFrame) -> list[Problem]:
    """Runs of one cell that follow several protocols: the commonest stands, and none where two are as common."""
    problems = []
    for (task, method, variant), group in runs.group_by(["task", "method", "variant"], maintain_order=True):
        counts = group["protocol"].value_counts(sort=True)
        if counts.height < 2:
            continue
        tied = counts["count"][0] == counts["count"][1]
        odd = group if tied else group.filter(pl.col("protocol") != counts["protocol"][0])
        cell = f"{method} on {task}" + (f" ({variant})" if variant else "")
        problems += [
            Problem(run, "mismatch", f"{run} is not used: the runs of {cell} follow {counts.height} protocols.")
            for run in odd["id"]
        ]
    return problems


def mixed_provenance(runs: pl.DataFrame) -> list[Problem]:
    """Mixed revisions or stacks are no fault, but are said."""
    problems = []
    for column, words in (("revision", "code revisions"), ("versions", "sets of library versions")):
        kinds = runs[column].str.split(IN_TURN).explode().n_unique()
        if kinds > 1:
            problems.append(Problem("", "mixed", f"The runs come from {kinds} {words}; see Provenance."))
    return problems
