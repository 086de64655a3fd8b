"""How fast fleets train, beside the raw physics of the same cores: `python bench/fleet.py [--tasks …] [--runs 1 5 30]`.

Fleets of growing size are trained for some updates, the first of which are not counted: environment steps a second of
all runs together, seconds for a million steps of every run, how busy the cores were, how long a rollout that
was asked for waited to be begun, and one that was done to be heard of by the learner, the GPU's utilisation and
memory, and the resident memory of learner and workers. Beside each, the raw rate: one process a worker, all at once,
each doing nothing but the physics of that task's steps. Contacts make physics slower, and a policy chooses its
contacts, so it is measured at the states of random actions (before the fleet and after it: machines are noisy), at
those which the fleet's final policies visit, and as a bare loop, MuJoCo left to itself under random controls. Nobody
moves Button's gremlins in that: they come to lie on the floor, and their contacts make it slower than any episode.
`--json` keeps the rows, `--plot` draws cost against growth. On a GPU fleets are stacked; on the CPU each run has a
process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from time import perf_counter, process_time, sleep, time
from typing import Any

from simulators import STATE

os.environ.setdefault("OMP_NUM_THREADS", "1")


# --- the floor --------------------------------------------------------------------------------------------------------


def raw_child(task: str, seconds: float, policy: str) -> None:
    """(Steps, their seconds, share of a core) of bare physics at a policy's states, begun when a line comes in.

    Ten mj_step and one mj_forward for the navigation tasks, Gymnasium's frame skip for the others; `policy` is a run's
    file, or '-' for actions drawn uniformly, or 'loop' for a bare loop. States are visited first; only MuJoCo is timed.
    """
    import mujoco

    import bcppo

    env = bcppo.make_task(task)
    base = env.unwrapped
    model, data, frames = base.model, base.data, getattr(base, "frame_skip", 10)
    forward = task not in ("hopper", "ant")
    bare = policy == "loop"
    moments = visits(env, "-" if bare else policy)
    env.reset(seed=os.getpid())
    arrays = [getattr(data, name) for name in STATE]
    print("ready", flush=True)
    sys.stdin.readline()
    count, spent, begin, used = 0, 0.0, perf_counter(), process_time()
    while perf_counter() < begin + seconds:
        control, values = moments[count % len(moments)]
        for array, value in zip(arrays, () if bare else values):
            array[:] = value
        data.ctrl[:] = control
        start = perf_counter()
        mujoco.mj_step(model, data, frames)
        if forward:
            mujoco.mj_forward(model, data)
        spent += perf_counter() - start
        count += 1
    print(count, spent, (process_time() - used) / (perf_counter() - begin))


def visits(env, policy: str, steps: int = 2000) -> list[tuple]:
    """(control, state) of so many steps of a policy that explores as in training."""
    import numpy as np

    from bcppo.policy import UniformPolicy, load_policy

    low, high = env.action_space.low, env.action_space.high
    actor = UniformPolicy(low, high) if policy == "-" else load_policy(Path(policy))
    noise, data, moments = np.random.default_rng(os.getpid()), env.unwrapped.data, []
    observation, _ = env.reset(seed=os.getpid())
    for _ in range(steps):
        action = actor.sample(observation, noise.standard_normal(low.shape, dtype=np.float32))
        state = [getattr(data, name).copy() for name in STATE]
        observation, _, terminated, truncated, _ = env.step(np.clip(action, low, high))
        moments.append((data.ctrl.copy(), state))
        if terminated or truncated:
            observation, _ = env.reset()
    return moments


def raw_rate(task: str, options: argparse.Namespace, policies: list[str]) -> tuple[float, float]:
    """(Steps a second of all workers together, each at the states of one of these policies; how busy the cores were)"""
    command = [options.worker_python or sys.executable, __file__, "--raw-child", task, str(options.raw_seconds)]
    children = [
        subprocess.Popen(
            [*command, policies[index % len(policies)]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for index in range(options.workers)
    ]
    if any(child.stdout.readline() != "ready\n" for child in children):  # type: ignore[union-attr]
        sys.exit(f"The raw physics of {task} could not be measured: a process of it ended too early.")
    for child in children:
        child.stdin.write("\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
    results = [child.communicate()[0].split() for child in children]
    busy = sum(float(share) for _, _, share in results) / len(os.sched_getaffinity(0))
    return sum(int(count) / float(spent) for count, spent, _ in results), busy


# --- a fleet ----------------------------------------------------------------------------------------------------------


class GpuMeter:
    """The GPU's utilisation, by a process of its own twice a second: asked from here, the learner would wait for it."""

    ASKED = "--query-gpu=timestamp,utilization.gpu"
    QUERY = ("nvidia-smi", "-i", "0", ASKED, "--format=csv,noheader,nounits", "-lms", "500")
    NAME = "nvidia-smi"

    def __init__(self) -> None:
        self._tool = None
        with contextlib.suppress(OSError):
            self._tool = subprocess.Popen(self.QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self) -> list[tuple[float, float]]:
        """What it said: moments, as perf_counter has them, and percent; a line that was cut off is left out."""
        if self._tool is None:
            return []
        self._tool.terminate()
        found, since = [], time() - perf_counter()
        for line in self._tool.communicate()[0].splitlines():
            with contextlib.suppress(ValueError):
                moment, percent = line.split(",")
                found.append((datetime.strptime(moment, "%Y/%m/%d %H:%M:%S.%f").timestamp() - since, float(percent)))
        return found


