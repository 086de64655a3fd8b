"""OmniSafe 0.5.0's own PPOLag or FOCOPS on one of our tasks, at full length: `PYTHON bench/omnisafe_full.py hopper`.

PYTHON is one that has OmniSafe (bench/training.py says how to make it) and finds this package. The settings are the
paper's: 488 rollouts of 2,048 steps, minibatches of 256, 20 passes, everything else as released; and its
conversion to rates: the cost of episodes that the multiplier is set by, and the cost advantage, divided by the mean
episode length. All code that learns is OmniSafe's. Prints return, cost per step and CVaR@95 of the 20 evaluation
episodes of the final policy, with deterministic actions, as a row of `bcppo report` has them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import bcppo
import bcppo.integrations.omnisafe as tasks
from bcppo.config import EVAL_FIRST_SEED
from bcppo.evaluation import CVAR_LEVEL
from bcppo.math.cvar import conditional_value_at_risk
from bcppo.tasks import TASKS

ROLLOUT, MINIBATCH, PASSES, ROLLOUTS = 2048, 256, 20, 488
EPISODES = range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + 20)


def in_rates(learner: Any) -> None:
    """Set the multiplier by a cost per step, and let a cost advantage count as one."""
    update, combine = learner._lagrange.update_lagrange_multiplier, learner._compute_adv_surrogate

    def length() -> float:
        return learner._logger.get_stats("Metrics/EpLen")[0]

    learner._lagrange.update_lagrange_multiplier = lambda cost: update(cost / length())
    learner._compute_adv_surrogate = lambda adv_r, adv_c: combine(adv_r, adv_c / length())


def evaluate(learner: Any, task: str) -> list[tuple[float, float]]:
    """(return, cost per step) of each evaluation episode."""
    seen = learner._env.save()["obs_normalizer"]
    mean, std, bound = seen.mean, seen.std, seen._clip
    env, rows = bcppo.make_task(task), []
    assert (np.abs([env.action_space.low, env.action_space.high]) == 1).all()  # OmniSafe would scale others
    for seed in EPISODES:
        observation, _ = env.reset(seed=seed)
        total, cost, steps, over = 0.0, 0.0, 0, False
        while not over:
            normal = ((torch.as_tensor(observation, dtype=torch.float32) - mean) / std).clamp(-bound, bound)
            with torch.no_grad():
                action = learner._actor_critic.actor.predict(normal, deterministic=True).numpy()
            observation, reward, terminated, truncated, info = env.step(action)
            total, cost, steps = total + float(reward), cost + info["cost"], steps + 1
            over = terminated or truncated
        rows.append((total, cost / steps))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--algorithm", choices=("PPOLag", "FOCOPS"), default="PPOLag")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    options = parser.parse_args()
    import omnisafe  # which `tasks` has helped over its import

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "seed": options.seed,
            "train_cfgs": {
                "total_steps": ROLLOUT * options.rollouts, "vector_env_nums": 1, "torch_threads": 1, "device": "cpu",
            },
            "algo_cfgs": {"steps_per_epoch": ROLLOUT, "update_iters": PASSES, "batch_size": MINIBATCH},
            "lagrange_cfgs": {"cost_limit": TASKS[options.task].cost_limit_rate},
            "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
        }  # fmt: skip
        agent = omnisafe.Agent(options.algorithm, tasks.PREFIX + options.task, custom_cfgs=settings)
        in_rates(agent.agent)
        agent.learn()
        rows = np.array(evaluate(agent.agent, options.task))
    tail = conditional_value_at_risk(rows[:, 1], CVAR_LEVEL)
    lagrange = agent.agent._lagrange.lagrangian_multiplier.item()
    row = {"return": rows[:, 0].mean(), "cost_rate": rows[:, 1].mean(), "cvar95": tail, "multiplier": lagrange}
    print(json.dumps({"task": options.task, "algorithm": options.algorithm, "seed": options.seed, **row}))


if __name__ == "__main__":
    main()
