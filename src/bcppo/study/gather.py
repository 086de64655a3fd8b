"""Pieces of a study that were run apart, on other machines or days, put together into one folder."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from bcppo.records import DIVERGED, FINISHED, RunFolder, write_json
from bcppo.study.folder import StudyFolder
from bcppo.study.named import DESIGNS, expand
from bcppo.study.plan import Entry, Study, StudyError

_RESULTS = ("config.json", "evaluations.parquet", "policy.safetensors")
"""Files of a run that are the same where it is the same run; one that diverged has no policy."""


def gather(pieces: Sequence[Path], out: Path) -> tuple[Study, list[str]]:
    """Copy the runs of the pieces that are at their end into a study folder; (the whole study, what was new to it).

    A run that diverged is at its end too. Nothing is ever picked: two pieces, or a piece and the folder, that hold
    different results of one run are refused before anything is copied. The same command goes on where it was stopped.
    """
    folders = [StudyFolder(piece) for piece in pieces]
    studies = [folder.study() for folder in folders]
    goal = StudyFolder(out)
    there = goal.study() if goal.exists else None
    begun = {entry.id for entry in there.runs if goal.run(entry.id).exists} if there else set()
    whole = _whole([*([(goal, there)] if there else []), *zip(folders, studies)], begun)
    found = _agreed([goal, *folders], whole)
    if there is None:
        goal.adopt(whole)
    else:
        write_json(goal.path / "study.json", whole.to_json())
    new = [id for id in found if not goal.run(id).exists]
    for id in new:
        _copy(found[id].path, goal.run(id).path)
    return whole, new


def _whole(pieces: Sequence[tuple[StudyFolder, Study]], begun: set[str]) -> Study:
    """All runs of the pieces, and of a named study those that no piece has. A run is entered as where it was run:
    elsewhere it may have been meant for another device. What was `begun` in the first piece stays as it is there."""
    first = pieces[0][1]
    for _, study in pieces[1:]:
        if study.name != first.name:
            raise StudyError(f"These are pieces of two studies, '{first.name}' and '{study.name}'.")
    entries: dict[str, Entry] = {}
    ended = set(begun)
    for folder, study in pieces:
        here = _ended(folder, study)
        for entry in study.runs:
            if entry.protocol != entries.setdefault(entry.id, entry).protocol:
                raise StudyError(f"The run {entry.id} has other settings in one piece than in another.")
            if entry.id in here and entry.id not in ended:
                entries[entry.id] = entry
        ended |= here.keys()
    if first.name in DESIGNS:
        design = expand(DESIGNS[first.name])
        entries = {entry.id: entries.get(entry.id, entry) for entry in design.runs} | entries
        first = dataclasses.replace(first, title=design.title)
    return dataclasses.replace(first, runs=tuple(entries.values()))


def _ended(folder: StudyFolder, study: Study) -> dict[str, RunFolder]:
    runs = {entry.id: folder.run(entry.id) for entry in study.runs}
    return {id: run for id, run in runs.items() if run.exists and run.status()["state"] in (FINISHED, DIVERGED)}


def _agreed(folders: Sequence[StudyFolder], study: Study) -> dict[str, RunFolder]:
    """Of each run the first folder that has it at its end; folders that differ in its results are refused."""
    held: dict[str, RunFolder] = {}
    for folder in folders:
        for id, run in _ended(folder, study).items():
            other = held.setdefault(id, run)
            for name in _RESULTS if other is not run else ():
                if _bytes(run / name) != _bytes(other / name):
                    raise StudyError(f"{run.path} and {other.path} hold different results of one run ({name}).")
    return held


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _copy(source: Path, target: Path) -> None:
    """A run folder, there as a whole or not at all."""
    part = target.with_name(f"{target.name}.part")
    try:
        if part.exists():
            shutil.rmtree(part)
        shutil.copytree(source, part)
        part.rename(target)
    except OSError as error:
        raise StudyError(f"{source} could not be copied to {target}: {error.strerror}.") from error
