"""The paper's five tasks, in one table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bcppo.errors import ConfigError

DEFAULT_THRESHOLD = 15.0


@dataclass(frozen=True)
class Task:
    """An environment, the paper's cost on it (eq:cost_wrapper), and the limit that cost is held to."""

    name: str
    env_id: str
    action_cost: float
    """c_a: cost per step and unit of squared action norm."""
    boundary_cost: float
    """c_b: cost of a step taken where the observation's norm exceeds the threshold."""
    cost_limit_rate: float
    """C_lim: the limit on the mean cost per step."""
    threshold: float = DEFAULT_THRESHOLD
    """Observation norm above which a state counts as beyond the boundary."""
    horizon: int = 1000
    """Steps until the time limit."""

    def __post_init__(self) -> None:
        for field in ("action_cost", "boundary_cost", "cost_limit_rate", "threshold"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"A task's {field} must be a number of at least 0, but {value} was given.")
        if self.horizon < 1:
            raise ConfigError(f"A task's horizon must be at least 1 step, but {self.horizon} was given.")


#                 name       environment                         c_a    c_b   C_lim (cost per step)
_ROWS = (
    Task("goal1",   "bcppo/SafetyPointGoal1-v0",        0.005, 10.0, 0.65),
    Task("button1", "bcppo/SafetyPointButton1-v0",      0.01,  5.0,  0.65),
    Task("push1",   "bcppo/SafetyPointPush1-v0",        0.005, 10.0, 0.65),
    Task("hopper",  "Hopper-v4",                        0.01,  5.0,  0.015898692),
    Task("ant",     "Ant-v4",                           0.01,  5.0,  3.4),
)  # fmt: skip

TASKS: dict[str, Task] = {task.name: task for task in _ROWS}
