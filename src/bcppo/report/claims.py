"""The paper's claims about its studies, and what a study of ours says to each, by a rule that is stated with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from bcppo.report import paper_tables as paper
from bcppo.report.entries import ABLATION, MAIN
from bcppo.report.load import StudyRecords
from bcppo.report.names import COMPARATORS, NAVIGATION, PAPER_METHODS, TASKS, canonical, label, task_label
from bcppo.report.stats import Statistics, dominance_counts, frontier, meets_mean_not_tail

REPRODUCED, PARTLY, NOT, OPEN = "reproduced", "partly", "not reproduced", "cannot be said yet"
AGREEING = 0.9
"""Share of the main table's cells that must agree for the table to be called reproduced."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper's, and what ours says to it."""

    title: str
    paper: str
    ours: str
    verdict: str
    rule: str
    details: tuple[str, ...] = ()


Cell = tuple[str, str, str]
Means = dict[Cell, dict]


class _Missing(Exception):
    """A claim needs cells the study does not have in full."""


def claims_of(records: StudyRecords, stats: Statistics) -> list[Claim]:
    """A verdict for every claim that concerns this kind of study; none of runs found that are not the paper's."""
    own = stats.cells.filter(pl.col("method").is_in(PAPER_METHODS))
    if not records.planned and not (own["paper"] != "").any():
        return []
    cells: Means = {(r["task"], r["method"], canonical(r["variant"])): r for r in own.iter_rows(named=True)}
    ablated = any(variant for _, _, variant in cells)
    checks = _ABLATION_CLAIMS if ablated else _MAIN_CLAIMS
    claims = []
    for title, said, rule, check in checks:
        if ablated and not any(variant in said_variants(title) for _, _, variant in cells):
            continue
        try:
            ours, verdict, details = check(cells, stats)
        except _Missing as error:
            ours, verdict, details = str(error), OPEN, []
        claims.append(Claim(title, said, ours, verdict, rule, tuple(details)))
    return claims


def said_variants(title: str) -> tuple[str, ...]:
    """The variants a claim about ablations is about."""
    return _VARIANTS.get(title, ())


def _need(cells: Means, wanted: Iterable[Cell], experiment: str) -> list[dict]:
    """The wanted cells, complete and in the paper's settings."""
    wanted = list(wanted)
    absent = [key for key in wanted if key not in cells]
    short = [key for key in wanted if key in cells and cells[key]["seeds"] < max(cells[key]["expected"], paper.SEEDS)]
    other = [key for key in wanted if key in cells and key not in short and cells[key]["paper"] != experiment]
    for keys, what in ((absent, "are not part of this study"), (short, "lack training seeds"),
                       (other, "have settings other than the paper's")):  # fmt: skip
        if keys:
            raise _Missing(f"{len(keys)} of the {len(wanted)} cells it needs {what}: {_names(keys)}.")
    return [cells[key] for key in wanted]


def _names(keys: list[Cell]) -> str:
    shown = [f"{label(method, variant)} on {task_label(task)}" for task, method, variant in keys]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _parts(held: int, count: int) -> str:
    return REPRODUCED if held == count else PARTLY if held else NOT


def _main_cells(cells: Means) -> list[dict]:
    return _need(cells, [(task, method, "") for task in TASKS for method in PAPER_METHODS], MAIN)


Answer = tuple[str, str, list[str]]


# --- the main study ---


def _non_dominated(cells: Means, stats: Statistics) -> Answer:
    rows = _main_cells(cells)
    held = []
    for task in TASKS:
        here = [row for row in rows if row["task"] == task]
        front = frontier([(row["return"], row["cvar95"]) for row in here])
        held.append(next(flag for row, flag in zip(here, front) if row["method"] == "bcppo"))
    details = [f"{task_label(t)}: {'not dominated' if ok else 'dominated'}" for t, ok in zip(TASKS, held)]
    return f"non-dominated in {sum(held)} of 5 tasks", _parts(sum(held), 5), details


