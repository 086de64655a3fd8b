"""What σ_c says about errors, costs, boundary hits and perturbed actions: each policy first, then over policies."""

from __future__ import annotations

import numpy as np

from bcppo.diagnostics.paper import CALIBRATION, CALIBRATION_TASKS
from bcppo.diagnostics.report import Drawing, Report, Table, dots_by_task, panels
from bcppo.diagnostics.statistics import auc, bootstrap_mean, spearman, upper_share
from bcppo.diagnostics.store import Columns, Measured, NotEligible, groups

LABELS = {
    "hit_auc": "boundary-hit AUC",
    "cost_rho": "Spearman(σ, step cost)",
    "error_rho": "Spearman(σ, abs. MC error)",
    "error_auc": "top-10 % error AUC",
    "action_auc": "perturbed-action AUC",
}
CHANCE = {"hit_auc": 0.5, "cost_rho": 0.0, "error_rho": 0.0, "error_auc": 0.5, "action_auc": 0.5}
TOP_ERRORS = 0.1


def policy_statistics(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """The five statistics of one policy's transitions."""
    error = np.abs(rows["mean"] - rows["cost_to_go"])
    both = np.concatenate([rows["spread"], rows["perturbed_spread"]])
    moved = np.repeat([False, True], len(rows["spread"]))
    return {
        "hit_auc": auc(rows["spread"], rows["boundary_hit"]),
        "cost_rho": spearman(rows["spread"], rows["cost"]),
        "error_rho": spearman(rows["spread"], error),
        "error_auc": auc(rows["spread"], upper_share(error, TOP_ERRORS)),
        "action_auc": auc(both, moved),
    }


def per_policy(measured: Measured) -> Columns:
    """One row a policy."""
    table: Columns = {"run": [], "task": [], "transitions": [], "episodes": [], "hits": [], **{k: [] for k in LABELS}}
    for (index,), rows in groups(measured.table("transitions"), "run"):
        table["run"].append(measured.runs[index]["name"])
        table["task"].append(measured.runs[index]["task"])
        table["transitions"].append(len(rows["cost"]))
        table["episodes"].append(len(np.unique(rows["episode"])))
        table["hits"].append(int(rows["boundary_hit"].sum()))
        for name, value in policy_statistics(rows).items():
            table[name].append(value)
    return table


def read(measured: Measured) -> Report:
    table = per_policy(measured)
    count = len(table["run"])
    _say_not_eligible(measured, table)
    report = Report("Calibration of σ")
    sizes = f"{sum(table['transitions']):,} / {sum(table['episodes'])} / {count}"
    rows: list[tuple] = [("transitions / episodes / policies", sizes, "223,607 / 300 / 15")]
    for name, label in LABELS.items():
        interval = bootstrap_mean(table[name])
        some = f" ({interval.policies}/{count})" if interval.policies < count else ""
        rows.append((label, f"{interval}{some}", CALIBRATION[name]))
    report.tables.append(Table("Over policies", ("statistic", "ours [95 %]", "paper (1M steps)"), rows))
    report.tables.append(_by_task(table))
    each = [
        (table["run"][i], table["hits"][i], *(_text(table[name][i]) for name in LABELS)) for i in range(count)
    ]  # fmt: skip
    report.tables.append(Table("By policy", ("run", "hits", *LABELS.values()), each))
    if count:
        figure, axes = panels(len(LABELS), width=3.4, columns=5)
        for axis, name in zip(axes, LABELS):
            dots_by_task(axis, table["task"], table[name], LABELS[name], CHANCE[name])
        figure.supxlabel("a dot a policy, a bar the task's mean, dashed: chance", fontsize=9)
        report.drawings.append(Drawing("calibration", figure, table))
    return report


def _say_not_eligible(measured: Measured, table: Columns) -> None:
    reasons = {
        "hit_auc": "its episodes hold {} boundary hits in {} transitions: one class only",
        "cost_rho": "σ or the cost is constant",
        "error_rho": "σ or the error is constant",
    }
    known = {(item.run, item.statistic) for item in measured.not_eligible}
    for name, reason in reasons.items():
        for i, value in enumerate(table[name]):
            if not np.isfinite(value) and (table["run"][i], LABELS[name]) not in known:
                text = reason.format(table["hits"][i], table["transitions"][i])
                measured.not_eligible.append(NotEligible(table["run"][i], LABELS[name], text))


def _by_task(table: Columns) -> Table:
    rows = []
    for task in sorted(set(table["task"])):
        own = [i for i, name in enumerate(table["task"]) if name == task]
        ours = [str(sum(table["hits"][i] for i in own))]
        ours += [
            _mean_std([table[name][i] for i in own], name == "hit_auc")
            for name in ("hit_auc", "error_rho", "action_auc")
        ]
        rows.append((task, *ours))
        rows.append((f"{task}, paper", *CALIBRATION_TASKS.get(task, ("–",) * 4)))
    note = "Mean ± sample standard deviation over policies."
    return Table("By task", ("task", "hits", "hit AUC", "error ρ", "action AUC"), rows, note)


def _mean_std(values: list[float], counts: bool) -> str:
    finite = [value for value in values if np.isfinite(value)]
    eligible = f" ({len(finite)}/{len(values)})" if counts else ""
    if not finite:
        return f"–{eligible}"
    spread = f" ± {np.std(finite, ddof=1):.3f}" if len(finite) > 1 else ""
    return f"{np.mean(finite):.3f}{spread}{eligible}"


def _text(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "–"
