"""The process in which runs of a study, or diagnostics, take place: `python -m bcppo.study.child FOLDER ID…`.

Every engine uses it, so that a run's bytes do not depend on the engine. It takes up each run where its folder says it
is, and answers with a line of JSON a run on its standard output. It ends with whoever started it: when that process
closes the child's standard input, or dies, the child is gone at once, and the lock on its run folder with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bcppo.process import signal_name
from bcppo.records import FolderBusy
from bcppo.study.folder import StudyFolder
from bcppo.study.outcome import Outcome, answer, attempted
from bcppo.study.plan import Entry, Group

PATIENCE = 120.0
"""Seconds a run waits for its folder's lock: a process on a node that died may take a while to be gone."""


# --- from outside ---


class Child:
    """A child process at work on a group of runs: `command` is a Python module and what stands before the folder."""

    def __init__(self, folder: Path, group: Group, command: Sequence[str] = ("bcppo.study.child",)) -> None:
        self.group = group
        self._began = time.perf_counter()
        beside = folder / "runs"
        self._log = (beside if beside.is_dir() else folder) / f"{group[0]}.log"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # A task 'module:function' is found there where it is found here.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, str(folder), *group],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
                start_new_session=True,  # an interrupt from the keyboard is for whoever started it
            )  # fmt: skip

    def fileno(self) -> int:
        """Readable when the child has answered or ended, for `select`."""
        return self.process.stdout.fileno()  # type: ignore[union-attr]

    def wait(self) -> list[Outcome]:
        answers = self.process.stdout.read()  # type: ignore[union-attr]
        code = self.process.wait()
        self._close()
        seconds = time.perf_counter() - self._began
        told = {row["run"]: Outcome(**row) for row in map(json.loads, answers.decode().splitlines())}
        return [told.get(run, Outcome(run, _death(code, self._log), seconds)) for run in self.group]

    def stop(self) -> None:
        """End the child now; its runs go on from their checkpoints another time."""
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()  # type: ignore[union-attr]
        if self._log.exists() and self._log.stat().st_size == 0:
            self._log.unlink()


def run_group(folder: str, group: Group) -> list[Outcome]:
    """A group of runs in a child of this process, to its end."""
    return Child(Path(folder), group).wait()


def _death(code: int, log: Path) -> str:
    """Why a child ended that did not say so itself."""
    if code < 0:
        return f"The run's process was killed by {signal_name(code)}."
    return f"The run's process ended with code {code} and no answer; {log} has what it printed."


# --- inside ---


def main(folder: str, group: Group) -> None:
    answer(_outcomes(StudyFolder(folder), group))


def _outcomes(study: StudyFolder, group: Group) -> Iterator[Outcome]:
    """How the runs of a study fared, or what is to be diagnosed of runs."""
    if study.exists:
        yield from (attempt(study, name) for name in group)
    else:
        from bcppo.study.diagnostics import attempts

        yield from attempts(study.path, group)


def attempt(study: StudyFolder, name: str) -> Outcome:
    """Work on a run to its end."""
    return attempted(name, lambda: _train(study, study.study().by_id[name]))


def _train(study: StudyFolder, entry: Entry) -> None:
    """Begin the run, or go on with it; wait where another process is still at work on it."""
    from bcppo.run import resume, train

    folder = study.run(entry.id)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if folder.exists:
                study.check(entry)
                resume(folder.path)
            else:
                train(entry.config, method=entry.method, out=folder.path)
            return
        except FolderBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], tuple(sys.argv[2:]))
