"""An engine: all runs at once as a fleet, where learners compute on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from bcppo.fleet import train_fleet
from bcppo.records import FINISHED
from bcppo.study.child import Outcome
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Entry, Group
from bcppo.watch import FleetWatch


class FleetEngine:
    """Groups wait until all are there, and are then trained together; runs that differ only in their seed are stacked.

    So a cell of a table comes out the same whether it is trained with the others or again by itself.
    """

    def __init__(
        self,
        folder: StudyFolder,
        runs: Sequence[Entry],
        workers: int | None = None,
        device: str = "cuda",
        worker_python: str | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.places = len(runs)
        self._entries = {entry.id: entry for entry in runs}
        self._folder, self._workers, self._device = folder, workers, device
        self._worker_python, self._compiled = worker_python, compiled
        self._groups: list[Group] = []

    def start(self, group: Group) -> None:
        self._groups.append(group)

    def wait(self) -> list[tuple[Group, list[Outcome]]]:
        groups, self._groups = self._groups, []
        entries = [self._entries[id] for group in groups for id in group]
        begun = monotonic()
        train_fleet(
            [(entry.method, entry.config) for entry in entries],
            out=self._folder.path / "runs",
            names=[entry.id for entry in entries],
            workers=self._workers,
            device=self._device,
            stacked=True,
            worker_python=self._worker_python,
            apart=True,
            compiled=self._compiled,
            watch=FleetWatch(),
        )
        seconds = monotonic() - begun
        return [(group, [self._outcome(id, seconds) for id in group]) for group in groups]

    def _outcome(self, id: str, seconds: float) -> Outcome:
        status = self._folder.run(id).status()
        finished = status["state"] == FINISHED
        return Outcome(id, "" if finished else status["message"] or f"it is {status['state']}.", seconds)

    def stop(self) -> None:
        """Nothing is at work outside `wait`."""
