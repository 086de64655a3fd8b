"""Studies made up for tests and benchmarks: run folders with the columns of real ones, and no training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bcppo.algorithms import CONFIGS
from bcppo.config import RunConfig, protocol_id, to_json
from bcppo.records import FINISHED, RunFolder
from bcppo.settings import paper_preset
from bcppo.tasks.table import TASKS

PAPER_METHODS = ("bcppo", "cppo", "qrppo", "ppolag", "cpo", "focops", "wcsac")
PAPER_TASKS = ("goal1", "button1", "push1", "hopper", "ant")
SCALE = {"goal1": 20.0, "button1": 18.0, "push1": 1.0, "hopper": 2500.0, "ant": 3000.0}
RISK = {"bcppo": 0.3, "cppo": 0.25, "qrppo": 0.5, "ppolag": 1.6, "cpo": 1.9, "focops": 2.4, "wcsac": 0.8,
        "ppopid": 0.05}  # fmt: skip
QUALITY = {"ppolag": 1.4, "cpo": 1.4, "ppopid": 4.0}
"""ppopid would dominate them all, so that it shows where it is counted and should not be."""


def make_study(
    folder: Path,
    *,
    tasks: Sequence[str] = ("goal1", "hopper"),
    methods: Sequence[str] = ("bcppo", "cppo"),
    seeds: Sequence[int] = (0, 1),
    variants: dict[str, dict] | None = None,
    steps: int | None = 2048,
    name: str = "made-up",
) -> Path:
    """A study folder of made-up runs. `variants`: name → settings; `steps` None: the paper's own."""
    entries = []
    for task in tasks:
        for method in methods:
            for variant, changes in (variants or {"": {}}).items():
                for seed in seeds:
                    config = config_for(method, task, seed, steps, changes)
                    entries.append(_make_run(folder, method, variant, config))
    study = {"format": 1, "name": name, "title": f"Made-up numbers: {name}", "runs": entries}
    (folder / "study.json").write_text(json.dumps(study, indent=1))
    return folder


def config_for(method: str, task: str, seed: int, steps: int | None, changes: dict) -> RunConfig:
    kind = CONFIGS.get(method, CONFIGS["ppo"])  # a method this version lacks borrows PPO's settings
    preset = paper_preset(kind, task)
    settings = {"seed": seed, **({"steps": steps} if steps else {}), **changes}
    return dataclasses.replace(preset, **settings)


def _make_run(folder: Path, method: str, variant: str, config: RunConfig) -> dict:
    task, seed = config.task, config.seed
    run = f"{task}-{method}{'-' + variant.replace(' ', '-') if variant else ''}-seed{seed}"
    rng = np.random.default_rng([seed, len(variant), *run.encode()])
    target = RunFolder(folder / "runs" / run)
    target.create(method, config, "cpu")
    rollout = getattr(config, "rollout", 1000)  # WCSAC has none
    updates = -(-config.steps // rollout)
    target.write_rows("progress", _progress(rng, task, method, updates, rollout))
    target.write_rows("evaluations", _evaluations(rng, task, method, config, updates * rollout))
    target.set_status(FINISHED)
    return {
        "id": run, "task": task, "method": method, "variant": variant, "seed": seed,
        "protocol": protocol_id(method, config), "config": json.loads(json.dumps(to_json(config))),
    }  # fmt: skip


def _progress(rng: np.random.Generator, task: str, method: str, updates: int, rollout: int) -> dict[str, list]:
    rise = 1 - np.exp(-4 * np.arange(1, updates + 1) / updates)
    limit, level = TASKS[task].cost_limit_rate, RISK.get(method, 1.0)
    noise = rng.normal(0, 0.05, (4, updates)).cumsum(1) * 0.15
    cost = np.abs(limit * level * 0.6 * (1.5 - rise) * (1 + noise[0]))
    positive = np.maximum(0, 0.3 * np.sin(np.arange(updates) / 40 + rng.uniform(0, 6)) + noise[2] * 0.2)
    columns = {
        "update": np.arange(1, updates + 1),
        "step": np.arange(1, updates + 1) * rollout,
        "episode_return": SCALE[task] * rise * (1 + noise[1]) * rng.uniform(0.6, 1.0),
        "episode_cost_rate": cost,
        "cost_cvar95": cost * 1.6,
        "mean_cost": cost,
        "multiplier": positive,
        "multiplier_positive_share": (positive > 0).cumsum() / np.arange(1, updates + 1),
    }
    if method == "bcppo":
        columns["sigma_c"] = np.abs(0.3 * (1.2 - rise) * limit * (1 + noise[3])) + 1e-6
    return {name: values.tolist() for name, values in columns.items()}


def _evaluations(rng: np.random.Generator, task: str, method: str, config: RunConfig, end: int) -> dict[str, list]:
    rows: dict[str, list] = {}
    quality = rng.uniform(0.4, 1.0) * QUALITY.get(method, 0.9)
    limit = config.limit_rate
    for step, final in ((end // 2, False), (end, True)):
        for seed in config.eval_seeds:
            cost = limit * RISK.get(method, 1.0) * rng.gamma(2.0, 0.35)
            row = {
                "step": step, "final": final, "stochastic": False, "episode_seed": seed,
                "episode_return": float(SCALE[task] * quality * rng.normal(1.0, 0.2)), "cost_rate": float(cost),
                "native_cost": float(rng.integers(0, 60)), "boundary_hits": float(rng.integers(0, 9)), "length": 1000,
            }  # fmt: skip
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
    return rows
