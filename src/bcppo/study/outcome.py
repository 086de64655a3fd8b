"""How work on a run went, and the process that says so: a line of JSON a run on its standard output.

Such a process ends with whoever started it: when that one closes its standard input, or dies, it is gone at once.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from bcppo.errors import BcppoError
from bcppo.process import end_with_parent, keep_output


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
    answers = os.fdopen(keep_output(), "w")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    for outcome in outcomes:
        print(json.dumps(asdict(outcome)), file=answers, flush=True)
