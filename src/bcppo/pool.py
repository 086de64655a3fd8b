"""Processes that simulate, seen from the process that learns. worker.py is the other side, remote.py what they host.

A worker hosts any number of environments and does what it is asked in order. One that dies is started again, its
environments are put back to where their last rollouts ended, and what was asked of them is asked again: since all that
is random in them is handed over, the answers are the same.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bcppo.errors import BcppoError, ConfigError, Diverged
from bcppo.lockstep import rest
from bcppo.worker import Arrays, Places, message_bytes, read_message, shared_arrays

if TYPE_CHECKING:
    from bcppo.remote import RemoteCollector

ATTEMPTS = 3
"""Deaths in a row after which a worker is given up."""
_BETWEEN_LOOKS = 0.001
"""Seconds between looks at a process whose answer is awaited in shared memory."""


class _Lost(Exception):
    """A worker died while it was being put back."""


_ALIGNMENT = 64
_SHARED_MEMORY = Path("/dev/shm")
_PLACES = "BCPPO_PLACES"
"""Environment variable: where a worker under another Python looks for what it does not have itself."""


_pids: set[int] = set()
"""Of this process's workers."""


class Turns:
    """Which of the long requests to some workers are at work: so many at once, in the order they came, one a worker.

    Were all at work at once, they would share the cores and all end late. In turn, the first end early, and what waits
    for them goes on while the others are at work.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._at_work: dict[Worker, int] = {}
        self.waiting: list[tuple[Worker, dict[str, Any]]] = []
        """Requests whose turn has not come."""

    def ask(self, worker: Worker, header: dict[str, Any]) -> None:
        """Send a request when its turn comes."""
        self.waiting.append((worker, header))
        self._go_on()

    def answered(self, worker: Worker, environment: int) -> None:
        """A worker has answered for one of its environments."""
        if self._at_work.get(worker) == environment:
            del self._at_work[worker]
            self._go_on()

    def forget(self, worker: Worker) -> None:
        """A worker is dead: what it was asked will be asked again."""
        self._at_work.pop(worker, None)
        self.waiting = [request for request in self.waiting if request[0] is not worker]
        self._go_on()

    def _go_on(self) -> None:
        waiting, self.waiting = self.waiting, []
        for worker, header in waiting:
            if len(self._at_work) < self._at_once and worker not in self._at_work:
                self._at_work[worker] = header["environment"]
                worker.send(header, {})
            else:
                self.waiting.append((worker, header))


class Worker:
    """One process and its environments."""

    def __init__(self, python: str | None = None, turns: Turns | None = None) -> None:
        """`python` is another interpreter, which has the simulators; `turns` are those of workers that share cores."""
        self.turns = turns
        self._command, paths = worker_command(python, "bcppo.worker")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._environment = os.environ | threads | paths
        # Nameless, so that nothing is left behind however the processes end.
        self._file = tempfile.TemporaryFile(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)  # noqa: SIM115
        self._memory: mmap.mmap | None = None
        self._views: dict[int, tuple[Places, Arrays]] = {}
        self._used = self.deaths = 0  # deaths since it last answered
        self._reviving = False
        self.given_up = ""
        """Why it will not answer any more, where that is so."""
        self._looked = 0.0
        self.outstanding = 0
        """Steps that are awaited in shared memory."""
        self._collectors: list[RemoteCollector] = []
        self._inbox: list[deque[tuple[dict[str, Any], Arrays]]] = []
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [*self._command, str(self._file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            bufsize=0,
            pass_fds=(self._file.fileno(),),
        )
        os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]
        self._dead = False
        _pids.add(self.pid)

    def fileno(self) -> int:
        """For `poll`: readable when an answer is there."""
        return self._process.stdout.fileno()  # type: ignore[union-attr]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def lost(self) -> bool:
        """Whether the process is dead; looks about once a millisecond, however often it is asked."""
        now = perf_counter()
        if now - self._looked > _BETWEEN_LOOKS:
            self._looked, self._dead = now, not self.alive
        return self._dead

    def host(self, collector: RemoteCollector) -> int:
        """A number for one more environment."""
        self._collectors.append(collector)
        self._inbox.append(deque())
        return len(self._collectors) - 1

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Send a request. While the pipe is full, answers are taken in: with theirs full too, both sides would wait."""
        view = memoryview(message_bytes(header, arrays))
        # A broken pipe is found out by whoever reads the answer.
        with contextlib.suppress(OSError):
            while view:
                written = self._process.stdin.write(view)  # type: ignore[union-attr]
                if written is not None:
                    view = view[written:]
                elif not self._make_room():
                    return

    def _make_room(self) -> bool:
        """Until the pipe takes something or an answer has been taken in; whether the process is there to go on with."""
        poll = select.poll()
        poll.register(self._process.stdin, select.POLLOUT)  # type: ignore[arg-type]
        poll.register(self, select.POLLIN)
        if self.fileno() not in dict(poll.poll()):
            return True
        message = read_message(self._process.stdout)  # type: ignore[arg-type]
        if message is not None:
            self._keep(message)
        return message is not None

    def ready(self, number: int) -> bool:
        """Whether an environment's answer is there (or its worker is dead, which `receive` mends)."""
        while not (self._inbox[number] or self.given_up) and _heard([self], 0.0):
            self.hear()
        return bool(self._inbox[number] or self.given_up)

    def hear(self) -> None:
        """Read an answer that is there, for whichever environment. A dead process is started again, or is given up:
        whoever waits for it next is told why."""
        try:
            self._read()
        except BcppoError as error:  # also one of putting its environments back
            self._give_up(str(error))

    def receive(self, number: int) -> tuple[dict[str, Any], Arrays]:
        while not self._inbox[number]:
            if self.given_up:
                raise BcppoError(self.given_up)
            self._read()
        header, arrays = self._inbox[number].popleft()
        if "error" in header:
            raise (Diverged if header["diverged"] else BcppoError)(header["error"])
        return header, arrays

    def _read(self) -> None:
        message = read_message(self._process.stdout)  # type: ignore[arg-type]
        if message is None:
            if self._reviving:
                raise _Lost
            self.revive()
            return
        self._keep(message)

    def _keep(self, message: tuple[dict[str, Any], Arrays]) -> None:
        """An answer, for whoever asked."""
        self.deaths = 0
        number = message[0]["environment"]
        self._inbox[number].append(message)
        if self.turns:
            self.turns.answered(self, number)

    def revive(self) -> None:
        """Start a dead process again, put its environments back and ask again for what was asked."""
        while True:
            self.deaths += 1
            if self.deaths >= ATTEMPTS:
                times = f"died {ATTEMPTS} times in a row"
                raise BcppoError(f"An environment's process {times}; the run can be resumed from its last checkpoint.")
            self._end()
            if self.turns:
                self.turns.forget(self)
            self._start()
            for box in self._inbox:
                box.clear()  # what nobody has taken yet is asked again too: the environments start from before it
            deaths, self._reviving = self.deaths, True
            try:
                for collector in self._collectors:
                    collector.rebuild()
                return
            except _Lost:
                continue
            finally:
                self.deaths, self._reviving = deaths, False  # being put back is no answer yet

    def _give_up(self, why: str) -> None:
        self.given_up = why
        if self.turns:
            self.turns.forget(self)

    def place(self, like: Mapping[str, tuple[str, Sequence[int]]]) -> Places:
        """Room in shared memory for arrays of some (dtype, shape), for as long as the worker lives."""
        places = {}
        for name, (dtype, shape) in like.items():
            places[name] = (dtype, list(shape), self._used)
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            self._used += size + -size % _ALIGNMENT
        self._file.truncate(self._used)
        self._memory = mmap.mmap(self._file.fileno(), self._used)
        self._views.clear()
        return places

    def arrays(self, places: Places) -> Arrays:
        """Views of places; made once, until there is more memory."""
        assert self._memory is not None
        kept = self._views.get(id(places))
        if kept is None:
            kept = self._views[id(places)] = places, shared_arrays(self._memory, places)
        return dict(kept[1])

    def close(self) -> None:
        self._end()
        self._file.close()

    def _end(self) -> None:
        """End the process, also one that is still sending what nobody will read."""
        _pids.discard(self.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def worker_command(python: str | None, module: str) -> tuple[list[str], dict[str, str]]:
    """(command, environment variables) that run a module of ours in a worker's interpreter.

    What is found here is found there, so that a task can be 'module:function'; but another interpreter's own packages
    come first, since binaries on our path are not for it.
    """
    places = os.pathsep.join(folder for folder in sys.path if folder)
    if python is None:
        return [sys.executable, "-m", module], {"PYTHONPATH": places}
    begin = (
        f"import os, runpy, sys; sys.path += os.environ['{_PLACES}'].split(os.pathsep); "
        f"runpy.run_module('{module}', run_name='__main__')"
    )
    return [python, "-c", begin], {"PYTHONPATH": "", _PLACES: places}


def worker_stack(python: str) -> dict[str, str]:
    """Releases of another interpreter and of the simulators it has."""
    command, paths = worker_command(python, "bcppo.stack")
    try:
        done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise ConfigError(f"The workers' Python {python} cannot be used: {told[-1] if told else error}.") from error


def crowded() -> bool:
    """Whether this process and its workers are more than the cores they may use."""
    return len(_pids) + 1 > len(os.sched_getaffinity(0))


def wait(workers: Sequence[Worker], seconds: float) -> None:
    """Until one of the workers has something to say; returns at once where one may say it in shared memory.

    What was said is taken in: left in the pipe, it would end the next wait as soon as it began.
    """
    if any(worker.outstanding for worker in workers):
        rest(crowded())
    else:
        take_in(workers, seconds)


def take_in(workers: Sequence[Worker], seconds: float) -> None:
    """Read what workers say within so many seconds, whoever it is for; returns when some have been heard."""
    for worker in _heard([worker for worker in workers if not worker.given_up], seconds):
        worker.hear()


def _heard(workers: Sequence[Worker], seconds: float) -> list[Worker]:
    """Those that say something within so many seconds, or are dead; as soon as there are any.

    By `poll`: `select` takes no file beyond the 1,024th, and every run of a fleet holds one.
    """
    poll, by_file = select.poll(), {worker.fileno(): worker for worker in workers}
    for file in by_file:
        poll.register(file, select.POLLIN)
    return [by_file[file] for file, _ in poll.poll(1000.0 * seconds)]
