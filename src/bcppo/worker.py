"""An environment in a process of its own, without torch: `python -m bcppo.worker`.

The two sides speak over the process's standard input and output: a line of JSON, then the bytes of the arrays it
announces. A worker that loses its parent ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import gymnasium
import numpy as np

from bcppo.errors import BcppoError, ConfigError, Diverged
from bcppo.policy import NumpyPolicy
from bcppo.rollout import Collector, MakeEnv, Rollout

_ARRAYS = ("observation", "next_observation", "action", "reward", "cost", "terminated", "truncated")


OWN_TASK = "own"
"""The task's name in the records of a run whose environment came from Python, by `make_env`."""


def environment_factory(task: str, cost_limit_rate: float | None) -> MakeEnv:
    """How to make the environment of a task: a name from the table, an environment id, or 'module:function'."""
    from bcppo.tasks import TASKS, make_task

    if task == OWN_TASK:
        raise ConfigError("The environment of this run came from Python: hand over its make_env again.")
    module, _, attribute = task.partition(":")
    if attribute and "/" not in task:
        try:
            factory = getattr(importlib.import_module(module), attribute, None)
        except ImportError as error:
            raise ConfigError(f"The module '{module}' of the task '{task}' cannot be imported: {error}.") from error
        if not callable(factory):
            raise ConfigError(f"The module '{module}' has no function '{attribute}' to make the environment with.")
        return lambda: make_task(factory(), cost_limit_rate=cost_limit_rate)
    if task in TASKS:
        return lambda: make_task(task)
    return lambda: make_task(task, cost_limit_rate=cost_limit_rate)


def own_environment(make_env: MakeEnv, cost_limit_rate: float | None) -> MakeEnv:
    """`make_env` with a cost that is checked, whether or not it already passes its environment through `make_task`."""
    from bcppo.tasks import OwnCost, RareEventCost, make_task

    def make() -> Any:
        env = layer = make_env()
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, (OwnCost, RareEventCost)):
                return env
            layer = layer.env
        return make_task(env, cost_limit_rate=cost_limit_rate)

    return make


class RemoteCollector:
    """A Collector in another process: the same calls, but `start` lets several work at once."""

    def __init__(
        self, task: str, cost_limit_rate: float | None, seeds: np.random.Generator, noise: np.random.Generator
    ) -> None:
        self._seeds, self._noise = seeds, noise
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # A task 'module:function' is found there where it is found here.
        environment["PYTHONPATH"] = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bcppo.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._call({"do": "make", "task": task, "cost_limit_rate": cost_limit_rate, **self._stream_states()})

    def start(self, policy: NumpyPolicy, steps: int) -> None:
        self._send({"do": "collect", "steps": steps}, policy.weights | {"low": policy.low, "high": policy.high})

    def finish(self) -> Rollout:
        header, arrays = self._receive()
        fields: dict[str, Any] = {**arrays, **header["rest"]}
        return Rollout(**fields)

    def state(self) -> tuple[int, np.ndarray]:
        header, arrays = self._call({"do": "state"})
        return header["seed"], arrays["actions"]

    def restore(self, seed: int, actions: np.ndarray) -> None:
        self._call({"do": "restore", "seed": seed, **self._stream_states()}, {"actions": actions})

    def close(self) -> None:
        """End the worker, also one that is still sending what nobody will read."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _stream_states(self) -> dict[str, Any]:
        return {"seeds": self._seeds.bit_generator.state, "noise": self._noise.bit_generator.state}

    def _call(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None):
        self._send(header, arrays or {})
        return self._receive()

    def _send(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        try:
            write_message(self._process.stdin, header, arrays)  # type: ignore[arg-type]
        except (BrokenPipeError, OSError):
            raise self._lost() from None

    def _receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        message = read_message(self._process.stdout)  # type: ignore[arg-type]
        if message is None:
            raise self._lost()
        header, arrays = message
        if "error" in header:
            raise (Diverged if header["diverged"] else BcppoError)(header["error"])
        if "seeds" in header:
            self._seeds.bit_generator.state = header.pop("seeds")
            self._noise.bit_generator.state = header.pop("noise")
        return header, arrays

    def _lost(self) -> BcppoError:
        return BcppoError("An environment's process died; the run can be resumed from its last checkpoint.")


def write_message(pipe: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    specs = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    pipe.write(json.dumps({**header, "arrays": specs}).encode() + b"\n")
    for array in arrays.values():
        pipe.write(np.ascontiguousarray(array).tobytes())
    pipe.flush()


def read_message(pipe: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """The next message, or None where the other side is gone."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    header = json.loads(line)
    arrays = {}
    for name, (dtype, shape) in header.pop("arrays").items():
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        raw = pipe.read(size)
        if len(raw) < size:
            return None
        arrays[name] = np.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
    return header, arrays


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer a parent's requests until it is gone."""
    seeds, noise = np.random.default_rng(0), np.random.default_rng(0)
    collector: Collector | None = None
    while (message := read_message(requests)) is not None:
        header, arrays = message
        reply: dict[str, Any] = {}
        sent: dict[str, np.ndarray] = {}
        try:
            if "seeds" in header:
                seeds.bit_generator.state, noise.bit_generator.state = header["seeds"], header["noise"]
            if header["do"] == "make":
                collector = Collector(environment_factory(header["task"], header["cost_limit_rate"]), seeds, noise)
            elif collector is None:
                raise BcppoError("No environment was made yet.")
            elif header["do"] == "collect":
                low, high = arrays.pop("low"), arrays.pop("high")
                rollout = collector.collect(NumpyPolicy(arrays, low, high), header["steps"])
                sent = {name: getattr(rollout, name) for name in _ARRAYS}
                rest = {"episodes": rollout.episodes, "native_cost": rollout.native_cost, "seconds": rollout.seconds}
                reply["rest"] = rest
            elif header["do"] == "state":
                reply["seed"], sent["actions"] = collector.state()
            elif header["do"] == "restore":
                collector.restore(header["seed"], arrays["actions"])
            reply |= {"seeds": seeds.bit_generator.state, "noise": noise.bit_generator.state}
        except Exception as error:
            sentence = f"{error}" if isinstance(error, BcppoError) else f"{type(error).__name__}: {error}"
            reply, sent = {"error": sentence, "diverged": isinstance(error, Diverged)}, {}
        write_message(replies, reply, sent)


if __name__ == "__main__":
    # An interrupt from the keyboard goes to the parent too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What an environment prints must not get between the messages.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, replies)
    except BrokenPipeError:  # the parent is gone: nobody to tell, and nothing to complain about while ending
        os.dup2(os.open(os.devnull, os.O_WRONLY), replies.fileno())
