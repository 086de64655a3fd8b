"""What the page's script draws from: plain lists and numbers, no NaN."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from itertools import count
from typing import Any

import polars as pl

from bcppo.config import OWN_TASK, to_json
from bcppo.report.canvas import COLOURS
from bcppo.report.curves import QUANTITIES, curves
from bcppo.report.entries import typed_config
from bcppo.report.figures import ABLATION_WINDOW, MAIN_WINDOW
from bcppo.report.load import StudyRecords
from bcppo.report.names import METHODS, TASKS, aside, in_order, label, task_label, variant_key
from bcppo.report.paper_tables import paper_value
from bcppo.report.stats import Statistics, with_frontier
from bcppo.report.tables import Cells
from bcppo.settings import paper_preset

SHAPES = ("diamond", "circle", "square", "up", "down", "plus", "cross", "left", "right")
DASHES = ("", "6 3", "6 2 1.5 2", "1.5 2.5", "9 3", "4 2 1 2 1 2", "1 1.5", "10 3 2 3")
DARK = {"wcsac": "#B9C0C7", "cppo": "#4BA3DB", "ppo": "#C4C4C4", "ppopid": "#B39DDB", "focops": "#E0B040"}
"""Lighter colours on dark ground where the light page's would sink into it."""
POINTS = 80


def page_data(records: StudyRecords, stats: Statistics) -> dict[str, Any]:
    cells = Cells(records, stats)
    keys = [(method, "") for method in cells.methods()] + cells.variants()
    index = {key: number for number, key in enumerate(keys)}
    return {
        "tasks": [_task(task, stats) for task in cells.tasks],
        "series": _series(keys),
        "points": _points(stats, index),
        "paper": _paper_points(cells, index),
        "curves": _curves(records, index),
        "runs": _runs(records, stats, index),
    }


def _task(task: str, stats: Statistics) -> dict[str, Any]:
    """A task and its limit; runs of one task that have several are not drawn with any (0)."""
    limits = stats.cells.filter(pl.col("task") == task)["limit_rate"].drop_nulls().unique().to_list()
    limit = limits[0] if len(limits) == 1 else 0.0
    return {"id": task, "label": task_label(task) + (f", limit {limit:.8g}" if limit else ""), "limit": limit}


