"""How strongly members agree on the common prediction, and in how many directions they deviate from it."""

from __future__ import annotations

import numpy as np

from bcppo.diagnostics.paper import DIVERSITY
from bcppo.diagnostics.report import Drawing, Report, Table, dots_by_task, panels
from bcppo.diagnostics.statistics import bootstrap_mean, mean_pairwise_correlation, normalized_effective_rank
from bcppo.diagnostics.store import Columns, Measured

STATISTICS = {
    "mean pairwise correlation": mean_pairwise_correlation,
    "normalised effective rank": normalized_effective_rank,
}


def per_run(measured: Measured) -> Columns:
    """One row a checkpoint."""
    probes = measured.tables.get("probes", {})
    rows: Columns = {"run": [], "task": [], **{name: [] for name in STATISTICS}}
    owner = np.asarray(probes.get("run", []))
    for index in dict.fromkeys(owner.tolist()):
        members = np.array([probes["predictions"][i] for i in np.flatnonzero(owner == index)])
        rows["run"].append(measured.runs[index]["name"])
        rows["task"].append(measured.runs[index]["task"])
        for name, statistic in STATISTICS.items():
            rows[name].append(statistic(members))
    return rows


def read(measured: Measured) -> Report:
    rows = per_run(measured)
    report = Report("Ensemble diversity")
    count = len(rows["run"])
    summary = [(name, bootstrap_mean(rows[name]), DIVERSITY[name]) for name in STATISTICS]
    report.tables.append(
        Table(f"Over {count} checkpoints", ("statistic", "ours [95 %]", "paper (21 checkpoints)"), summary)
    )
    each = [(*(rows[k][i] for k in ("run", "task")), *(f"{rows[k][i]:.3f}" for k in STATISTICS)) for i in range(count)]
    report.tables.append(Table("By checkpoint", ("run", "task", *STATISTICS), each))
    if count:
        figure, axes = panels(2)
        for axis, name in zip(axes, STATISTICS):
            dots_by_task(axis, rows["task"], rows[name], name, float(DIVERSITY[name]))
            axis.set_ylim(min(0.0, *rows[name]), 1.02)
        figure.supxlabel("a dot a checkpoint, a bar the task's mean, dashed: the paper's mean", fontsize=9)
        report.drawings.append(Drawing("diversity", figure, rows))
    return report
