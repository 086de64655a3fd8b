"""Stacked learners: the runs of a fleet on one GPU, their simulators in worker processes on every core.

Runs that agree in method, shapes and length share a stack, one learner for all of them; stacks take turns, so that some
simulate while another learns.
"""

from __future__ import annotations

import dataclasses
import os
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from bcppo.algorithms import METHODS
from bcppo.config import RunConfig, protocol_id
from bcppo.errors import BcppoError, Diverged, in_words
from bcppo.pool import Turns, Worker, take_in, wait
from bcppo.queued import Awaited
from bcppo.records import DIVERGED, FAILED, RUNNING, RunFolder
from bcppo.run import Run, Stored, leave
from bcppo.training import BadFolder, Trainer
from bcppo.watch import FleetWatch

STEP_COSTS = {"goal1": 2.0, "button1": 8.0, "push1": 6.0, "hopper": 1.0, "ant": 2.0}
"""How long a step of a task takes, roughly: for sharing environments out among workers."""

PART, FEWEST_PARTS, MOST_PARTS = 5, 3, 6
"""Runs that could all share a stack are divided into parts of so many, to take turns. Smaller parts wait less for their
slowest run, but each costs the learner an update."""

SPARE_TURNS = 1
"""Simulators at work beyond one a core: a core whose run has ended has another while the learner is busy."""

_PATIENCE, _BETWEEN_LOOKS = 1.0, 0.0005
"""Seconds to wait for workers at most; while a GPU is at an update, too."""

_SHAPING = (
    "steps", "num_envs", "rollout", "minibatch", "epochs", "hidden", "branch_normalization", "max_grad_norm", "members",
    "normalize_observations", "bonus", "quantiles", "window", "buffer", "random_steps", "polyak",
    "conjugate_gradient_steps", "search_steps",
)  # fmt: skip
"""Settings that runs of one stack have in common; all others may differ."""


@dataclasses.dataclass
class Member:
    """A run of a fleet."""

    method: str
    config: RunConfig
    folder: RunFolder


def train_stacked(
    members: Sequence[Member],
    count: int,
    python: str | None,
    watch: FleetWatch,
    note: dict[str, Any],
    *,
    apart: bool,
) -> None:
    with ExitStack() as ends:
        for member in members:
            ends.enter_context(member.folder.locked())
        turns = Turns(min(count, len(os.sched_getaffinity(0)) + SPARE_TURNS))
        workers = [Worker(python, turns) for _ in range(min(count, len(members)))]
        for worker in workers:
            ends.callback(worker.close)
        fleet = _Fleet(workers, turns, watch, note, apart=apart)
        ends.callback(fleet.close)
        stacks = fleet.stacks(fleet.settled([fleet.open(member) for member in members]))
        if len(stacks) < FEWEST_PARTS and not apart:
            stacks = [part for stack in stacks for part in _parts(stack)]
        for stack in stacks:
            fleet.launch(stack)
        fleet.work()


