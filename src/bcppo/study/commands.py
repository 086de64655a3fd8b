"""`bcppo study list`, `run`, `status`, `gather`, `evaluate` and `compare`: parse and dispatch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bcppo.errors import ConfigError, unknown_name
from bcppo.parsing import parse
from bcppo.study import diagnostics
from bcppo.study.engine import Engine, run_study
from bcppo.study.folder import StudyFolder
from bcppo.study.local import LocalEngine
from bcppo.study.named import DESIGNS, find_study, part_of
from bcppo.study.plan import Study, StudyError
from bcppo.study.status import look, summary, tables

USAGE = """usage: bcppo study COMMAND …

  list       the named studies
  run        run what is missing of a study      bcppo study run main --out runs/main --workers 8
  status     how far a study is                  bcppo study status runs/main
  gather     put pieces of a study together      bcppo study gather runs/piece1 runs/piece2 --out runs/main
  evaluate   its policies on many more episodes  bcppo study evaluate runs/main --episodes 200
  compare    runs that were made twice           bcppo study compare runs/again results/main

`bcppo study COMMAND --help` says more. A study of your own: bcppo study run my-study.json --out runs/mine"""


@dataclass(frozen=True)
class _Run:
    """Run what is missing of a study: finished runs are skipped, others go on from their checkpoints.

    The same command again goes on. A folder holds one study; other seeds, tasks or methods of it are added to it.
    """

    study: Annotated[str, tyro.conf.Positional]
    """A study's name (`bcppo study list`), or the path of a study.json."""
    out: Path
    """The study's folder."""
    runs: tuple[Path, ...] = ()
    """Of the study 'diagnostics': run folders, folders of run folders, or folders of studies."""
    engine: Literal["local", "ray"] = "local"
    """Where runs take place: this machine (processes, or with --device cuda one fleet), or tasks on a Ray cluster."""
    workers: int | None = None
    """Runs at once; the machine's cores where not given, or whatever an existing Ray cluster has room for."""
    seeds: tuple[int, ...] | None = None
    """Seeds instead of the study's own; of a study from a file, those of its runs that have them."""
    tasks: tuple[str, ...] | None = None
    """Only these of the study's tasks."""
    methods: tuple[str, ...] | None = None
    """Only these of the study's methods."""
    steps: int | None = None
    """Environment steps a run, instead of the study's: another protocol, for trying things out."""
    device: Literal["cpu", "cuda", "auto"] | None = None
    """Where learners compute, instead of what the study says."""
    worker_python: str | None = None
    """With --device cuda: another interpreter for the simulators, such as one with the paper's release of MuJoCo."""
    compiled: bool = False
    """With --device cuda: let torch.compile make WCSAC's update faster; it then rounds differently."""
    attempts: int = 3
    """How often a run is tried before this command gives it up; a later one tries again."""
    address: str | None = None
    """Ray: the address of a cluster that is there (host:port, or auto); a fresh one is started where not given."""
    cpus_per_run: float | None = None
    """Ray: CPUs a run is counted as; 1 where not given."""
    gpus_per_run: float | None = None
    """Ray: GPUs a run is counted as, may be a part of one; 0 where not given."""


@dataclass(frozen=True)
class _Status:
    """How far a study is: done, running, failed and why, and the time left."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The study's folder."""


@dataclass(frozen=True)
class _Gather:
    """Copy the finished runs of pieces of a study, run apart with --tasks, --methods or --seeds, into one study folder.

    Pieces that hold different results of one run are refused: nothing is picked.
    """

    pieces: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Study folders."""
    out: Path
    """The study folder to put them into: a new one, or one that has some of the runs already."""


@dataclass(frozen=True)
class _Evaluate:
    """Evaluate the policy of every finished run on many more episodes than its own evaluation's.

    Seeds 10000 upwards, deterministic actions. The rows are kept in each run's folder, and the report has a table of
    CVaR@95 from them. Runs that have theirs are skipped: the same command again goes on.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The study's folder."""
    episodes: int = 200
    """Episodes a run."""
    workers: int | None = None
    """Runs at once, each in a process of one thread; the machine's cores where not given."""
    tasks: tuple[str, ...] | None = None
    """Only these of the study's tasks."""
    methods: tuple[str, ...] | None = None
    """Only these of the study's methods."""
    seeds: tuple[int, ...] | None = None
    """Only these of the study's training seeds."""


@dataclass(frozen=True)
class _Compare:
    """Say of each run that two folders both have finished whether it is the same to the last bit in both.

    Evaluation episodes, curves and, where both folders tell, the policy file. Either may be in its published form,
    whose curves have one row in five updates and seven digits.
    """

    first: Annotated[Path, tyro.conf.Positional]
    """A study's folder, packed or not, or a folder of runs."""
    second: Annotated[Path, tyro.conf.Positional]
    """Another, such as a published one."""


def study(arguments: list[str]) -> None:
    """`bcppo study …`"""
    commands = {
        "list": _list, "run": _run, "status": _status, "gather": _gather, "evaluate": _evaluate, "compare": _compare,
    }  # fmt: skip
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] not in commands:
        raise unknown_name("command", f"study {arguments[0]}", [f"study {name}" for name in commands])
    commands[arguments[0]](arguments[1:])


def _list(arguments: list[str]) -> None:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"`bcppo study list` takes no arguments, but {' '.join(arguments)} was given.")
    from rich.table import Table

    table = Table(title="Studies: tasks × methods or variants × seeds")
    for title in ("study", "what", "tasks", "methods and variants", "seeds", "steps"):
        table.add_column(title)
    table.add_column("runs", justify="right")
    for design in DESIGNS.values():
        arms = ", ".join(f"{arm.method}: {arm.variant}" if arm.variant else arm.method for arm in design.arms)
        steps = f"{design.settings['steps']:,}" if "steps" in design.settings else "preset"
        seeds = " ".join(map(str, design.seeds))
        table.add_row(design.name, design.title, ", ".join(design.tasks), arms, seeds, steps, str(design.size))
    table.add_row(diagnostics.NAME, diagnostics.TITLE, *("–",) * 5)
    _print(table)


