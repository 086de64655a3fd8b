"""Stacked learners: the runs of a fleet on one GPU, their simulators in worker processes on every core.

Runs that agree in method, shapes and length share a stack, one learner for all of them; stacks take turns, so that some
simulate while another learns.
"""

from __future__ import annotations

import dataclasses
import os
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from bcppo.algorithms import METHODS
from bcppo.config import RunConfig, protocol_id
from bcppo.errors import BcppoError, ConfigError, Diverged, RunError, WorkerLost, in_words
from bcppo.pool import Worker, close_all, take_in, wait
from bcppo.queued import Awaited
from bcppo.records import DIVERGED, FAILED, REPLAY, RUNNING, FolderBusy, FolderError, RunFolder
from bcppo.run import Run, Stored, leave
from bcppo.training import BadFolder, Trainer, resolve_device
from bcppo.turns import Turns
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
_OTHER_FILES = 256
"""Open files beside a fleet's locks and pipes: libraries, curves that are being written, and room to spare."""
_NAMED = 5
"""Runs that a warning names."""


@dataclasses.dataclass
class Member:
    """A run of a fleet."""

    method: str
    config: RunConfig
    folder: RunFolder
    trouble: str = ""
    """Why its folder cannot be gone on with, where that is so."""


def train_stacked(
    members: Sequence[Member],
    count: int,
    python: str | None,
    watch: FleetWatch,
    note: dict[str, Any],
    *,
    apart: bool,
) -> None:
    _allow_files(2 * len(members) + 3 * min(count, len(members)))
    with ExitStack() as ends:
        free = [member for member in members if _lock(member, ends, watch)]
        turns = Turns(min(count, len(os.sched_getaffinity(0)) + SPARE_TURNS))
        workers: list[Worker] = []
        ends.callback(close_all, workers)
        for _ in range(min(count, len(free))):
            workers.append(Worker(python, turns))
        fleet = _Fleet(workers, turns, watch, note, apart=apart)
        ends.callback(fleet.close)
        fleet.begin(free)
        fleet.work()


def _lock(member: Member, ends: ExitStack, watch: FleetWatch) -> bool:
    """Whether nobody else is at work in a run's folder; then nobody will be, until the end."""
    try:
        ends.enter_context(member.folder.locked())
    except FolderBusy as error:
        watch.over(member.folder.path.name, FAILED)
        watch.warn(f"{member.folder.path.name}: {error}")
        return False
    return True


