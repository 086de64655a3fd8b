"""When in its episodes a policy crosses the rare-event boundary: `python bench/boundary_hits.py RUN …`.

The fixed evaluation's 20 episodes of each run, with deterministic actions, and the same episodes with actions of 0.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

from bcppo.algorithms import CONFIGS
from bcppo.config import EVAL_FIRST_SEED
from bcppo.evaluation import require_policy
from bcppo.policy import load_policy
from bcppo.records import RunFolder
from bcppo.worker import run_environment

EARLY = 3
"""Steps after a reset in which a body that was put down somewhere still lands."""


def hits(env: gymnasium.Env, act: Callable[[np.ndarray], np.ndarray], episodes: int) -> list[int]:
    """The step, from 1, of every crossing."""
    found = []
    env.reset(seed=0)  # as the evaluation does: a fresh environment may differ from a used one
    for seed in range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + episodes):
        observation, _ = env.reset(seed=seed)
        step, over = 0, False
        while not over:
            observation, _, terminated, truncated, info = env.step(act(observation))
            step, over = step + 1, terminated or truncated
            found += [step] * bool(info["boundary_hit"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=20)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    print(f"| run | crossings | in the first {EARLY} steps | with actions of 0 | in the first {EARLY} |")
    print("|---|---|---|---|---|")
    for path in options.runs:
        run = RunFolder(path)
        _, config = run.load_config(CONFIGS)
        require_policy(run)
        env, policy = run_environment(config, None)(), load_policy(run / "policy.safetensors")
        still = np.zeros(env.action_space.shape, dtype=np.float32)  # type: ignore[arg-type]
        own = hits(env, policy.act, options.episodes)
        idle = hits(env, lambda _, still=still: still, options.episodes)
        env.close()
        row = [len(own), sum(step <= EARLY for step in own), len(idle), sum(step <= EARLY for step in idle)]
        total.update(dict(zip("abcd", row)))
        print(f"| {path.name} | " + " | ".join(map(str, row)) + " |", flush=True)
    print("| all | " + " | ".join(str(total[name]) for name in "abcd") + " |")


if __name__ == "__main__":
    main()
