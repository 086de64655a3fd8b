"""How fast a run trains, beside its peers and its floors: `python bench/training.py [--peers PYTHON] [--rounds 3]`.

One core, everything in one go, interleaved over rounds since machines are noisy: ours, OmniSafe 0.5.0's PPOLag and
Stable-Baselines3's PPO (2×256, 1024/512/3) as far as the Python given with --peers has them. Then where our time goes
(simulate, act, update, the rest), each beside its floor: the bare physics of the same steps, and the update's
floating-point operations over the rate at which this core multiplies matrices of the same shape. Last, PPOLag, FOCOPS
and CPO of this package beside OmniSafe's own, on Hopper; `--only` picks parts.

A peers' Python (3.11) is made with: torch, numpy 1.26, gymnasium 0.28.1 and mujoco 2.3.3 first, then
`pip install --no-deps omnisafe==0.5.0 safety-gymnasium==1.0.0 stable-baselines3==2.0.0` and what these import.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ENVIRONMENTS = {"goal1": "SafetyPointGoal1-v0", "hopper": "Hopper-v4"}
STEPS = {"ours": 16_384, "omnisafe": 4_096, "sb3": 8_192}
BARS = {("goal1", "omnisafe"): 15.0, ("hopper", "omnisafe"): 6.0, ("hopper", "sb3"): 2.5}
SAME = {"ppolag": ("PPOLag", 20), "focops": ("FOCOPS", 20), "cpo": ("CPO", 10)}
"""Ours → OmniSafe's name of the same algorithm, and the passes over a rollout."""
SAME_BAR = 5.0


# --- one measurement, in a process of its own -------------------------------------------------------------------------


def measure_ours(task: str, steps: int, method: str = "bcppo") -> dict[str, float]:
    import resource

    from bcppo.run import train

    with tempfile.TemporaryDirectory() as folder:
        run = train(task=task, method=method, steps=steps, eval_every=0, eval_episodes=1, out=Path(folder) / "run")
        rows = run.read_rows("timings")
    first = 1  # the first update pays for everything that happens once
    totals = {name: sum(rows[name][first:]) for name in ("collect", "act", "simulate", "update", "checkpoint")}
    counted = rows["step"][-1] - rows["step"][0]
    seconds = totals["collect"] + totals["update"] + totals["checkpoint"]
    phases = {f"{name}_us": 1e6 * value / counted for name, value in totals.items()}
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rate": counted / seconds, "megabytes": megabytes, **phases}


def measure_omnisafe(task: str, steps: int, algorithm: str = "PPOLag", passes: int = 20) -> dict[str, float]:
    _help_import()
    import omnisafe

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "train_cfgs": {"total_steps": steps, "vector_env_nums": 1, "torch_threads": 1, "device": "cpu"},
            "algo_cfgs": {"steps_per_epoch": 2048, "update_iters": passes, "batch_size": 256},
            "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
        }
        agent = omnisafe.Agent(algorithm, ENVIRONMENTS[task], custom_cfgs=settings)
        start = perf_counter()
        agent.learn()
        return {"rate": steps / (perf_counter() - start)}


def measure_sb3(task: str, steps: int) -> dict[str, float]:
    import gymnasium
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    settings = {"net_arch": {"pi": [256, 256], "vf": [256, 256]}}
    env = gymnasium.make(ENVIRONMENTS[task])
    agent = PPO("MlpPolicy", env, n_steps=1024, batch_size=512, n_epochs=3, policy_kwargs=settings, device="cpu")
    agent.learn(1024)
    start = perf_counter()
    agent.learn(steps, reset_num_timesteps=False)
    return {"rate": steps / (perf_counter() - start)}


def measure_floors(task: str, steps: int) -> dict[str, float]:
    """Microseconds a step: bare physics on a random policy's states; the update's arithmetic at this core's rate."""
    import mujoco
    import numpy as np

    import bcppo

    env = bcppo.make_task(task)
    observation, _ = env.reset(seed=0)
    base = env.unwrapped
    frames = getattr(base, "frame_skip", 10)
    random = np.random.default_rng(0)
    physics = 0.0
    for index in range(steps):
        action = random.uniform(-1, 1, env.action_space.shape)
        model, data = base.model, base.data
        saved = [np.copy(part) for part in (data.qpos, data.qvel, data.qacc_warmstart)], data.time
        data.ctrl[:] = action
        start = perf_counter()
        mujoco.mj_step(model, data, frames)
        if task == "goal1":
            mujoco.mj_forward(model, data)
        physics += perf_counter() - start
        for part, value in zip((data.qpos, data.qvel, data.qacc_warmstart), saved[0]):
            part[:] = value
        data.time = saved[1]
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset(seed=index)
    update = measure_update(task, observation.shape[0], env.action_space.shape[0])
    return {"physics_us": 1e6 * physics / steps, **update}


