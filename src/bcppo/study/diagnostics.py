"""The study `diagnostics`: all of the paper's diagnostics over a folder of runs, on the engines that train runs.

    diagnostics.json   the runs, how far each has come, the code's revision and the settings
    NAME/              rows, table and plots of a diagnostic, as `bcppo diagnose NAME` makes them
    NAME.log           what its process printed, where it printed anything

Running it means running what is missing; where the runs, the code or the settings are others than those written there,
that is all of it.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bcppo.diagnostics import SUMMARIES
from bcppo.diagnostics.drive import RETRAINED, diagnose, diagnose_retrained
from bcppo.diagnostics.runs import find_runs
from bcppo.errors import BcppoError
from bcppo.records import read_json, revision, write_json
from bcppo.study.child import Outcome
from bcppo.study.engine import Engine, Say
from bcppo.study.folder import StudyFolder
from bcppo.study.local import LocalEngine
from bcppo.study.plan import Group, StudyError

NAME = "diagnostics"
TITLE = "All diagnostics over a folder of runs (--runs)"
PLAN = "diagnostics.json"
LAST: Group = ("latency",)
"""Timed when nothing else of the study is at work."""
GROUPS: tuple[Group, ...] = (RETRAINED, *((name,) for name in SUMMARIES if name not in (*RETRAINED, *LAST)))
"""Who works on what: one retraining is two diagnostics', and takes longest, so it begins first."""


def run_diagnostics(
    runs: Sequence[str | Path],
    out: str | Path,
    engine: Callable[[StudyFolder], Engine],
    *,
    device: str = "cpu",
    max_updates: int = 0,
    say: Say,
) -> dict[str, str]:
    """Run what is missing; diagnostics that failed → why. One that fails takes no other with it."""
    wanted = _plan(runs, device, max_updates)
    folder = StudyFolder(out)
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        path = folder.path / PLAN
        if not path.exists() or read_json(path) != wanted:
            for name in SUMMARIES:
                _report(folder.path, name).unlink(missing_ok=True)
            write_json(path, wanted)
        missing = [group for group in (*GROUPS, LAST) if not all(_report(folder.path, n).exists() for n in group)]
        say(f"study {NAME}: {len(wanted['runs'])} runs; to do: {', '.join(n for g in missing for n in g) or 'nothing'}")
        return _work(missing, engine(folder), say)


def diagnose_all(runs: Sequence[str | Path], out: str | Path, jobs: int, *, device: str, max_updates: int) -> str:
    """All on this machine, `jobs` at a time; the reports, one after the other."""
    failed = run_diagnostics(
        runs, out, lambda folder: LocalEngine(folder, jobs), device=device, max_updates=max_updates, say=_say
    )
    if failed:
        raise refusal(failed, out)
    return "\n".join(_report(Path(out), name).read_text() for name in SUMMARIES)


def refusal(failed: Mapping[str, str], out: str | Path) -> BcppoError:
    said = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return StudyError(f"{len(failed)} of {len(SUMMARIES)} diagnostics failed ({said}); the others are in {out}.")


def attempts(folder: Path, group: Group) -> Iterator[Outcome]:
    """In a child: how each diagnostic of a group fared."""
    plan = read_json(folder / PLAN)
    settings: dict[str, Any] = {"device": plan["device"], "max_updates": plan["max_updates"]}
    runs = [run["folder"] for run in plan["runs"]]
    began, sentence = time.perf_counter(), ""
    try:
        if group == RETRAINED:
            diagnose_retrained(runs, folder, **settings)
        else:
            for name in group:
                diagnose(name, runs, folder, **settings)
    except BcppoError as error:
        sentence = str(error)
    except Exception as error:
        traceback.print_exc()
        sentence = f"{type(error).__name__}: {error}".partition("\n")[0]
    seconds = time.perf_counter() - began
    yield from (Outcome(name, sentence, seconds) for name in group)


def _plan(runs: Sequence[str | Path], device: str, max_updates: int) -> dict[str, Any]:
    """What is asked for; with absolute paths, since a child may be on another node."""
    found = find_runs([Path(run).absolute() for run in runs])
    rows = [{"folder": str(run.folder.path), "trained_steps": run.trained_steps} for run in found]
    return {"format": 1, "runs": rows, "device": device, "max_updates": max_updates, "revision": revision()}


def _work(missing: Sequence[Group], engine: Engine, say: Say) -> dict[str, str]:
    """Groups → engine, the timed one when the others are done."""
    waiting, working, failed = deque(missing), 0, {}
    try:
        while waiting or working:
            while waiting and working < engine.places and (waiting[0] != LAST or not working):
                engine.start(waiting.popleft())
                working += 1
            for _, outcomes in engine.wait():
                working -= 1
                for outcome in outcomes:
                    say(f"{outcome.run}: {outcome.error or f'done in {outcome.seconds:.0f} s'}")
                    if outcome.error:
                        failed[outcome.run] = outcome.error
    finally:
        engine.stop()
    return failed


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _report(folder: Path, name: str) -> Path:
    return folder / name / "report.md"
