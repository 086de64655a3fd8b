"""A cost limit for a task that has none: the paper's recipe."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcppo.errors import BcppoError, ConfigError
from bcppo.evaluation import summarize
from bcppo.rollout import MakeEnv
from bcppo.run import train
from bcppo.tasks.table import TASKS
from bcppo.watch import Watch

METHOD = "ppo"
_PLACEHOLDER = 1.0
"""PPO on the reward alone looks at no limit, but a run of an environment of one's own has to name one."""


@dataclass(frozen=True)
class Suggestion:
    """A limit on the mean cost per step, and what it comes from."""

    cost_limit_rate: float
    cost_rate: float
    """Mean cost per step of the reward-only policy's evaluation episodes."""
    episode_return: float
    """Their mean return."""


def suggest_limit(
    task: str = "",
    *,
    fraction: float = 0.85,
    steps: int = 100_000,
    seed: int = 0,
    make_env: MakeEnv | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> Suggestion:
    """`fraction` of the mean cost per step at which PPO on the reward alone arrives in so many steps.

    So the paper set its limits: 0.85 of the evaluation cost of a 100k-step run with seed 0. A limit below what
    maximising the reward costs is one that binds. The run is kept in `out`, where that is given.

    >>> import bcppo
    >>> bcppo.suggest_limit("hopper", steps=1024).cost_limit_rate > 0
    True
    """
    if not (0.0 < fraction < float("inf")):
        raise ConfigError(f"fraction must be a positive number, but {fraction!r} was given.")
    if bool(task) == (make_env is not None):
        raise ConfigError("Give a task or make_env, one of the two.")
    settings: dict[str, Any] = {"steps": steps, "seed": seed, "eval_every": 0, "tensorboard": False}
    settings |= {"task": task} if task else {}
    settings |= {} if task in TASKS else {"cost_limit_rate": _PLACEHOLDER}
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(out or Path(scratch) / "run")
        rows = train(method=METHOD, make_env=make_env, out=kept, watch=watch, **settings).read_rows("evaluations")
    final = [index for index, last in enumerate(rows["final"]) if last]
    episodes = [{name: values[index] for name, values in rows.items()} for index in final]
    found = summarize(episodes, _PLACEHOLDER)
    if found["cost_rate"] <= 0.0:
        raise BcppoError(
            f"PPO on the reward alone came to cost nothing in {steps:,} steps (return {found['return']:.4g}), and no "
            "share of nothing is a limit: train it for longer (--steps), see whether info['cost'] is what you mean, "
            "or choose a cost_limit_rate yourself."
        )
    return Suggestion(fraction * found["cost_rate"], found["cost_rate"], found["return"])