def _dominance(cells: Means, stats: Statistics) -> Answer:
    counts = dominance_counts(pl.DataFrame(_main_cells(cells), infer_schema_length=None))
    total = sum(count for count, _ in counts.values())
    details = [f"{task_label(t)}: {counts[t][0]} of 6 (paper {paper.DOMINATED[t]})" for t in TASKS]
    near = abs(total - sum(paper.DOMINATED.values()))
    verdict = REPRODUCED if near <= 2 else PARTLY if total >= 7 else NOT
    return f"dominates {total} of 30", verdict, details


def _tail_gap(cells: Means, stats: Statistics) -> Answer:
    rows = _main_cells(cells)
    keys = {(row["task"], row["method"]) for row in rows}
    runs = stats.runs.filter(pl.col("variant") == "")
    runs = runs.filter(pl.struct("task", "method").map_elements(lambda r: (r["task"], r["method"]) in keys, pl.Boolean))
    count = meets_mean_not_tail(runs).height
    verdict = REPRODUCED if 9 <= count <= 36 else PARTLY if count else NOT
    return f"{count} of {runs.height} runs", verdict, []


def _both_axes(cells: Means, stats: Statistics) -> Answer:
    _main_cells(cells)
    own = stats.comparisons.filter(pl.col("favours") & pl.col("method").is_in(COMPARATORS))
    found = set(own.select("task", "method").iter_rows())
    same = found & set(paper.FAVOURED)
    ours = ", ".join(f"{task_label(t)}–{label(m)}" for t, m in sorted(found)) or "none"
    verdict = REPRODUCED if found == set(paper.FAVOURED) else PARTLY if same else NOT
    return ours, verdict, [f"{len(same)} of the paper's 3 pairs, {len(found - same)} others"]


def _multiplier(cells: Means, stats: Statistics) -> Answer:
    rows = _need(cells, [(task, "bcppo", "") for task in TASKS], MAIN)
    shares = {row["task"]: row["positive_share"] for row in rows}
    if any(share is None for share in shares.values()):
        raise _Missing("The share of updates is not on record for every task.")
    mean = sum(shares.values()) / len(shares)
    near = [task for task in TASKS if abs(shares[task] - paper.POSITIVE_SHARE[task]) <= 0.05]
    details = [f"{task_label(t)}: {shares[t]:.1%} (paper {paper.POSITIVE_SHARE[t]:.1%})" for t in TASKS]
    held = len(near) + (abs(mean - paper.POSITIVE_SHARE_MEAN) <= 0.05)
    return f"{mean:.1%} of updates", _parts(held, 6), details


def _navigation_tail(cells: Means, stats: Statistics) -> Answer:
    others = ("ppolag", "cpo", "focops")
    _need(cells, [(task, method, "") for task in NAVIGATION for method in ("bcppo", *others)], MAIN)
    held = [
        (task, other)
        for task in NAVIGATION
        for other in others
        if cells[task, "bcppo", ""]["cvar95"] < cells[task, other, ""]["cvar95"]
    ]
    return f"lower in {len(held)} of 9 comparisons", _parts(len(held), 9), []


def _same_cells(cells: Means, stats: Statistics) -> Answer:
    rows = _main_cells(cells)
    details, held, count = [], 0, 0
    for metric, name in (("return", "Return"), ("cost", "Cost"), ("cvar95", "CVaR@95")):
        agree = [agrees(row, metric) for row in rows]
        details.append(f"{name}: {sum(agree)} of {len(agree)}")
        held, count = held + sum(agree), count + len(agree)
    verdict = REPRODUCED if held >= AGREEING * count else PARTLY if held >= count / 2 else NOT
    return f"{held} of {count} cell means agree", verdict, details


def agrees(row: dict, metric: str) -> bool:
    """Whether a cell's mean and the paper's differ by at most two standard errors of their difference."""
    printed = paper.paper_value(row["paper"], row["task"], row["method"], row["variant"], metric)
    if printed is None:
        return False
    error = math.sqrt((row[f"{metric}_std"] or 0.0) ** 2 / row["seeds"] + printed[1] ** 2 / paper.SEEDS)
    rounding = 0.005 if metric == "return" else 0.0005
    return abs(row[metric] - printed[0]) <= 2 * error + rounding


