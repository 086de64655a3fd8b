"""Does the penalty steer the actor away from what the critics disagree on? Rollouts are averaged, then checkpoints."""

from __future__ import annotations

import numpy as np

from bcppo.diagnostics.paper import INTERVENTION
from bcppo.diagnostics.report import Drawing, Report, Table, dots_by_task, panels
from bcppo.diagnostics.statistics import (
    Interval,
    bootstrap_mean,
    partial_rank_correlation,
    spearman,
    standardized_slope,
)
from bcppo.diagnostics.store import Columns, Measured, groups

LABELS = {
    "rank": "held-out candidates: rank correlation given Q̂_c",
    "slope": "held-out candidates: standardised slope given Q̂_c",
    "rollout": "rollout actions: Spearman(R_B, Δ log π)",
    "delta_sigma": "post-update actions: Δσ_c (discounted)",
    "pooled_rank": "(secondary) rank correlation, candidates of a rollout pooled",
    "pooled_slope": "(secondary) slope, candidates of a rollout pooled",
}
SUCCESS_RULE = "rank and slope intervals both below zero"
"""Fixed before analysis, by the paper."""


def within_states(rows: dict[str, np.ndarray]) -> tuple[float, float]:
    """(rank, slope) association of R_B and Δ log π given Q̂_c, among the 16 candidates of a state; mean over states."""
    pairs = []
    for _, own in groups(rows, "state"):
        x, y, given = own["penalty"], own["change"], own["mean"]
        pairs.append((partial_rank_correlation(x, y, given), standardized_slope(x, y, given)))
    rank, slope = np.array(pairs).T
    return _mean(rank), _mean(slope)


def per_checkpoint(measured: Measured) -> Columns:
    """One row a checkpoint with λ > 0, its rollouts averaged."""
    values: dict[int, dict[str, list[float]]] = {}
    for (run, _), rows in groups(measured.table("candidates"), "run", "rollout"):
        own = values.setdefault(run, {name: [] for name in LABELS})
        rank, slope = within_states(rows)
        x, y, given = rows["penalty"], rows["change"], rows["mean"]
        for name, value in (
            ("rank", rank),
            ("slope", slope),
            ("pooled_rank", partial_rank_correlation(x, y, given)),
            ("pooled_slope", standardized_slope(x, y, given)),
        ):
            own[name].append(value)
    for (run, _), rows in groups(measured.table("update_actions"), "run", "rollout"):
        values[run]["rollout"].append(spearman(rows["penalty"], rows["change"]))
    for (run,), rows in groups(measured.table("pairs"), "run"):
        if run in values:
            values[run]["delta_sigma"] = (rows["treatment_spread"] - rows["control_spread"]).tolist()
    table: Columns = {"run": [measured.runs[run]["name"] for run in values]}
    table["task"] = [measured.runs[run]["task"] for run in values]
    return table | {name: [_mean(own[name]) for own in values.values()] for name in LABELS}


def succeeds(rank: Interval, slope: Interval) -> bool:
    """The success rule."""
    return rank.below_zero and slope.below_zero


def read(measured: Measured) -> Report:
    table, pairs = per_checkpoint(measured), measured.table("pairs")
    report = Report("Paired actor-update intervention")
    intervals = {name: bootstrap_mean(table[name]) for name in LABELS}
    rows: list[tuple] = []
    for name, label in LABELS.items():
        negative = f"{sum(value < 0 for value in table[name])}/{len(table[name])} negative"
        rows.append((label, intervals[name], negative, *INTERVENTION.get(name, ("–", "–"))))
    for name, label, difference in (
        ("zero_multiplier", "λ = 0: parameter difference", _of_checkpoints(pairs, "treatment_difference")),
        ("both_disabled", "both disabled: parameter difference", pairs.get("control_difference", np.zeros(0))),
    ):
        zero = f"{int((difference == 0).sum())}/{len(difference)} zero"
        rows.append((label, f"{difference.max():g}" if len(difference) else "–", zero, *INTERVENTION[name]))
    met = "met" if succeeds(intervals["rank"], intervals["slope"]) else "not met"
    note = f"Success rule, fixed before analysis: {SUCCESS_RULE}. Ours: {met}; the paper's: not met."
    count = len(table["run"])
    header = ("diagnostic", f"ours [95 %], {count} checkpoints", "direction", "paper, 5 checkpoints", "direction")
    report.tables.append(Table("Treatment minus control", header, rows, note))
    each = [(table["run"][i], *(f"{table[name][i]:.3g}" for name in LABELS)) for i in range(count)]
    report.tables.append(Table("By checkpoint", ("run", *LABELS), each))
    if count:
        figure, axes = panels(4)
        for axis, name in zip(axes, ("rank", "slope", "rollout", "delta_sigma")):
            title = {
                "rank": "rank, given μ_c",
                "slope": "slope, given μ_c",
                "rollout": "Spearman, rollout actions",
                "delta_sigma": "Δσ",
            }
            dots_by_task(axis, table["task"], table[name], title[name], 0.0)
        report.drawings.append(Drawing("intervention", figure, table))
    return report


def _of_checkpoints(pairs: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The largest difference of each checkpoint whose saved λ is 0."""
    own = [rows[name].max() for _, rows in groups(pairs, "run") if rows["multiplier"][0] == 0]
    return np.array(own)


def _mean(values) -> float:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")
