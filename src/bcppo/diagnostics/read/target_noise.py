"""Structured removal minus the matched control with noisy targets; the zero-noise replay must equal the control."""

from __future__ import annotations

import numpy as np

from bcppo.diagnostics.paper import TARGET_NOISE
from bcppo.diagnostics.read.coverage import draw_curves, per_fit, trained_for, where
from bcppo.diagnostics.report import COLORS, Drawing, Report, Table, panels
from bcppo.diagnostics.statistics import bootstrap_mean
from bcppo.diagnostics.store import Columns, Measured, groups

PRIMARY = 1.0
"""The noise multiplier that counts, fixed before analysis."""


def differences(measured: Measured) -> Columns:
    """One row a policy, score and noise level: removal minus noisy control."""
    fits = per_fit(measured)
    table: Columns = {
        name: [] for name in ("run", "task", "score", "noise", "noisy_ood_auc", "delta_ood_auc", "delta_error_rho")
    }
    for (run, score, kind, target, noise), noisy in fits.items():
        if kind == "replay":
            removal = fits[run, score, "removal", target, 0.0]
            values = (measured.runs[run]["name"], measured.runs[run]["task"], score, noise, noisy["ood_auc"])
            values = (*values, *(removal[name] - noisy[name] for name in ("ood_auc", "error_rho")))
            for name, value in zip(table, values):
                table[name].append(value)
    return table


def replay_difference(measured: Measured) -> dict[int, float]:
    """Run → largest difference, over held-out rows, between the zero-noise replay and the matched control."""
    largest: dict[int, float] = {}
    rows = dict(groups(measured.table("held_out"), "run", "score", "kind", "noise"))
    for (run, score, kind, noise), control in rows.items():
        if kind == "control":
            replay = rows[run, score, "replay", noise]
            apart = max(float(np.abs(replay[name] - control[name]).max()) for name in ("mean", "spread"))
            largest[run] = max(largest.get(run, 0.0), apart)
    return largest


def read(measured: Measured) -> Report:
    table = differences(measured)
    report = Report("Target noise")
    rows = []
    for score in dict.fromkeys(table["score"]):
        for noise in sorted(set(table["noise"])):
            own = where(table, score=score, noise=noise)
            change = [table["delta_ood_auc"][i] for i in own]
            positive = f"{sum(value > 0 for value in change)}/{len(own)}"
            paper = TARGET_NOISE[score] if noise == PRIMARY else "–"
            error = bootstrap_mean([table["delta_error_rho"][i] for i in own])
            level = f"{np.nanmean([table['noisy_ood_auc'][i] for i in own]):.3f}"
            rows.append((score, f"{noise:g}", level, bootstrap_mean(change), positive, error, paper))
    header = (
        "score",
        "noise",
        "OOD AUC, noisy control",
        "removal − noisy, OOD AUC",
        "> 0",
        "removal − noisy, ρ_err",
        "paper, OOD AUC",
    )
    title = f"Removal minus noisy control (primary: {PRIMARY:g})"
    report.tables.append(Table(title, header, rows, trained_for(measured)))
    report.tables.append(_by_task(table))
    apart = replay_difference(measured)
    exact = sum(value == 0.0 for value in apart.values())
    zero = [("largest difference, zero-noise replay − control", f"{max(apart.values(), default=0.0):g}", "0 (exact)")]
    zero.append(("policies with exactly 0", f"{exact}/{len(apart)}", "15/15"))
    report.tables.append(Table("Negative control", ("", "ours", "paper"), zero))
    if table["run"]:
        report.drawings += [_draw(table), draw_curves(measured)]
    return report


def _by_task(table: Columns) -> Table:
    rows = []
    for task in sorted(set(table["task"])):
        for score in dict.fromkeys(table["score"]):
            own = where(table, task=task, score=score, noise=PRIMARY)
            change = [table["delta_ood_auc"][i] for i in own]
            rows.append((task, score, bootstrap_mean(change), f"{sum(value > 0 for value in change)}/{len(own)}"))
    note = "The paper: Ant and Hopper above zero, Goal1 inconclusive."
    return Table("By task, at the primary noise", ("task", "score", "removal − noisy, OOD AUC", "> 0"), rows, note)


def _draw(table: Columns) -> Drawing:
    scores = list(dict.fromkeys(table["score"]))
    figure, axes = panels(len(scores))
    tasks = sorted(set(table["task"]))
    for axis, score in zip(axes, scores):
        for run in dict.fromkeys(table["run"]):
            own = where(table, score=score, run=run)
            color = COLORS[tasks.index(table["task"][own[0]])]
            axis.plot(
                [table["noise"][i] for i in own], [table["delta_ood_auc"][i] for i in own], "o-", color=color, alpha=0.7
            )
        axis.axhline(0.0, color="0.6", linestyle="--", linewidth=1)
        axis.set_title(f"removal − noisy control: {score}", fontsize=10)
        axis.set_xlabel("target noise, in stds of the clean target")
    axes[0].set_ylabel("Δ OOD AUC")
    for task, color in zip(tasks, COLORS):
        axes[-1].plot([], [], "o-", color=color, label=task)
    axes[-1].legend(frameon=False, fontsize=8)
    return Drawing("target-noise", figure, table)
