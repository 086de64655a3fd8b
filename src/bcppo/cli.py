"""The command line: parse and dispatch only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from bcppo import flags
from bcppo.algorithms import METHODS
from bcppo.errors import BcppoError, ConfigError, absent_package, unknown_name
from bcppo.parsing import parse
from bcppo.tasks.table import TASKS

USAGE = """usage: bcppo COMMAND …

Train a policy that earns reward while its mean cost per step stays within a limit, then look at what it does.

  tasks          the tasks: what an action costs, and the limit
  methods        the methods: bcppo, and what it is compared with
  train          train a policy, into a folder        bcppo train --task goal1 --method bcppo --seed 0 --out runs/first
  resume         go on with an interrupted run        bcppo resume runs/first
  evaluate       its return and cost on test episodes bcppo evaluate runs/first --episodes 200
  play           film an episode, the costliest one   bcppo play runs/first --video worst.mp4
  export         write the policy for deployment      bcppo export runs/first --format onnx
  report         tables, curves and a page of runs    bcppo report runs --open

  suggest-limit  a limit for an environment of yours  bcppo suggest-limit --task my_module:make_env
  fleet          train many runs at once              bcppo fleet --tasks goal1 hopper --seeds 0 1 2 --out runs/fleet
  study          the paper's experiments, end to end  bcppo study run smoke --out runs/smoke
  pack           a study in its published form        bcppo pack runs/smoke results/smoke
  keep           the networks of runs, with hashes    bcppo keep runs/smoke --out results/networks
  diagnose       the paper's diagnostics of runs      bcppo diagnose calibration runs/* --out diagnostics

`bcppo COMMAND --help` says more; --debug shows the traceback of an error. docs/concepts.md explains the words (cost
rate, λ, σ), docs/faq.md the units of costs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 when it went well, 2 for an error the user can put right."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a task 'module:function' is looked for here, as `python -m` would
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    commands = {
        "train": _train, "fleet": _fleet, "resume": _resume, "evaluate": _evaluate, "suggest-limit": _suggest_limit,
        "study": _study, "report": _report, "pack": _pack, "diagnose": _diagnose, "export": _export, "play": _play,
        "keep": _keep, "tasks": _tasks, "methods": _methods,
    }  # fmt: skip
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    try:
        if arguments[0] in ("--version", "version"):
            from bcppo import __version__

            print(f"bcppo {__version__}")
            return 0
        if arguments[0] not in commands:
            raise unknown_name("command", arguments[0], commands)
        commands[arguments[0]](arguments[1:])
        sys.stdout.flush()
    except (BcppoError, OSError, ModuleNotFoundError) as error:
        if debug:
            raise
        return _complain(arguments[0], error)
    except KeyboardInterrupt:
        again = "`bcppo resume FOLDER`, or the same command of a fleet or a study, goes on from the last checkpoint."
        print(f"interrupted; {again}", file=sys.stderr)
        return 130
    return 0


def _complain(command: str, error: Exception) -> int:
    """Say what went wrong in a sentence; the exit code."""
    if isinstance(error, BrokenPipeError):  # whoever reads what is said, `head` say, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    text = absent_package(f"`bcppo {command}`", error) if isinstance(error, ModuleNotFoundError) else error
    print(f"error: {text}", file=sys.stderr)
    return 2


def _train(arguments: list[str]) -> None:
    options, config = _parse(arguments)

    from bcppo.evaluation import evaluate_policy
    from bcppo.run import train
    from bcppo.watch import Watch
    from bcppo.worker import run_environment

    folder = train(config, method=options.method, out=options.out, watch=Watch(bar=not options.quiet))
    rows = folder.read_rows("evaluations")
    results: dict[str, list[dict[str, float]]] = {}
    for index, step in enumerate(rows["step"]):
        row = {name: values[index] for name, values in rows.items()}
        results.setdefault(f"{options.method}, {step:,} steps", []).append(row)
    if options.beside_random:
        env = run_environment(config)()
        results["random actions"] = evaluate_policy(None, env, config.eval_seeds)
        env.close()
    _print_evaluation(results, config.limit_rate)
    print(f"run folder: {folder.path}")


