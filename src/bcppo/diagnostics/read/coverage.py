"""Structured removal minus matched control, policy by policy: does σ_c mark what was left out?"""

from __future__ import annotations

from typing import Any

import numpy as np

from bcppo.diagnostics.paper import COVERAGE
from bcppo.diagnostics.report import COLORS, Drawing, Report, Table, dots_by_task, panels
from bcppo.diagnostics.statistics import auc, bootstrap_mean, spearman
from bcppo.diagnostics.store import Columns, Measured, NotEligible, groups

STATISTICS = ("ood_auc", "error_rho", "hit_auc")
KEYS = ("run", "score", "kind", "target", "noise")


def per_fit(measured: Measured) -> dict[tuple, dict[str, float]]:
    """(run, score, kind, target, noise) → statistics of that ensemble on held-out rows."""
    return {
        key: {
            "ood_auc": auc(rows["spread"], rows["omitted"]),
            "error_rho": spearman(rows["spread"], np.abs(rows["mean"] - rows["cost_to_go"])),
            "hit_auc": auc(rows["spread"], rows["boundary_hit"]),
            "exceedance": float(rows["members_above_strike"].mean()),
        }
        for key, rows in groups(measured.table("held_out"), *KEYS)
    }


def differences(measured: Measured) -> Columns:
    """One row a policy, score and target: control, removal and their difference."""
    fits = per_fit(measured)
    table: Columns = {"run": [], "task": [], "score": [], "target": []}
    for (run, score, kind, target, noise), control in fits.items():
        if kind != "control":
            continue
        removal = fits[run, score, "removal", target, noise]
        values = {
            "run": measured.runs[run]["name"],
            "task": measured.runs[run]["task"],
            "score": score,
            "target": target,
        }
        for name in STATISTICS:
            values |= {f"control_{name}": control[name], f"removal_{name}": removal[name]}
            values[f"delta_{name}"] = removal[name] - control[name]
        values |= {"control_exceedance": control["exceedance"], "removal_exceedance": removal["exceedance"]}
        for name, value in values.items():
            table.setdefault(name, []).append(value)
    return table


def read(measured: Measured) -> Report:
    table = differences(measured)
    _say_not_eligible(measured, table)
    report = Report("Missing coverage")
    report.tables.append(_main(table, measured))
    report.tables.append(_by_task(table))
    report.tables.append(_exceedance(table, measured))
    if table["run"]:
        report.drawings += [_draw(table), draw_curves(measured)]
    return report


def where(table: Columns, **wanted: Any) -> list[int]:
    return [i for i in range(len(table["run"])) if all(table[name][i] == value for name, value in wanted.items())]


def _main(table: Columns, measured: Measured) -> Table:
    rows = []
    for (score, target), paper in COVERAGE.items():
        own = where(table, score=score, target=target)
        if not own:
            continue
        change = {name: [table[f"delta_{name}"][i] for i in own] for name in STATISTICS}
        ood, error, hit = (bootstrap_mean(change[name]) for name in STATISTICS)
        levels = " → ".join(
            f"{np.nanmean([table[f'{kind}_ood_auc'][i] for i in own]):.3f}" for kind in ("control", "removal")
        )
        positive = sum(value > 0 for value in change["ood_auc"])
        ours = (f"{ood}", f"{error}", levels, f"{positive}/{len(own)}", f"{hit} ({hit.policies}/{len(own)})")
        rows += [
            (score, target.upper(), "ours", *ours),
            (score, target.upper(), "paper", *paper, "–", "inconclusive (6/15)"),
        ]
    header = (
        "score",
        "target",
        "",
        "Δ OOD AUC",
        "Δ ρ_err",
        "OOD AUC, control → removal",
        "Δ OOD AUC > 0",
        "Δ boundary AUC",
    )
    note = f"Brackets: 95 % bootstrap over policies. {trained_for(measured)}"
    return Table("Structured removal minus matched control", header, rows, note)


