"""Processes that simulate, seen from the process that learns. worker.py is the other side.

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bcppo.errors import BcppoError, ConfigError, Diverged
from bcppo.lockstep import FAILED, Slot, rest, slot_shapes
from bcppo.policy import NumpyPolicy, Sampler
from bcppo.rollout import Rollout
from bcppo.worker import Arrays, Places, read_message, shared_arrays, write_message

ATTEMPTS = 3
"""Deaths in a row after which a worker is given up."""
_BETWEEN_LOOKS = 0.001
"""Seconds between looks at a process whose answer is awaited in shared memory."""
_SPINS = 50
"""How often to look for such an answer before the processor is offered to others."""


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

    def __init__(self, python: str | None = None) -> None:
        """`python` is another interpreter, which has the simulators."""
        self._command, paths = worker_command(python, "bcppo.worker")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._environment = os.environ | threads | paths
        # Nameless, so that nothing is left behind however the processes end.
        self._file = tempfile.TemporaryFile(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)  # noqa: SIM115
        self._memory: mmap.mmap | None = None
        self._views: dict[int, tuple[Places, Arrays]] = {}
        self._used = self.deaths = 0  # deaths since it last answered
        self._reviving = False
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
        self._dead = False
        _pids.add(self.pid)

    def fileno(self) -> int:
        """For `select`: readable when an answer is there."""
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
        # A broken pipe is found out by whoever reads the answer.
        with contextlib.suppress(OSError):
            write_message(self._process.stdin, header, arrays)  # type: ignore[arg-type]

    def ready(self, number: int) -> bool:
        """Whether an environment's answer is there (or its worker is dead, which `receive` mends)."""
        while not self._inbox[number] and select.select([self], [], [], 0.0)[0]:
            self._read()
        return bool(self._inbox[number])

    def receive(self, number: int) -> tuple[dict[str, Any], Arrays]:
        while not self._inbox[number]:
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
        self.deaths = 0
        self._inbox[message[0]["environment"]].append(message)

    def revive(self) -> None:
        """Start a dead process again, put its environments back and ask again for what was asked."""
        while True:
            self.deaths += 1
            if self.deaths >= ATTEMPTS:
                times = f"died {ATTEMPTS} times in a row"
                raise BcppoError(f"An environment's process {times}; the run can be resumed from its last checkpoint.")
            self._end()
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


