"""Workers that take turns: more processes than cores, and about one a core at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bcppo.pool import Worker


class Turns:
    """Which of the long requests to some workers are at work: so many at once, in the order they came, one a worker.

    Were all at work at once, they would share the cores and all end late. In turn, the first end early, and what waits
    for them goes on while the others are at work.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._at_work: dict[Worker, int] = {}
        self.waiting: list[tuple[Worker, dict[str, Any]]] = []
        """Requests whose turn has not come."""

    def ask(self, worker: Worker, header: dict[str, Any]) -> None:
        """Send a request when its turn comes."""
        self.waiting.append((worker, header))
        self._go_on()

    def answered(self, worker: Worker, environment: int) -> None:
        """A worker has answered for one of its environments."""
        if self._at_work.get(worker) == environment:
            del self._at_work[worker]
            self._go_on()

    def forget(self, worker: Worker) -> None:
        """A worker is dead: what it was asked will be asked again."""
        self._at_work.pop(worker, None)
        self.waiting = [request for request in self.waiting if request[0] is not worker]
        self._go_on()

    def withdraw(self, worker: Worker, environment: int) -> None:
        """What waits for its turn there is not wanted any more."""
        self.waiting = [
            (other, header)
            for other, header in self.waiting
            if (other, header["environment"]) != (worker, environment)
        ]

    def _go_on(self) -> None:
        waiting, self.waiting = self.waiting, []
        for worker, header in waiting:
            if len(self._at_work) < self._at_once and worker not in self._at_work:
                self._at_work[worker] = header["environment"]
                worker.send(header, {})
            else:
                self.waiting.append((worker, header))
