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
    also what the environment executes. `info["cost"]` is this cost, `info["boundary_hit"]` whether the indicator fired,
    and `info["native_cost"]` the simulator's own cost (0 where it has none): logged, never optimised.
    """

    def __init__(self, env: gymnasium.Env, task: Task) -> None:
        super().__init__(env)
        self.task = task
        self.cost_limit_rate = task.cost_limit_rate
        self._low, self._high = _box_bounds(env)
        self._beyond = False

    def reset(self, **kwargs: Any):
        observation, info = self.env.reset(**kwargs)
        self._beyond = self._is_beyond(observation)
        return observation, info

    def step(self, action):
        executed = _executed(action, self._low, self._high)
        hit = self._beyond
        cost = self.task.action_cost * float(executed @ executed) + (self.task.boundary_cost if hit else 0.0)
        observation, reward, terminated, truncated, info = self.env.step(executed)
        self._beyond = self._is_beyond(observation)
        info["native_cost"] = float(info.get("cost", 0.0))
        info["cost"] = cost
        info["boundary_hit"] = hit
        return observation, reward, terminated, truncated, info

    def _is_beyond(self, observation: np.ndarray) -> bool:
        return math.sqrt(float(observation @ observation)) > self.task.threshold


class OwnCost(gymnasium.Wrapper):
    """Any environment with a cost, brought to the five-tuple with a checked `info["cost"]` (per step).

    The cost comes from a function of (observation in which the action is taken, executed action), from `info["cost"]`, or
    from Safety-Gymnasium's six-tuple (observation, reward, cost, terminated, truncated, info).
    """

    def __init__(self, env: gymnasium.Env, cost_limit_rate: float, cost: CostFunction | None = None) -> None:
        super().__init__(env)
        if not (math.isfinite(cost_limit_rate) and cost_limit_rate >= 0):
            raise ConfigError(f"A cost limit is a mean cost per step of at least 0, but {cost_limit_rate} was given.")
        if not isinstance(env.observation_space, gymnasium.spaces.Box):
            raise ConfigError(
                f"Only Box observations are supported, but this environment's are {type(env.observation_space).__name__}; "
                "gymnasium.wrappers.FlattenObservation can often turn them into one."
            )
        self.cost_limit_rate = cost_limit_rate
        self._cost = cost
        self._low, self._high = _box_bounds(env)
        self._observation: Any = None

    def reset(self, **kwargs: Any):
        self._observation, info = self.env.reset(**kwargs)
        return self._observation, info

    def step(self, action):
        executed = _executed(action, self._low, self._high)
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


def _box_bounds(env: gymnasium.Env) -> tuple[np.ndarray, np.ndarray]:
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(
            f"Only continuous (Box) actions are supported, but this environment's are {type(space).__name__}."
        )
    return space.low.astype(np.float64), space.high.astype(np.float64)


def _executed(action: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The action as the environment executes it: finite, of the right shape, clipped to the action space."""
    action = np.asarray(action, dtype=np.float64)
    if action.shape != low.shape:
        raise ConfigError(f"An action has shape {low.shape} here, but shape {action.shape} was given.")
    clipped = np.minimum(np.maximum(action, low), high)
    if not math.isfinite(float(clipped.sum())):
        raise ConfigError(f"The action {action.tolist()} is not finite.")
    return clipped


def _checked_cost(cost: Any) -> float:
    try:
        value = float(cost)
    except (TypeError, ValueError):
        raise BcppoError(f"A cost is one number per step, but the cost was {cost!r}.") from None
    if math.isnan(value) or value < 0 or math.isinf(value):
        raise BcppoError(f"A cost must be finite and at least 0, but the cost of this step was {value}.")
    return value