class RemoteCollector:
    """A Collector in a worker: the same calls, but between `start` and `finish` others work too.

    A rollout handed over lies in shared memory and holds until the next `start`.
    """

    def __init__(
        self,
        worker: Worker,
        task: str,
        cost_limit_rate: float | None,
        seeds: np.random.Generator,
        noise: np.random.Generator,
        *,
        clip_actions: bool = True,
    ) -> None:
        self.worker = worker
        self._seeds, self._noise = seeds, noise
        self._made = {
            "do": "make", "task": task, "cost_limit_rate": cost_limit_rate, "clip_actions": clip_actions
        }  # fmt: skip
        self._asked: tuple[dict[str, Any], Arrays] | None = None
        self._policy_places: dict[tuple[str, ...], Places] = {}
        self._rollout_places: Places = {}
        self._actions: list[np.ndarray] = []
        self._slot_places: Places = {}
        self._entering: dict[str, Any] = {}
        self._in_lockstep = self._awaits_step = False
        self._count = 0  # of the steps asked for in shared memory, ever
        self._number = worker.host(self)
        self._spaces: tuple[int, np.ndarray, np.ndarray] | None = None
        self._began = self._stream_states()
        self._ask(self._made | self._began)

    @property
    def spaces(self) -> tuple[int, np.ndarray, np.ndarray]:
        """(observation width, lowest action, highest action). Asked first, so that others are made meanwhile."""
        if self._spaces is None:
            since = self._stream_states()
            header, bounds = self._answer()
            if since != self._began:  # streams that were put back meanwhile stay so
                self._set_streams(since)
            self._spaces = header["observation"], bounds["low"], bounds["high"]
            self.observation = bounds["current"]
            self._episode_seed = header["episode_seed"]
        return self._spaces

    def ready(self) -> bool:
        if self._awaits_step:
            return self._slot.answered[0] == self._count or self.worker.lost()
        return self.worker.ready(self._number)

    def start(self, policy: Sampler, steps: int) -> None:
        """Ask for the next steps."""
        width, low, _ = self.spaces
        shapes = {
            "observation": ("<f4", [steps, width]), "next_observation": ("<f4", [steps, width]),
            "action": ("<f4", [steps, len(low)]), "reward": ("<f8", [steps]), "cost": ("<f8", [steps]),
            "terminated": ("|b1", [steps]), "truncated": ("|b1", [steps]), "current": ("<f4", [width]),
        }  # fmt: skip
        if not self._rollout_places or self._rollout_places["reward"][1] != [steps]:
            self._rollout_places = self.worker.place(shapes)
        self._ask({"do": "collect", "steps": steps, "policy": self._lay(policy), "rollout": self._rollout_places})

    def finish(self) -> Rollout:
        header, _ = self._answer()
        fields: dict[str, Any] = {**self.worker.arrays(self._rollout_places), **header["rest"]}
        self.observation = fields.pop("current")
        rollout = Rollout(**fields)
        ends = np.flatnonzero(rollout.terminated | rollout.truncated)
        if len(ends):
            self._actions.clear()
        self._actions.append(rollout.action[ends[-1] + 1 if len(ends) else 0 :].copy())
        self._episode_seed = header["episode_seed"]
        return rollout

    def start_evaluation(self, policy: NumpyPolicy, seeds: Iterable[int]) -> None:
        self._ask({"do": "evaluate", "policy": self._lay(policy), "episode_seeds": list(seeds)})

    def finish_evaluation(self) -> list[dict[str, float]]:
        return self._answer()[0]["rows"]

    def state(self) -> tuple[int, np.ndarray]:
        """The unfinished episode: its seed and the actions taken so far [n, act]."""
        _, low, _ = self.spaces
        empty = np.zeros((0, len(low)), np.float32)
        return self._episode_seed, np.concatenate([empty, *self._actions])

    def restore(self, seed: int, actions: np.ndarray) -> None:
        """Rebuild an unfinished episode by taking its actions again."""
        _ = self.spaces  # what was asked first is answered first
        self._episode_seed, self._actions = seed, [np.asarray(actions, np.float32)]
        self._ask(*self._restoring())
        self.observation = self._answer()[1]["current"]

    def _restoring(self) -> tuple[dict[str, Any], Arrays]:
        seed, actions = self.state()
        return {"do": "restore", "episode_seed": seed, **self._stream_states()}, {"actions": actions}

    def rebuild(self) -> None:
        """In a fresh process: make the environment again, take the episode's actions again, ask again."""
        if self._asked is None or self._asked[0]["do"] != "make":
            for header, arrays in ((self._made | self._stream_states(), {}), self._restoring()):
                self.worker.send({**header, "environment": self._number}, arrays)
                self.worker.receive(self._number)
        if self._in_lockstep:
            taken = self._count - self._awaits_step
            self._slot.answered[0] = taken  # an answer that was not taken is given again
            self.worker.send({**self._entering, "count": taken, "environment": self._number}, {})
            self.worker.receive(self._number)
        if self._asked is not None:
            self._ask(*self._asked)

    # --- one step at a time ---

    def start_lockstep(self, log_std_bounds: np.ndarray) -> None:
        """Ask for single steps by `start_step`, until `end_lockstep`. The random streams are ours meanwhile."""
        if not self._slot_places:
            width, low, _ = self.spaces
            self._slot_places = self.worker.place(slot_shapes(width, len(low)))
        self._slot = Slot(self.worker.arrays(self._slot_places))
        self._crowded = crowded()
        self._entering = {"do": "enter", "slot": self._slot_places, "crowded": self._crowded}
        self._entering["log_std_bounds"] = log_std_bounds.tolist()
        self._next_seed = self._peek()
        self._ask(self._entering | {"count": self._count})
        self._enters = True

    def await_lockstep(self) -> None:
        """Until what `start_lockstep` or `end_lockstep` asked for is so."""
        self._answer()
        self._in_lockstep = self._enters

    def end_lockstep(self) -> None:
        """Whole rollouts again; the streams go back to the worker."""
        self._in_lockstep = self._enters = False
        self._ask({"do": "leave", **self._stream_states()})

    def abandon_lockstep(self) -> None:
        """Nothing will be asked of this environment again: its worker need not look after it."""
        self.worker.outstanding -= self._awaits_step
        self._in_lockstep = self._awaits_step = False
        self._ask({"do": "leave"})
        self._asked = None

    def start_step(self, heads: np.ndarray | None) -> None:
        """Ask for a step with the policy's last layer for the current observation; without one, a uniform action."""
        noise = self._noise.standard_normal((1, len(self.spaces[1])), dtype=np.float32)[0]
        self._count += 1
        self._awaits_step = True
        self.worker.outstanding += 1
        self._slot.ask(self._count, heads, noise, self._next_seed)

    def finish_step(self, rollout: Rollout, row: int) -> None:
        """Put the step that was asked for into a row of a rollout."""
        self._await_step()
        slot = self._slot
        if slot.answered[1] == FAILED:
            self.worker.receive(self._number)  # says why, as an error
        step = slot.step()
        rollout.put(row, self.observation, step)
        self.observation = slot.current.copy()
        self._awaits_step = False
        self.worker.outstanding -= 1
        self.worker.deaths = 0
        if step.summary is None:
            self._actions.append(rollout.action[row : row + 1])
        else:
            self._episode_seed = int(self._seeds.integers(2**31))  # the one that was peeked at
            self._actions.clear()
            self._next_seed = self._peek()

    def _await_step(self) -> None:
        answered, spins = self._slot.answered, _SPINS if self._crowded else 0
        while answered[0] != self._count:
            spins += 1
            if spins > _SPINS:
                rest(self._crowded)
                if self.worker.lost():
                    self.worker.revive()

    def _peek(self) -> int:
        """The next episode's seed: the stream gives it out only when this episode ends."""
        state = self._seeds.bit_generator.state
        seed = int(self._seeds.integers(2**31))
        self._seeds.bit_generator.state = state
        return seed

    def close(self) -> None:
        """The worker is closed by whoever made it."""

    def _lay(self, policy: Sampler) -> Places:
        """The policy in shared memory."""
        arrays = policy.weights | {"low": policy.low, "high": policy.high}
        kind = tuple(arrays)
        if kind not in self._policy_places:
            self._policy_places[kind] = self.worker.place({n: (a.dtype.str, a.shape) for n, a in arrays.items()})
        for name, place in self.worker.arrays(self._policy_places[kind]).items():
            place[...] = arrays[name]
        return self._policy_places[kind]

    def _stream_states(self) -> dict[str, Any]:
        return {"seeds": self._seeds.bit_generator.state, "noise": self._noise.bit_generator.state}

    def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> None:
        self._asked = header, arrays or {}
        self.worker.send({**header, "environment": self._number}, self._asked[1])

    def _answer(self) -> tuple[dict[str, Any], Arrays]:
        answer = self.worker.receive(self._number)
        self._asked = None
        self._set_streams(answer[0])
        return answer

    def _set_streams(self, states: Mapping[str, Any]) -> None:
        self._seeds.bit_generator.state, self._noise.bit_generator.state = states["seeds"], states["noise"]


def crowded() -> bool:
    """Whether this process and its workers are more than the cores they may use."""
    return len(_pids) + 1 > len(os.sched_getaffinity(0))


def wait(workers: Sequence[Worker], seconds: float = 1.0) -> None:
    """Until one of the workers has something to say; returns at once where one may say it in shared memory."""
    if any(worker.outstanding for worker in workers):
        rest(crowded())
        return
    select.select(list(workers), [], [], seconds)