def _fleet(arguments: list[str]) -> None:
    options = parse(flags.Fleet, arguments, "bcppo fleet")
    from bcppo.fleet import train_fleet, vary
    from bcppo.records import FINISHED
    from bcppo.watch import FleetWatch

    runs = vary(options.methods, options.tasks, options.seeds, options.vary)
    folders = train_fleet(
        runs,
        out=options.out,
        workers=options.workers or None,
        device=options.device,
        worker_python=options.worker_python,
        tf32=options.tf32,
        compiled=options.compiled,
        watch=FleetWatch(bar=not options.quiet),
    )
    states = {folder.path.name: folder.status() for folder in folders}
    unfinished = [f"{name} ({state['state']})" for name, state in states.items() if state["state"] != FINISHED]
    if unfinished:
        raise BcppoError(f"{len(unfinished)} of {len(folders)} runs did not finish: {', '.join(unfinished)}.")
    print(f"{len(folders)} runs finished; their folders are in {options.out}")


def _parse(arguments: list[str]) -> tuple[flags.Train, Any]:
    """Train's options, and the preset's config with the flags applied: every field of the method's config is a flag."""
    from bcppo.settings import make_preset

    method, task = _flag(arguments, "method") or "bcppo", _flag(arguments, "task") or "goal1"
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    config = make_preset(_flag(arguments, "preset") or "paper", method, METHODS[method].config, task)
    both = _both(type(config))
    default = both(run=flags.Train(out=tyro.MISSING), config=config)
    parsed: Any = parse(both, arguments, "bcppo train", default=default, description=flags.Train.__doc__)
    return parsed.run, parsed.config


def _both(config_kind: type) -> type:
    """A dataclass of train's own options and the config's, flattened into one set of flags."""
    from dataclasses import field, make_dataclass

    flat = tyro.conf.OmitArgPrefixes
    return make_dataclass(
        "TrainOptions",
        [("run", Annotated[flags.Train, flat], field()), ("config", Annotated[config_kind, flat], field())],
        frozen=True,
    )


def _flag(arguments: list[str], name: str) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == f"--{name}" and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    return None


def _resume(arguments: list[str]) -> None:
    options = parse(flags.Resume, arguments, "bcppo resume")
    from bcppo.kept import refuse_kept
    from bcppo.records import FINISHED, RunFolder
    from bcppo.run import resume
    from bcppo.watch import Watch

    refuse_kept(options.folder)
    if RunFolder(options.folder).exists and RunFolder(options.folder).status()["state"] == FINISHED:
        print(f"The run in {options.folder} is finished; there is nothing to resume.")
        return
    folder = resume(options.folder, watch=Watch(bar=not options.quiet))
    print(f"finished; run folder: {folder.path}")


def _evaluate(arguments: list[str]) -> None:
    options = parse(flags.Evaluate, arguments, "bcppo evaluate")
    from bcppo.algorithms import CONFIGS
    from bcppo.evaluation import evaluate
    from bcppo.records import RunFolder

    method, config = RunFolder(options.folder).load_config(CONFIGS)
    episodes = evaluate(options.folder, episodes=options.episodes, stochastic=options.stochastic)
    _print_evaluation({method: episodes}, config.limit_rate)
    if options.csv is not None:
        import polars

        polars.DataFrame(episodes).write_csv(options.csv)


def _study(arguments: list[str]) -> None:
    from bcppo.study.commands import study

    study(arguments)


def _export(arguments: list[str]) -> None:
    options = parse(flags.Export, arguments, "bcppo export")
    from bcppo.exporting import export

    done = export(options.folder, kind=options.format, out=options.out, replay=options.replay)
    print(f"{done.path}: {done.path.stat().st_size:,} bytes; {done.summary}")


def _play(arguments: list[str]) -> None:
    options = parse(flags.Play, arguments, "bcppo play")
    from bcppo.play import play

    film = play(options.folder, options.video, episode=options.episode, every=options.every, size=options.size)
    print(f"{film.path}: {film.summary}")


