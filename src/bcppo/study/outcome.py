"""How work on a run went, and the process that says so: a line of JSON a run on its standard output.

Such a process ends with whoever started it: when that one closes its standard input, or dies, it is gone at once.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from bcppo.errors import BcppoError


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended."""

    run: str
    error: str
    """One sentence, or empty where it went well."""
    seconds: float
    note: str = ""
    """What else there is to say where it went well."""


def attempted(name: str, work: Callable[[], str | None]) -> Outcome:
    """Do something to a run; an error that is no `BcppoError` also leaves its traceback in the log."""
    began, sentence, note = time.perf_counter(), "", None
    try:
        note = work()
    except BcppoError as error:
        sentence = str(error)
    except Exception as error:
        traceback.print_exc()
        sentence = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Outcome(name, sentence, time.perf_counter() - began, note or "")


def answer(outcomes: Iterable[Outcome]) -> None:
    """The whole life of a child process: each outcome on the standard output as soon as it is there."""
    # What an environment prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for outcome in outcomes:
        print(json.dumps(asdict(outcome)), file=answers, flush=True)


def _end_with_parent() -> None:
    """A hard end is a clean one here: files are moved into place whole, and environments' processes end with this."""
    os.read(0, 1)  # not sys.stdin: its lock, held here, would end the interpreter with a complaint
    os._exit(1)
