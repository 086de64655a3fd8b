"""Policy → episodes: the protocol's fixed evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bcppo.algorithms import CONFIGS
from bcppo.config import EVAL_FIRST_SEED
from bcppo.episodes import Episode, evaluate_policy
from bcppo.errors import BcppoError, ConfigError
from bcppo.kept import check_kept
from bcppo.math.cvar import conditional_value_at_risk
from bcppo.policy import load_policy
from bcppo.records import DIVERGED, RunFolder
from bcppo.rollout import MakeEnv
from bcppo.worker import run_environment

CVAR_LEVEL = 0.95


def evaluate(
    folder: str | Path, *, episodes: int = 20, stochastic: bool = False, make_env: MakeEnv | None = None
) -> list[Episode]:
    """Evaluate the policy a run left behind, on episodes reset with seeds 10000, 10001, …

    20 episodes and deterministic actions are the paper's protocol, and give the rows the run itself recorded; hundreds
    give a CVaR worth an interval. `make_env` is needed where the run was trained with one.
    """
    if episodes < 1:
        raise ConfigError(f"An evaluation needs at least 1 episode, but {episodes} were asked for.")
    run = RunFolder(folder)
    _, config = run.load_config(CONFIGS)
    require_policy(run)
    env = run_environment(config, make_env)()
    seeds = range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + episodes)
    try:
        return evaluate_policy(load_policy(run / "policy.safetensors"), env, seeds, stochastic=stochastic)
    finally:
        env.close()


def require_policy(run: RunFolder) -> None:
    """Refuse a run that has left no policy, and say how it can go on; or one whose kept files have changed."""
    check_kept(run.path)
    if not (run / "policy.safetensors").exists():
        state = run.status()["state"]
        again = "" if state == DIVERGED else f"; if it was stopped, `bcppo resume {run.path}` goes on with it"
        raise BcppoError(f"The run in {run.path} has left no policy yet ({state}){again}.")


def summarize(episodes: Sequence[Episode], limit_rate: float) -> dict[str, float]:
    """The protocol's metrics of one policy: costs are rates per step."""
    rates = [episode["cost_rate"] for episode in episodes]
    cvar = conditional_value_at_risk(rates, CVAR_LEVEL)
    return {
        "return": float(np.mean([episode["episode_return"] for episode in episodes])),
        "cost_rate": float(np.mean(rates)),
        "cvar95": cvar,
        "safety_rate": float(np.mean([rate <= limit_rate for rate in rates])),
        "worst_gap": cvar - limit_rate,
        "native_cost": float(np.mean([episode["native_cost"] for episode in episodes])),
        "length": float(np.mean([episode["length"] for episode in episodes])),
    }
