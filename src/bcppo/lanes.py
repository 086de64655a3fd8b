"""Runs side by side on the CPU, each in a process of its own: `python -m bcppo.lanes FOLDER`.

Such a process goes on with the run in its folder and prints lines of JSON about it. One that is killed is started again
and goes on from the run's last checkpoint.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from bcppo.errors import BcppoError
from bcppo.records import DIVERGED, FAILED, FolderBusy, RunFolder
from bcppo.watch import Watch, facts

if TYPE_CHECKING:
    from bcppo.run import Run
    from bcppo.watch import FleetWatch

ATTEMPTS = 3
"""How often a run whose process is killed is taken up."""
_PATIENCE = 60.0
"""Seconds to wait for a folder in which the process of a killed fleet is still at work: it ends when it next speaks."""
_INTERVAL = 0.5
"""Seconds between a run's reports."""


def train_in_lanes(folders: Sequence[Path], count: int, watch: FleetWatch) -> None:
    """Go on with the runs in these folders, `count` at a time; one that fails leaves its folder and a warning."""
    queue = deque((folder, 1) for folder in folders)
    with selectors.DefaultSelector() as selector:
        try:
            while queue or selector.get_map():
                while queue and len(selector.get_map()) < count:
                    folder, attempt = queue.popleft()
                    process = _start(folder)
                    selector.register(process.stdout, selectors.EVENT_READ, (process, folder, attempt))  # type: ignore[arg-type]
                for key, _ in selector.select():
                    process, folder, attempt = key.data
                    if line := process.stdout.readline():
                        watch.hear(folder.name, json.loads(line))
                        continue
                    selector.unregister(key.fileobj)
                    code = _end(process)
                    if code < 0 and attempt < ATTEMPTS:
                        queue.append((folder, attempt + 1))
                        watch.warn(f"The process of {folder.name} was killed; it goes on from its last checkpoint.")
                        continue
                    if code < 0:
                        watch.warn(f"The process of {folder.name} was killed {ATTEMPTS} times and is given up.")
                    if code:
                        diverged = RunFolder(folder).status()["state"] == DIVERGED
                        watch.over(folder.name, DIVERGED if diverged else FAILED)
        finally:
            for key in list(selector.get_map().values()):
                _end(key.data[0])


def _start(folder: Path) -> subprocess.Popen[str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    command = [sys.executable, "-m", "bcppo.lanes", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | threads | path, text=True)


def _end(process: subprocess.Popen[str]) -> int:
    if process.poll() is None and process.stdout and not process.stdout.closed:
        process.stdout.close()  # a process that talks to nobody ends
    try:
        return process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class _Telling(Watch):
    """Tells another process how a run is getting on."""

    def __init__(self) -> None:
        super().__init__(bar=False)
        self._told = 0.0

    def update(self, run: Run) -> None:
        super().update(run)
        if run.finished or monotonic() - self._told >= _INTERVAL:
            self._told = monotonic()
            print(json.dumps(facts(run)), flush=True)

    def warn(self, sentence: str) -> None:
        print(json.dumps({"warning": sentence}), flush=True)


def main(folder: str) -> int:
    from bcppo.run import resume

    patience = monotonic() + _PATIENCE
    while True:
        try:
            resume(folder, watch=_Telling())
            return 0
        except FolderBusy as error:
            if monotonic() > patience:
                print(json.dumps({"warning": str(error)}), flush=True)
                return 2
            sleep(0.5)
        except BcppoError as error:
            print(json.dumps({"warning": str(error)}), flush=True)
            return 2
        except BrokenPipeError:  # whoever was listening is gone; the run goes on from its checkpoint when asked again
            return 3


if __name__ == "__main__":
    # An interrupt from the keyboard goes to the parent too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