class CoreMeter(threading.Thread):
    """The processor's seconds that this process and its children have used, asked once a second: asking takes some."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        self.over = False

    def run(self) -> None:
        while not self.over:
            self.samples.append((perf_counter(), sum(processor_seconds(pid) for pid in descendants())))
            sleep(1.0)

    def busy(self, begin: float, end: float) -> float:
        """The share of all cores' time that was used between these moments."""
        within = [sample for sample in self.samples if begin <= sample[0] <= end]
        if len(within) < 2:
            return float("nan")
        (first, used_before), (last, used_after) = within[0], within[-1]
        return (used_after - used_before) / (last - first) / len(os.sched_getaffinity(0))


def processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total / 1024


def descendants() -> list[int]:
    found, seen = [os.getpid()], 0
    while seen < len(found):
        with contextlib.suppress(OSError):  # one that has ended
            for task in Path(f"/proc/{found[seen]}/task").glob("*/children"):
                found += [int(pid) for pid in task.read_text().split()]
        seen += 1
    return [pid for pid in found if _name(pid) != GpuMeter.NAME]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def timed_turns() -> Iterator[list[tuple[float, float, float]]]:
    """Of each turn that fleets give meanwhile: when it was over, seconds until the worker began with what it was asked,
    and until its answer was heard."""
    from bcppo import stacked

    found: list[tuple[float, float, float]] = []

    class Timed(stacked.Turns):
        def __init__(self, at_once: int) -> None:
            self.asked: dict[Any, float] = {}
            super().__init__(at_once)

        def answered(self, worker: Any, environment: int) -> None:
            box = worker._inbox[environment]
            worked = box[-1][0].get("worked") if box else None
            if worked and self._at_work.get(worker) == environment:
                now = perf_counter()
                found.append((now, worked[0] - self.asked[worker], now - worked[1]))
            super().answered(worker, environment)

        def _go_on(self) -> None:
            at_work, now = set(self._at_work), perf_counter()
            super()._go_on()
            self.asked.update(dict.fromkeys(set(self._at_work) - at_work, now))

    plain, stacked.Turns = stacked.Turns, Timed  # type: ignore[misc]
    try:
        yield found
    finally:
        stacked.Turns = plain  # type: ignore[misc]