def _parts(stack: list[Run]) -> list[list[Run]]:
    """So that some simulate while another learns; learners of single steps see to that themselves."""
    if METHODS[stack[0].method].off_policy:
        return [stack]
    count = min(max(len(stack) // PART, FEWEST_PARTS), MOST_PARTS)
    return [part for first in range(count) if (part := stack[first::count])]


class _Fleet:
    """Stacks that take turns."""

    def __init__(
        self, workers: Sequence[Worker], turns: Turns, watch: FleetWatch, note: dict[str, Any], *, apart: bool
    ) -> None:
        self._workers, self._turns, self._watch, self._note, self._apart = workers, turns, watch, note, apart
        self._stored: dict[int, Stored | None] = {}
        self._load = [0.0] * len(workers)
        self._at_work: dict[Generator[Sequence[Any], None, None], tuple[Trainer, Sequence[Any]]] = {}

    def open(self, member: Member) -> Run:
        """A run in the workers that have the least to do."""
        hosts = []
        for _ in range(member.config.num_envs):
            least = min(range(len(self._load)), key=lambda i: (bool(self._workers[i].given_up), self._load[i]))
            self._load[least] += STEP_COSTS.get(member.config.task, 1.0) / member.config.num_envs
            hosts.append(self._workers[least])
        return Run(member.method, member.config, member.folder, hosts=hosts)

    def settled(self, runs: Sequence[Run]) -> list[Run]:
        """Those whose environments could be made and whose folders are whole, where they go on from.

        The others are left as they are, with the reason.
        """
        made = []
        for run in runs:
            try:
                _ = run.widths
                self._stored[id(run)] = run.stored(self._watch.warn)
            except Exception as error:
                self._refuse([run], error)
            else:
                made.append(run)
        return made

    def stacks(self, runs: Iterable[Run]) -> list[list[Run]]:
        """Runs that can share a learner."""
        groups: dict[Any, list[Run]] = {}
        for run in runs:
            stored = self._stored[id(run)]
            protocol = protocol_id(run.method, run.config) if self._apart else ""
            shape = [str(getattr(run.config, name, None)) for name in _SHAPING]
            bounds = [bound.tobytes() for bound in run.bounds]
            key = (protocol, run.method, run.widths, stored.step if stored else 0, *shape, *bounds)
            groups.setdefault(key, []).append(run)
        return list(groups.values())

    def launch(self, runs: Sequence[Run]) -> None:
        try:
            trainer = Trainer(runs, self._watch, writes_aside=True)
            trainer.restore([self._stored.pop(id(run)) for run in runs])
            for run in runs:
                run.folder.went_on(run.step, str(trainer.device), self._note)
                run.folder.set_status(RUNNING)
        except BadFolder as error:
            self._refuse([runs[error.run]], error)
            self._again([run for index, run in enumerate(runs) if index != error.run])
        except Exception as error:
            self._refuse(runs, error)
        else:
            self._go_on(trainer.work(), trainer)

    def work(self) -> None:
        """Until every stack is done: whichever has its answers goes on."""
        while self._at_work:
            if self._turns.waiting:
                take_in(self._workers, 0.0)  # so that their turns pass on
            ready = (work for work, (_, awaited) in self._at_work.items() if all(one.ready() for one in awaited))
            # The first and no other: to look at one may bring a dead worker back, and take away what others had.
            if work := next(ready, None):
                self._go_on(work, self._at_work[work][0])
            else:
                # The end of an update on a GPU wakes nobody: it is looked for.
                updating = any(isinstance(one, Awaited) for _, awaited in self._at_work.values() for one in awaited)
                wait(self._workers, _BETWEEN_LOOKS if updating else _PATIENCE)

    def close(self) -> None:
        """Where it was interrupted: what trainers had begun to write is written."""
        for work in list(self._at_work):
            work.close()

    def _go_on(self, work: Generator[Sequence[Any], None, None], trainer: Trainer) -> None:
        self._at_work.pop(work, None)
        try:
            self._at_work[work] = trainer, next(work)
        except StopIteration:
            return
        except Diverged as error:
            self._without(trainer, error)
        except Exception as error:
            leave(trainer.runs, FAILED, in_words(error))
            self._say(trainer.runs, error)

    def _refuse(self, runs: Sequence[Run], error: Exception) -> None:
        """Runs that never began: their folders get the reason, and nothing else in them is touched."""
        for run in runs:
            with suppress(BcppoError):
                run.folder.set_status(FAILED, in_words(error))
        self._say(runs, error)

    def _say(self, runs: Sequence[Run], error: Exception) -> None:
        """Why runs stopped; of what nobody expected, where it happened too."""
        for run in runs:
            self._watch.over(run.folder.path.name, FAILED)
        names = runs[0].folder.path.name if len(runs) == 1 else f"{len(runs)} runs of the fleet stopped"
        self._watch.warn(f"{names}: {in_words(error)}")
        if not isinstance(error, BcppoError):
            traceback.print_exception(error)

    def _without(self, trainer: Trainer, error: Diverged) -> None:
        """A run that diverged is left as it is; the others of its stack go on from their checkpoints."""
        lost = [run for index, run in enumerate(trainer.runs) if error.run in (index, None)]
        leave(lost, DIVERGED, str(error))
        for run in lost:
            self._watch.over(run.folder.path.name, DIVERGED)
        self._watch.warn(f"{', '.join(run.folder.path.name for run in lost)}: {error}")
        rest = [run for run in trainer.runs if run not in lost]
        for run in rest:
            run.write_rows()
        self._again(rest)

    def _again(self, runs: Sequence[Run]) -> None:
        """Runs whose stack has lost one of them, from where their folders are."""
        opened = self.settled([self.open(Member(run.method, run.config, run.folder)) for run in runs])
        for stack in self.stacks(opened):
            self.launch(stack)
