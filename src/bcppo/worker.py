"""Environments in a process of their own, without torch: `python -m bcppo.worker`. pool.py is the other side.

The two sides speak over the process's standard input and output: the length of some JSON, the JSON, then the bytes of
the arrays it announces. Policies and rollouts lie in memory that both sides share, and so do the slots of environments
that are stepped one step at a time (lockstep.py). A worker that loses its parent ends. It may run under another Python
than its parent, and so with another release of the simulators.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import signal
import struct
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any, BinaryIO

import gymnasium
import numpy as np

from bcppo.config import OWN_TASK, RunConfig
from bcppo.errors import ConfigError, Diverged, in_words
from bcppo.lockstep import Slot, Stepper, keep_step
from bcppo.policy import sampler
from bcppo.process import keep_output
from bcppo.rollout import Collector, MakeEnv

Arrays = dict[str, np.ndarray]
Places = Mapping[str, tuple[str, list[int], int]]
"""Arrays in shared memory: name → (dtype, shape, offset in bytes)."""

_LENGTH = struct.Struct("<Q")

ABSENT, PRESENT = b"\0", b"\1"
"""The first byte of shared memory: whether a process has come as far as to serve."""

_STANDS_BACK = 19
"""How far a simulator stands back from others on its core, as `nice` counts. The learner works for moments only, and as
an equal it would wait milliseconds for each, while simulators wait for it: bench/waking.py says how long."""


def run_environment(config: RunConfig, make_env: MakeEnv | None = None) -> MakeEnv:
    """How to make the environment of a run; `make_env` where it was trained with one."""
    settings = config.cost_limit_rate, config.clip_actions
    return own_environment(make_env, *settings) if make_env else environment_factory(config.task, *settings)


def environment_factory(task: str, cost_limit_rate: float | None, clip_actions: bool = True) -> MakeEnv:
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
        return lambda: make_task(factory(), cost_limit_rate=cost_limit_rate, clip_actions=clip_actions)
    if task in TASKS:
        return lambda: make_task(task, clip_actions=clip_actions)
    return lambda: make_task(task, cost_limit_rate=cost_limit_rate, clip_actions=clip_actions)


def own_environment(make_env: MakeEnv, cost_limit_rate: float | None, clip_actions: bool = True) -> MakeEnv:
    """`make_env` with a cost that is checked, whether or not it already passes its environment through `make_task`."""
    from bcppo.tasks import OwnCost, RareEventCost, make_task

    def make() -> Any:
        env = layer = make_env()
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, (OwnCost, RareEventCost)):
                if layer.clips != clip_actions:
                    raise ConfigError("Your make_task clips actions and the run does not, or the other way round.")
                return env
            layer = layer.env
        return make_task(env, cost_limit_rate=cost_limit_rate, clip_actions=clip_actions)

    return make


def message_bytes(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    specs = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": specs}).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())])


def write_message(pipe: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    view = memoryview(message_bytes(header, arrays))
    while view:
        view = view[pipe.write(view) :]
    pipe.flush()


def read_message(pipe: BinaryIO) -> tuple[dict[str, Any], Arrays] | None:
    """The next message, or None where the other side is gone."""
    length = _read(pipe, _LENGTH.size)
    text = _read(pipe, _LENGTH.unpack(length)[0]) if length else None
    if text is None:
        return None
    header = json.loads(text)
    arrays = {}
    for name, (dtype, shape) in header.pop("arrays").items():
        raw = _read(pipe, np.dtype(dtype).itemsize * int(np.prod(shape)))
        if raw is None:
            return None
        arrays[name] = np.frombuffer(raw, dtype=dtype).reshape(shape)
    return header, arrays


def _read(pipe: BinaryIO, size: int) -> bytearray | None:
    """So many bytes, or None where the pipe ends before. The pipes are unbuffered, so that `select` tells the truth."""
    raw = bytearray()
    while len(raw) < size:
        part = pipe.read(size - len(raw))
        if not part:
            return None
        raw += part
    return raw


def shared_arrays(memory: mmap.mmap, places: Places) -> Arrays:
    """Views of shared memory."""
    arrays = {}
    for name, (dtype, shape, offset) in places.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(memory, dtype=dtype, count=count, offset=offset).reshape(shape)
    return arrays


class _Host:
    """A worker's environments, by number, and what can be asked of them."""

    def __init__(self, memory_file: int) -> None:
        self._file = memory_file
        self._memory: mmap.mmap | None = None
        self._collectors: dict[int, Collector] = {}
        self._streams: dict[int, tuple[np.random.Generator, np.random.Generator]] = {}
        self.steppers: dict[int, Stepper] = {}

    def answer(self, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        number = header["environment"]
        if "seeds" in header:
            streams = self._streams.setdefault(number, (np.random.default_rng(0), np.random.default_rng(0)))
            for stream, state in zip(streams, (header["seeds"], header["noise"])):
                stream.bit_generator.state = state
        reply, sent = getattr(self, f"_{header['do']}")(number, header, arrays)
        seeds, noise = (stream.bit_generator.state for stream in self._streams[number])
        return reply | {"seeds": seeds, "noise": noise}, sent

    def _make(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        make_env = environment_factory(header["task"], header["cost_limit_rate"], header["clip_actions"])
        collector = self._collectors[number] = Collector(make_env, *self._streams[number])
        gc.freeze()  # what is there by now stays: no use in looking through it again and again
        width, low, high = collector.spaces
        reply = {"observation": width, "episode_seed": collector.episode_seed}
        return reply, {"low": low, "high": high, "current": collector.observation}

    def _restore(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        collector = self._collectors[number]
        collector.restore(header["episode_seed"], arrays["actions"])
        return {}, {"current": collector.observation}

    def _collect(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        collector = self._collectors[number]
        rollout = collector.collect(self._policy(header), header["steps"])
        places = self._shared(header["rollout"])
        places.pop("current")[...] = collector.observation
        for name, place in places.items():
            place[...] = getattr(rollout, name)
        rest = {"episodes": rollout.episodes, "native_cost": rollout.native_cost, "seconds": rollout.seconds}
        return {"rest": rest, "episode_seed": collector.episode_seed}, {}

    def _evaluate(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        return {"rows": self._collectors[number].evaluate(self._policy(header), header["episode_seeds"])}, {}

    def _enter(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        slot = Slot(self._shared(header["slot"]))
        rest = header["count"], header["log_std_bounds"], header["crowded"]
        self.steppers[number] = Stepper(self._collectors[number], slot, *rest)
        return {}, {}

    def _leave(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        self.steppers.pop(number, None)
        return {}, {}

    def _release(self, number: int, header: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        self.steppers.pop(number, None)
        if collector := self._collectors.pop(number, None):
            collector.close()
        return {}, {}

    def _policy(self, header: dict[str, Any]) -> Any:
        return sampler({name: array.copy() for name, array in self._shared(header["policy"]).items()})

    def _shared(self, places: Places) -> Arrays:
        needed = max(offset + np.dtype(d).itemsize * int(np.prod(shape)) for d, shape, offset in places.values())
        if self._memory is None or len(self._memory) < needed:
            self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return shared_arrays(self._memory, places)


def serve(requests: BinaryIO, replies: BinaryIO, memory_file: int) -> None:
    """Answer a parent's requests until it is gone."""
    host = _Host(memory_file)
    os.pwrite(memory_file, PRESENT, 0)

    def fail(number: int, error: Exception) -> None:
        reply = {"error": in_words(error), "diverged": isinstance(error, Diverged), "environment": number}
        write_message(replies, reply, {})

    while True:
        keep_step(host.steppers, requests, fail)
        message = read_message(requests)
        if message is None:
            return
        header, arrays = message
        begun = perf_counter()
        try:
            reply, sent = host.answer(header, arrays)
        except Exception as error:
            fail(header["environment"], error)
        else:
            worked = [begun, perf_counter()]  # by the machine's clock: bench/fleet.py asks who waits for whom
            write_message(replies, reply | {"environment": header["environment"], "worked": worked}, sent)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(_STANDS_BACK)
    # An interrupt from the keyboard goes to the parent too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(keep_output(), "wb", buffering=0)
    try:
        serve(os.fdopen(os.dup(0), "rb", buffering=0), replies, int(sys.argv[1]))
    except BrokenPipeError:  # the parent is gone: nobody to tell, and nothing to complain about while ending
        os.dup2(os.open(os.devnull, os.O_WRONLY), replies.fileno())
