"""Is it the same task on both stacks? One fixed set of policies, the same episode seeds, side by side.

    python bench/stack_equivalence.py --record paper.json       # on the paper stack; about five minutes on one core
    python bench/stack_equivalence.py --record modern.json      # on the modern one
    python bench/stack_equivalence.py --compare paper.json modern.json

Policies: random actions; straight to the goal by lidar (for Button: to the goal button); for Push also one that goes
round the box and pushes it. Per episode: the return, the simulator's own cost (summed), the share of steps taken beyond
the paper's boundary, and the paper's cost per step.

Equal seeds give equal layouts on both stacks and nearly equal first steps; after some fifty steps rounding, amplified
by contacts, has made each pair of episodes two samples of the same thing. So the difference of means is bootstrapped
over seeds, which keeps what the pairs share, and is expected to hold 0 in 19 of 20 rows if the tasks are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np
from policies import Policy, go_to_goal, push_the_box

METRICS = {
    "return": "return",
    "native_cost": "own cost, per episode",
    "boundary_rate": "steps beyond the boundary, %",
    "cost_rate": "paper's cost, per step",
}


def random_actions(seed: int, size: int) -> Policy:
    rng = np.random.default_rng(seed)
    return lambda observation: rng.uniform(-1, 1, size)


def policies(task: str) -> dict[str, Callable[[int], Policy]]:
    """Name → (episode seed → policy)."""
    size = {"hopper": 3, "ant": 8}.get(task, 2)
    found: dict[str, Callable[[int], Policy]] = {"random": lambda seed: random_actions(seed, size)}
    if size == 2:
        found["go to goal"] = lambda seed: go_to_goal(task[:-1])
    if task == "push1":
        found["push the box"] = lambda seed: push_the_box
    return found


def play(env, policy: Policy, seed: int) -> dict[str, float]:
    observation, _ = env.reset(seed=seed)
    total = native = hits = cost = 0.0
    steps, over = 0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(policy(observation))
        total += reward
        native += info["native_cost"]
        hits += info["boundary_hit"]
        cost += info["cost"]
        steps += 1
        over = terminated or truncated
    return {
        "return": total,
        "native_cost": native,
        "boundary_rate": 100 * hits / steps,
        "cost_rate": cost / steps,
        "steps": steps,
    }


def record(path: Path, episodes: int) -> None:
    import bcppo

    rows: dict[str, list[dict[str, float]]] = {}
    for task in bcppo.TASKS:
        env = bcppo.make_task(task)
        for name, make_policy in policies(task).items():
            start = perf_counter()
            rows[f"{task}, {name}"] = [play(env, make_policy(seed), seed) for seed in range(episodes)]
            print(f"{task}, {name}: {episodes} episodes in {perf_counter() - start:.0f} s", flush=True)
    packages = {name: version(name) for name in ("mujoco", "numpy", "gymnasium")}
    stack = ", ".join(f"{name} {number}" for name, number in packages.items())
    content = {"stack": f"Python {platform.python_version()}, {stack}", "episodes": rows}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"Wrote {path}.")


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean, 10,000 draws, seeded."""
    from scipy.stats import bootstrap

    found = bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", random_state=np.random.default_rng(0)
    ).confidence_interval
    return float(found.low), float(found.high)


def show(values: np.ndarray) -> str:
    low, high = interval(values)
    return f"{values.mean():.3g} [{low:.3g}, {high:.3g}]"


def compare(one: Path, other: Path) -> None:
    first, second = (json.loads(path.read_text()) for path in (one, other))
    shared = [name for name in first["episodes"] if name in second["episodes"]]
    print(f"A: {first['stack']}\n\nB: {second['stack']}\n")
    print("Means over episodes with 95 % bootstrap intervals, and the interval of B − A over the same episode seeds.\n")
    print("| task, policy | episodes | what | A | B | B − A | holds 0 |\n|---|---|---|---|---|---|---|")
    held = total = 0
    for name in shared:
        count = min(len(first["episodes"][name]), len(second["episodes"][name]))
        for metric, words in METRICS.items():
            a, b = (np.array([row[metric] for row in side["episodes"][name][:count]]) for side in (first, second))
            low, high = interval(b - a)
            total, held = total + 1, held + (low <= 0 <= high)
            print(
                f"| {name} | {count} | {words} | {show(a)} | {show(b)} | {show(b - a)} "
                f"| {'yes' if low <= 0 <= high else 'no'} |"
            )
    print(f"\n{held} of {total} intervals of the difference hold 0; {0.95 * total:.0f} are expected of equal tasks.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="run the policies on this stack")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A.json", "B.json"), help="print both side by side")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of each policy on each task")
    options = parser.parse_args()
    if bool(options.record) == bool(options.compare):
        parser.error("give either --record or --compare")
    if options.record:
        record(options.record, options.episodes)
    else:
        compare(*options.compare)


if __name__ == "__main__":
    main()
