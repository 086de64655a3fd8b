"""How long the retraining of `coverage` and `target-noise` takes, beside a loop over its ensembles and the floor:
`python bench/coverage.py [--device cpu] [--threads 2] [--seeds 1] [--minibatch 64]`.

15 policies (five each of Hopper's, Ant's and Goal1's widths) × 16 conditions (8 of coverage, 8 of target noise) × 5
critics, on synthetic data of the real sizes, as the code trains them: on the CPU in blocks, one block's steps up to the
next look at the held-out loss and then the next block's, on so many threads; on a GPU in one stack. The loop trains the
same ensembles on the same minibatches one after the other, each by itself, on as many threads. The
floor is the step's matrix products alone, at the rate this machine has for them. Seconds are of an update of all, on
the clock and of the CPU, all threads together: what other processes on the cores take enters the first alone. On the
CPU fewer policies may be timed (--seeds) and scaled up: there the work is a sum over ensembles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter, process_time

import numpy as np
import torch

from bcppo.diagnostics.measure.retrain import Block, Fit, Policy, Schedule, stacked

WIDTHS = (14, 35, 62)
SEEDS, CONDITIONS, FITTING, HELD_OUT = 5, 16, 14_000, 6_000


def problem(seeds: int) -> tuple[list[Policy], list[Fit]]:
    random = np.random.default_rng(0)
    policies: list[Policy] = []
    fits: list[Fit] = []
    for index, width in enumerate(np.repeat(WIDTHS, seeds)):
        inputs = random.standard_normal((FITTING + HELD_OUT, int(width)), dtype=np.float32)
        policies.append(Policy(inputs[:FITTING], inputs[FITTING:], index))
        target = inputs[:, 0] + 0.1 * inputs[:, 1]
        for _ in range(CONDITIONS):
            kept = np.sort(random.permutation(FITTING)[: FITTING - FITTING // 5])
            fits.append(Fit(index, kept, target[kept], target[FITTING:], True))
    return policies, fits


def timed(work: Callable[[], object], device: str) -> np.ndarray:
    """[seconds on the clock, CPU seconds of all threads]"""
    start = perf_counter(), process_time()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return np.array([perf_counter() - start[0], process_time() - start[1]])


def steps(block: Block, count: int) -> None:
    for _ in range(count):
        block.descend()


def products(blocks: list[Block], device: str) -> np.ndarray:
    """Seconds of a step's matrix products: forward, and backward for weights and inputs (not the first layer's)."""
    size, seconds = blocks[0].schedule.minibatch, np.zeros(2)
    for block in blocks:
        networks = len(block.fits) * block.schedule.members
        sizes = (block.width, *block.schedule.hidden, 16)
        for layer, (wide, out) in enumerate(pairwise(sizes)):
            x, w, y = (
                torch.rand(networks, *shape, device=device) for shape in ((size, wide), (wide, out), (size, out))
            )

            def work(x=x, w=w, y=y, inputs=layer > 0) -> None:
                torch.bmm(x, w, out=y)
                torch.bmm(x.transpose(1, 2), y, out=w)
                if inputs:
                    torch.bmm(y, w.transpose(1, 2), out=x)

            work()
            seconds += np.min([timed(work, device) for _ in range(3)], axis=0)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="cores to use")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="policies of each width; fewer are scaled up to five")
    parser.add_argument("--steps", type=int, default=5, help="gradient steps of a block's, or an ensemble's, turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minibatch", type=int, default=Schedule().minibatch)
    options = parser.parse_args()
    device, count, schedule = options.device, options.steps, Schedule(minibatch=options.minibatch)
    policies, fits = problem(options.seeds)
    scale = SEEDS / options.seeds
    blocks = stacked(policies, fits, schedule, device)
    alone = stacked(policies, fits[::4], schedule, device, block=1)  # every fourth: conditions do not differ in cost
    stack, loop = [], []
    with ThreadPoolExecutor(options.threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in range(options.rounds + 1):
            together = timed(lambda: list(pool.map(lambda block: steps(block, count), blocks)), device)
            each = timed(lambda: list(pool.map(lambda block: steps(block, count), alone)), device)
            stack.append(scale * together / count)
            loop.append(scale * each / count * len(fits) / len(alone))
    one, other = (np.median(times[1:], axis=0) for times in (stack, loop))
    floor = scale * products(blocks, device)
    print(f"device {device}, {options.threads} threads, torch {torch.__version__}, minibatch {options.minibatch}")
    print(f"{round(len(fits) * scale)} ensembles of {schedule.members}, {len(blocks)} stacks for {options.seeds} seeds")
    for index, kind in enumerate(("clock", "CPU") if device == "cpu" else ("clock",)):
        ours, each, least = one[index], other[index], floor[index] / (options.threads if kind == "clock" else 1)
        print(f"{kind} seconds an update: ours {ours:.3f}, loop {each:.3f}, floor (products alone) {least:.3f}")
        print(f"  loop / ours {each / ours:.2f}; ours / floor {ours / least:.2f}; 1,000 updates {1000 * ours:,.0f} s")


if __name__ == "__main__":
    main()
