"""Runs that were made twice: is the second the first, to the last bit?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.records import policy_digest
from bcppo.report.adding import finished
from bcppo.report.entries import StudyError
from bcppo.report.load import StudyRecords, load_study
from bcppo.report.pack import rounded, thin
from bcppo.report.schema import EVALUATIONS, PROGRESS

MADE_WITH = ("revision", "device", "processor", "python", "versions")


@dataclass(frozen=True)
class Comparison:
    """What two studies hold of one run."""

    run: str
    same: bool
    sentence: str


def compare_studies(first: str | Path, second: str | Path) -> list[Comparison]:
    """Of each run that both have finished, packed or not: whether episodes, curves and policy are the same.

    Curves are compared as thinned as the more thinned of the two; policies where both folders tell which file it was.
    """
    ours, theirs = load_study(first), load_study(second)
    both = finished(ours) & finished(theirs)
    if not both:
        raise StudyError(f"{first} and {second} have no finished run in common.")
    return [_compared(run, ours, theirs) for run in ours.runs["id"] if run in both]


def _compared(run: str, ours: StudyRecords, theirs: StudyRecords) -> Comparison:
    made = [records.runs.row(by_predicate=pl.col("id") == run, named=True) for records in (ours, theirs)]
    if made[0]["protocol"] != made[1]["protocol"]:
        return Comparison(run, False, f"{run} has other settings in {ours.folder} than in {theirs.folder}.")
    episodes = _at_same_steps([_rows(records.evaluations, run) for records in (ours, theirs)])
    curves = _alike([_rows(records.progress, run) for records in (ours, theirs)])
    policies = [_policy(records, run) for records in (ours, theirs)]
    differ = _parting(curves, PROGRESS, "row of its curves") or _parting(episodes, EVALUATIONS, "evaluation episode")
    if not differ and all(policies) and policies[0] != policies[1]:
        differ = "its policy is another file"
    if differ:
        return Comparison(run, False, f"{run} differs: {differ}. {_makers(made)}")
    policy = ", the policy's file" if all(policies) else ""
    count = f"{episodes[0].height} evaluation episodes, {curves[0].height} rows of curves{policy}"
    return Comparison(run, True, f"{run} is the same to the last bit: {count}.")


def _rows(frame: pl.DataFrame, run: str) -> pl.DataFrame:
    return frame.filter(pl.col("run") == run)


def _at_same_steps(evaluations: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """How often a run is evaluated on its way is no part of its protocol; at its end it always is."""
    steps = set(evaluations[0]["step"]) & set(evaluations[1]["step"])
    return [rows.filter(pl.col("step").is_in(list(steps))) for rows in evaluations]


def _alike(curves: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Two curves of one run in the same form: thinned, and with as many digits."""
    every = [int(curve["records"].max() or 1) for curve in curves]  # type: ignore[arg-type]
    if max(every) == 1:
        return curves
    return [rounded(thin(curve, max(every)) if own == 1 else curve) for curve, own in zip(curves, every)]


def _policy(records: StudyRecords, run: str) -> str:
    """What tells the policy's file from others; empty where nothing in the folder says."""
    known = _rows(records.long, run)["policy"]
    return str(known[0]) if known.len() else policy_digest(records.folder / "runs" / run)


def _parting(pair: list[pl.DataFrame], columns: dict[str, Any], what: str) -> str:
    """Where the two begin to differ; empty where they do not."""
    one, other = pair
    if one.height != other.height:
        return f"{one.height} and {other.height} times a {what}"
    equal = [one[name].eq_missing(other[name]) for name in columns]
    rows = pl.DataFrame(equal).select(pl.all_horizontal(pl.all()).alias("same"))["same"]
    if rows.all():
        return ""
    first = int(rows.arg_min() or 0)
    name = next(name for name, same in zip(columns, equal) if not same[first])
    place = f"{what} {first + 1} of {one.height}, at step {one['step'][first]:,}"
    return f"from {place}, {name} {one[name][first]!r} and {other[name][first]!r}"


def _makers(made: list[dict[str, Any]]) -> str:
    """What the two were made with, where that is not the same; or that it is."""
    apart = [name for name in MADE_WITH if made[0][name] != made[1][name]]
    pairs = [f"{name} {made[0][name] or 'unknown'} and {made[1][name] or 'unknown'}" for name in apart]
    return f"Made with {'; '.join(pairs)}." if pairs else "Both were made with the same code, stack and processor."