def _allow_files(more: int) -> None:
    """Room for a fleet's locks, curves and pipes, where the usual 1,024 open files are not enough."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = more + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"This fleet opens some {needed:,} files, but the system allows {hard:,}: raise that (`ulimit -Hn`), or "
            "train fewer runs at once."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


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
        self._again: deque[Sequence[Member]] = deque()
        self._at_work: dict[Generator[Sequence[Any], None, None], tuple[Trainer, Sequence[Any]]] = {}

    def begin(self, members: Sequence[Member]) -> None:
        for stack in self._divided(self._stacks(self._opened(members))):
            self._launch_level(stack)

    def _divided(self, stacks: list[list[Run]]) -> list[list[Run]]:
        if len(stacks) < FEWEST_PARTS and not self._apart:
            return [part for stack in stacks for part in _parts(stack)]
        return stacks

    def _opened(self, members: Sequence[Member]) -> list[Run]:
        """Runs whose environments could be made and whose folders are whole, where they go on from.

        The others are left as they are, with the reason.
        """
        made, homeless = [], []
        for run in [run for member in members if (run := self._open(member))]:
            try:
                run.check_spaces()
                resolve_device(run.config.device)
                self._stored[id(run)] = run.stored(self._watch.warn)
            except Exception as error:
                if isinstance(error, WorkerLost) and self._has_workers:
                    homeless.append(Member(run.method, run.config, run.folder))
                    self._release([run])
                else:
                    self._refuse([run], error)
            else:
                made.append(run)
        return made + (self._opened(homeless) if homeless else [])

    def _open(self, member: Member) -> Run | None:
        """A run in the workers that have the least to do."""
        hosts = []
        for _ in range(member.config.num_envs):
            least = min(range(len(self._load)), key=lambda i: (bool(self._workers[i].given_up), self._load[i]))
            self._load[least] += STEP_COSTS.get(member.config.task, 1.0) / member.config.num_envs
            hosts.append(self._workers[least])
        try:
            return Run(member.method, member.config, member.folder, hosts=hosts)
        except Exception as error:
            self._refuse([member], error)
            return None

    @property
    def _has_workers(self) -> bool:
        return not all(worker.given_up for worker in self._workers)

    def _stacks(self, runs: Iterable[Run]) -> list[list[Run]]:
        """Runs that can share a learner, once they are at one step."""
        groups: dict[Any, list[Run]] = {}
        for run in runs:
            protocol = protocol_id(run.method, run.config) if self._apart else ""
            shaping = ("steps", *METHODS[run.method].learner().shared_fields)
            shape = [getattr(run.config, name) for name in shaping]
            bounds = [bound.tobytes() for bound in run.bounds]
            device = str(resolve_device(run.config.device))
            key = (protocol, run.method, device, run.widths, *shape, *bounds)
            groups.setdefault(key, []).append(run)
        return list(groups.values())

    def _step(self, run: Run) -> int:
        stored = self._stored[id(run)]
        return stored.step if stored else 0

    def _launch_level(self, stack: Sequence[Run]) -> None:
        """A stack, or what can go on together of one whose runs are at different steps and stay there."""
        self._level(stack)
        groups: dict[int, list[Run]] = {}
        for run in stack:
            groups.setdefault(self._step(run), []).append(run)
        for group in groups.values():
            self._launch(group)

    def _level(self, stack: Sequence[Run]) -> None:
        """Runs that were killed a checkpoint ahead of others of their stack go back to it, where all of them can, so
        that the stack is what it was: on a GPU a run rounds differently in other company."""
        earliest = min(map(self._step, stack))
        ahead = [run for run in stack if self._step(run) > earliest]
        before = [self._before(run) for run in ahead]
        if any(stored is None or stored.step != earliest for stored in before):
            return
        for run, stored in zip(ahead, before):
            with suppress(OSError):  # then it stays where it is
                run.folder.go_back()
                self._stored[id(run)] = stored

    def _before(self, run: Run) -> Stored | None:
        """What a run could go back to. Not without its stored transitions, of which its last checkpoint has no need."""
        try:
            run.folder.tidy()
            stored = run.stored(self._watch.warn, previous=True)
        except (FolderError, OSError):
            return None
        return None if stored and "replay" in stored.notes and not (run.folder / REPLAY).exists() else stored

    def _launch(self, runs: Sequence[Run]) -> None:
        try:
            trainer = Trainer(runs, self._watch, writes_aside=True)
            trainer.restore([self._stored.pop(id(run)) for run in runs])
            for run in runs:
                run.folder.went_on(run.step, str(trainer.device), self._note)
                run.folder.set_status(RUNNING)
        except Exception as error:
            self._stop(runs, error, self._refuse)
        else:
            self._go_on(trainer.work(), trainer)

    def work(self) -> None:
        """Until every stack is done: whichever has its answers goes on."""
        while self._at_work or self._again:
            if self._again:
                self._reopen(self._again.popleft())
                continue
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
            self._release(trainer.runs)
        except Exception as error:
            self._stop(trainer.runs, error, self._leave)

    def _stop(self, runs: Sequence[Run], error: Exception, part: Callable[[Sequence[Run], Exception], None]) -> None:
        """A stack cannot go on. The run whose fault it is stops, or all where it is none's in particular; the others go
        on from their checkpoints, but for those that are over. So do all when a worker is given up, as long as there
        are others."""
        whose = error.run if isinstance(error, (RunError, BadFolder)) else None
        lost = [run for index, run in enumerate(runs) if whose in (index, None) and not run.over]
        if isinstance(error, WorkerLost) and self._has_workers:
            lost = []
            self._watch.warn(f"{_names(runs)}: {error} It does so in another worker.")
        elif not lost:
            self._watch.warn(f"{_names(runs)}: {in_words(error)}")  # all were over before
        if lost:
            part(lost, error)
        rest = [run for run in runs if run not in lost]
        self._release(rest)
        if again := [Member(run.method, run.config, run.folder) for run in rest if not run.over]:
            self._again.append(again)

    def _reopen(self, members: Sequence[Member]) -> None:
        """Runs whose stack has lost one of them, or a worker, from where their folders are."""
        for stack in self._stacks(self._opened(members)):
            self._launch_level(stack)

    def _refuse(self, runs: Sequence[Run | Member], error: Exception) -> None:
        """Runs that never began: their folders get the reason, and nothing else in them is touched."""
        for run in runs:
            with suppress(BcppoError):
                run.folder.set_status(FAILED, in_words(error))
        self._say(runs, error, FAILED)

    def _leave(self, runs: Sequence[Run], error: Exception) -> None:
        """Runs that stop on the way."""
        state = DIVERGED if isinstance(error, Diverged) else FAILED
        leave(runs, state, in_words(error))
        self._say(runs, error, state)

    def _say(self, runs: Sequence[Run | Member], error: Exception, state: str) -> None:
        """Say why runs stopped; of what nobody expected, where it happened too."""
        for run in runs:
            self._watch.over(run.folder.path.name, state)
        self._watch.warn(f"{_names(runs)}: {in_words(error)}")
        if not isinstance(error, BcppoError):
            traceback.print_exception(error)
        self._release([run for run in runs if isinstance(run, Run)])

    def _release(self, runs: Sequence[Run]) -> None:
        """Their environments are not needed any more: a worker that dies need not put them back."""
        for run in runs:
            for collector in run.collectors:
                collector.release()


def _names(runs: Sequence[Run | Member]) -> str:
    names = [run.folder.path.name for run in runs]
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
