"""Record trajectories of the genuine Safety-Gymnasium 1.0.0 for the tests to replay.

Run by a Python that has the genuine package, which needs Python 3.10 (it raises at import on later ones):

    python3.10 -m venv genuine
    genuine/bin/pip install safety-gymnasium==1.0.0
    genuine/bin/pip install --no-deps numpy==1.26.0
    genuine/bin/python bench/record_reference.py tests/data/safety_gymnasium_1_0_0.npz

The first install brings gymnasium 0.28.1 and mujoco 2.3.3; the second puts the paper's NumPy over the package's own
pin, which changes no trajectory.

For each of the nine environments, eight episodes are made on one environment object: resets with a seed, resets that
continue the random stream, resets before the time limit. Per step the file holds the action, the reward, each cost, the
flags, and a checksum of the observation's bytes (the sensors' and the lidars' apart); whole observations at resets and
at some steps. About three minutes.

`--variation 1` (2, 3, ...) records other seeds and actions; `BCPPO_REFERENCE=FILE.npz` makes the tests replay them.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import platform
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from policies import SENSORS, go_to_goal, push_the_box

NAMES = [f"{task}{level}" for task in ("goal", "button", "push") for level in range(3)]

FIRST_SEEDS = {"goal2": 10, "button1": 10, "button2": 11, "push0": 20, "push1": 22, "push2": 1}
"""Seeds at which the scripted policies meet several goals; push1's is one at which a fresh environment's first episode
differs in its digits from a used one's."""
SECOND_SEEDS = {"push1": 17}
ANY, FIRST, SECOND, LAST = 41, -2, -3, 4294967295
#   seed, actions, steps on level 1, steps elsewhere; None continues the random stream
EPISODES = (
    (FIRST, "scripted", 1000, 600),
    (None, "smooth", 300, 200),
    (None, "extreme", 250, 150),
    (None, "scripted", 300, 200),
    (LAST, "scripted float32", 300, 200),
    (None, "zero", 40, 40),
    (0, "extreme", 150, 100),
    (SECOND, "scripted", 600, 100),
)
TERMINATED, TRUNCATED, GOAL_MET = 1, 2, 4
PER_STEP = ["actions", "rewards", "costs", "flags", "sensors_crc", "lidars_crc"]
PER_RESET = ["layouts", "reset_observations"]
NOW_AND_THEN = ["kept", "observations"]


def main(path: Path, variation: int) -> None:
    warnings.filterwarnings("ignore")  # the package warns at every step about its own action space
    import gymnasium
    import mujoco
    import safety_gymnasium

    arrays: dict[str, np.ndarray] = {f"probe/{name}": value for name, value in probes().items()}
    for name in NAMES:
        make = functools.partial(safety_gymnasium.make, f"SafetyPoint{name.capitalize()}-v0")
        # An environment's first reset is special (see NavigationEnv.reset), so the costs' names come from another one.
        recording = record(make(), name, variation, _cost_names(make()))
        arrays |= {f"{name}/{key}": value for key, value in recording.items()}
        goals = int(np.sum(recording["flags"] & GOAL_MET > 0))
        cost = int(recording["costs"][:, -1].sum())
        print(f"{name}: {len(recording['rewards'])} steps, {goals} goals met, cost {cost}", flush=True)
    versions = {
        "safety_gymnasium": safety_gymnasium.__version__,
        "gymnasium": gymnasium.__version__,
        "mujoco": mujoco.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }
    arrays["versions"] = np.array(json.dumps(versions))
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB; {versions}")


