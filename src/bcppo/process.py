"""A process that another one has started: it speaks on its standard output, and ends with that one."""

from __future__ import annotations

import os
import signal
import threading


def keep_output() -> int:
    """A file number for messages, in place of the standard output; what is printed goes to standard error from now on.

    So nothing that an environment prints gets between the messages.
    """
    messages = os.dup(1)
    os.dup2(2, 1)
    return messages


def end_with_parent() -> None:
    """From now on this process is gone at once when its parent closes its standard input, or dies.

    A hard end is a clean one here: files are moved into place whole, and environments' processes end with this.
    """
    threading.Thread(target=_await_end, daemon=True).start()


def _await_end() -> None:
    os.read(0, 1)  # not sys.stdin: its lock, held here, would end the interpreter with a complaint
    os._exit(1)


def signal_name(code: int) -> str:
    """What killed a process that ended with a negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