def trained_for(measured: Measured) -> str:
    """How long, and whether that was long enough."""
    updates, flat = (measured.settings.get(name) for name in ("updates", "flattened"))
    if not updates:
        return ""
    said = "when" if flat else "but NOT until"
    return f"Trained for {updates:,} updates, {said} the rule called the held-out losses flat."


def _by_task(table: Columns) -> Table:
    rows = []
    for task in sorted(set(table["task"])):
        for score, target in COVERAGE:
            own = where(table, task=task, score=score, target=target)
            if own:
                change = [table["delta_ood_auc"][i] for i in own]
                rows.append(
                    (task, score, target.upper(), bootstrap_mean(change), f"{sum(c > 0 for c in change)}/{len(own)}")
                )
    return Table("By task", ("task", "score", "target", "Δ OOD AUC", "Δ > 0"), rows)


def _exceedance(table: Columns, measured: Measured) -> Table:
    """The share of members at or above the strike, under controlled data removal (tab:theory_scope, first row)."""
    members = measured.settings.get("schedule", {}).get("members", 5)
    rows = []
    for score, target in COVERAGE:
        own = where(table, score=score, target=target)
        if own:
            shares = [
                np.mean([table[f"{kind}_exceedance"][i] for i in own]) / members for kind in ("control", "removal")
            ]
            rows.append((score, target.upper(), *(f"{share:.3f}" for share in shares)))
    note = "At the default strike Cantelli's bound is 0.237 and the Gaussian value 0.036."
    return Table("Members at or above the strike", ("score", "target", "control", "removal"), rows, note)


def _say_not_eligible(measured: Measured, table: Columns) -> None:
    known = {(item.run, item.statistic) for item in measured.not_eligible}
    for run in dict.fromkeys(table["run"]):
        for name, label in (("ood_auc", "OOD AUC"), ("hit_auc", "boundary AUC"), ("error_rho", "error correlation")):
            bad = [i for i in where(table, run=run) if not np.isfinite(table[f"delta_{name}"][i])]
            if bad and (run, label) not in known:
                which = ", ".join(sorted({f"{table['score'][i]}/{table['target'][i]}" for i in bad}))
                reason = f"one class only, or a constant, among its held-out transitions ({which})"
                measured.not_eligible.append(NotEligible(run, label, reason))


def _draw(table: Columns) -> Drawing:
    figure, axes = panels(4)
    for axis, (score, target) in zip(axes, COVERAGE):
        own = where(table, score=score, target=target)
        tasks, values = ([table[name][i] for i in own] for name in ("task", "delta_ood_auc"))
        dots_by_task(axis, tasks, values, f"Δ OOD AUC: {score}, {target.upper()} target", 0.0)
    return Drawing("coverage", figure, table)


def draw_curves(measured: Measured) -> Drawing:
    """Held-out loss over updates: one line an ensemble, so that it shows whether training had ended."""
    curves = measured.table("curves")
    kinds = list(dict.fromkeys(zip(curves["kind"].tolist(), curves["target"].tolist())))
    tasks = sorted({run["task"] for run in measured.runs})
    figure, axes = panels(len(kinds))
    for axis, (kind, target) in zip(axes, kinds):
        chosen = {name: v[(curves["kind"] == kind) & (curves["target"] == target)] for name, v in curves.items()}
        for (run, *_), rows in groups(chosen, "run", "score", "noise"):
            color = COLORS[tasks.index(measured.runs[run]["task"]) % len(COLORS)]
            axis.plot(rows["update"], rows["held_out_loss"], color=color, linewidth=0.8, alpha=0.7)
        axis.set_yscale("log")
        axis.set_title(f"{kind}, {target.upper()} target", fontsize=10)
        axis.set_xlabel("updates")
    axes[0].set_ylabel("held-out squared error / variance")
    for task, color in zip(tasks, COLORS):
        axes[-1].plot([], [], color=color, label=task)
    axes[-1].legend(frameon=False, fontsize=8)
    figure.supxlabel("a line an ensemble, a colour a task", fontsize=9)
    return Drawing("curves", figure, curves)