def record(env, name: str, variation: int, cost_names: list[str]) -> dict[str, np.ndarray]:
    """All episodes of one environment; steps of all episodes follow each other in one array."""
    rng = np.random.default_rng((variation, NAMES.index(name)))
    seeds = [_seed(name, seed, variation) for seed, *_ in EPISODES]
    keep: dict[str, list] = {key: [] for key in PER_STEP + PER_RESET + NOW_AND_THEN}
    lengths = []
    for seed, (_, kind, long, short) in zip(seeds, EPISODES):
        observation, _ = env.reset(seed=seed)
        keep["layouts"].append(env.unwrapped.task.data.xpos.copy())
        keep["reset_observations"].append(observation)
        actions = _actions(kind, name[:-1], rng)
        next(actions)
        length = long if name.endswith("1") else short
        after_goal = False
        for step in range(length):
            action = actions.send(observation)
            observation, reward, cost, terminated, truncated, info = env.step(action)
            goal_met = "goal_met" in info
            if step < 3 or step % 50 == 0 or goal_met or after_goal or terminated or step == length - 1:
                keep["kept"].append(len(keep["rewards"]))
                keep["observations"].append(observation)
            after_goal = goal_met
            keep["actions"].append(action)
            keep["rewards"].append(reward)
            assert cost == info["cost_sum"]
            keep["costs"].append([info.get(cost_name, 0.0) for cost_name in cost_names])
            keep["flags"].append(terminated * TERMINATED + truncated * TRUNCATED + goal_met * GOAL_MET)
            keep["sensors_crc"].append(zlib.crc32(observation[:SENSORS].tobytes()))
            keep["lidars_crc"].append(zlib.crc32(observation[SENSORS:].tobytes()))
            if terminated or truncated:
                length = step + 1
                break
        lengths.append(length)
    small = {"costs": np.uint8, "flags": np.uint8, "sensors_crc": np.uint32, "lidars_crc": np.uint32, "kept": np.uint16}
    recording = {key: np.array(values, dtype=small.get(key, np.float64)) for key, values in keep.items()}
    return recording | {
        "lengths": np.array(lengths),
        "seeds": np.array([-1 if seed is None else seed for seed in seeds]),
        "float32": np.array(["float32" in kind for _, kind, *_ in EPISODES]),
        "cost_names": np.array(cost_names),
    }


def _seed(name: str, seed: int | None, variation: int) -> int | None:
    if seed is None or seed == LAST:
        return None if seed is None else LAST - variation
    special = {FIRST: FIRST_SEEDS.get(name, ANY), SECOND: SECOND_SEEDS.get(name, ANY + 1)}
    return special.get(seed, seed) + variation


def _cost_names(env) -> list[str]:
    env.reset(seed=1)
    for _ in range(30):  # the buttons' cost is only reported once their timer has run down
        names = set(env.step(np.zeros(2))[-1])
    return [*sorted(names - {"goal_met", "cost_sum"}), "cost_sum"]


def _actions(kind: str, task: str, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """A generator of actions: send it an observation, get the action."""
    scripted = push_the_box if task == "push" else go_to_goal(task)
    action, observation = np.zeros(2), (yield)
    while True:
        if kind == "scripted":
            action = scripted(observation)
        elif kind == "scripted float32":
            action = (scripted(observation) + 0.2 * rng.normal(size=2)).astype(np.float32)
        elif kind == "smooth":
            action = 0.8 * action + 0.6 * rng.normal(size=2)
        elif kind == "extreme" and rng.random() < 0.1:
            action = rng.choice([-1e6, -1.5, -1.0, 1.0, 3.0], 2)
        observation = yield action


def probes() -> dict[str, np.ndarray]:
    """Checksums of functions whose last digit depends on the CPU (which instructions NumPy and the C library choose).

    One number at a time, as the simulator calls them.
    """
    angles = [k * 0.00628 for k in range(1000)]
    points = [(3 * math.cos(7 * a) * (a - 3), 3 * math.sin(5 * a)) for a in angles]
    points = [(round(x, 9), round(y, 9)) for x, y in points]
    values = {
        "numpy_sin": [np.sin(a) for a in angles],
        "numpy_cos": [np.cos(a) for a in angles],
        "libm_sin": [math.sin(a) for a in angles],
        "libm_cos": [math.cos(a) for a in angles],
        "libm_atan2": [math.atan2(y, x) for x, y in points],
        "numpy_angle": [np.angle(complex(x, y)) for x, y in points],
        "numpy_abs": [np.abs(complex(x, y)) for x, y in points],
    }
    return {name: np.array(zlib.crc32(np.array(row).tobytes()), dtype=np.uint32) for name, row in values.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record trajectories of the genuine Safety-Gymnasium 1.0.0.")
    parser.add_argument("file", type=Path, help="where to write them: a .npz file")
    parser.add_argument("--variation", type=int, default=0, help="other seeds, other actions")
    arguments = parser.parse_args()
    main(arguments.file, arguments.variation)
