"""Fleets: many runs at once.

On a GPU the runs' learners are one stacked computation (runs that agree in method, shapes and length share a stack),
and simulators run in worker processes on every core; stacks take turns, so that some simulate while another learns.
On a machine without a GPU nothing is gained by stacking large networks, so each core trains one run after another in a
process of its own. Either way every run leaves its own folder, the same as if it had been trained alone, and the same
command goes on with what is unfinished.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import traceback
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bcppo.algorithms import CONFIGS, METHODS
from bcppo.config import NOT_PROTOCOL, RunConfig, protocol_id, text_of, to_json
from bcppo.errors import BcppoError, ConfigError, Diverged, in_words, unknown_name
from bcppo.fused import compiled_kernels, require_compiler
from bcppo.kept import refuse_kept
from bcppo.lanes import train_in_lanes
from bcppo.pool import Turns, Worker, take_in, wait, worker_stack
from bcppo.queued import Awaited
from bcppo.records import DIVERGED, FAILED, FINISHED, RUNNING, FolderError, RunFolder, read_json
from bcppo.run import ROUNDINGS, Run, Stored, Trainer, begun_with, leave, make_config, resolve_device
from bcppo.stack import SIMULATORS, versions
from bcppo.tasks import looks_like_an_id
from bcppo.tasks.table import TASKS
from bcppo.training import BadFolder
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


def train_fleet(
    runs: Sequence[tuple[str, RunConfig]],
    *,
    out: str | Path,
    names: Sequence[str] | None = None,
    workers: int | None = None,
    device: str = "auto",
    stacked: bool | None = None,
    worker_python: str | None = None,
    apart: bool = False,
    tf32: bool = False,
    compiled: bool = False,
    watch: FleetWatch | None = None,
) -> list[RunFolder]:
    """Train (method, config) pairs into folders under `out`, or go on with those that are there.

    `workers` processes simulate (two a core by default, or one where each trains a run). `stacked` asks for stacked
    learners (the default on a GPU) or for one process a run (the default on the CPU). `worker_python` is another
    interpreter for the workers of stacked learners, such as one that has the paper's release of MuJoCo. `apart` stacks
    runs of one protocol only: a GPU's rounding may depend on how many runs a stack has, and a protocol's seeds then
    come out the same whatever else is in the fleet. `compiled` has `torch.compile` make fewer kernels of a GPU's WCSAC
    update, which then takes a third less time and rounds differently. A run that fails says so in its folder and does
    not stop the others.

    >>> import bcppo, tempfile
    >>> configs = [("ppopid", bcppo.make_config("ppopid", "hopper", seed=seed, steps=1024)) for seed in (0, 1)]
    >>> folders = bcppo.train_fleet(configs, out=tempfile.mkdtemp())
    >>> [folder.status()["state"] for folder in folders]
    ['finished', 'finished']
    """
    where = resolve_device(device)
    stacked = where.type == "cuda" if stacked is None else stacked
    cores = len(os.sched_getaffinity(0))
    # Twice as many workers as cores, where there are runs for them, though about one a core is at work at a time:
    # so whichever run is next finds a core, better than by any division of runs among cores.
    count = workers or (2 * cores if stacked else cores)
    if count < 1:
        raise ConfigError(f"A fleet needs at least 1 worker, but {count} were asked for.")
    if worker_python and not stacked:
        raise ConfigError("worker_python is for the workers of stacked learners; without a GPU each run has a process.")
    if (tf32 or compiled) and not (where.type == "cuda" and stacked):
        raise ConfigError("tf32 and compiled are for stacked learners on a GPU.")
    if compiled:
        require_compiler()
    rounding = {"tf32": tf32, "compiled": compiled}
    note: dict[str, Any] = {
        "fleet": {"runs": len(runs), "workers": count, "stacked": stacked, "apart": apart, **rounding}
    }
    if worker_python:
        note["versions"] = _with_workers(versions(), worker_stack(worker_python))
    members = _prepare(runs, Path(out), names or name_runs(runs), where.type, note)
    unfinished = [member for member in members if member.folder.status()["state"] not in (FINISHED, DIVERGED)]
    watch = watch or FleetWatch(bar=False)
    with watch.fleet([(member.folder.path.name, member.config) for member in unfinished]):
        if not stacked:
            train_in_lanes([member.folder.path for member in unfinished], count, watch)
        else:
            with _tf32(tf32), compiled_kernels(compiled):
                _train_stacked(unfinished, count, worker_python, watch, note, apart=apart)
    return [member.folder for member in members]


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def vary(
    methods: Iterable[str], tasks: Sequence[str], seeds: Iterable[int], changes: Iterable[str]
) -> list[tuple[str, RunConfig]]:
    """Every method on every task with every seed and, of changes such as 'beta=0.1,0.2', every combination."""
    named = []
    for change in changes:
        name, equals, values = change.partition("=")
        if not (name and equals and values):
            raise ConfigError(f"A change of settings is NAME=VALUE or NAME=VALUE,VALUE,…, but '{change}' was given.")
        named.append([(name.replace("-", "_"), _literal(value)) for value in values.split(",")])
    for task in tasks:
        if task not in TASKS and not looks_like_an_id(task):
            raise unknown_name("task", task, TASKS)
    combinations = [dict(choice) for choice in product(*named)]
    return [
        (method, make_config(method, task, seed=seed, **choice))
        for task, method, choice, seed in product(tasks, methods, combinations, seeds)
    ]


def _literal(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


def name_runs(runs: Sequence[tuple[str, RunConfig]]) -> list[str]:
    """A folder's name for each: task, method and seed, and the settings that differ where these do not tell apart."""
    plain = [_file_name(f"{config.task}-{method}-seed{config.seed}") for method, config in runs]
    names = []
    for name, (_, config) in zip(plain, runs):
        alike = [to_json(other) for other_name, (_, other) in zip(plain, runs) if other_name == name]
        own = to_json(config)
        differ = [field for field in own if any(other.get(field) != own[field] for other in alike)]
        names.append(_file_name("-".join([name, *(f"{field}{text_of(own[field])}" for field in differ)])))
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The run {name} is in this fleet twice.")
    return names


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=+-]", ".", text)


