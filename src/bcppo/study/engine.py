"""What is missing of a study → an engine → outcomes, with retries. Engines know where; this, what and how often."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bcppo.errors import ConfigError
from bcppo.study.child import Outcome
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Entry, Group, Study, groups

Say = Callable[[str], None]


class Engine(Protocol):
    """Somewhere for groups of runs to take place."""

    @property
    def places(self) -> int:
        """How many groups it takes at once."""

    def start(self, group: Group) -> None:
        """Begin a group, or go on with it."""

    def wait(self) -> list[tuple[Group, list[Outcome]]]:
        """Wait until at least one group has ended; the groups that have, and how each of their runs fared."""

    def stop(self) -> None:
        """End whatever is still at work, and come back when it is gone."""


def run_study(folder: StudyFolder, study: Study, engine: Engine, *, attempts: int, say: Say) -> list[str]:
    """Run what is missing of some runs of the folder's study; the ids of those that failed in the end.

    A run that failed, or whose process was killed, goes on from its checkpoint until this call has tried it `attempts`
    times. A run that diverged is not tried again: it would diverge again.
    """
    try:
        if attempts < 1:
            raise ConfigError(f"attempts must be at least 1, but {attempts} was given.")
        pending = missing(folder, study.runs)
        diverged = [entry.id for entry in pending if folder.diverged(entry.id)]
        waiting = deque(groups([entry for entry in pending if entry.id not in diverged]))
        ledger = _Ledger(folder, attempts, say, len(study.runs), len(study.runs) - len(pending), diverged)
        say(f"study {study.name}: {ledger.done} of {ledger.total} runs done, {len(waiting)} to run")
        for run in diverged:
            say(f"{run}: diverged before, not tried again; take its folder away to have it run anew")
        working = 0
        while waiting or working:
            while waiting and working < engine.places:
                engine.start(waiting.popleft())
                working += 1
            for _, outcomes in engine.wait():
                working -= 1
                waiting.extend(ledger.settle(outcomes))
    finally:
        engine.stop()
    return ledger.lost


def missing(folder: StudyFolder, runs: Sequence[Entry]) -> list[Entry]:
    """The runs that are not finished; refuses a folder that holds other runs than the study says."""
    for entry in runs:
        folder.check(entry)
    return [entry for entry in runs if not folder.finished(entry.id)]


@dataclass
class _Ledger:
    """How the runs of one call fare."""

    folder: StudyFolder
    attempts: int
    say: Say
    total: int
    done: int
    lost: list[str]
    """Runs that are not tried again."""
    tried: Counter[str] = field(default_factory=Counter)

    def settle(self, outcomes: list[Outcome]) -> list[Group]:
        """Write down how runs fared; what is to go on."""
        again: list[Group] = []
        for outcome in outcomes:
            if not outcome.error:
                self.done += 1
                self.say(f"{outcome.run}: done in {outcome.seconds:.0f} s ({self.done} of {self.total})")
                continue
            self.tried[outcome.run] += 1
            number = self.folder.add_failure(outcome.run, outcome.error, outcome.seconds)
            retry = self.tried[outcome.run] < self.attempts and not self.folder.diverged(outcome.run)
            self.say(f"{outcome.run}: attempt {number} failed{', going on' if retry else ''}: {outcome.error}")
            if retry:
                again.append((outcome.run,))
            else:
                self.lost.append(outcome.run)
        return again