def _diagnose(arguments: list[str]) -> None:
    options = parse(flags.Diagnose, arguments, "bcppo diagnose")
    from bcppo.diagnostics.drive import ALL, diagnose

    settings: dict[str, Any] = {"device": options.device, "max_updates": options.max_updates}
    if options.name == ALL:
        from bcppo.study.diagnostics import diagnose_all

        print(diagnose_all(options.runs, options.out, options.jobs, **settings))
    else:
        print(diagnose(options.name, options.runs, options.out, **settings))


def _report(arguments: list[str]) -> None:
    options = parse(flags.Report, arguments, "bcppo report")
    from bcppo.report import load_study
    from bcppo.report.entries import brief
    from bcppo.report.page import write_records

    records = load_study(options.folder)
    page = write_records(records, options.out or options.folder / "report")
    print(f"{int(records.runs['usable'].sum())} of {records.runs.height} runs used; page: {page}")
    for sentence in brief(records.problems):
        print(f"  {sentence}")
    if options.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _pack(arguments: list[str]) -> None:
    options = parse(flags.Pack, arguments, "bcppo pack")
    from bcppo.report import pack_study
    from bcppo.report.entries import brief

    records = pack_study(options.study, options.out, every=options.every, add=options.add)
    print(f"packed {int(records.runs['usable'].sum())} of {records.runs.height} runs into {options.out}")
    for sentence in brief(records.problems):
        print(f"  {sentence}")


def _keep(arguments: list[str]) -> None:
    options = parse(flags.Keep, arguments, "bcppo keep")
    from bcppo.diagnostics.keep import keep

    kept = keep(options.runs, options.out, compressed=options.compress, reward_value=options.reward_value)
    print(f"kept {len(kept)} runs in {options.out}: {sum(run.size for run in kept) / 1e6:.1f} MB")


def _suggest_limit(arguments: list[str]) -> None:
    options = parse(flags.SuggestLimit, arguments, "bcppo suggest-limit")
    from bcppo.limits import suggest_limit
    from bcppo.watch import Watch

    found = suggest_limit(
        options.task,
        fraction=options.fraction,
        steps=options.steps,
        seed=options.seed,
        out=options.out,
        watch=Watch(),
    )
    print(f"PPO on the reward alone: return {found.episode_return:.4g}, mean cost per step {found.cost_rate:.6g}")
    print(f"--cost-limit-rate {found.cost_limit_rate:.8g}    ({options.fraction:g} of it)")


def _print_evaluation(results: dict[str, list[dict[str, float]]], limit_rate: float) -> None:
    from rich.table import Table

    from bcppo.evaluation import summarize

    count = len(next(iter(results.values())))
    table = Table(title=f"{count} evaluation episodes; cost per step, limit {limit_rate:g}")
    columns = {
        "return": "return", "cost_rate": "cost rate", "cvar95": "CVaR@95", "safety_rate": "safety rate",
        "worst_gap": "worst gap", "native_cost": "native cost", "length": "length",
    }  # fmt: skip
    table.add_column("policy")
    for title in columns.values():
        table.add_column(title, justify="right")
    for name, episodes in results.items():
        summary = summarize(episodes, limit_rate)
        table.add_row(name, *(f"{summary[key]:.4g}" for key in columns))
    _print(table)


def _print(table: Any) -> None:
    """Tables go to files and pipes whole; a terminal may have to shorten them."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _tasks(arguments: list[str]) -> None:
    _no_more(arguments, "tasks")
    from rich.table import Table

    table = Table(title="Tasks: cost per step = c_a·‖a‖² + c_b·1{‖o‖ > threshold}")
    for title in ("task", "environment", "c_a", "c_b", "threshold", "cost limit per step", "horizon"):
        table.add_column(title)
    for task in TASKS.values():
        row = (task.action_cost, task.boundary_cost, task.threshold, task.cost_limit_rate, task.horizon)
        table.add_row(task.name, task.env_id, *(f"{value:.8g}" for value in row))
    _print(table)


def _methods(arguments: list[str]) -> None:
    _no_more(arguments, "methods")
    width = max(map(len, METHODS))
    for name, method in METHODS.items():
        print(f"{name:<{width}}  {method.summary}")


def _no_more(arguments: list[str], command: str) -> None:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"`bcppo {command}` takes no arguments, but {' '.join(arguments)} was given.")
