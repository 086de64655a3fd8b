"""Processes that simulate, seen from the process that learns. worker.py is the other side, remote.py what they host.

A worker hosts any number of environments and does what it is asked in order. One that dies is started again, its
environments are put back to where their last rollouts ended, and what was asked of them is asked again: since all that
is random in them is handed over, the answers are the same. An environment at which its worker dies again and again is
left out; the worker's others go on.
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
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bcppo.errors import BcppoError, ConfigError, Diverged, EnvironmentFailed, RunError, WorkerLost
from bcppo.lockstep import rest
from bcppo.process import signal_name
from bcppo.worker import ABSENT, PRESENT, Arrays, Places, message_bytes, read_message, shared_arrays

if TYPE_CHECKING:
    from bcppo.remote import RemoteCollector
    from bcppo.turns import Turns

ATTEMPTS = 3
"""Deaths in a row after which an environment is left out or, where it is not known at which, the worker given up."""
_GRACE = 2.0
"""Seconds that processes have to end by themselves."""
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


class Worker:
    """One process and its environments."""

    def __init__(self, python: str | None = None, turns: Turns | None = None) -> None:
        """`python` is another interpreter, which has the simulators; `turns` are those of workers that share cores."""
        self.turns = turns
        self._command, paths = worker_command(python, "bcppo.worker")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._environment = os.environ | threads | paths
        # Nameless, so that nothing is left behind however the processes end.
        self._folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._memory: mmap.mmap | None = None
        self._views: dict[int, tuple[Places, Arrays]] = {}
        self._used = _ALIGNMENT  # the first byte says whether the process is there
        self._deaths: Counter[int | None] = Counter()
        """Since the environment it died at last answered, or any where it is not known at which."""
        self._reviving = False
        self.given_up = ""
        """Why it will not answer any more, where that is so."""
        self._looked = 0.0
        self.outstanding = 0
        """Steps that are awaited in shared memory."""
        self._collectors: list[RemoteCollector | None] = []
        """None where nothing will be asked any more."""
        self._inbox: list[deque[tuple[dict[str, Any], Arrays]]] = []
        self._asked: deque[int] = deque()
        """Environments whose requests are not answered yet, in the order they are worked at."""
        self._left_out: dict[int, RunError] = {}
        try:
            self._start()
        except OSError as error:
            self._file.close()
            raise BcppoError(f"A worker process could not be started: {error.strerror or error}.") from error

    def _start(self) -> None:
        os.pwrite(self._file.fileno(), ABSENT, 0)
        self._process = subprocess.Popen(
            [*self._command, str(self._file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            bufsize=0,
            pass_fds=(self._file.fileno(),),
        )
        os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]
        self._poll = select.poll()
        self._poll.register(self, select.POLLIN)
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
        self._asked.append(header["environment"])
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
        """Whether an environment's answer is there, or will never be; not where its worker was brought back meanwhile,
        which takes away what others had: whoever waits for several would wait for those with its turn still to come."""
        process = self._process
        while not self._settled(number) and self._poll.poll(0):
            self.hear()
        return self._settled(number) and self._process is process

    def _settled(self, number: int) -> bool:
        return bool(self._inbox[number]) or self.refuses(number)

    def refuses(self, number: int) -> bool:
        """Whether an environment is left out, or all are: `receive` says why."""
        return number in self._left_out or bool(self.given_up)

    def hear(self) -> None:
        """Read an answer that is there, for whichever environment. A dead process is started again, or is given up:
        whoever waits for it next is told why."""
        message = read_message(self._process.stdout)  # type: ignore[arg-type]
        if message is not None:
            self._keep(message)
        elif self._reviving:
            raise _Lost
        else:
            self.revive()

    def receive(self, number: int) -> tuple[dict[str, Any], Arrays]:
        while not self._settled(number):
            self.hear()
        if number in self._left_out:
            raise self._left_out[number]
        if not self._inbox[number]:
            raise WorkerLost(f"{self.given_up}; the run can be resumed from its last checkpoint.")
        header, arrays = self._inbox[number].popleft()
        if "error" in header:
            raise (Diverged if header["diverged"] else EnvironmentFailed)(header["error"])
        return header, arrays

    def _keep(self, message: tuple[dict[str, Any], Arrays]) -> None:
        """An answer, for whoever asked."""
        number = message[0]["environment"]
        with contextlib.suppress(ValueError):  # of a step that failed, which was asked in shared memory
            self._asked.remove(number)
        if not self._reviving:  # being put back is no answer yet
            self.answered(number)
        if self._collectors[number] is not None:
            self._inbox[number].append(message)
        if self.turns:
            self.turns.answered(self, number)

    def answered(self, number: int) -> None:
        """An environment has done what was asked, so whatever its worker died of is over."""
        if self._deaths:
            self._deaths.pop(number, None)
            self._deaths.pop(None, None)

    def revive(self) -> None:
        """Start a dead process again, put its environments back and ask again for what was asked.

        An environment at which it died too often is left out, and whoever waits for it is told. Where it is not known
        at which it died, or the process cannot be started, the worker is given up.
        """
        while not self.given_up:
            suspect = self._suspect()
            self._end()
            self._deaths[suspect] += 1
            if self._deaths[suspect] >= ATTEMPTS:
                died = f"An environment's process died {ATTEMPTS} times in a row ({_ended(self._process.returncode)})"
                if suspect is None:
                    self._give_up(died)
                    return
                again = "the run can be resumed from its last checkpoint"
                self._leave_out(suspect, EnvironmentFailed(f"{died}; {again}."))
            if self.turns:
                self.turns.forget(self)
            try:
                self._start()
            except OSError as error:
                self._give_up(f"An environment's process could not be started again: {error.strerror or error}")
                return
            self._asked.clear()
            for box in self._inbox:
                box.clear()  # what nobody has taken yet is asked again too: the environments start from before it
            if self._put_back():
                return

    def _put_back(self) -> bool:
        """Its environments in a fresh process; whether that lived through it."""
        self._reviving = True
        try:
            for number, collector in enumerate(self._collectors):
                try:
                    if collector is not None:
                        collector.rebuild()
                except RunError as error:
                    self._leave_out(number, error)
            return True
        except _Lost:
            return False
        finally:
            self._reviving = False

    def _suspect(self) -> int | None:
        """The environment that a dead process was at; None where it is not known, or where it never came to any."""
        if os.pread(self._file.fileno(), 1, 0) != PRESENT:
            return None
        stepping = [n for n, collector in enumerate(self._collectors) if collector is not None and collector.stepping]
        first = next(iter(stepping or self._asked), None)
        return None if first is None or self._collectors[first] is None else first

    def _leave_out(self, number: int, error: RunError) -> None:
        """Ask no more of an environment; whoever waits for it is told why."""
        self._left_out[number] = error
        self._deaths.pop(number, None)
        self._forget(number)

    def release(self, number: int) -> None:
        """Let go of an environment that nobody will ask for again."""
        if self._collectors[number] is not None:
            self._forget(number)
            if not self.given_up:
                self.send({"do": "release", "environment": number}, {})

    def _forget(self, number: int) -> None:
        self._collectors[number] = None
        self._inbox[number].clear()
        if self.turns:
            self.turns.withdraw(self, number)

    def _give_up(self, why: str) -> None:
        self.given_up = why
        if self.turns:
            self.turns.forget(self)

    def place(self, like: Mapping[str, tuple[str, Sequence[int]]]) -> Places:
        """Room in shared memory for arrays of some (dtype, shape), for as long as the worker lives."""
        places, used = {}, self._used
        for name, (dtype, shape) in like.items():
            places[name] = (dtype, list(shape), used)
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            used += size + -size % _ALIGNMENT
        try:
            # Reserved now: what is missing only when it is written to ends the process that writes.
            os.posix_fallocate(self._file.fileno(), self._used, max(used - self._used, 1))
        except OSError as error:
            raise BcppoError(
                f"The {used / 2**20:.1f} MB that a worker shares do not fit into {self._folder}: {error.strerror}; "
                "make that larger (a container's by --shm-size), or train fewer runs at once."
            ) from error
        self._used = used
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

    def close(self, grace: float = _GRACE) -> None:
        self._end(grace)
        self._file.close()

    def hang_up(self) -> None:
        """A process that talks to nobody ends."""
        _pids.discard(self.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _end(self, grace: float = _GRACE) -> None:
        """End the process, also one that is still sending what nobody will read."""
        self.hang_up()
        try:
            self._process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def close_all(workers: Sequence[Worker]) -> None:
    """All at once: those that are still at work are not waited for one after another."""
    for worker in workers:
        worker.hang_up()
    until = monotonic() + _GRACE
    for worker in workers:
        worker.close(max(until - monotonic(), 0.0))


def _ended(status: int) -> str:
    """How a process ended, in words."""
    return signal_name(status) if status < 0 else f"exit status {status}"


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
