"""Mean latency of one action: of a checkpoint's timed calls, then mean ± std over checkpoints, as the paper's."""

from __future__ import annotations

import numpy as np

from bcppo.diagnostics.paper import LATENCY
from bcppo.diagnostics.report import COLORS, Drawing, Report, Table, panels
from bcppo.diagnostics.store import Columns, Measured, groups


def per_checkpoint(measured: Measured) -> Columns:
    """One row a checkpoint, runtime and path; microseconds."""
    table: Columns = {name: [] for name in ("run", "method", "runtime", "ensemble", "mean", "median", "p99")}
    for (run, runtime, ensemble), rows in groups(measured.table("calls"), "run", "runtime", "ensemble"):
        own, taken = measured.runs[run], rows["microseconds"]
        values = (
            own["name"],
            own["method"],
            runtime,
            ensemble,
            taken.mean(),
            np.median(taken),
            np.quantile(taken, 0.99),
        )
        for name, value in zip(table, values):
            table[name].append(value)
    return table


def read(measured: Measured) -> Report:
    table = per_checkpoint(measured)
    report = Report("Latency of one action, batch 1, CPU")
    kinds = sorted(set(zip(table["method"], table["runtime"], table["ensemble"])))
    rows = []
    for method, runtime, ensemble in kinds:
        own = [
            i
            for i, kind in enumerate(zip(table["method"], table["runtime"], table["ensemble"]))
            if kind == (method, runtime, ensemble)
        ]
        means, medians, tails = (np.array([table[name][i] for i in own]) / 1000.0 for name in ("mean", "median", "p99"))
        spread = f" ± {means.std(ddof=1):.4f}" if len(own) > 1 else ""
        paper = LATENCY.get(method, ("–", "–"))[1 if ensemble else 0]
        path = "policy and ensemble" if ensemble else "policy"
        rows.append(
            (
                method,
                runtime,
                path,
                len(own),
                f"{means.mean():.4f}{spread}",
                f"{medians.mean():.4f}",
                f"{tails.mean():.4f}",
                paper,
            )
        )
    header = (
        "method",
        "runtime",
        "path",
        "checkpoints",
        "mean ± std (ms)",
        "median (ms)",
        "99th percentile (ms)",
        "paper (ms), torch",
    )
    report.tables.append(Table("Milliseconds a call", header, rows, "One thread. The paper's machine is another one."))
    if rows:
        report.drawings.append(_draw(table, kinds))
    return report


def _draw(table: Columns, kinds: list[tuple[str, str, bool]]) -> Drawing:
    figure, (axis,) = panels(1, width=6.5)
    for position, kind in enumerate(kinds):
        own = [
            table["median"][i] / 1000
            for i, k in enumerate(zip(table["method"], table["runtime"], table["ensemble"]))
            if k == kind
        ]
        axis.plot(own, [position] * len(own), "o", color=COLORS[0], alpha=0.7)
    axis.set_yticks(range(len(kinds)), [f"{m}, {r}{', with ensemble' if e else ''}" for m, r, e in kinds])
    axis.set_xscale("log")
    axis.set_xlabel("median milliseconds of one action, a dot a checkpoint")
    return Drawing("latency", figure, table)
