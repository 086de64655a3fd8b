"""Runs that were made twice: is the second the first, to the last bit?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.config import NOT_PROTOCOL
from bcppo.records import policy_digest
from bcppo.report.adding import finished
from bcppo.report.entries import StudyError
from bcppo.report.load import StudyRecords, load_study
from bcppo.report.pack import rounded, thin
from bcppo.report.schema import EVALUATIONS, PROGRESS

MADE_WITH = ("revision", "device", "processor", "python", "versions")
SAME, DIFFERS, OTHER = "same", "differs", "other settings"


@dataclass(frozen=True)
class Comparison:
    """What two studies hold of one run."""

    run: str
    state: str
    """SAME, DIFFERS or OTHER: with other settings there is nothing to compare."""
    sentence: str


def compare_studies(first: str | Path, second: str | Path) -> list[Comparison]:
    """Of each run that both have finished, packed, kept or neither: whether episodes, curves and policy are the same.

    Curves are compared as thinned as the more thinned of the two, in what both have of them; policies where both
    folders tell which file it was.
    """
    if Path(first).resolve() == Path(second).resolve():
        raise StudyError(f"{first} and {second} are one folder.")
    ours, theirs = load_study(first), load_study(second)
    both = finished(ours) & finished(theirs)
    if not both:
        raise StudyError(f"{first} and {second} have no finished run in common.")
    return [_compared(run, ours, theirs) for run in ours.runs["id"] if run in both]


def summary(found: Sequence[Comparison]) -> str:
    """How many are the same and, of the others, what they are."""
    counts = {state: sum(one.state == state for one in found) for state in (SAME, DIFFERS, OTHER)}
    text = f"{counts[SAME]} of {len(found)} runs are the same"
    text += f", {counts[DIFFERS]} differ" if counts[DIFFERS] else ""
    return text + (f", {counts[OTHER]} cannot be compared" if counts[OTHER] else "") + "."


def _compared(run: str, ours: StudyRecords, theirs: StudyRecords) -> Comparison:
    made = [records.runs.row(by_predicate=pl.col("id") == run, named=True) for records in (ours, theirs)]
    if made[0]["protocol"] != made[1]["protocol"]:
        return Comparison(run, OTHER, f"{run} has other settings in one than in the other: {_settings(made)}.")
    episodes = _at_same_steps([_rows(records.evaluations, run) for records in (ours, theirs)])
    curves = _alike([_rows(records.progress, run) for records in (ours, theirs)])
    policies = [_policy(records, run) for records in (ours, theirs)]
    measured = [{name for name in PROGRESS if curve[name].null_count() < curve.height} for curve in curves]
    known = [name for name in PROGRESS if name in measured[0] & measured[1]]
    absent = [name for name in PROGRESS if name in measured[0] ^ measured[1]]
    differ = _parting(curves, known, "row of its curves") or _parting(episodes, list(EVALUATIONS), "evaluation episode")
    if not differ and all(policies) and policies[0] != policies[1]:
        differ = "its policy is another file"
    if differ:
        return Comparison(run, DIFFERS, f"{run} differs: {differ}. {_makers(made)}")
    without = f" (without {', '.join(absent)}, which one of them has not)" if absent else ""
    what = [f"{episodes[0].height} evaluation episodes", f"{curves[0].height} rows of curves{without}"]
    return Comparison(run, SAME, f"{run} is the same: {', '.join(what + ['the policy file'] * all(policies))}.")


def _rows(frame: pl.DataFrame, run: str) -> pl.DataFrame:
    return frame.filter(pl.col("run") == run)


def _settings(made: list[dict[str, Any]]) -> str:
    one, other = (json.loads(row["config"]) for row in made)
    names = [name for name in {**one, **other} if name not in NOT_PROTOCOL and one.get(name) != other.get(name)]
    return ", ".join(f"{name} {one.get(name)} and {other.get(name)}" for name in names) or "the task's or the method's"


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
    places = [records.folder / "runs" / run, records.folder / run]
    return str(known[0]) if known.len() else next(filter(None, map(policy_digest, places)), "")


def _parting(pair: list[pl.DataFrame], columns: list[str], what: str) -> str:
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
    """What the two were made with, as far as that is not known to be the same."""
    pairs = [[row[name] or "unknown" for row in made] for name in MADE_WITH]
    apart = [f"{name} {one} and {other}" for name, (one, other) in zip(MADE_WITH, pairs) if one != other]
    apart += [f"{name} unknown in both" for name, pair in zip(MADE_WITH, pairs) if pair == ["unknown"] * 2]
    return f"Made with {'; '.join(apart)}." if apart else "Both were made with the same code, stack and processor."
