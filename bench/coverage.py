"""How long the coverage diagnostic's retraining takes as one stack, beside a loop over its ensembles:
`python bench/coverage.py [--device cpu] [--updates 3] [--loop-every 16]`.

15 policies (five each of Hopper's, Ant's and Goal1's widths) × 16 conditions (8 of coverage, 8 of target noise) × 5
critics, on synthetic data of the real sizes. Times a gradient step of all 240 ensembles in one stack and, interleaved
with it, of the same ensembles one after the other (every n-th one, times n). The loop trains the same networks on the
same minibatches; the figure to look at is the ratio. CPU seconds are those of this process, so that a shared core does
not enter.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter, process_time

import numpy as np
import torch

from bcppo.diagnostics.measure.retrain import Fit, Policy, Schedule, _Work

WIDTHS = (14, 35, 62)
SEEDS, CONDITIONS, FITTING, HELD_OUT = 5, 16, 14_000, 6_000


def problem(scale: float) -> tuple[list[Policy], list[Fit]]:
    random = np.random.default_rng(0)
    rows, held = int(FITTING * scale), int(HELD_OUT * scale)
    policies, fits = [], []
    for index, width in enumerate(np.repeat(WIDTHS, SEEDS)):
        inputs = random.standard_normal((rows + held, int(width)), dtype=np.float32)
        policies.append(Policy(inputs[:rows], inputs[rows:], index))
        target = inputs[:, 0] + 0.1 * inputs[:, 1]
        for _ in range(CONDITIONS):
            kept = np.sort(random.permutation(rows)[: rows - rows // 5])
            fits.append(Fit(index, kept, target[kept], target[rows:], True))
    return policies, fits


def seconds(step: Callable[[], None], device: str) -> float:
    """CPU seconds of a step on the CPU, seconds of it on a GPU."""
    clock = process_time if device == "cpu" else perf_counter
    start = clock()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=3, help="gradient steps timed, after one that is not")
    parser.add_argument("--loop-every", type=int, default=16, help="the loop does every n-th ensemble, times n")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the data's size; a step's cost hardly depends on it"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    policies, fits = problem(options.scale)
    whole = _Work(policies, fits, Schedule(), torch.device(options.device))
    chosen = fits[:: options.loop_every]
    alone = [
        _Work([policies[fit.policy]], [fit._replace(policy=0)], Schedule(), torch.device(options.device))
        for fit in chosen
    ]
    batches = [whole.batches(), *(work.batches() for work in alone)]
    stack, loop = [], []
    for _ in range(options.updates + 1):
        stack.append(seconds(lambda: whole.descend(*next(batches[0])), options.device))

        def each() -> None:
            for work, source in zip(alone, batches[1:]):
                work.descend(*next(source))

        loop.append(seconds(each, options.device) * len(fits) / len(chosen))
    one, other = (statistics.median(times[1:]) for times in (stack, loop))
    print(f"device {options.device}, torch {torch.__version__}; {len(fits)} ensembles of {Schedule().members}")
    print(f"one stack: {one:.4f} s an update; loop: {other:.4f} s an update; ratio {other / one:.2f}")
    print(f"1,000 updates of all: {one * 1000:,.0f} s as one stack, {other * 1000:,.0f} s in a loop")


if __name__ == "__main__":
    main()
