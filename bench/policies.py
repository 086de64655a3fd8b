"""Scripted policies for the navigation tasks: they see what a learned policy sees, the observation and nothing else.

NumPy only, so that the script which records the genuine package can use them in its own Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

SENSORS, BINS, RANGE = 12, 16, 3.0
VELOCITY, TURN_RATE = slice(3, 5), 8
"""Where the sensors tell the velocity in the plane and the turning speed."""

Policy = Callable[[np.ndarray], np.ndarray]


def seen(lidar: np.ndarray) -> np.ndarray | None:
    """Where the one object of a lidar is, in metres ahead of the agent and to its left; None where out of range."""
    bin_ = int(np.argmax(lidar))
    closeness = float(lidar[bin_])
    if closeness == 0:
        return None
    share = float(lidar[(bin_ + 1) % BINS]) / closeness
    angle, distance = (bin_ + share) * 2 * math.pi / BINS, RANGE * (1 - closeness)
    return distance * np.array([math.cos(angle), math.sin(angle)])


def drive(target: np.ndarray, turn_rate: float) -> np.ndarray:
    """The action that turns towards a point and goes there once it is ahead."""
    angle = math.atan2(target[1], target[0])
    return np.array([1.0 if abs(angle) < 0.5 else 0.0, min(max(2 * angle - 0.1 * turn_rate, -1.0), 1.0)])


LOST = np.array([0.5, 1.0])
"""Nothing in sight: go round in a circle."""


def random_policy(rng: np.random.Generator) -> Policy:
    return lambda observation: rng.uniform(-1, 1, 2)


def go_to_goal(task: str) -> Policy:
    """Straight to the goal, through whatever is in the way."""
    start = SENSORS + (BINS if task == "button" else 0)  # the buttons' lidar comes before the goal's

    def policy(observation: np.ndarray) -> np.ndarray:
        goal = seen(observation[start : start + BINS])
        return LOST if goal is None else drive(goal, observation[TURN_RATE])

    return policy


def push_the_box(observation: np.ndarray) -> np.ndarray:
    """Round the box, 0.7 m from its centre, to the side away from the goal; then ahead."""
    goal, box = seen(observation[SENSORS : SENSORS + BINS]), seen(observation[-BINS:])
    if goal is None or box is None:
        return LOST
    behind, here = math.atan2(*(box - goal)[::-1]), math.atan2(*(-box)[::-1])
    off = (behind - here + math.pi) % (2 * math.pi) - math.pi
    if abs(off) < 0.6:
        return drive(box, observation[TURN_RATE])
    bearing = here + min(max(off, -0.7), 0.7)
    target = box + 0.7 * np.array([math.cos(bearing), math.sin(bearing)])
    return drive(target - 0.5 * observation[VELOCITY], observation[TURN_RATE])
