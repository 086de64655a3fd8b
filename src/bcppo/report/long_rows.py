"""The rows that `bcppo study evaluate` leaves: loaded, checked, and set beside what each run recorded itself.

A run without them, or with rows that cannot be trusted, is as good as any other in every table but theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from bcppo.config import EVAL_FIRST_SEED
from bcppo.errors import FolderError
from bcppo.records import LONG, policy_digest
from bcppo.report.entries import Problem
from bcppo.report.schema import LONG_EPISODES, MEASURED, join_in_order

EMPTY = {"run": pl.String, **LONG_EPISODES}


def check_policy(run: str, path: Path, rows: pl.DataFrame) -> list[Problem]:
    """Rows of a run folder must be of the policy that lies there."""
    try:
        present = policy_digest(path)
    except FolderError as error:
        return [_unused(run, str(error).rstrip("."))]
    if rows["policy"].unique().to_list() != [present]:
        reason = "they are of another policy than the one in its folder; `bcppo study evaluate` makes them anew"
        return [_unused(run, reason)]
    return []


def damaged(run: str, folder: Path, error: FolderError) -> Problem:
    return _unused(run, str(error).replace(f"{folder}/", "").rstrip("."))


def _unused(run: str, reason: str) -> Problem:
    return Problem(run, "damaged", f"The many episodes of {run} ({LONG}.parquet) are not used: {reason}.")


def check_long(rows: pl.DataFrame, episodes: pl.DataFrame) -> tuple[pl.DataFrame, list[Problem]]:
    """(rows of runs whose rows hold, problems) of long rows and the final episodes of the same runs."""
    bad = []
    for (run,), own in rows.group_by("run", maintain_order=True):
        reason = _unsound(own)
        if reason:
            bad.append(_unused(str(run), reason))
    kept = rows.filter(~pl.col("run").is_in([problem.run for problem in bad]))
    return kept, bad + _other_than_recorded(kept, episodes)


def _unsound(own: pl.DataFrame) -> str:
    if own["episode_seed"].to_list() != list(range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + own.height)):
        return f"they are not the episodes of seeds {EVAL_FIRST_SEED} upwards, once each"
    whole = all(own[name].null_count() == 0 for name in LONG_EPISODES)
    if not whole or not all(own[name].is_finite().all() for name in MEASURED) or own["length"].min() < 1:  # type: ignore[operator]
        return "an episode has a value that is missing or not finite"
    if own["policy"].n_unique() > 1:
        return "they are of several policies"
    return ""


def _other_than_recorded(rows: pl.DataFrame, episodes: pl.DataFrame) -> list[Problem]:
    """Runs whose recorded episodes came out otherwise the second time: another stack, or something is wrong."""
    both = join_in_order(rows, episodes, ["run", "episode_seed"], "_recorded")
    names = (*MEASURED, "length")
    same = pl.all_horizontal(pl.col(name) == pl.col(f"{name}_recorded") for name in names)
    largest = [(pl.col(n) - pl.col(f"{n}_recorded")).abs().max().alias(n) for n in ("episode_return", "cost_rate")]
    by_run = both.group_by("run", maintain_order=True).agg(same.all().alias("same"), pl.len().alias("count"), *largest)
    return [_differs(row) for row in by_run.filter(~pl.col("same")).iter_rows(named=True)]


def _differs(row: dict[str, Any]) -> Problem:
    sentence = (
        f"The first {row['count']} of the many episodes of {row['run']} are not those it recorded: largest difference "
        f"of return {row['episode_return']:.3g}, of cost rate {row['cost_rate']:.3g}."
    )
    return Problem(row["run"], "mixed", sentence)
