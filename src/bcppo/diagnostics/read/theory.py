"""The six checks of tab:theory_scope as six small tables and six panels."""

from __future__ import annotations

from typing import Any

import numpy as np

from bcppo.diagnostics.report import COLORS, Drawing, Report, Table, panels
from bcppo.diagnostics.store import Columns, Measured, groups


def read(measured: Measured) -> Report:
    report = Report("Checks of the idealised statements")
    tables = {name: measured.table(name) for name in measured.tables}
    makers = (_exceedance, _scores, _coupling, _propagation, _windup, _members, _concentration, _correlated)
    report.tables += [make(tables) for make in makers]
    report.drawings.append(_draw(tables, measured))
    return report


def _exceedance(tables: dict[str, Any]) -> Table:
    rows = []
    for (actions,), own in groups(tables["exceedance"], "actions"):
        share = own["share"]
        within = f"{int((share <= own['cantelli'] + 1e-12).sum())}/{len(share)}"
        span = f"{share.mean():.3f} ({share.min():.3f} to {share.max():.3f})"
        rows.append((actions, span, f"{own['gaussian'][0]:.3f}", f"{own['cantelli'][0]:.3f}", within))
    header = (
        "actions",
        "members at or above the strike, mean (range) over checkpoints",
        "Gaussian",
        "Cantelli",
        "within the bound",
    )
    return Table("1. Critic-output bound", header, rows)


def _scores(tables: dict[str, Any]) -> Table:
    rows = []
    table = tables["scores"]
    for (alpha,), own in groups(table, "alpha"):
        i = int(np.argmax(own["trajectories"]))
        n = own["trajectories"]
        rows.append(
            (
                f"{alpha:g}",
                f"{own['reference'][i]:.4f} / {own['sampled_reference'][i]:.4f}",
                f"{np.mean(n * own['tail_variance']):.3g} ≤ {np.mean(n * own['tail_bound']):.3g}",
                f"{np.mean(n * own['spread_variance']):.3g} ≤ {np.mean(n * own['spread_bound']):.3g}",
                f"{own['spread_bias'][i]:.3f}",
            )
        )
    header = (
        "α",
        "g*, exact / 10⁶ samples",
        "N·variance ≤ bound: tail score",
        "N·variance ≤ bound: spread score",
        "bias of the spread score",
    )
    note = (
        "A model with known quantile (8 Bernoulli steps). N·variance: mean over N = 10 … 1000, 2,000 replications each."
    )
    return Table("2. Bias and variance of the scores", header, rows, note)


def _coupling(tables: dict[str, Any]) -> Table:
    rows = []
    for (setting,), own in groups(tables["coupling"], "setting"):
        zero = f"{int((own['difference'] == 0).sum())}/{len(own['difference'])}"
        rows.append((setting, f"{own['effective_beta'][0]:.6g}", f"{own['difference'].max():.3g}", zero))
    header = ("setting", "β_eff", "largest parameter difference from base after one update", "bit-equal")
    return Table("3. Coefficient coupling", header, rows, "At λ = 1, on one 1,024-step rollout of each checkpoint.")


def _propagation(tables: dict[str, Any]) -> Table:
    rows = []
    for (kind, size), own in groups(tables["propagation"], "perturbed", "size"):
        relative = (own["largest_gap"] / own["penalty"]).max()
        rows.append(
            (kind, f"{size:g}", f"{own['measured'].mean():.4g}", f"{own['predicted'].mean():.4g}", f"{relative:.1e}")
        )
    header = ("perturbed", "relative size", "mean ΔR_B measured", "predicted", "largest gap / mean R_B")
    return Table("4. Critic-error propagation", header, rows, "By the unsimplified Call formula in float64.")


def _windup(tables: dict[str, Any]) -> Table:
    rows = []
    for (guarded,), own in groups(tables["windup"], "anti_windup"):
        held = own["integral"][own["outward"].astype(bool)]
        largest = f"{np.abs(held).max():.3g}" if len(held) else "–"
        positive = [np.mean(part["multiplier"] > 0) for _, part in groups(own, "run")]
        label = "with anti-windup" if guarded else "without"
        counts = f"{int(own['outward'].sum())}", f"{int(own['grew'].sum())}"
        rows.append((label, *counts, largest, f"{np.mean(positive):.1%}"))
    header = (
        "",
        "outward-saturated updates",
        "of these, integral grew",
        "largest integral in these, absolute",
        "updates with λ > 0",
    )
    note = "The runs' own mean costs replayed through the controller: open loop, so costs do not answer to λ."
    return Table("5. Anti-windup", header, rows, note)


def _members(tables: dict[str, Any]) -> Table:
    rows = []
    for (keep, correlation), own in groups(tables["members"], "keep", "correlation"):
        errors = ", ".join(f"{m}: {e:.3f}" for m, e in zip(own["members"], own["error"]))
        rows.append((f"{keep:g}", f"{correlation:.4f}", errors))
    header = ("mask keep", "mean pairwise correlation", "relative RMS error of σ against 16 members, by M")
    return Table("6a. Subsampled ensemble of one checkpoint", header, rows)


def _concentration(tables: dict[str, Any]) -> Table:
    rows = []
    for (name,), own in groups(tables["concentration"], "outputs"):
        outside = ", ".join(f"{m}: {o:.4f}" for m, o in zip(own["members"], own["outside"]))
        errors = ", ".join(f"{m}: {e:.3f}" for m, e in zip(own["members"], own["error"]))
        rows.append((name, f"{own['delta'][0]:g}", outside, errors))
    header = ("i.i.d. outputs", "δ", "share outside the radius, by M (must be ≤ δ)", "relative RMS error of σ, by M")
    return Table("6b. Concentration, simulated", header, rows)


