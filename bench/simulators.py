"""How fast the navigation tasks step: `python bench/simulators.py [--genuine PYTHON] [--episodes 4] [--rounds 7]`.

One run on one core. Per task, in environment steps a second with resets included:

- genuine: Safety-Gymnasium 1.0.0, run by the Python given with --genuine (see record_reference.py for how to make one);
- ours: the registered environment from `gymnasium.make`, in the loop a user would write;
- pure: ours without the compiled kernel;
- floor: the physics alone, ten `mj_step` and one `mj_forward`, on the same model from the same states under the same
  actions. No resets, no distances, no lidar, and Button's gremlins stand still during a step: less than what an
  environment step cannot do without.

Machines are noisy, so ours and the floor alternate episode by episode, and the genuine one takes its turn in every
round; a ratio is taken within each round, and the median of these is printed with their range.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

# Before NumPy is imported, here and in every process started from here.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np

TASKS = ("Goal1", "Button1", "Push1")
HORIZON = 1000
FLOOR_BAR = 0.85
STATE = ("qpos", "qvel", "qacc_warmstart", "mocap_pos", "mocap_quat")


def random_actions(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (HORIZON, 2))


# --- the genuine package, in a process of its own -------------------------------------------------------------------


def serve_genuine(task: str) -> None:
    """For each seed on standard input, print the steps and seconds of one episode, reset included."""
    import warnings

    warnings.filterwarnings("ignore")
    import safety_gymnasium

    env = safety_gymnasium.make(f"SafetyPoint{task}-v0")
    env.reset(seed=0)
    for line in sys.stdin:
        steps, seconds = play_genuine(env, int(line))
        print("RESULT", steps, seconds, flush=True)


def play_genuine(env, seed: int) -> tuple[int, float]:
    actions = random_actions(seed)
    steps = 0
    start = perf_counter()
    env.reset(seed=seed)
    for action in actions:
        _, _, _, terminated, truncated, _ = env.step(action)
        steps += 1
        if terminated or truncated:
            break
    return steps, perf_counter() - start


class Genuine:
    """The genuine environment behind a pipe."""

    def __init__(self, python: str, task: str) -> None:
        command = [python, __file__, "--serve", task]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def play(self, seed: int) -> tuple[int, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("RESULT"):
                _, steps, seconds = line.split()
                return int(steps), float(seconds)
        sys.exit("The Python given with --genuine could not run safety_gymnasium 1.0.0.")

    def close(self) -> None:
        self._process.communicate()


# --- ours and the floor ---------------------------------------------------------------------------------------------


def play_ours(env, seed: int) -> tuple[int, float]:
    actions = random_actions(seed)
    steps = 0
    start = perf_counter()
    env.reset(seed=seed)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        steps += 1
        if terminated or truncated:
            break
    return steps, perf_counter() - start


def play_floor(env, seed: int) -> tuple[int, float]:
    """The physics of that episode: played once to learn its states, then again from each, timing MuJoCo alone."""
    import mujoco

    model, data = env.unwrapped.model, env.unwrapped.data
    env.reset(seed=seed)
    moments = []
    for action in random_actions(seed):
        moments.append((data.time, action, [getattr(data, name).copy() for name in STATE]))
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    arrays = [getattr(data, name) for name in STATE]
    seconds = 0.0
    for data.time, action, values in moments:
        for array, value in zip(arrays, values):
            array[:] = value
        data.ctrl[:] = action
        start = perf_counter()
        mujoco.mj_step(model, data, 10)
        mujoco.mj_forward(model, data)
        seconds += perf_counter() - start
    return len(moments), seconds


def measure(task: str, genuine: str | None, episodes: int, rounds: int) -> dict[str, list[float]]:
    """Steps a second, one number a round."""
    import gymnasium

    import bcppo  # noqa: F401  (registers the tasks)

    env_id = f"bcppo/SafetyPoint{task}-v0"
    ours, shadow = gymnasium.make(env_id), gymnasium.make(env_id)
    os.environ["BCPPO_PURE_PYTHON"] = "1"
    pure = gymnasium.make(env_id)
    del os.environ["BCPPO_PURE_PYTHON"]
    compiled = type(ours.unwrapped._engine).__name__ == "KernelEngine"
    peer = Genuine(genuine, task) if genuine else None
    rates: dict[str, list[float]] = {"genuine": [], "ours": [], "pure": [], "floor": []}
    for round_ in range(-1, rounds):  # the first one warms up and is dropped
        totals = {name: [0.0, 0.0] for name in rates}
        for episode in range(episodes if round_ >= 0 else 1):
            seed = 1000 * (round_ + 1) + episode
            add(totals["ours"], play_ours(ours, seed))
            add(totals["floor"], play_floor(shadow, seed))
        os.environ["BCPPO_PURE_PYTHON"] = "1"
        add(totals["pure"], play_ours(pure, 1000 * (round_ + 1)))
        del os.environ["BCPPO_PURE_PYTHON"]
        if peer:
            add(totals["genuine"], peer.play(1000 * (round_ + 1)))
        if round_ >= 0:
            for name, (steps, seconds) in totals.items():
                if seconds:
                    rates[name].append(steps / seconds)
    if peer:
        peer.close()
    if not compiled:
        print("The compiled kernel was not built: 'ours' is the pure engine.", file=sys.stderr)
    return rates


def add(total: list[float], result: tuple[int, float]) -> None:
    total[0] += result[0]
    total[1] += result[1]


def ratio(one: list[float], other: list[float], digits: int) -> str:
    """Median of the rounds' ratios, and their range."""
    if not other:
        return "–"
    ratios = [a / b for a, b in zip(one, other)]
    return f"{statistics.median(ratios):.{digits}f} ({min(ratios):.{digits}f} to {max(ratios):.{digits}f})"


# --- the rest -------------------------------------------------------------------------------------------------------


def import_seconds(code: str) -> float:
    """Median time of a fresh Python that runs some code, of seven."""
    times = []
    for _ in range(7):
        start = perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(perf_counter() - start)
    return statistics.median(times)


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genuine", metavar="PYTHON", help="a Python 3.10 that has safety-gymnasium 1.0.0")
    parser.add_argument("--episodes", type=int, default=4, help="episodes of 1000 steps a round, ours and the floor")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", metavar="TASK", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_genuine(options.serve)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    packages = ", ".join(f"{name} {version(name)}" for name in ("mujoco", "numpy", "gymnasium"))
    print(f"One core of {cpu_model()}; Python {platform.python_version()}, {packages}.")
    print(f"Medians of {options.rounds} rounds of {options.episodes} episodes; ratios with their range over rounds.\n")
    print("| task | genuine, steps/s | ours | pure Python | floor | ours ÷ floor | bar | ours ÷ genuine |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for task in TASKS:
        rates = measure(task, options.genuine, options.episodes, options.rounds)
        middle = {name: f"{statistics.median(row):,.0f}" if row else "–" for name, row in rates.items()}
        over_floor, over_genuine = ratio(rates["ours"], rates["floor"], 2), ratio(rates["ours"], rates["genuine"], 1)
        print(
            f"| Point{task} | {middle['genuine']} | {middle['ours']} | {middle['pure']} | {middle['floor']} "
            f"| {over_floor} | ≥ {FLOOR_BAR} | {over_genuine} |",
            flush=True,
        )
    bare, ours = import_seconds("pass"), import_seconds("import bcppo")
    print(f"\n`python -c 'import bcppo'` takes {ours:.2f} s, {bare:.2f} s of it Python's own start (bar: < 0.5 s).")


if __name__ == "__main__":
    main()
