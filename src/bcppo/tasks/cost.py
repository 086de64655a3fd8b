"""Cost: the paper's rare-event cost, and the adapter that gives any environment one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bcppo.errors import BcppoError, ConfigError
from bcppo.tasks.table import Task

CostFunction = Callable[[np.ndarray, np.ndarray], float]
"""cost(observation in which the action is taken, action as executed) → cost of the step."""


class RareEventCost(gymnasium.Wrapper):
    """c(s, a) = c_a·‖a‖² + c_b·1{‖o(s)‖₂ > threshold}   (eq:cost_wrapper), a cost per step.

    o(s) is the raw observation in which the action is taken, and a is the action clipped to the action space, which is
    also what the environment executes; without `clips` a is the action as given, and the simulator bounds what it
    executes (MuJoCo limits the actuators of all these tasks). `info["cost"]` is this cost, `info["boundary_hit"]`
    whether the indicator fired, and `info["native_cost"]` the simulator's own cost (0 where it has none): logged, never
    optimised.
    """

    def __init__(self, env: gymnasium.Env, task: Task, clips: bool = True) -> None:
        super().__init__(env)
        _require_vector(env)
        self.task = task
        self.cost_limit_rate = task.cost_limit_rate
        self.clips = clips
        self._bounds = _action_bounds(self, clips)
        self._beyond = False

    def reset(self, **kwargs: Any):
        observation, info = self.env.reset(**kwargs)
        self._beyond = self._is_beyond(observation)
        return observation, info

    def step(self, action):
        executed = _executed(action, self._bounds)
        hit = self._beyond
        cost = self.task.action_cost * float(executed.dot(executed)) + (self.task.boundary_cost if hit else 0.0)
        observation, reward, terminated, truncated, info = self.env.step(executed)
        self._beyond = self._is_beyond(observation)
        info["native_cost"] = float(info.get("cost", 0.0))
        info["cost"] = cost
        info["boundary_hit"] = hit
        return observation, reward, terminated, truncated, info

    def _is_beyond(self, observation: np.ndarray) -> bool:
        return math.sqrt(float(observation.dot(observation))) > self.task.threshold


class OwnCost(gymnasium.Wrapper):
    """Any environment with a cost, brought to the five-tuple with a checked `info["cost"]` (per step).

    The cost comes from a function of (observation in which the action is taken, executed action), from `info["cost"]`,
    or from Safety-Gymnasium's six-tuple (observation, reward, cost, terminated, truncated, info).
    """

    def __init__(
        self, env: gymnasium.Env, cost_limit_rate: float, cost: CostFunction | None = None, clips: bool = True
    ) -> None:
        super().__init__(env)
        self.cost_limit_rate = _number(cost_limit_rate)
        if not (math.isfinite(self.cost_limit_rate) and self.cost_limit_rate >= 0):
            raise ConfigError(f"A cost limit is a mean cost per step of at least 0, but {cost_limit_rate!r} was given.")
        _require_vector(env)
        self._cost = cost
        self.clips = clips
        self._bounds = _action_bounds(self, clips)
        self._observation: Any = None

    def reset(self, **kwargs: Any):
        self._observation, info = self.env.reset(**kwargs)
        return self._observation, info

    def step(self, action):
        executed = _executed(action, self._bounds)
        result = self.env.step(executed)
        if len(result) == 6:
            observation, reward, native, terminated, truncated, info = result
        else:
            observation, reward, terminated, truncated, info = result
            native = info.get("cost")
        if self._cost is not None:
            cost = self._cost(self._observation, executed)
        elif native is not None:
            cost = native
        else:
            raise BcppoError(
                "This environment reports no info['cost']; pass make_task a cost function: cost(observation, action)."
            )
        self._observation = observation
        info["cost"] = _checked_cost(cost)
        info["native_cost"] = 0.0 if native is None else float(native)
        info.setdefault("boundary_hit", False)
        return observation, reward, terminated, truncated, info


def _require_vector(env: gymnasium.Env) -> None:
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        found = f"shape {space.shape}" if isinstance(space, gymnasium.spaces.Box) else f"a {type(space).__name__}"
        raise ConfigError(
            f"An observation must be one vector (a Box), but this environment's is {found}; "
            "gymnasium.wrappers.FlattenObservation can often turn it into one."
        )


def _action_bounds(env: gymnasium.Wrapper, clips: bool) -> list[tuple[float, float]]:
    """(lowest, highest) of each number of an action, to be clipped to. An environment that does not clip them gets an
    action space without bounds."""
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(
            f"Only continuous (Box) actions are supported, but this environment's are {type(space).__name__}."
        )
    if len(space.shape) != 1:
        raise ConfigError(f"An action must be one vector, but this environment's has shape {space.shape}.")
    if not clips:
        kind: Any = space.dtype
        space = env.action_space = gymnasium.spaces.Box(-np.inf, np.inf, space.shape, kind.type)
    return list(zip(space.low.astype(np.float64).tolist(), space.high.astype(np.float64).tolist()))


def _executed(action: Any, bounds: list[tuple[float, float]]) -> np.ndarray:
    """The action as the environment executes it: finite, of the right shape, clipped to the action space."""
    if type(action) is not np.ndarray or action.dtype.kind not in "fiu":
        action = _numbers(action, len(bounds))
    if action.shape != (len(bounds),):
        raise ConfigError(f"An action has shape ({len(bounds)},) here, but shape {action.shape} was given.")
    # With Python's numbers: for so few, NumPy's functions take twice as long.
    values = action.tolist()
    if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
        raise ConfigError(f"The action {values} is not finite.")
    clipped = [low if value < low else high if value > high else value for value, (low, high) in zip(values, bounds)]
    return np.array(clipped, np.float64)


def _numbers(action: Any, count: int) -> np.ndarray:
    try:
        given = np.asarray(action)
        return given if given.dtype.kind in "fiu" else given.astype(np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"An action is {count} numbers here, but {action!r} was given.") from None


def _checked_cost(cost: Any) -> float:
    value = _number(cost)
    if not (math.isfinite(value) and value >= 0):
        raise BcppoError(f"A cost is one finite number of at least 0, but the cost of this step was {cost!r}.")
    return value


def _number(value: Any) -> float:
    """A float, NaN where it is no number; a string is none, whatever is written in it."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return math.nan