def _correlated(tables: dict[str, Any]) -> Table:
    rows = []
    for (rho,), own in groups(tables["correlated"], "correlation"):
        ratio = ", ".join(f"{m}: {r:.3f}" for m, r in zip(own["members"], own["ratio"]))
        rows.append((f"{rho:g}", ratio, f"{(1 - rho) ** 0.5:.3f}"))
    header = ("correlation ρ of members", "RMS of σ over the true std, by M", "√(1 − ρ), the limit M → ∞")
    return Table(
        "6c. Correlated members, simulated", header, rows, "Correlation takes spread away that no M gives back."
    )


def _draw(tables: dict[str, dict[str, np.ndarray]], measured: Measured) -> Drawing:
    figure, axes = panels(6, columns=3)
    _draw_exceedance(axes[0], tables["exceedance"])
    for color, ((alpha,), own) in zip(COLORS, groups(tables["scores"], "alpha")):
        axes[1].loglog(
            own["trajectories"], own["tail_variance"], "o-", color=color, label=f"tail, α {alpha:g}", markersize=3
        )
        axes[1].loglog(own["trajectories"], own["spread_variance"], "s--", color=color, markersize=3)
    axes[1].set_title("variance of the score (dashed: spread)", fontsize=10)
    axes[1].set_xlabel("trajectories N")
    axes[1].legend(frameon=False, fontsize=7)
    names = [key[0] for key, _ in groups(tables["coupling"], "setting")]
    values = [own["difference"].max() for _, own in groups(tables["coupling"], "setting")]
    axes[2].barh(range(len(names)), values, color=COLORS[0])
    axes[2].set_yticks(range(len(names)), names, fontsize=7)
    axes[2].set_title("difference from base after an update", fontsize=10)
    _draw_propagation(axes[3], tables["propagation"])
    _draw_windup(axes[4], tables["windup"], measured)
    _draw_members(axes[5], tables)
    return Drawing("theory", figure, _drawn(tables))


def _draw_exceedance(axis: Any, table: dict[str, np.ndarray]) -> None:
    for color, ((actions,), own) in zip(COLORS, groups(table, "actions")):
        axis.plot(own["run"], own["share"], "o", color=color, label=f"{actions} actions")
    if table:
        axis.axhline(table["cantelli"][0], color="0.3", linestyle="--", linewidth=1, label="Cantelli")
        axis.axhline(table["gaussian"][0], color="0.3", linestyle=":", linewidth=1, label="Gaussian")
        axis.set_ylim(0, None)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("run")
    axis.set_title("share of members at or above the strike", fontsize=10)
    axis.legend(frameon=False, fontsize=7)


def _draw_propagation(axis: Any, table: dict[str, np.ndarray]) -> None:
    for color, ((kind,), own) in zip(COLORS, groups(table, "perturbed")):
        axis.plot(own["predicted"], own["measured"], "o", color=color, label=f"{kind} perturbed", markersize=4)
    if table:
        top = table["predicted"].max()
        axis.plot([0, top], [0, top], color="0.6", linewidth=1)
    axis.ticklabel_format(style="sci", scilimits=(0, 0))
    axis.set_xlabel("ΔR_B predicted")
    axis.set_ylabel("measured")
    axis.set_title("error propagation", fontsize=10)
    axis.legend(frameon=False, fontsize=7)


def _draw_windup(axis: Any, table: dict[str, np.ndarray], measured: Measured) -> None:
    saturated = {key[0]: int(own["outward"].sum()) for key, own in groups(table, "run")}
    if saturated:
        worst = max(saturated, key=lambda run: saturated[run])
        for color, ((guarded,), own) in zip(
            COLORS, groups({k: v[table["run"] == worst] for k, v in table.items()}, "anti_windup")
        ):
            label = "with anti-windup" if guarded else "without"
            axis.plot(own["update"], own["integral"], color=color, label=label)
        axis.set_title(f"integral, {measured.runs[worst]['name']} replayed", fontsize=10)
        axis.legend(frameon=False, fontsize=7)
    axis.set_xlabel("update")


def _draw_members(axis: Any, tables: dict[str, dict[str, np.ndarray]]) -> None:
    for color, ((name,), own) in zip(COLORS, groups(tables["concentration"], "outputs")):
        axis.loglog(
            own["members"], np.maximum(own["error"], 1e-4), "o-", color=color, label=f"i.i.d. {name}", markersize=3
        )
    for color, ((keep,), own) in zip(COLORS[3:], groups(tables["members"], "keep")):
        axis.loglog(own["members"], own["error"], "s--", color=color, label=f"critics, keep {keep:g}", markersize=3)
    axis.set_xlabel("members M")
    axis.set_title("relative RMS error of σ", fontsize=10)
    axis.legend(frameon=False, fontsize=7)


def _drawn(tables: dict[str, dict[str, np.ndarray]]) -> Columns:
    """Every number drawn, in long form: check, row, quantity, value."""
    rows: dict[str, list] = {"check": [], "row": [], "quantity": [], "value": []}
    for check in ("exceedance", "scores", "coupling", "propagation", "windup", "concentration", "members"):
        for quantity, values in tables[check].items():
            for row, value in enumerate(values.tolist()):
                for name, one in zip(rows, (check, row, quantity, str(value))):
                    rows[name].append(one)
    return rows