def measure(method: str, task: str, count: int, updates: int, options: argparse.Namespace) -> dict:
    import torch

    from bcppo.fleet import train_fleet
    from bcppo.records import revision
    from bcppo.run import make_config
    from bcppo.stacked import SPARE_TURNS
    from bcppo.watch import FleetWatch

    class Clock(FleetWatch):
        """When each run reached which step."""

        def __init__(self) -> None:
            super().__init__(bar=False, curves=False)
            self.marks: dict[str, list[tuple[float, int]]] = {}
            self.megabytes = 0.0

        def hear(self, name: str, news: dict) -> None:
            if "warning" in news:
                self.warn(news["warning"])
                return
            self.marks.setdefault(name, []).append((perf_counter(), int(news["step"])))
            if not self.megabytes and min(len(marks) for marks in self.marks.values()) > 2:
                self.megabytes = resident_megabytes(descendants())

    probe = make_config(method, task)
    rollout = getattr(probe, "rollout", getattr(probe, "window", 1000))
    quiet = {"eval_every": 0, "eval_episodes": 1, "checkpoint_every": 10**9, "tensorboard": False}
    steps = rollout * (updates + 1)
    runs = [(method, make_config(method, task, seed=seed, steps=steps, **quiet)) for seed in range(count)]
    clock, cores = Clock(), CoreMeter()
    cuda = options.device != "cpu" and torch.cuda.is_available()
    if cuda:
        gc.collect()  # what fleets before have left
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        before, _ = raw_rate(task, options, ["-"])
        meter = GpuMeter() if cuda else None
        cores.start()
        with timed_turns() as turns:
            folders = train_fleet(
                runs,
                out=folder,
                workers=options.workers,
                device=options.device,
                worker_python=options.worker_python,
                watch=clock,
            )
        cores.over = True
        used = meter.end() if meter else []
        policies = [str(one / "policy.safetensors") for one in folders]
        visited, raw_busy = raw_rate(task, options, policies)
        after, _ = raw_rate(task, options, ["-"])
        loop, _ = raw_rate(task, options, ["loop"])
    # From the moment every run has been through its first updates until the first run is through with its last.
    skip = 1 if updates > 2 else 0
    begin = max(marks[skip][0] for marks in clock.marks.values())
    end = min(marks[-1][0] for marks in clock.marks.values())
    if end <= begin:
        sys.exit("Some runs were over before others had begun: ask for more --updates.")
    counted = sum(_steps_at(marks, end) - _steps_at(marks, begin) for marks in clock.marks.values())
    rate = counted / max(end - begin, 1e-9)
    within = [percent for moment, percent in used if begin <= moment <= end]
    return {
        "method": method, "task": task, "runs": count, "rate": rate, "seconds_per_million": 1e6 * count / rate,
        "raw_random": [before, after], "raw_visited": visited, "raw_loop": loop,
        "gpu_utilisation": statistics.mean(within) if within else float("nan"),
        "gpu_megabytes": torch.cuda.max_memory_allocated() / 2**20 if cuda else 0.0,
        "resident_megabytes": clock.megabytes, "cores_busy": cores.busy(begin, end),
        "raw_cores_busy": raw_busy, "workers": options.workers, "measured_seconds": end - begin,
        "taken_up_ms": mean_ms(late for moment, late, _ in turns if begin <= moment <= end),
        "heard_ms": mean_ms(late for moment, _, late in turns if begin <= moment <= end),
        "revision": revision(), "spare_turns": SPARE_TURNS if options.spare_turns is None else options.spare_turns,
    }  # fmt: skip


def mean_ms(seconds: Iterable[float]) -> float:
    found = [1e3 * value for value in seconds]
    return statistics.mean(found) if found else float("nan")


def _steps_at(marks: list[tuple[float, int]], moment: float) -> float:
    """Steps of a run at a moment, between its updates by interpolation."""
    before = [mark for mark in marks if mark[0] <= moment]
    after = [mark for mark in marks if mark[0] > moment]
    if not before:
        return marks[0][1]
    if not after:
        return before[-1][1]
    (t0, s0), (t1, s1) = before[-1], after[0]
    return s0 + (s1 - s0) * (moment - t0) / (t1 - t0)