def _prepare(
    runs: Sequence[tuple[str, RunConfig]], out: Path, names: Sequence[str], device: str, note: dict[str, Any]
) -> list[Member]:
    """Make the folders that are missing; see that the others hold the same runs."""
    members = []
    for (method, config), name in zip(runs, names, strict=True):
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        folder = RunFolder(out / name)
        if folder.exists:
            refuse_kept(folder.path)
            _refuse_other_rounding(folder, device, note["fleet"])
            found = folder.load_config(CONFIGS)
            if (found[0], _settings(found[1])) != (method, _settings(config)):
                raise FolderError(f"{folder.path} already holds another run; choose another folder for this fleet.")
            members.append(Member(method, found[1], folder))
        else:
            members.append(Member(method, dataclasses.replace(config, device=device), folder))
    for member in members:
        if not member.folder.exists:
            member.folder.create(member.method, member.config, device, note)
    return members


def _refuse_other_rounding(folder: RunFolder, device: str, fleet: dict[str, Any]) -> None:
    """A run that was begun with compiled updates goes on with them, and no other does: else it would be neither.

    The same of TF32, and of a GPU.
    """
    if folder.status()["state"] in (FINISHED, DIVERGED):
        return
    begun = begun_with(folder)
    for name, words in ROUNDINGS.items():
        if (words in begun) != fleet[name]:
            how = f"without {words}" if fleet[name] else f"with {words}"
            raise FolderError(f"The run in {folder.path} was begun {how} and can only go on so.")
    where = str(read_json(folder / "provenance.json").get("device", device)).partition(":")[0]
    if where != device:
        raise FolderError(f"The run in {folder.path} was begun on the device '{where}' and can only go on there.")


def _with_workers(own: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """The stack of runs that are simulated under another Python: the simulators are the workers'."""
    simulators = {name: theirs[name] for name in SIMULATORS}
    return own | simulators | {f"workers' {name}": theirs[name] for name in ("python", "numpy")}


def _settings(config: RunConfig) -> dict[str, Any]:
    free = set(NOT_PROTOCOL) - {"seed"}
    return {name: value for name, value in to_json(config).items() if name not in free}


# --- stacked learners ---


def _train_stacked(
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
