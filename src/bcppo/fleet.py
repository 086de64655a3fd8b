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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bcppo.algorithms import CONFIGS, METHODS
from bcppo.config import NOT_PROTOCOL, RunConfig, text_of, to_json
from bcppo.errors import BcppoError, ConfigError, unknown_name
from bcppo.fused import compiled_kernels, require_compiler
from bcppo.kept import refuse_kept
from bcppo.lanes import train_in_lanes
from bcppo.pool import worker_stack
from bcppo.records import DIVERGED, FAILED, FINISHED, FolderError, RunFolder, read_json
from bcppo.run import ROUNDINGS, begun_with, make_config, resolve_device
from bcppo.stack import SIMULATORS, versions
from bcppo.stacked import Member, train_stacked
from bcppo.tasks import looks_like_an_id
from bcppo.tasks.table import TASKS
from bcppo.watch import FleetWatch


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
    not stop the others, nor does one whose environment fails or ends its process; where it shared a stack, the others
    go on from their checkpoints.

    >>> import bcppo, tempfile
    >>> configs = [("ppopid", bcppo.make_config("ppopid", "hopper", seed=seed, steps=1024)) for seed in (0, 1)]
    >>> folders = bcppo.train_fleet(configs, out=tempfile.mkdtemp())
    >>> [folder.status()["state"] for folder in folders]
    ['finished', 'finished']
    """
    names = _names(runs, names)
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
    members = _prepare(runs, Path(out), names, where.type, note)
    damaged = [member for member in members if member.trouble]
    whole = [member for member in members if not member.trouble]
    unfinished = [member for member in whole if member.folder.status()["state"] not in (FINISHED, DIVERGED)]
    watch = watch or FleetWatch(bar=False)
    with watch.fleet([(member.folder.path.name, member.config) for member in (*damaged, *unfinished)]):
        for member in damaged:
            _leave_damaged(member, watch)
        if not stacked:
            train_in_lanes([member.folder.path for member in unfinished], count, watch)
        else:
            with _tf32(tf32), compiled_kernels(compiled):
                train_stacked(unfinished, count, worker_python, watch, note, apart=apart)
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


def _names(runs: Sequence[tuple[str, RunConfig]], names: Sequence[str] | None) -> Sequence[str]:
    """The runs' names, given or made; refuses what is no list of runs, or names that do not fit it."""
    for run in runs:
        if not (isinstance(run, (tuple, list)) and len(run) == 2 and isinstance(run[1], RunConfig)):
            kind = type(run).__name__
            raise ConfigError(f"A fleet's runs are pairs such as ('bcppo', config), but a {kind} was given.")
    if names is None:
        return name_runs(runs)
    if len(names) != len(runs) or len(set(names)) != len(names):
        raise ConfigError(f"Each run needs a name of its own: {len(set(names))} were given for {len(runs)} runs.")
    return names


def _prepare(
    runs: Sequence[tuple[str, RunConfig]], out: Path, names: Sequence[str], device: str, note: dict[str, Any]
) -> list[Member]:
    """Make the folders that are missing; see that the others hold the same runs."""
    members = []
    for (method, config), name in zip(runs, names, strict=True):
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        _ = config.limit_rate  # refuses a run without a limit
        folder = RunFolder(out / name)
        if folder.exists:
            refuse_kept(folder.path)
            try:
                found = _read(folder)
            except BcppoError as error:
                members.append(Member(method, config, folder, str(error)))
                continue
            _refuse_other_rounding(folder, device, note["fleet"])
            if (found[0], _settings(found[1])) != (method, _settings(config)):
                raise FolderError(f"{folder.path} already holds another run; choose another folder for this fleet.")
            members.append(Member(method, found[1], folder))
        else:
            members.append(Member(method, dataclasses.replace(config, device=device), folder))
    for member in members:
        if not member.folder.exists:
            member.folder.create(member.method, member.config, device, note)
    return members


def _read(folder: RunFolder) -> tuple[str, RunConfig]:
    """(method, config) of a run whose records are whole, as far as a fleet needs them before it begins."""
    folder.status()
    if not isinstance(read_json(folder / "provenance.json"), dict):
        raise FolderError(f"{folder / 'provenance.json'} does not say where the run comes from.")
    return folder.load_config(CONFIGS)


def _leave_damaged(member: Member, watch: FleetWatch) -> None:
    """Say why a run does not go on, in its folder too; the fleet goes on without it."""
    with suppress(BcppoError), member.folder.locked():
        member.folder.set_status(FAILED, member.trouble)
    watch.over(member.folder.path.name, FAILED)
    watch.warn(f"{member.folder.path.name}: {member.trouble}")


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
