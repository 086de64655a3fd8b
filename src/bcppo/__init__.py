"""BCPPO and its comparators: train, compare and trust tail-risk-aware policies under one protocol.

Importing the package registers the navigation tasks with Gymnasium and imports no torch; what needs torch is imported
when it is first asked for.

>>> import bcppo
>>> env = bcppo.make_task("goal1")
>>> observation, info = env.reset(seed=0)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
>>> sorted(info)[:2]
['boundary_hit', 'cost']
"""

from bcppo.errors import BcppoError, ConfigError
from bcppo.tasks import TASKS, Task, make_task
from bcppo.tasks.registration import register_tasks

__version__ = "0.1.0"
_LATE = {
    "evaluate": "bcppo.evaluation",
    "load_policy": "bcppo.policy",
    "make_config": "bcppo.run",
    "resume": "bcppo.run",
    "train": "bcppo.run",
    "train_fleet": "bcppo.fleet",
}
__all__ = ["TASKS", "BcppoError", "ConfigError", "Task", "__version__", "make_task"]

register_tasks()


def __getattr__(name: str):
    """What needs torch or a file library is imported when it is first asked for."""
    from importlib import import_module

    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'bcppo' has no attribute '{name}'")
