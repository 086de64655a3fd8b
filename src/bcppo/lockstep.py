"""Steps of environments in other processes, one at a time, through memory that both sides share.

Each environment has a slot: places for a step's request and for its answer, and a count each way that says whose turn
it is. Both sides spin on the counts; there is no message and no system call but `sched_yield`. (Where there are more
processes than cores, they sleep between looks: who spins keeps a core from whom it waits for.) The asking side owns the
random streams. It sends the noise of every step and, should the episode end with it, the seed of the next.

A count is written after what it counts. x86 keeps stores in that order; a processor that does not is not served here.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from time import sleep
from typing import Any, BinaryIO

import numpy as np

from bcppo.policy import HeadPolicy, UniformPolicy
from bcppo.rollout import EPISODE_FIELDS, Collector, Step

UNIFORM, HEADS = 0, 1
"""What is asked for: an action drawn uniformly, or from the policy's last layer, which was computed elsewhere."""
AT_WORK, FAILED, WENT_ON, TERMINATED, TRUNCATED = -2, -1, 0, 1, 2
"""What came of it. Where a step failed, an ordinary message says why; a process that dies leaves it at work."""

_NUMBERS = 3 + len(EPISODE_FIELDS) + 2
_SPINS = 50
"""Turns without anything to do before the processor is offered to others."""
_IDLE = 20_000
"""Turns without anything to do before the processor is left alone for a millisecond at a time."""
_BETWEEN_LOOKS = 64
"""Turns between looks for messages."""
_NAP = 0.00005
"""Seconds."""


def rest(crowded: bool) -> None:
    """Between looks for something that another process does."""
    if crowded:
        sleep(_NAP)
    else:
        os.sched_yield()


def slot_shapes(observation: int, action: int) -> dict[str, tuple[str, list[int]]]:
    """A slot's arrays, for observations and actions of these widths: name → (dtype, shape)."""
    return {
        "asked": ("<i8", [3]),  # count, UNIFORM or HEADS, seed of the next episode
        "heads": ("<f4", [2 * action]),
        "noise": ("<f4", [action]),
        "answered": ("<i8", [2]),  # count, what came of it
        "action": ("<f4", [action]),
        "following": ("<f4", [observation]),  # the true final one, where the episode ended
        "current": ("<f4", [observation]),  # after the reset, where the episode ended
        "numbers": ("<f8", [_NUMBERS]),  # reward, cost, native cost, the episode's summary, seconds: acting, simulating
    }


class Slot:
    """A view of a slot, of either side."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        # As memoryviews: a single number of an array costs three times as much to read.
        views: list[Any] = [arrays[name].data for name in ("asked", "answered", "numbers")]
        self.asked, self.answered, self._numbers = views
        self.heads, self.noise = arrays["heads"], arrays["noise"]
        self._action, self._following, self.current = (arrays[name] for name in ("action", "following", "current"))

    def ask(self, count: int, heads: np.ndarray | None, noise: np.ndarray, next_seed: int) -> None:
        if heads is not None:
            self.heads[:] = heads
        self.noise[:] = noise
        self.asked[1], self.asked[2] = UNIFORM if heads is None else HEADS, next_seed
        self.asked[0] = count

    def answer(self, count: int, step: Step, current: np.ndarray) -> None:
        self._action[:], self._following[:], self.current[:] = step.action, step.following, current
        numbers = self._numbers
        numbers[0], numbers[1], numbers[2] = float(step.reward), float(step.cost), step.native_cost
        numbers[_NUMBERS - 2], numbers[_NUMBERS - 1] = step.acting, step.simulating
        if step.summary is not None:
            for index, name in enumerate(EPISODE_FIELDS, start=3):
                numbers[index] = step.summary[name]
        self.answered[1] = TERMINATED if step.terminated else TRUNCATED if step.truncated else WENT_ON
        self.answered[0] = count

    def fail(self, count: int) -> None:
        self.answered[1] = FAILED
        self.answered[0] = count

    def step(self) -> Step:
        """The answer; its arrays hold until the next request."""
        reward, cost, native, *summary, acting, simulating = self._numbers.tolist()
        outcome = self.answered[1]
        return Step(
            self._action, self._following, reward, cost, native, outcome == TERMINATED, outcome == TRUNCATED,
            dict(zip(EPISODE_FIELDS, summary)) if outcome else None, acting, simulating,
        )  # fmt: skip


class Stepper:
    """Where the environment is: does what its slot asks for."""

    def __init__(
        self, collector: Collector, slot: Slot, count: int, log_std_bounds: Iterable[float], crowded: bool
    ) -> None:
        """`count` is of the steps that were answered before, `crowded` whether cores are fewer than processes."""
        self._collector, self._slot, self._count, self.crowded = collector, slot, count, crowded
        _, low, high = collector.spaces
        self._uniform = UniformPolicy(low, high)
        bounds = np.array(list(log_std_bounds), np.float32)
        self._policy = HeadPolicy(slot.heads, bounds, self._uniform.low, self._uniform.high)
        self._asked = slot.asked

    def asked(self) -> bool:
        return self._asked[0] != self._count

    def step(self, fail: Callable[[Exception], None]) -> None:
        """Take the step that is asked for; `fail` is told of what goes wrong, before the slot says that it did."""
        count, kind, next_seed = self._asked
        self._count = count
        self._slot.answered[1] = AT_WORK
        policy = self._uniform if kind == UNIFORM else self._policy
        try:
            step = self._collector.step(policy, self._slot.noise, lambda: next_seed)
        except Exception as error:
            fail(error)
            self._slot.fail(count)
            return
        self._slot.answer(count, step, self._collector.observation)


def keep_step(steppers: dict[int, Stepper], requests: BinaryIO, fail: Callable[[int, Exception], None]) -> None:
    """Take steps as they are asked for, until there is a message to read (or its sender is gone)."""
    idle = turns = 0
    crowded = any(stepper.crowded for stepper in steppers.values())
    between_looks, long = (1, 200) if crowded else (_BETWEEN_LOOKS, _IDLE)
    while steppers:
        idle += 1
        for number, stepper in steppers.items():
            if stepper.asked():
                stepper.step(lambda error, number=number: fail(number, error))  # type: ignore[misc]
                idle = 0
        turns += 1
        if idle > (0 if crowded else _SPINS):
            rest(crowded)
        looks = turns % between_looks == 0 or idle > long
        if looks and select.select([requests], [], [], 0.001 if idle > long else 0.0)[0]:
            return