COMPLETE = "All cells complete and in the paper's settings; otherwise it cannot be said yet."
_MAIN_CLAIMS = (
    ("BCPPO's mean reward–CVaR pair is non-dominated in every task", "non-dominated in 5 of 5 tasks",
     f"Reproduced: 5 of 5. Partly: 1 to 4. {COMPLETE}", _non_dominated),
    ("BCPPO dominates 13 of 30 comparator–task means", "13 of 30: 6 on Push1, 4 on Button1, 2 on Goal1, 1 on Ant",
     f"Reproduced: 11 to 15 of 30. Partly: 7 or more. {COMPLETE}", _dominance),
    ("A mean budget can be met while the tail exceeds it", "18 of 175 runs",
     f"Runs with Cost ≤ limit < CVaR@95. Reproduced: 9 to 36 runs. Partly: any. {COMPLETE}", _tail_gap),
    ("Intervals favour BCPPO on both axes against three comparators only", "Push1–FOCOPS, Push1–WCSAC, Ant–WCSAC",
     f"Paired 95 % bootstrap intervals of Return and CVaR@95. Reproduced: the same three pairs. Partly: one or more of "
     f"them. {COMPLETE}", _both_axes),
    ("BCPPO's navigation CVaR is below PPOLag's, CPO's and FOCOPS's", "lower in 9 of 9 comparisons",
     f"Means of CVaR@95. Reproduced: 9 of 9. Partly: 1 to 8. {COMPLETE}", _navigation_tail),
    ("The multiplier is positive in few updates", "14.2 % of updates",
     f"The mean over tasks and each task's share within 5 percentage points: reproduced if all six are, partly if any "
     f"is. {COMPLETE}", _multiplier),
    ("The cells of the main table", "105 printed means",
     f"A cell agrees if the means differ by at most two standard errors of their difference. Reproduced: 90 % agree. "
     f"Partly: half. {COMPLETE}", _same_cells),
)  # fmt: skip


# --- ablations ---


def _cell_pairs(cells: Means, variant: str, tasks: Iterable[str]) -> dict[str, tuple[dict, dict]]:
    """Task → (BCPPO's cell, the variant's cell)"""
    tasks = list(tasks)
    _need(cells, [(task, "bcppo", v) for task in tasks for v in ("", variant)], ABLATION)
    return {task: (cells[task, "bcppo", ""], cells[task, "bcppo", variant]) for task in tasks}


def _signs(pairs: dict[str, tuple[dict, dict]], expected: dict[tuple[str, str], int]) -> Answer:
    """Whether variant less BCPPO has the expected sign, part by part."""
    held, details = 0, []
    for (task, metric), sign in expected.items():
        full, variant = pairs[task]
        difference = variant[metric] - full[metric]
        good = difference * sign > 0
        held += good
        name = {"return": "Return", "cvar95": "CVaR@95", "cost": "Cost"}[metric]
        details.append(f"{task_label(task)} {name}: {difference:+.3g} ({'as' if good else 'not as'} in the paper)")
    return f"{held} of {len(expected)} differences have the paper's sign", _parts(held, len(expected)), details


def _no_penalty(cells: Means, stats: Statistics) -> Answer:
    pairs = _cell_pairs(cells, "no Bachelier", ("button1", "push1", "hopper"))
    return _signs(pairs, {("button1", "return"): -1, ("button1", "cvar95"): -1, ("push1", "return"): 1,
                          ("push1", "cvar95"): 1, ("hopper", "return"): -1, ("hopper", "cvar95"): 1})  # fmt: skip


def _bonus(cells: Means, stats: Statistics) -> Answer:
    pairs = _cell_pairs(cells, "uncertainty bonus", ("button1", "push1"))
    return _signs(pairs, {("button1", "cvar95"): 1, ("push1", "cvar95"): 1})