def _series(keys: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """How each method and variant looks: a method always the same, a variant like none of the methods shown."""
    names = list(METHODS)
    own = {key: names.index(key[0]) for key in keys if key[0] in names and not key[1]}
    free = (place for place in count() if place not in own.values())
    series = []
    for key in keys:
        place = own[key] if key in own else next(free)
        light = COLOURS.get(names[place % len(names)], "#777777")
        series.append({
            "label": label(*key), "light": light, "dark": DARK.get(names[place % len(names)], light),
            "shape": SHAPES[place % len(SHAPES)], "dash": DASHES[place % len(DASHES)], "main": key == ("bcppo", ""),
        })  # fmt: skip
    return series


def _points(stats: Statistics, index: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    front = set(with_frontier(stats.cells).filter("frontier").select("task", "method").iter_rows())
    ours = aside(stats.cells["method"])
    points = []
    for row in stats.cells.filter(pl.col("return").is_not_null()).iter_rows(named=True):
        plain = row["variant"] == ""
        points.append({
            "task": row["task"], "series": index[row["method"], row["variant"]], "seeds": row["seeds"],
            "expected": row["expected"], "ret": row["return"], "retLow": row["return_low"],
            "retHigh": row["return_high"],
            "cvar": row["cvar95"], "cvarLow": row["cvar95_low"], "cvarHigh": row["cvar95_high"], "cost": row["cost"],
            "frontier": plain and (row["task"], row["method"]) in front, "aside": plain and row["method"] in ours,
        })  # fmt: skip
    return points


def _paper_points(cells: Cells, index: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    points = []
    for task in cells.tasks:
        for (method, variant), number in index.items():
            experiment, _ = cells.experiment(task, method, variant)
            found = {m: paper_value(experiment, task, method, variant, m) for m in ("return", "cost", "cvar95")}
            if all(found.values()):
                values = {metric: pair[0] for metric, pair in found.items() if pair}
                point = {"task": task, "series": number, "ret": values["return"], "cvar": values["cvar95"]}
                points.append(point | {"cost": values["cost"], "frontier": False})
    return points


def _curves(records: StudyRecords, index: dict[tuple[str, str], int]) -> dict[str, Any]:
    ablated = records.planned and any(variant for _, variant in index)
    shown = {}
    for quantity, name in QUANTITIES.items():
        update = quantity in ("sigma_c", "multiplier")
        window = ABLATION_WINDOW if ablated and update else MAIN_WINDOW if update else 1
        table = curves(records, quantity, window=window, spread="std" if ablated else "sem")
        lines = []
        for (task, method, variant), group in table.group_by(["task", "method", "variant"], maintain_order=True):
            every = max(1, math.ceil(group.height / POINTS))
            rows = group.reverse().gather_every(every).reverse()
            lines.append({
                "task": task, "series": index[method, variant], "x": rows["step"].to_list(),
                "mean": _rounded(rows["mean"]), "spread": _rounded(rows["spread"].fill_null(0.0)),
            })  # fmt: skip
        if lines:
            band = "sample standard deviation" if ablated else "standard error"
            how = (
                f"{window}-record rolling mean of each run"
                if update
                else "over the last 100 training episodes of a run"
            )
            shown[quantity] = {
                "label": name,
                "lines": lines,
                "note": f"{name}, {how}. Mean over training seeds ± {band}.",
            }
    return shown


def _rounded(values: pl.Series) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _runs(records: StudyRecords, stats: Statistics, index: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    metrics = {row["run"]: row for row in stats.runs.iter_rows(named=True)}
    columns = ["episode_seed", "episode_return", "cost_rate", "native_cost", "boundary_hits", "length"]
    episodes: dict[str, list[tuple]] = {}
    for run, *values in records.episodes.sort("run", "episode_seed").select("run", *columns).iter_rows():
        episodes.setdefault(run, []).append(tuple(values))
    problems: dict[str, list[str]] = {}
    for problem in records.problems:
        problems.setdefault(problem.run, []).append(problem.sentence)
    order = {task: number for number, task in enumerate(in_order(records.runs["task"], TASKS))}
    rows = sorted(
        records.runs.iter_rows(named=True),
        key=lambda row: (
            order[row["task"]],
            index[row["method"], row["variant"]],
            variant_key(row["variant"]),
            row["seed"],
        ),
    )
    shown = []
    for row in rows:
        own = metrics.get(row["id"], {})
        share = own.get("positive_share")
        shown.append({
            "id": row["id"], "task": row["task"], "series": index[row["method"], row["variant"]], "seed": row["seed"],
            "state": row["state"], "usable": row["usable"], "limit": row["limit_rate"] or 0.0, "ret": own.get("return"),
            "cost": own.get("cost"), "cvar": own.get("cvar95"), "safety": own.get("safety_rate"),
            "share": share if share is not None and math.isfinite(share) else None,
            "episodes": episodes.get(row["id"], []), "problems": problems.get(row["id"], []),
            "protocol": row["protocol"], "revision": row["revision"], "device": row["device"], "python": row["python"],
            "differs": row["differs"] or "",
            "command": train_command(row["id"], row["method"], json.loads(row["config"])),
        })  # fmt: skip
    return shown


def train_command(run: str, method: str, values: dict[str, Any]) -> str:
    """The command line that makes this run: every setting that is not the preset's."""
    try:
        config = typed_config(values)
    except ValueError:
        config = None
    if config is None:
        return "not known: the run's settings are of another version"
    if config.task == OWN_TASK:
        return "none: its environment came from Python, by make_env"
    ours, preset = to_json(config), to_json(paper_preset(type(config), config.task))
    words = [
        "bcppo",
        "train",
        "--task",
        config.task,
        "--method",
        method,
        "--seed",
        str(config.seed),
        "--out",
        f"runs/{run}",
    ]
    for field in dataclasses.fields(config):
        value, flag = ours[field.name], field.name.replace("_", "-")
        if field.name in ("task", "seed") or value == preset[field.name]:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)
