"""How long a process that wakes waits for a core that another computes on: `python bench/waking.py`, on Linux.

Two processes compute on one core, standing back by a `nice` of 0, 10 or 19; one more wakes there every 10 ms and works
for 2. Milliseconds between when it should have woken and when it did. A fleet's learner wakes so beside its simulators.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from time import perf_counter, sleep

PAUSE, WORK = 0.010, 0.002


def compute(core: int, nice: int) -> None:
    os.sched_setaffinity(0, {core})
    os.nice(nice)
    parent = os.getppid()
    while os.getppid() == parent:
        pass


def late(core: int, times: int) -> list[float]:
    """Milliseconds too late, of each waking."""
    os.sched_setaffinity(0, {core})
    found = []
    for _ in range(times):
        begin = perf_counter()
        sleep(PAUSE)
        woke = perf_counter()
        found.append((woke - begin - PAUSE) * 1e3)
        while perf_counter() < woke + WORK:
            pass
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=300)
    options = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    print(f"Linux {os.uname().release}, core {core}\n| beside | mean | median | 95 % |\n|---|---|---|---|")
    for beside, nice in (("nothing", None), ("nice 0", 0), ("nice 10", 10), ("nice 19", 19)):
        others = [multiprocessing.Process(target=compute, args=(core, nice)) for _ in range(0 if nice is None else 2)]
        for other in others:
            other.start()
        sleep(0.3)
        found = late(core, options.times)
        for other in others:
            other.kill()
        mean, median, most = statistics.mean(found), found[len(found) // 2], found[int(0.95 * len(found))]
        print(f"| {beside} | {mean:.2f} ms | {median:.2f} | {most:.2f} |", flush=True)


if __name__ == "__main__":
    main()
