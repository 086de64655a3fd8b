"""Single steps in workers, through shared memory and by messages: `python bench/lockstep.py [--task hopper]`.

An environment in each worker, all asked for a step at once, with heads as a GPU's learner sends them; the two ways take
turns. The floor is the same steps in this process, one environment after another. Processes that share cores with
others (there should be one more core than workers) say little about the exchange itself, which is then mostly naps.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np

from bcppo.policy import HeadPolicy
from bcppo.pool import Worker, crowded
from bcppo.remote import RemoteCollector
from bcppo.rollout import Collector, Rollout
from bcppo.worker import environment_factory

BOUNDS = np.array([-20.0, 2.0], np.float32)


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])


def blank(steps: int, observation: int, action: int) -> Rollout:
    wide = [np.zeros((steps, width), np.float32) for width in (observation, observation, action)]
    numbers, flags = ([np.zeros(steps, kind) for _ in range(2)] for kind in (float, bool))
    return Rollout(*wide, *numbers, *flags, [], 0.0, {"act": 0.0, "simulate": 0.0})


def in_lockstep(collectors: list, steps: int) -> float:
    """Seconds for steps of all collectors."""
    width, low, _ = collectors[0].spaces
    heads, rollouts = np.zeros(2 * len(low), np.float32), [blank(steps, width, len(low)) for _ in collectors]
    for collector in collectors:
        collector.start_lockstep(BOUNDS)
        collector.await_lockstep()
    start = perf_counter()
    for row in range(steps):
        for collector in collectors:
            collector.start_step(heads)
        for collector, rollout in zip(collectors, rollouts):
            collector.finish_step(rollout, row)
    seconds = perf_counter() - start
    for collector in collectors:
        collector.end_lockstep()
        collector.await_lockstep()
    return seconds


def by_messages(collectors: list, steps: int) -> float:
    _, low, high = collectors[0].spaces
    policy = HeadPolicy(np.zeros(2 * len(low), np.float32), BOUNDS, low, high)
    start = perf_counter()
    for _ in range(steps):
        for collector in collectors:
            collector.start(policy, 1)
        for collector in collectors:
            collector.finish()
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="hopper")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tries", type=int, default=5)
    options = parser.parse_args()
    workers = [Worker() for _ in range(options.workers)]
    remote = [RemoteCollector(worker, options.task, None, *streams(seed)) for seed, worker in enumerate(workers)]
    local = [Collector(environment_factory(options.task, None), *streams(seed)) for seed in range(options.workers)]
    seconds: dict[str, list[float]] = {"lock-step": [], "messages": [], "this process": []}
    for _ in range(options.tries):
        seconds["lock-step"].append(in_lockstep(remote, options.steps))
        seconds["messages"].append(by_messages(remote, options.steps))
        seconds["this process"].append(in_lockstep(local, options.steps))
    naps = "with naps" if crowded() else "spinning"
    print(f"{options.task}, {options.workers} workers, {naps}; {options.tries} × {options.steps} steps of each")
    for name, values in seconds.items():
        middle = statistics.median(values) / options.steps
        ratio = statistics.median(a / b for a, b in zip(seconds["messages"], values))
        print(f"  {name:<13}{1e6 * middle:8.0f} µs a step of all, {ratio:.2f} × the messages' rate")
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
