"""Runs of a study put beside those of the same study that are packed already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from bcppo.report.entries import Problem, StudyError
from bcppo.report.load import StudyRecords


def finished(records: StudyRecords) -> set[str]:
    return set(records.runs.filter("usable")["id"])


def added(there: StudyRecords, study: Any, new: StudyRecords, new_study: Any) -> tuple[Any, StudyRecords]:
    """(study.json, records) of both. A run that both have finished must have the same episodes in both.

    Of a run that both have finished, the new may bring more episodes of `bcppo study evaluate`; all else of it stays as
    it is. Of one that is not finished in what is there, the new counts.
    """
    if there.name != new.name:
        raise StudyError(f"{there.folder} holds the study '{there.name}', and {new.folder} is of '{new.name}'.")
    listed, entries = _listed(study, there), _listed(new_study, new)
    for id in listed.keys() & entries.keys():
        if listed[id]["protocol"] != entries[id]["protocol"]:
            raise StudyError(f"The run {id} has other settings in {new.folder} than in {there.folder}.")
    done, newly = finished(there), finished(new)
    for id in sorted(done & newly):
        if not _episodes(there.evaluations, id).equals(_episodes(new.evaluations, id)):
            raise StudyError(f"{there.folder} and {new.folder} hold different results of one run, {id}.")
    longer = {id for id in done & newly if _count(new, id) > _count(there, id)}
    begun = set(new.runs.filter(pl.col("state") != "missing")["id"])
    taken = (begun - done) | (entries.keys() - listed.keys())
    runs = listed | {id: entry for id, entry in entries.items() if id in taken}
    rows = _joined(there.runs, new.runs, "id", taken)
    place = {id: row for row, id in enumerate(rows["id"])}
    problems = [problem for problem in there.problems if not (problem.run in taken or _of_many(problem, longer))]
    problems += [problem for problem in new.problems if problem.run in taken or _of_many(problem, longer)]
    return study | {"runs": list(runs.values())}, replace(
        there,
        runs=rows[[place[id] for id in runs]],
        evaluations=_joined(there.evaluations, new.evaluations, "run", taken),
        progress=_joined(there.progress, new.progress, "run", taken),
        long=_joined(there.long, new.long, "run", taken | longer),
        problems=tuple(problems),
    )


def _of_many(problem: Problem, finished: set[str]) -> bool:
    """Whether it is about the many episodes of a finished run: all that such a run can have but a failure before."""
    return problem.run in finished and problem.kind != "retried"


def _listed(study: Any, records: StudyRecords) -> dict[str, Any]:
    """The entries of study.json that can be used."""
    read = set(records.runs["id"])
    return {entry["id"]: entry for entry in study["runs"] if isinstance(entry, dict) and entry.get("id") in read}


def _joined(there: pl.DataFrame, new: pl.DataFrame, column: str, taken: set[str]) -> pl.DataFrame:
    """Rows of the runs that are taken from the new, of all others from what is there."""
    of_taken = pl.col(column).is_in(list(taken))
    return pl.concat([there.filter(~of_taken), new.filter(of_taken)])


def _episodes(evaluations: pl.DataFrame, run: str) -> pl.DataFrame:
    return evaluations.filter(pl.col("run") == run)


def _count(records: StudyRecords, run: str) -> int:
    return records.long.filter(pl.col("run") == run).height
