"""A study's folder: study.json, runs/<id>/ for each run, and beside each what went wrong with it.

    study.json                the study, with every setting of every run
    runs/<id>/                the run folder, as `bcppo train` makes it
    runs/<id>.failures.jsonl  one line an attempt that failed: {"attempt": …, "error": "…", "seconds": …}
    runs/<id>.log             what the run's process printed, where it printed anything
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bcppo.algorithms import CONFIGS
from bcppo.config import to_json
from bcppo.records import DIVERGED, FINISHED, FolderBusy, FolderError, RunFolder, write_atomically, write_json
from bcppo.study.plan import Entry, Study, StudyError, read_study

DONE, WORKING, WAITING, STOPPED, FAILED = "done", "running", "waiting", "stopped", "failed"
"""States of a run in a study; a stopped one was begun, and goes on from its checkpoint when the study is run again."""


class StudyFolder:
    """Where a study is kept."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    @property
    def exists(self) -> bool:
        return (self.path / "study.json").exists()

    def study(self) -> Study:
        if not self.exists:
            raise StudyError(f"{self.path} holds no study: there is no study.json in it.")
        if (self.path / "runs.parquet").exists():
            raise StudyError(
                f"{self.path} is a study in its published form, without run folders: `bcppo report` reads it, "
                "`bcppo pack FOLDER … --add` puts runs beside those it has; runs need another folder."
            )
        return read_study(self.path / "study.json")

    def locked(self) -> AbstractContextManager[None]:
        """While one command runs the study, no other does."""
        return RunFolder(self.path).locked()

    def run(self, id: str) -> RunFolder:
        return RunFolder(self.path / "runs" / id)

    def adopt(self, study: Study) -> Study:
        """Make this folder the study's, or see that it is; runs the folder does not have yet are added to it.

        So a study may grow, by seeds or methods, but a run never changes its settings.
        """
        if not self.exists:
            self._make()
            merged = study
        else:
            stored = self.study()
            self._refuse_another(stored, study)
            added = tuple(entry for entry in study.runs if entry.id not in stored.by_id)
            if not added:
                return stored
            merged = dataclasses.replace(stored, title=study.title, runs=stored.runs + added)
        write_json(self.path / "study.json", merged.to_json())
        return merged

    def _make(self) -> None:
        try:
            (self.path / "runs").mkdir(parents=True, exist_ok=True)
            others = [p.name for p in self.path.iterdir() if p.name != "runs" and not p.name.endswith(".part")]
            if others or any((self.path / "runs").iterdir()):
                raise StudyError(f"{self.path} holds other files and no study; choose another folder.")
        except OSError as error:
            raise StudyError(f"The folder {self.path} cannot be made: {error.strerror}.") from error

    def _refuse_another(self, stored: Study, study: Study) -> None:
        if stored.name != study.name:
            raise StudyError(
                f"{self.path} holds the study '{stored.name}', not '{study.name}'; choose another folder."
            )
        for entry in study.runs:
            there = stored.by_id.get(entry.id, entry)
            if there != entry:
                raise StudyError(
                    f"{self.path} holds the study '{study.name}' with other settings ({_difference(there, entry)}); "
                    "choose another folder."
                )

    def check(self, entry: Entry) -> None:
        """Refuse a run folder that holds another run than the study says."""
        folder = self.run(entry.id)
        if folder.exists and folder.load_config(CONFIGS) != (entry.method, entry.config):
            raise StudyError(f"{folder.path} holds a run with other settings than study.json says; move it away.")

    def finished(self, id: str) -> bool:
        folder = self.run(id)
        return folder.exists and folder.status()["state"] == FINISHED

    def diverged(self, id: str) -> bool:
        folder = self.run(id)
        return folder.exists and folder.status()["state"] == DIVERGED

    def state(self, id: str) -> str:
        if self.finished(id):
            return DONE
        if self._busy(id):
            return WORKING
        if self.failures(id) or self.diverged(id):
            return FAILED
        return STOPPED if self.run(id).exists else WAITING

    def _busy(self, id: str) -> bool:
        """Whether a process is at work on a run: it holds the folder's lock. (No lock, no telling: then not.)"""
        folder = self.run(id)
        if not folder.path.exists():
            return False
        try:
            with folder.locked():
                return False
        except FolderBusy:
            return True

    # --- failures ---

    def failures(self, id: str) -> list[dict[str, Any]]:
        """The attempts at a run that failed, oldest first."""
        path = self._failures(id)
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise FolderError(f"{path} cannot be read: {error}.") from error

    def add_failure(self, id: str, error: str, seconds: float) -> int:
        """Write an attempt down; its number, counted over the life of the study."""
        rows = self.failures(id)
        rows.append({"attempt": len(rows) + 1, "error": error, "seconds": round(seconds, 3)})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomically(self._failures(id), lambda part: _write(part, text))
        return len(rows)

    def _failures(self, id: str) -> Path:
        return self.path / "runs" / f"{id}.failures.jsonl"


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _difference(there: Entry, here: Entry) -> str:
    """The first thing in which two runs of one id differ."""
    rows = [{"method": e.method, "variant": e.variant, **to_json(e.config)} for e in (there, here)]
    names = [name for name in {**rows[0], **rows[1]} if rows[0].get(name) != rows[1].get(name)]
    return f"{names[0]} of {here.id}: {rows[0].get(names[0])!r} there, {rows[1].get(names[0])!r} asked for"
