"""BCPPO and its comparators: train, compare and trust tail-risk-aware policies under one protocol.

Importing the package registers the navigation tasks with Gymnasium and imports no torch; what needs torch is imported
when it is first asked for. Where Gymnasium is not installed, deployed policies still load and run.

>>> import bcppo
>>> env = bcppo.make_task("goal1")
>>> observation, info = env.reset(seed=0)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
>>> sorted(info)[:2]
['boundary_hit', 'cost']
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bcppo.errors import BcppoError, ConfigError, absent_package

if TYPE_CHECKING:
    from bcppo.tasks import TASKS, Task, make_task

__version__ = "0.1.0"
_LATE = {
    "TASKS": "bcppo.tasks",
    "Task": "bcppo.tasks",
    "evaluate": "bcppo.evaluation",
    "export": "bcppo.exporting",
    "load_policy": "bcppo.deploy",
    "make_config": "bcppo.run",
    "make_task": "bcppo.tasks",
    "resume": "bcppo.run",
    "suggest_limit": "bcppo.limits",
    "train": "bcppo.run",
    "train_fleet": "bcppo.fleet",
    "write_report": "bcppo.report.page",
}
__all__ = ["TASKS", "BcppoError", "ConfigError", "Task", "__version__", "make_task"]

if find_spec("gymnasium"):
    from bcppo.tasks.registration import register_tasks

    register_tasks()


def __getattr__(name: str):
    """What needs a simulator, torch or a file library is imported when it is first asked for."""
    if name in _LATE:
        try:
            return getattr(import_module(_LATE[name]), name)
        except ModuleNotFoundError as error:
            raise absent_package(f"bcppo.{name}", error) from error
    raise AttributeError(f"module 'bcppo' has no attribute '{name}'")