def _run(arguments: list[str]) -> None:
    options = parse(_Run, arguments, "bcppo study run")
    for_ray = {name: getattr(options, name) for name in ("address", "cpus_per_run", "gpus_per_run")}
    for_ray = {name: value for name, value in for_ray.items() if value is not None}
    if for_ray and options.engine != "ray":
        raise ConfigError(f"--{next(iter(for_ray)).replace('_', '-')} is for --engine ray.")
    if options.study == diagnostics.NAME:
        _diagnose(options, for_ray)
        return
    if options.runs:
        raise ConfigError(f"--runs is for the study '{diagnostics.NAME}', not for '{options.study}'.")
    asked = find_study(
        options.study, seeds=options.seeds, steps=options.steps, tasks=options.tasks, methods=options.methods,
        device=options.device,
    )  # fmt: skip
    if options.engine == "local":
        _refuse_absent_device(asked)
    folder = StudyFolder(options.out)
    folder.adopt(asked)
    try:
        with folder.locked():
            engine = _engine(options, folder, asked, for_ray)
            lost = run_study(folder, asked, engine, attempts=options.attempts, say=_say)
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from the last checkpoints.")
        raise SystemExit(130) from None
    _say(summary(look(folder)))
    if lost:
        raise StudyError(
            f"{len(lost)} of {len(asked.runs)} runs failed; `bcppo study status {options.out}` says why, and the same "
            "command tries again."
        )


def _refuse_absent_device(asked: Study) -> None:
    """Where a study was made on a GPU its study.json says so, and another machine may have none."""
    from bcppo.run import resolve_device

    try:
        for device in {entry.config.device for entry in asked.runs}:
            resolve_device(device)
    except ConfigError as error:
        raise ConfigError(f"{str(error).rstrip('.')}; --device cpu runs them here, with other numbers.") from None


def _diagnose(options: _Run, for_ray: dict[str, Any]) -> None:
    _refuse_fleet_flags(options)
    for name in ("seeds", "tasks", "methods", "steps"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} says what to train; the study '{diagnostics.NAME}' takes the runs at --runs.")

    def engine(folder: StudyFolder) -> Engine:
        if options.engine == "ray":
            from bcppo.study.ray_cluster import RayEngine

            return RayEngine(folder, options.workers, say=_say, **for_ray)
        return LocalEngine(folder, options.workers)

    device = options.device or "cpu"
    failed = diagnostics.run_diagnostics(options.runs, options.out, engine, device=device, say=_say)
    if failed:
        raise diagnostics.refusal(failed, options.out)


def _engine(options: _Run, folder: StudyFolder, asked: Study, for_ray: dict[str, Any]) -> Engine:
    if options.engine == "ray":
        _refuse_fleet_flags(options)
        from bcppo.study.ray_cluster import RayEngine

        return RayEngine(folder, options.workers, say=_say, **for_ray)
    if options.device in ("cuda", "auto"):
        from bcppo.run import resolve_device

        if resolve_device(options.device).type == "cuda":
            from bcppo.study.fleets import FleetEngine

            python = options.worker_python
            return FleetEngine(folder, asked.runs, options.workers, worker_python=python, compiled=options.compiled)
    _refuse_fleet_flags(options)
    return LocalEngine(folder, options.workers)


def _refuse_fleet_flags(options: _Run) -> None:
    for flag, given in (("--worker-python", options.worker_python), ("--compiled", options.compiled)):
        if given:
            raise ConfigError(f"{flag} is for a fleet: --device cuda, where there is a GPU.")


def _status(arguments: list[str]) -> None:
    options = parse(_Status, arguments, "bcppo study status")
    folder = StudyFolder(options.folder)
    for table in tables(folder, look(folder)):
        _print(table)


def _gather(arguments: list[str]) -> None:
    from bcppo.study.gather import gather

    options = parse(_Gather, arguments, "bcppo study gather")
    if not options.pieces:
        raise ConfigError("Name the study folders to gather.")
    _, new = gather(options.pieces, options.out)
    _say(f"{len(new)} runs are new in {options.out}: {summary(look(StudyFolder(options.out)))}")


def _evaluate(arguments: list[str]) -> None:
    options = parse(_Evaluate, arguments, "bcppo study evaluate")
    from bcppo.study.evaluate import evaluate_study

    folder = StudyFolder(options.folder)
    asked = part_of(folder.study(), {"task": options.tasks, "method": options.methods, "seed": options.seeds})
    try:
        lost = evaluate_study(folder, asked, episodes=options.episodes, workers=options.workers, say=_say)
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on with the runs that are left.")
        raise SystemExit(130) from None
    if lost:
        raise StudyError(
            f"{len(lost)} of {len(asked.runs)} runs could not be evaluated, for the reasons above; the same command "
            "tries again."
        )


def _compare(arguments: list[str]) -> None:
    options = parse(_Compare, arguments, "bcppo study compare")
    from bcppo.report.comparing import SAME, compare_studies, summary

    found = compare_studies(options.first, options.second)
    for comparison in found:
        print(comparison.sentence)
    if any(comparison.state != SAME for comparison in found):
        raise StudyError(summary(found))
    print(summary(found))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _print(table: Any) -> None:
    """Tables go to files and pipes whole; a terminal may have to shorten them."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(table)
