"""Runs side by side on the CPU, each in a process of its own: `python -m bcppo.lanes FOLDER`.

Such a process goes on with the run in its folder, tells its parent about it in lines of JSON and ends with its parent.
One that is killed is started again and goes on from the run's last checkpoint.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, BinaryIO

from bcppo.errors import BcppoError, in_words
from bcppo.process import end_with_parent, keep_output, signal_name
from bcppo.records import DIVERGED, FAILED, FINISHED, FolderBusy, RunFolder
from bcppo.watch import Watch, facts

if TYPE_CHECKING:
    from bcppo.run import Run
    from bcppo.watch import FleetWatch

ATTEMPTS = 3
"""How often a run whose process is killed is taken up."""
_PATIENCE = 60.0
"""Seconds to wait for a folder in which another process is at work: that of a killed fleet is about to end."""
_INTERVAL = 0.5
"""Seconds between a run's reports."""
_BUSY = 3
"""Exit code of a process that could not have its run's folder."""


def train_in_lanes(folders: Sequence[Path], count: int, watch: FleetWatch) -> None:
    """Go on with the runs in these folders, `count` at a time; one that fails says so in its folder and a warning."""
    queue = deque((folder, 1) for folder in folders)
    with selectors.DefaultSelector() as selector:
        try:
            while queue or selector.get_map():
                while queue and len(selector.get_map()) < count:
                    lane = _Lane(*queue.popleft())
                    selector.register(lane, selectors.EVENT_READ, lane)
                for key, _ in selector.select():
                    lane, name = key.data, key.data.folder.name
                    if news := lane.hear():
                        watch.hear(name, news)
                        continue
                    selector.unregister(lane)
                    code = lane.wait()
                    if code < 0 and lane.attempt < ATTEMPTS:
                        queue.append((lane.folder, lane.attempt + 1))
                        watch.warn(f"The process of {name} was killed; it goes on from its last checkpoint.")
                    elif code:
                        if not lane.trouble and code != _BUSY:
                            lane.trouble = _death(code)
                            watch.warn(f"{name}: {lane.trouble}")
                        watch.over(name, _leave(lane.folder, lane.trouble))
        finally:
            for key in list(selector.get_map().values()):
                key.data.stop()


class _Lane:
    """A run's process; it is the `attempt`th."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder, self.attempt = folder, attempt
        self.trouble = ""
        """Why the run goes no further, where the process has said so."""
        self._process = _start(folder)

    def fileno(self) -> int:
        """For `select`: readable when there is news, or the process has ended."""
        return self._process.stdout.fileno()  # type: ignore[union-attr]

    def hear(self) -> dict[str, Any] | None:
        """The next news; None when the process has ended."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line.endswith("\n"):  # or it was killed in the middle of a long one
            return None
        news = json.loads(line)
        if news.pop("last", False):
            self.trouble = news["warning"]
        return news

    def wait(self) -> int:
        """The exit code of a process that is about to end."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]
        return code

    def stop(self) -> None:
        """End it now; the run goes on from its checkpoint another time."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self.wait()


def _start(folder: Path) -> subprocess.Popen[str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    command = [sys.executable, "-m", "bcppo.lanes", str(folder)]
    environment = os.environ | threads | path
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


def _death(code: int) -> str:
    """Why a process ended that did not say so itself."""
    how = f"was killed {ATTEMPTS} times, last by {signal_name(code)}" if code < 0 else f"ended with code {code}"
    return f"The run's process {how}; the run can be resumed from its last checkpoint."


def _leave(path: Path, trouble: str) -> str:
    """The state a run is left in that goes no further: its folder says why, unless it is another process's."""
    folder = RunFolder(path)
    with suppress(BcppoError), folder.locked():
        if (state := folder.status()["state"]) in (DIVERGED, FINISHED):
            return state
        if trouble:
            folder.set_status(FAILED, trouble)
    return FAILED


# --- inside ---


class _Telling(Watch):
    """Tells another process how a run is getting on."""

    def __init__(self, listener: BinaryIO) -> None:
        super().__init__(bar=False)
        self._listener = listener
        self._told = 0.0

    def update(self, run: Run) -> None:
        super().update(run)
        if run.finished or monotonic() - self._told >= _INTERVAL:
            self._told = monotonic()
            self.tell(facts(run))

    def warn(self, sentence: str) -> None:
        self.tell({"warning": sentence})

    def tell(self, news: Mapping[str, Any]) -> None:
        try:
            self._listener.write(json.dumps(news).encode() + b"\n")
        except BrokenPipeError:
            # Nobody listens any more. This is no failure of the run, which can go on another time.
            sys.exit(1)


def main(folder: str, listener: BinaryIO) -> int:
    """`listener` is unbuffered."""
    from bcppo.run import go_on

    watch, patience = _Telling(listener), monotonic() + _PATIENCE
    while True:
        try:
            go_on(folder, {}, watch=watch)
            return 0
        except FolderBusy as error:
            if monotonic() > patience:
                watch.warn(str(error))
                return _BUSY
            sleep(0.5)
        except Exception as error:
            if not isinstance(error, BcppoError):
                traceback.print_exc()
            watch.tell({"warning": in_words(error), "last": True})
            return 2


if __name__ == "__main__":
    # An interrupt from the keyboard goes to the parent too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    sys.exit(main(sys.argv[1], os.fdopen(keep_output(), "wb", buffering=0)))