def _windup(cells: Means, stats: Statistics) -> Answer:
    tasks = ("button1", "push1", "hopper")
    return _signs(_cell_pairs(cells, "no anti-windup", tasks), {(task, "cvar95"): 1 for task in tasks})


def _normalization(cells: Means, stats: Statistics) -> Answer:
    pairs = _cell_pairs(cells, "no branch normalization", ("button1", "push1", "hopper"))
    return _signs(pairs, {("button1", "return"): 1, ("button1", "cvar95"): -1, ("push1", "cvar95"): 1,
                          ("hopper", "return"): -1, ("hopper", "cvar95"): 1})  # fmt: skip


def _raw(cells: Means, stats: Statistics) -> Answer:
    pairs = _cell_pairs(cells, "raw sigma", ("button1", "push1"))
    return _signs(pairs, {(task, metric): -1 for task in pairs for metric in ("cost", "cvar95")})


_SWEEP = ("beta=0.05", "beta=0.1", "beta=0.25", "beta=0.4", "kappa=0", "kappa=0.1", "kappa=0.3", "alpha=0.9",
          "alpha=0.99", "M=1", "M=3", "M=10")  # fmt: skip


def _lowest_tail(cells: Means, stats: Statistics) -> Answer:
    rows = _need(cells, [("push1", "bcppo", variant) for variant in ("", *_SWEEP)], ABLATION)
    lowest = sorted(rows, key=lambda row: row["cvar95"])[:2]
    names = [canonical(row["variant"]) or "the default" for row in lowest]
    return f"lowest: {names[0]}, then {names[1]}", _parts(len({"beta=0.1", "kappa=0.3"} & set(names)), 2), []


def _single_critic(cells: Means, stats: Statistics) -> Answer:
    rows = _need(cells, [("push1", "bcppo", variant) for variant in ("", *_SWEEP)], ABLATION)
    widest = canonical(max(rows, key=lambda row: row["cvar95_std"])["variant"]) or "the default"
    return f"largest at {widest}", REPRODUCED if widest == "M=1" else NOT, []


_ABLATION_CLAIMS = (
    ("The spread penalty trades reward against CVaR", "without it: Button1 both lower, Push1 both higher, Hopper worse",
     f"Signs of six differences of means. Reproduced: all; partly: any. {COMPLETE}", _no_penalty),
    ("Disagreement as a reward bonus raises navigation CVaR", "higher on Button1 and Push1",
     f"Signs of two differences. Reproduced: both; partly: one. {COMPLETE}", _bonus),
    ("Without anti-windup CVaR is higher", "higher in 3 of 3 tasks",
     f"Signs of three differences. Reproduced: all; partly: any. {COMPLETE}", _windup),
    ("Branch normalisation is scale control", "without it Button1 improves, Push1's CVaR rises, Hopper degrades",
     f"Signs of five differences. Reproduced: all; partly: any. {COMPLETE}", _normalization),
    ("The raw penalty acts at another scale", "lower Cost and CVaR on Button1 and Push1",
     f"Signs of four differences. Reproduced: all; partly: any. {COMPLETE}", _raw),
    ("β = 0.10 and κ = 0.30 have the lowest mean CVaR on Push1", "0.190 and 0.194",
     f"The two lowest means of the sweep. Reproduced: the same two; partly: one of them. {COMPLETE}", _lowest_tail),
    ("With one critic the CVaR varies most on Push1", "standard deviation 1.602 at M = 1",
     f"The largest standard deviation of the sweep is at M = 1. {COMPLETE}", _single_critic),
)  # fmt: skip
_VARIANTS = {
    claim[0]: variants
    for claim, variants in zip(
        _ABLATION_CLAIMS,
        (("no Bachelier",), ("uncertainty bonus",), ("no anti-windup",), ("no branch normalization",), ("raw sigma",),
         _SWEEP, _SWEEP),
    )
}  # fmt: skip