def measure_update(task: str, observation: int, action: int, tries: int = 15) -> dict[str, float]:
    """The update beside its arithmetic: between two updates, the rate at which this core multiplies matrices just then.

    Alternating keeps what else the machine does out of the ratio.
    """
    import torch

    from bcppo.algorithms.batch import Batch
    from bcppo.algorithms.bcppo import BCPPO
    from bcppo.nets import keep_freed_memory
    from bcppo.settings import BCPPOConfig
    from bcppo.streams import Streams

    torch.set_num_threads(1)
    keep_freed_memory()
    config = BCPPOConfig(task=task)
    learner = BCPPO([config], (observation, action), [Streams(0, 1)], torch.device("cpu"))
    rows = config.rollout
    seen, following = torch.randn(2, 1, rows, observation)
    sampled = torch.randn(1, rows, action)
    ends = torch.rand(1, rows) < 0.001
    reward, cost = torch.randn(1, rows).double(), torch.rand(1, rows).double()
    batch = Batch(seen, following, sampled, sampled.clamp(-1, 1), reward, cost, ends, ends, 1)
    learner.update(batch)
    operations = update_operations(config, observation, action)
    ratios, rates = [], []
    for _ in range(tries):
        before = gemm_rate(torch)
        start = perf_counter()
        learner.update(batch)
        seconds = perf_counter() - start
        rate = (before + gemm_rate(torch)) / 2
        ratios.append(seconds / (operations / rate))
        rates.append(rate)
    return {
        "update_ratio": statistics.median(ratios),
        "update_us": 1e6 * operations / statistics.median(rates) / config.rollout,
        "gflops": statistics.median(rates) / 1e9,
    }


def gemm_rate(torch) -> float:
    """Floating-point operations a second of [512, 256] × [256, 256] products in float32, over some 30 ms."""
    a, b, out = torch.randn(512, 256), torch.randn(256, 256), torch.empty(512, 256)
    start = perf_counter()
    for _ in range(40):
        torch.mm(a, b, out=out)
    return 40 * 2 * 512 * 256 * 256 / (perf_counter() - start)


def update_operations(config, observation: int, action: int) -> float:
    """Multiplications and additions of one update's matrix products.

    A layer costs 2·in·out a row forward, as much for its weights' gradient, and as much again for its input's, which
    the first layer has no use for. Added are the passes before the epochs: both values of s and s', and the old policy.
    """

    def forward(width: int, out: int) -> list[int]:
        sizes = [width, *config.hidden, out]
        return [2 * a * b for a, b in pairwise(sizes)]

    def training(layers: list[int]) -> int:
        return 3 * sum(layers) - layers[0]

    policy, value = forward(observation, action), forward(observation, 1)
    critic = forward(observation + action, 1)
    a_row = training(policy) + 2 * training(value) + config.members * training(critic)
    return config.rollout * (config.epochs * a_row + 4 * sum(value) + sum(policy))


def _help_import() -> None:
    """Safety-Gymnasium 1.0.0 gives dataclass fields arrays as defaults, which Python 3.11 refuses; let them pass."""
    import dataclasses

    import numpy as np

    original = dataclasses._get_field  # type: ignore[attr-defined]

    def lenient(cls, name, *rest):
        default = cls.__dict__.get(name)
        if isinstance(default, np.ndarray):
            setattr(cls, name, dataclasses.field(default_factory=lambda: default))
        return original(cls, name, *rest)

    dataclasses._get_field = lenient  # type: ignore[attr-defined]


MEASURES = {"ours": measure_ours, "omnisafe": measure_omnisafe, "sb3": measure_sb3, "floors": measure_floors}
MEASURES |= {f"ours:{name}": partial(measure_ours, method=name) for name in SAME}
MEASURES |= {
    f"omnisafe:{name}": partial(measure_omnisafe, algorithm=theirs, passes=passes)
    for name, (theirs, passes) in SAME.items()
}


# --- the whole benchmark ----------------------------------------------------------------------------------------------


