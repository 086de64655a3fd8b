"""An engine: processes on this machine, one for each group of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from selectors import EVENT_READ, DefaultSelector

from bcppo.errors import ConfigError
from bcppo.study.child import Child, Outcome
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Group


class LocalEngine:
    """As many child processes at once as there are workers; `command` is what `Child` takes."""

    def __init__(
        self, folder: StudyFolder, workers: int | None = None, command: Sequence[str] = ("bcppo.study.child",)
    ) -> None:
        self.places = workers if workers is not None else _cores()
        if self.places < 1:
            raise ConfigError(f"workers must be at least 1, but {workers} was given.")
        self._folder, self._command = folder.path, command
        self._children: list[Child] = []

    def start(self, group: Group) -> None:
        self._children.append(Child(self._folder, group, self._command))

    def wait(self) -> list[tuple[Group, list[Outcome]]]:
        with DefaultSelector() as selector:
            for child in self._children:
                selector.register(child, EVENT_READ)
            ready: list[Child] = [key.fileobj for key, _ in selector.select()]  # type: ignore[misc]
        ended = []
        for child in ready:
            ended.append((child.group, child.wait()))
            self._children.remove(child)
        return ended

    def stop(self) -> None:
        for child in self._children:
            child.stop()
        self._children.clear()


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
