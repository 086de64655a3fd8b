"""What each method's update costs beyond PPO's, counted and measured: `python bench/complexity.py [--rounds 15]`.

The paper's complexity table (tab:complexity) counts operations; here they stand beside the time of an update on one
core, with the preset `paper` on Goal1's sizes. In every round each method takes its turn, and the extra is the median
over the rounds of its time less PPO's in the same round. CPO has other networks and rollouts (2×64, 2048 steps), so its
line stands beside the value descent of its own update: what is extra is its policy step.
"""

from __future__ import annotations

import argparse
import os
import statistics
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from bcppo.algorithms import METHODS
from bcppo.algorithms.batch import Batch
from bcppo.nets import keep_freed_memory
from bcppo.queued import settled
from bcppo.settings import paper_preset
from bcppo.streams import Streams

WIDTHS = (60, 2)
FAMILY = ("ppo", "ppopid", "bcppo", "cppo", "qrppo")


def batch(rows: int) -> Batch:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))

    action = normal(1, rows, WIDTHS[1])
    ends = torch.from_numpy(random.random((1, rows)) < 0.01)
    cost = normal(1, rows).abs().double()
    return Batch(
        normal(1, rows, WIDTHS[0]), normal(1, rows, WIDTHS[0]), action, action.clamp(-1, 1), normal(1, rows).double(),
        cost, ends, ends, 1, [[(100.0, 200.0)]],
    )  # fmt: skip


def learner(name: str) -> tuple[Any, Any]:
    config: Any = paper_preset(METHODS[name].config, "goal1")
    return config, METHODS[name].learner()([config], WIDTHS, [Streams(0, 1)], torch.device("cpu"))


def timed(call: Any) -> float:
    start = perf_counter()
    call()
    return 1e3 * (perf_counter() - start)


def counts(name: str, config: Any) -> tuple[str, str]:
    """(forward cost beyond PPO's, additional operations), with the numbers of the preset."""
    size = f"B = {config.minibatch}"
    if name == "bcppo":
        spread = config.minibatch * config.members
        return f"+{config.members} cost-critic passes", f"B·M = {spread:,} (mean, variance) + B (Bachelier), {size}"
    if name == "cppo":
        return "none", "sorts the rollout's trajectory costs (about 10 here)"
    if name == "qrppo":
        return f"+1 critic with {config.quantiles} heads", f"B·N_q = {config.minibatch * config.quantiles:,}, {size}"
    return "none", "the multiplier's PID step" if name == "ppopid" else "GAE only"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    made = {name: learner(name) for name in FAMILY}
    rollout = batch(made["ppo"][0].rollout)
    times: dict[str, list[float]] = {name: [] for name in FAMILY}
    for one in made.values():
        one[1].update(rollout)
    for _ in range(options.rounds):
        for name, (_, one) in made.items():
            times[name].append(timed(lambda one=one: one.update(rollout)))
    print("| method | forward cost beyond PPO's | additional operations | ms an update | extra, ms | extra, % |")
    print("|---|---|---|---|---|---|")
    for name, (config, _) in made.items():
        forward, operations = counts(name, config)
        extra = statistics.median(a - b for a, b in zip(times[name], times["ppo"]))
        share = statistics.median(a / b - 1 for a, b in zip(times[name], times["ppo"]))
        middle = statistics.median(times[name])
        print(f"| {name} | {forward} | {operations} | {middle:.1f} | {extra:+.1f} | {share:+.0%} |")
    measure_cpo(options.rounds)


def measure_cpo(rounds: int) -> None:
    config, one = learner("cpo")
    rollout = batch(config.rollout)
    one.update(rollout)
    whole, policy = [], []
    for _ in range(rounds):
        whole.append(timed(lambda: one.update(rollout)))
        constraint = one._measure(rollout)
        prepared = one._prepare(rollout, constraint.advantage_scale)
        before = one.policy.flat.detach().clone()

        def step(prepared=prepared, excess=constraint.excess) -> None:
            settled(one._search(prepared, one._solve(prepared, excess), excess))

        policy.append(timed(step))
        with torch.no_grad():
            one.policy.flat.copy_(before)
    products = 2 * (config.conjugate_gradient_steps + 1) + 1
    share = statistics.median(policy) / statistics.median(whole)
    print(
        f"| cpo | none | {products} Fisher-vector products and a line search over {config.rollout} rows "
        f"| {statistics.median(whole):.1f} | {statistics.median(policy):+.1f} | {share:.0%} of its update |"
    )


if __name__ == "__main__":
    main()