def measure(python: str, what: str, task: str, steps: int) -> dict[str, float] | None:
    """One measurement in a fresh process on one core; None where that Python lacks the package."""
    core = str(sorted(os.sched_getaffinity(0))[0])
    command = ["taskset", "-c", core, python, __file__, "--child", what, task, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | THREADS, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"({what} on {task} did not run: {(done.stderr.strip().splitlines() or ['no output'])[-1]})")
        return None
    return json.loads(lines[-1].removeprefix("RESULT "))


def benchmark_same(peers: str, rounds: int) -> None:
    """The three methods that OmniSafe has too, on Hopper."""
    print("\n| method on hopper | ours, steps/s | OmniSafe's | ours ÷ it, median (range over rounds) | bar |")
    print("|---|---|---|---|---|", flush=True)
    for name in SAME:
        pairs = []
        for _ in range(rounds):
            ours = measure(sys.executable, f"ours:{name}", "hopper", 20_480)
            theirs = measure(peers, f"omnisafe:{name}", "hopper", 4_096)
            if ours and theirs:
                pairs.append((ours["rate"], theirs["rate"]))
        if pairs:
            ratios = [one / other for one, other in pairs]
            one, other = (statistics.median(column) for column in zip(*pairs))
            spread = f"{statistics.median(ratios):.1f}× ({min(ratios):.1f} to {max(ratios):.1f})"
            print(f"| {name} | {one:,.0f} | {other:,.0f} | {spread} | ≥ {SAME_BAR:g} |", flush=True)


def benchmark(peers: str | None, rounds: int, tasks: list[str]) -> None:
    for task in tasks:
        series: dict[str, list[dict[str, float]]] = {}
        wanted = ["floors", "ours"] + (["omnisafe"] + (["sb3"] if task == "hopper" else []) if peers else [])
        for _ in range(rounds):
            for what in wanted:
                python = peers if what in ("omnisafe", "sb3") and peers else sys.executable
                result = measure(python, what, task, STEPS.get(what, 2000))
                if result is not None:
                    series.setdefault(what, []).append(result)
        report(task, series)


def report(task: str, series: dict[str, list[dict[str, float]]]) -> None:
    def middle(what: str, key: str) -> float:
        return statistics.median(result[key] for result in series[what])

    print(f"\n## {task}\n\n| | steps/s | ours ÷ it, median (range over rounds) | bar |\n|---|---|---|---|")
    print(f"| bcppo (eight 2×256 networks) | {middle('ours', 'rate'):,.0f} | | |")
    for what in ("omnisafe", "sb3"):
        if what in series:
            ratios = [a["rate"] / b["rate"] for a, b in zip(series["ours"], series[what])]
            bar = f"≥ {BARS[task, what]}" if (task, what) in BARS else ""
            spread = f"{statistics.median(ratios):.1f}× ({min(ratios):.1f} to {max(ratios):.1f})"
            print(f"| {what} | {middle(what, 'rate'):,.0f} | {spread} | {bar} |")
    physics, arithmetic = middle("floors", "physics_us"), middle("floors", "update_us")
    simulate, update = middle("ours", "simulate_us"), middle("ours", "update_us")
    print("\n| phase | µs a step | floor | ours ÷ floor |\n|---|---|---|---|")
    print(f"| simulate (with cost and bookkeeping) | {simulate:.0f} | {physics:.0f} | {simulate / physics:.2f} |")
    print(f"| act | {middle('ours', 'act_us'):.0f} | | |")
    ratio = middle("floors", "update_ratio")  # alternating with the products it is made of, not over separate processes
    print(f"| update (GAE and controller included) | {update:.0f} | {arithmetic:.0f} | {ratio:.2f} (bar: < 2) |")
    print(f"| checkpoints | {middle('ours', 'checkpoint_us'):.1f} | | |")
    gflops, megabytes = middle("floors", "gflops"), middle("ours", "megabytes")
    print(f"\n{gflops:.0f} GFLOP/s on this core; {megabytes:.0f} MB resident at most.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="a Python that has OmniSafe and Stable-Baselines3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*ENVIRONMENTS, "same"], default=[*ENVIRONMENTS, "same"])
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "TASK", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, task, steps = options.child
        print("RESULT " + json.dumps(MEASURES[what](task, int(steps))))
    else:
        benchmark(options.peers, options.rounds, [part for part in options.only if part in ENVIRONMENTS])
        if options.peers and "same" in options.only:
            benchmark_same(options.peers, options.rounds)


if __name__ == "__main__":
    main()
