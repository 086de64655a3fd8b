"""The tasks: the paper's five, any level of the navigation tasks, and environments of your own.

>>> from bcppo.tasks import make_task
>>> env = make_task("hopper")
>>> env.cost_limit_rate
0.015898692
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from bcppo.errors import BcppoError, ConfigError, MissingDependency, unknown_name
from bcppo.tasks.cost import CostFunction, OwnCost, RareEventCost
from bcppo.tasks.navigation.levels import HORIZON, LEVELS
from bcppo.tasks.table import TASKS, Task

_NAVIGATION = {level.env_id for level in LEVELS.values()}
QUICK_IDS = ("Hopper-v4", "Ant-v4")
__all__ = ["TASKS", "CostFunction", "OwnCost", "RareEventCost", "Task", "make_task"]


def make_task(
    task: str | Task | gymnasium.Env,
    *,
    cost: CostFunction | None = None,
    cost_limit_rate: float | None = None,
    clip_actions: bool = True,
    **options: Any,
) -> gymnasium.Env:
    """An environment whose `info["cost"]` is a cost per step and which knows its `cost_limit_rate`.

    `task` is the name of one of the paper's tasks, a `Task`, or any Gymnasium environment (or id) with a cost: either
    it reports `info["cost"]` (Safety-Gymnasium's six-tuple is understood too), or `cost(observation, action)` is given.
    Such an environment needs a `cost_limit_rate`, the allowed mean cost per step. Without `clip_actions` environment
    and cost see the action as it is given, and the action space has no bounds. `options` go to `gymnasium.make`.

    >>> env = make_task("Pendulum-v1", cost=lambda observation, action: float(observation[2] > 6), cost_limit_rate=0.1)
    >>> observation, _ = env.reset(seed=0)
    >>> env.step(env.action_space.sample())[4]["cost"]
    0.0
    """
    known = TASKS.get(task) if isinstance(task, str) else task if isinstance(task, Task) else None
    if known is not None:
        if cost is not None or cost_limit_rate is not None:
            raise ConfigError(
                f"The task '{known.name}' has a cost and a limit of its own; for another cost pass the environment id "
                f"'{known.env_id}', for other constants a Task."
            )
        # Gymnasium's checker looks at every step of environments that are checked by our own tests.
        with warnings.catch_warnings():
            # Gymnasium advises a newer version of Hopper and Ant; the paper's is this one.
            warnings.filterwarnings("ignore", message=".*is out of date")
            env = _make(known.env_id, {"disable_env_checker": True, "max_episode_steps": known.horizon, **options})
        if known.env_id in _NAVIGATION and known.horizon == HORIZON and not options:
            env = env.unwrapped  # it keeps order and time itself; Gymnasium's layers would do so once more
        # Other options may change what a step does.
        if known.env_id in QUICK_IDS and set(options) <= {"render_mode"} and options.get("render_mode") != "human":
            from bcppo.tasks.locomotion import QUICK

            env = QUICK[known.env_id](env, known.horizon)
        return RareEventCost(env, known, clip_actions)
    if isinstance(task, str) and task not in gymnasium.registry and not looks_like_an_id(task):
        raise unknown_name("task", task, TASKS)
    own: Any = _make(task, options) if isinstance(task, str) else task
    if not isinstance(own, gymnasium.Env):
        raise ConfigError(f"A task is a name, a Task or a Gymnasium environment, but {type(own).__name__} was given.")
    if options and not isinstance(task, str):
        raise ConfigError(f"Options ({', '.join(options)}) go with an environment's id; this one is made already.")
    if cost_limit_rate is None:
        raise ConfigError("An environment of your own needs a cost_limit_rate: the allowed mean cost per step.")
    return OwnCost(own, cost_limit_rate, cost, clip_actions)


def looks_like_an_id(name: str) -> bool:
    """Whether a task that is none of the paper's may be an environment's id, or 'module:function'."""
    return "/" in name or ":" in name or name.rpartition("-v")[2].isdigit()


def _make(env_id: str, options: dict[str, Any]) -> gymnasium.Env:
    try:
        return gymnasium.make(env_id, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingDependency(f"'{env_id}' needs a package that is not installed: {_line(error)}.") from error
    except ModuleNotFoundError as error:
        package = f"the package '{error.name}', which" if error.name else f"a package that ({_line(error)})"
        raise MissingDependency(f"'{env_id}' needs {package} is not installed.") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise BcppoError(f"Gymnasium knows no environment '{env_id}': {_line(error)}.") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