# --- the whole --------------------------------------------------------------------------------------------------------


def plot(rows: list[dict], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2))
    for task in dict.fromkeys(row["task"] for row in rows):
        own = sorted((row for row in rows if row["task"] == task), key=lambda row: row["runs"])
        sizes = [row["runs"] for row in own]
        left.plot(sizes, [row["seconds_per_million"] / row["runs"] for row in own], marker="o", label=task)
        right.plot(sizes, [row["resident_megabytes"] / row["runs"] for row in own], marker="o", label=task)
    left.set_title("seconds for a million steps, per run", fontsize=10)
    right.set_title("resident MB per run, learner and workers", fontsize=10)
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("runs in the fleet")
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3, which="both")
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="bcppo")
    parser.add_argument("--tasks", nargs="+", default=["goal1"])
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 5, 10, 30])
    parser.add_argument("--updates", type=int, default=6, help="updates of each run that are counted")
    parser.add_argument("--rounds", type=int, default=1, help="times that each fleet is measured: machines are noisy")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--worker-python")
    parser.add_argument("--spare-turns", type=int, help="simulators at work beyond one a core, to try others")
    parser.add_argument("--raw-seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--from-json", type=Path, nargs="+", help="draw these rows and measure nothing")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--raw-child", nargs=3, metavar=("TASK", "SECONDS", "POLICY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.raw_child:
        task, seconds, policy = options.raw_child
        raw_child(task, float(seconds), policy)
        return
    if options.spare_turns is not None:
        from bcppo import stacked

        if not 0 <= options.spare_turns <= options.workers - len(os.sched_getaffinity(0)):
            sys.exit("Turns beyond one a core need as many --workers more than there are cores.")
        stacked.SPARE_TURNS = options.spare_turns
    rows: list[dict] = [row for path in options.from_json or [] for row in json.loads(path.read_text())]
    if not rows:
        rows = benchmark(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.plot:
        plot(rows, options.plot)


def benchmark(options: argparse.Namespace) -> list[dict]:
    rows: list[dict] = []
    for task in options.tasks:
        print(f"\n{task}, {options.workers} workers; raw: physics alone, in steps/s, on the same cores\n", flush=True)
        print("| runs | steps/s, all | raw, random actions (before, after) | the runs' own states | bare loop "
              "| share of each | s per 10⁶ steps of all | cores busy %, raw % | turn taken up, heard, ms "
              "| GPU % | GPU MB | MB resident | window, s |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for count in (count for count in options.runs for _ in range(options.rounds)):
            row = measure(options.method, task, count, options.updates, options)
            rows.append(row)
            (before, after), visited, loop = row["raw_random"], row["raw_visited"], row["raw_loop"]
            shares = " / ".join(f"{row['rate'] / raw:.2f}" for raw in (before, after, visited, loop))
            print(
                f"| {count} | {row['rate']:,.0f} | {before:,.0f}, {after:,.0f} | {visited:,.0f} | {loop:,.0f} "
                f"| {shares} | {row['seconds_per_million']:,.0f} | {100 * row['cores_busy']:.0f}, "
                f"{100 * row['raw_cores_busy']:.0f} "
                f"| {row['taken_up_ms']:.1f}, {row['heard_ms']:.1f} | {row['gpu_utilisation']:.0f} "
                f"| {row['gpu_megabytes']:,.0f} | {row['resident_megabytes']:,.0f} | {row['measured_seconds']:.0f} |",
                flush=True,
            )
        if options.rounds > 1:
            for count in options.runs:
                own = [row["rate"] / row["raw_visited"] for row in rows if (row["task"], row["runs"]) == (task, count)]
                shares = ", ".join(f"{share:.2f}" for share in sorted(own))
                print(f"\n{count} runs, share of the runs' own states: {shares}; median {statistics.median(own):.2f}")
    return rows


if __name__ == "__main__":
    main()
