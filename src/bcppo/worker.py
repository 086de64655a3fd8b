"""An environment in a process of its own, without torch: `python -m bcppo.worker`.

The two sides speak over the process's standard input and output: a line of JSON, then the bytes of the arrays it announces.
A worker that loses its parent ends.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from bcppo.errors import BcppoError, ConfigError
from bcppo.policy import NumpyPolicy
from bcppo.rollout import Collector, MakeEnv, Rollout

_ARRAYS = ("observation", "next_observation", "action", "reward", "cost", "terminated", "truncated")


def environment_factory(task: str, cost_limit_rate: float | None) -> MakeEnv:
    """How to make the environment of a task: a name from the table, an environment id, or 'module:function'."""
    from bcppo.tasks import TASKS, make_task

    module, _, attribute = task.partition(":")
    if attribute and "/" not in task:
        factory = getattr(importlib.import_module(module), attribute, None)
        if factory is None:
            raise ConfigError(f"The module '{module}' has no '{attribute}' to make the environment with.")
        return lambda: make_task(factory(), cost_limit_rate=cost_limit_rate)
    if task in TASKS:
        return lambda: make_task(task)
    return lambda: make_task(task, cost_limit_rate=cost_limit_rate)


class RemoteCollector:
    """A Collector in another process: the same calls, but `start` lets several work at once."""

    def __init__(
        self, task: str, cost_limit_rate: float | None, seeds: np.random.Generator, noise: np.random.Generator
    ) -> None:
        self._seeds, self._noise = seeds, noise
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bcppo.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._call({"do": "make", "task": task, "cost_limit_rate": cost_limit_rate, **self._stream_states()})

    def start(self, policy: NumpyPolicy, steps: int) -> None:
        self._send({"do": "collect", "steps": steps}, policy.weights | {"low": policy.low, "high": policy.high})

    def finish(self) -> Rollout:
        header, arrays = self._receive()
        return Rollout(**arrays, **header["rest"])

    def state(self) -> tuple[int, np.ndarray]:
        header, arrays = self._call({"do": "state"})
        return header["seed"], arrays["actions"]

    def restore(self, seed: int, actions: np.ndarray) -> None:
        self._call({"do": "restore", "seed": seed, **self._stream_states()}, {"actions": actions})

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(timeout=10)

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
            raise BcppoError(header["error"])
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
                policy = NumpyPolicy({n: a for n, a in arrays.items() if n not in ("low", "high")}, arrays["low"], arrays["high"])
                rollout = collector.collect(policy, header["steps"])
                sent = {name: getattr(rollout, name) for name in _ARRAYS}
                rest = {"episodes": rollout.episodes, "native_cost": rollout.native_cost, "seconds": rollout.seconds}
                reply["rest"] = rest
            elif header["do"] == "state":
                reply["seed"], sent["actions"] = collector.state()
            elif header["do"] == "restore":
                collector.restore(header["seed"], arrays["actions"])
            reply |= {"seeds": seeds.bit_generator.state, "noise": noise.bit_generator.state}
        except Exception as error:
            reply, sent = {"error": f"{error}" if isinstance(error, BcppoError) else f"{type(error).__name__}: {error}"}, {}
        write_message(replies, reply, sent)


if __name__ == "__main__":
    # What an environment prints must not get between the messages.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)
