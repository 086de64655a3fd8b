"""The paper's tasks as OmniSafe environments: `import bcppo.integrations.omnisafe`, then train on 'bcppo-goal1'.

>>> import bcppo.integrations.omnisafe as tasks                     # doctest: +SKIP
>>> import omnisafe                                                 # doctest: +SKIP
>>> limit = tasks.episode_cost_limit("goal1")                       # doctest: +SKIP
>>> settings = {"lagrange_cfgs": {"cost_limit": limit}}             # doctest: +SKIP
>>> omnisafe.Agent("PPOLag", "bcppo-goal1", custom_cfgs=settings).learn()  # doctest: +SKIP

Units: our limits are mean costs per step, OmniSafe's a sum over an episode. A limit of C per step is one of C · horizon
for episodes that last to the time limit, as those of the navigation tasks do. Hopper and Ant can fall: of a shorter
episode OmniSafe's limit then allows a higher cost per step, and no one number converts the two.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from bcppo.errors import MissingDependency, unknown_name
from bcppo.tasks import TASKS, make_task

PREFIX = "bcppo-"


def episode_cost_limit(task: str) -> float:
    """A task's limit as OmniSafe counts: summed cost of an episode that lasts to the time limit."""
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    return TASKS[task].cost_limit_rate * TASKS[task].horizon


@contextlib.contextmanager
def _lenient_dataclasses() -> Iterator[None]:
    """Safety-Gymnasium 1.0.0, which OmniSafe imports, gives fields arrays as defaults: Python 3.11 and later refuse."""
    original = dataclasses._get_field  # type: ignore[attr-defined]

    def lenient(cls, name, *rest):
        default = cls.__dict__.get(name)
        if isinstance(default, np.ndarray):
            setattr(cls, name, dataclasses.field(default_factory=lambda: default))
        return original(cls, name, *rest)

    dataclasses._get_field = lenient  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dataclasses._get_field = original  # type: ignore[attr-defined]


try:
    with _lenient_dataclasses():
        import torch
        from omnisafe.envs.core import CMDP, env_register
except ImportError as _error:
    raise MissingDependency(f"bcppo.integrations.omnisafe needs OmniSafe 0.5.0: {_error}.") from _error


@env_register
class BcppoTask(CMDP):
    """A task with the paper's cost; OmniSafe sees float32, and the cost of each step as our environment charges it."""

    _support_envs: ClassVar[list[str]] = [PREFIX + name for name in TASKS]
    need_auto_reset_wrapper = True
    need_time_limit_wrapper = False  # the task ends its episodes itself
    _num_envs = 1

    def __init__(self, env_id: str, num_envs: int = 1, device: Any = "cpu", **options: Any) -> None:
        super().__init__(env_id)
        if num_envs != 1:
            raise NotImplementedError("These tasks run one at a time in OmniSafe: set vector_env_nums to 1.")
        self._device = torch.device(device)
        self._env: Any = make_task(env_id.removeprefix(PREFIX), **options)
        self._action_space, self._observation_space = self._env.action_space, self._env.observation_space
        self._metadata = self._env.metadata

    @property
    def max_episode_steps(self) -> int:
        return self._env.task.horizon

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(action.detach().cpu().numpy())
        numbers = (observation, reward, info["cost"], terminated, truncated)
        return *(self._tensor(number) for number in numbers), info

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self._env.reset(seed=seed, options=options)
        return self._tensor(observation), info

    def set_seed(self, seed: int) -> None:
        self.reset(seed=seed)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _tensor(self, value: Any) -> Any:
        return torch.as_tensor(value, dtype=torch.float32, device=self._device)
