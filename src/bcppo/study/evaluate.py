"""`bcppo study evaluate`: every finished run of a study on many more episodes, as long_evaluation.py keeps them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from bcppo.errors import BcppoError, ConfigError
from bcppo.long_evaluation import episodes_there
from bcppo.records import DIVERGED, FINISHED, LONG, POLICY, FolderError
from bcppo.study.engine import Say
from bcppo.study.folder import StudyFolder
from bcppo.study.local import LocalEngine
from bcppo.study.plan import Entry, Study


def evaluate_study(
    folder: StudyFolder, study: Study, *, episodes: int, workers: int | None = None, say: Say
) -> list[str]:
    """Evaluate what is missing of some runs of the folder's study; the ids of finished runs that could not be.

    Runs that are not finished are named. While others of the study train, finished ones may be evaluated.
    """
    if episodes < 1:
        raise ConfigError(f"An evaluation needs at least 1 episode, but {episodes} were asked for.")
    sought = _Sought(folder, episodes, say)
    engine = LocalEngine(folder, workers, ("bcppo.study.evaluator", str(episodes)))
    waiting = deque(sought.missing(study.runs))
    done = sought.done
    say(f"study {study.name}: {done} of {len(study.runs)} runs have {episodes} episodes, {len(waiting)} to evaluate")
    working = 0
    try:
        while waiting or working:
            while waiting and working < engine.places:
                engine.start((waiting.popleft(),))
                working += 1
            for _, outcomes in engine.wait():
                working -= 1
                for outcome in outcomes:
                    if outcome.error:
                        sought.lost.append(outcome.run)
                        say(f"{outcome.run}: not evaluated: {outcome.error}")
                        continue
                    done += 1
                    note = f"; {outcome.note}" if outcome.note else ""
                    say(f"{outcome.run}: done in {outcome.seconds:.0f} s ({done} of {len(study.runs)}){note}")
    finally:
        engine.stop()
    say(f"{done} of {len(study.runs)} runs have {episodes} episodes")
    return sought.lost


class _Sought:
    """Which runs there are to evaluate; says of each other one why it is not, and goes on."""

    def __init__(self, folder: StudyFolder, episodes: int, say: Say) -> None:
        self._folder, self._episodes, self._say = folder, episodes, say
        self.done = 0
        self.lost: list[str] = []

    def missing(self, runs: Iterable[Entry]) -> list[str]:
        found = []
        for entry in runs:
            try:
                if not self._is_finished(entry):
                    continue
                if self._has_rows(entry.id):
                    self.done += 1
                else:
                    found.append(entry.id)
            except BcppoError as error:
                self.lost.append(entry.id)
                self._say(f"{entry.id}: not evaluated: {error}")
        return found

    def _is_finished(self, entry: Entry) -> bool:
        run = self._folder.run(entry.id)
        if not run.exists:
            self._say(f"{entry.id}: not evaluated: it has not been run.")
            return False
        self._folder.check(entry)
        state = run.status()["state"]
        if state != FINISHED:
            why = "it diverged" if state == DIVERGED else f"it has not finished ({state})"
            self._say(f"{entry.id}: not evaluated: {why}.")
            return False
        if not (run / POLICY).exists():
            raise FolderError(f"{run / POLICY} does not exist.")
        return True

    def _has_rows(self, id: str) -> bool:
        run = self._folder.run(id)
        try:
            there = episodes_there(run)
        except FolderError as error:
            self._say(f"{id}: evaluated anew: {error}")
            return False
        if there == 0 and (run / f"{LONG}.parquet").exists():
            self._say(f"{id}: evaluated anew: its rows are of another policy than the one that is there now.")
        return there >= self._episodes
