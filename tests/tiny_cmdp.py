"""Tiny constrained problems whose optimum is known in closed form, for tests of learning and of runs.

`TinyCMDP`: in each step the agent sees which of two contexts it is in (each with probability 1/2, whatever it does) and
picks a in [0, 1], which is (action + 1) / 2. Reward 1 − (1 − a)², cost c·a with the context's c. An episode is 8 steps.

Unconstrained, a = 1 everywhere: reward 1 a step. With a limit L on the mean cost per step that binds, the best policy
maximises E[1 − (1 − a)²] − λ(E[c·a] − L), so

    2(1 − a_s) = λ·c_s,     Σ c_s·a_s / 2 = L     ⟹     λ = 2(m₁ − L) / m₂,    a_s = 1 − λ·c_s / 2

where m₁, m₂ are the means of c and c². Cheap contexts get more of the budget than dear ones. (For limits that leave
every a_s inside (0, 1).)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

HORIZON = 8


class TinyCMDP(gymnasium.Env):
    """Two contexts with costs `cost` per unit of action."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, cost: tuple[float, float] = (0.5, 1.5), truncate: bool = False) -> None:
        self._cost, self._truncate = cost, truncate
        self._context = self._steps = 0

    def _observe(self) -> np.ndarray:
        self._context = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._context]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        a = (float(action[0]) + 1.0) / 2.0
        reward, cost = 1.0 - (1.0 - a) ** 2, self._cost[self._context] * a
        self._steps += 1
        over = self._steps == HORIZON
        return self._observe(), reward, over and not self._truncate, over and self._truncate, {"cost": cost}


class BrokenAfter(gymnasium.Wrapper):
    """An environment that goes wrong in a chosen way after a number of steps in all."""

    def __init__(self, env: gymnasium.Env, steps: int, wrong: Callable[[list], None]) -> None:
        super().__init__(env)
        self._left, self._wrong = steps, wrong

    def step(self, action):
        result = list(self.env.step(action))
        self._left -= 1
        if self._left <= 0:
            self._wrong(result)
        return tuple(result)


def optimum(limit: float, cost: tuple[float, float] = (0.5, 1.5)) -> tuple[np.ndarray, float]:
    """(best a in each context, best mean reward per step) under a limit on the mean cost per step."""
    c = np.array(cost)
    multiplier = max(0.0, 2.0 * (c.mean() - limit) / (c**2).mean())
    action = 1.0 - multiplier * c / 2.0
    assert action.min() >= 0.0, "the closed form holds for interior optima only"
    return action, float(np.mean(1.0 - (1.0 - action) ** 2))


def make() -> gymnasium.Env:
    """For runs that name their task 'tiny_cmdp:make'."""
    return TinyCMDP()


def make_deadly() -> gymnasium.Env:
    """Ends its own process in its fourth step, and again whenever it is brought back to there."""
    return BrokenAfter(TinyCMDP(), 4, lambda result: os.kill(os.getpid(), signal.SIGKILL))


def make_mortal() -> gymnasium.Env:
    """Ends its own process in its 200th step, as often as the file that MORTAL names has bytes."""

    def die(result: list) -> None:
        lives = Path(os.environ["MORTAL"])
        if left := lives.read_bytes():
            lives.write_bytes(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)

    return BrokenAfter(TinyCMDP(), 200, die)


def make_talkative() -> gymnasium.Env:
    """Says something in every step, not always to the end of a line."""
    return BrokenAfter(TinyCMDP(), 0, lambda result: print('{"step": 1}\n[', end="", flush=True))


def make_slow() -> gymnasium.Env:
    """Writes its process's number to the file that SLOW names; a minute into its first step the process ends."""
    Path(os.environ["SLOW"]).write_text(str(os.getpid()))

    def sleep_and_leave(result: list) -> None:
        time.sleep(60)
        os._exit(1)

    return BrokenAfter(TinyCMDP(), 0, sleep_and_leave)


def make_none() -> gymnasium.Env:
    raise RuntimeError("there is no such world")


def make_leaving() -> gymnasium.Env:
    """Ends its own process without a word."""
    os._exit(7)


def make_equal_costs() -> gymnasium.Env:
    """Both contexts cost the same, so the best action is the same in both: the limit itself."""
    return TinyCMDP(cost=(1.0, 1.0))
