"""Where things stand: placement by rejection, on the random stream of Safety-Gymnasium 1.0.0.

The stream is NumPy's legacy `RandomState`, and each draw happens when the genuine environment makes it, so equal seeds
give equal layouts, across resets too.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from bcppo.errors import BcppoError
from bcppo.tasks.navigation.compiled import load_kernel
from bcppo.tasks.navigation.levels import AGENT_KEEPOUT, Level

LAYOUT_TRIES = 10_000
OBJECT_TRIES = 100
GOAL_TRIES = 10_000

Point = tuple[float, float]


class NoRoom(BcppoError):
    """No place was found that keeps clear of everything else."""


class Stream:
    """The environment's one random stream, and what is drawn from it."""

    def __init__(self, level: Level, seed: int | None) -> None:
        # The legacy seeding, in a bit generator of our own, whose address the kernel may be told.
        self._bits = np.random.MT19937()
        state: Any = np.random.RandomState(seed).get_state(legacy=False)
        self._bits.state = state
        self.random = np.random.RandomState(self._bits)
        self._idle_draws = 0
        self._extent = level.extent
        self._keepout = {"agent": AGENT_KEEPOUT}
        self._counts = [group.count for group in level.objects]
        for group in level.objects:
            self._keepout.update(dict.fromkeys(group.names(), group.keepout))

    def tick(self) -> None:
        """The genuine environment draws its frame skip at every step, though it is always 10: one number is used up.

        The draws are made up for when the stream is next needed, since drawing costs more than counting.
        """
        self._idle_draws += 1

    def _uniform(self):
        if self._idle_draws:
            self.random.random_sample(self._idle_draws)
            self._idle_draws = 0
        return self.random.random_sample

    def layout(self) -> dict[str, Point]:
        """Positions of the agent and all objects, in metres, each outside the others' keep-out radius."""
        kernel = load_kernel()
        if kernel is not None:
            places = self._compiled_layout(kernel)
            if places is not None:
                return dict(zip(self._keepout, zip(places[::2], places[1::2])))
        else:
            for _ in range(LAYOUT_TRIES):
                layout = self._try_layout()
                if layout is not None:
                    return layout
        raise NoRoom("No layout was found in which every object keeps its distance; the objects do not fit.")

    def rotations(self) -> tuple[float, list[list[float]]]:
        """The agent's heading and one angle (radians) an object, group by group."""
        draw = self._uniform()
        turn = 2 * math.pi
        return turn * draw(), [[turn * draw() for _ in range(count)] for count in self._counts]

    def move_goal(self, layout: dict[str, Point]) -> None:
        """Place the goal anew in a layout of everything else."""
        layout.pop("goal", None)
        for _ in range(GOAL_TRIES):
            place = self._draw("goal")
            if self._is_free(place, self._keepout["goal"], layout):
                layout["goal"] = place
                return
        raise NoRoom("No place was found for a new goal.")

    def pick(self, count: int) -> int:
        self._uniform()
        return int(self.random.choice(count))

    def _compiled_layout(self, kernel) -> list[float] | None:
        self._uniform()
        stream = self._bits.ctypes
        address = ctypes.cast(stream.next_double, ctypes.c_void_p).value
        keepouts = list(self._keepout.values())
        return kernel.place(address, stream.state_address, self._extent, keepouts, LAYOUT_TRIES, OBJECT_TRIES)

    def _try_layout(self) -> dict[str, Point] | None:
        layout: dict[str, Point] = {}
        for name, keepout in self._keepout.items():
            for _ in range(OBJECT_TRIES):
                place = self._draw(name)
                if self._is_free(place, keepout, layout):
                    layout[name] = place
                    break
            else:
                return None
        return layout

    def _draw(self, name: str) -> Point:
        draw = self._uniform()
        low, high = -self._extent + self._keepout[name], self._extent - self._keepout[name]
        width = high - low
        return low + width * draw(), low + width * draw()

    def _is_free(self, place: Point, keepout: float, layout: dict[str, Point]) -> bool:
        x, y = place
        for name, (other_x, other_y) in layout.items():
            # Not math.hypot: it rounds differently, and a rejected draw shifts the whole stream.
            if math.sqrt((x - other_x) * (x - other_x) + (y - other_y) * (y - other_y)) < self._keepout[name] + keepout:
                return False
        return True
