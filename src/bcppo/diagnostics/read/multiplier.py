"""The share of updates with λ > 0: per run, per task, overall with equal weight a run."""

from __future__ import annotations

import numpy as np

from bcppo.diagnostics.paper import MULTIPLIER_SHARE, MULTIPLIER_SHARE_OVERALL
from bcppo.diagnostics.report import COLORS, Drawing, Report, Table, dots_by_task, panels
from bcppo.diagnostics.store import Measured, groups


def shares(measured: Measured) -> dict[int, float]:
    """Run → share of its updates with λ > 0."""
    return {key[0]: float(np.mean(rows["multiplier"] > 0)) for key, rows in groups(measured.table("updates"), "run")}


def read(measured: Measured) -> Report:
    share, runs = shares(measured), measured.runs
    report = Report("Multiplier activity")
    by_task: dict[str, list[float]] = {}
    for index, value in share.items():
        by_task.setdefault(runs[index]["task"], []).append(value)
    rows = [
        (
            task,
            len(values),
            f"{np.mean(values):.1%}",
            f"{MULTIPLIER_SHARE[task]:.1%}" if task in MULTIPLIER_SHARE else "–",
        )
        for task, values in sorted(by_task.items())
    ]
    if share:
        overall = f"{np.mean(list(share.values())):.1%}"
        rows.append(("all runs", len(share), overall, f"{MULTIPLIER_SHARE_OVERALL:.1%} (five tasks)"))
    report.tables.append(Table("Updates with λ > 0", ("task", "runs", "ours", "paper (1M steps)"), rows))
    each = [(runs[i]["name"], runs[i]["task"], f"{value:.1%}") for i, value in share.items()]
    report.tables.append(Table("By run", ("run", "task", "updates with λ > 0"), each))
    if share:
        report.drawings.append(_draw(measured, share))
    return report


def _draw(measured: Measured, share: dict[int, float]) -> Drawing:
    tasks = [measured.runs[index]["task"] for index in share]
    figure, (left, right) = panels(2)
    dots_by_task(left, tasks, list(share.values()), "share of updates with λ > 0")
    names = sorted(set(tasks))
    for position, name in enumerate(names):
        if name in MULTIPLIER_SHARE:
            label = "paper (1M steps)" if position == 0 else None
            left.plot(position, MULTIPLIER_SHARE[name], "x", color="black", markersize=8, label=label)
    left.legend(frameon=False, fontsize=8)
    updates = measured.table("updates")
    for (index,), rows in groups(updates, "run"):
        color = COLORS[names.index(measured.runs[index]["task"])]
        right.plot(rows["step"], rows["multiplier"], color=color, linewidth=0.8, alpha=0.8)
    for name, color in zip(names, COLORS):
        right.plot([], [], color=color, label=name)
    right.legend(frameon=False, fontsize=8)
    right.set_title("λ over training", fontsize=10)
    right.set_xlabel("environment steps")
    return Drawing("multiplier", figure, updates)
