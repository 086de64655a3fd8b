"""A study's figures, as PDF and PNG, each with a CSV of the rows it draws.

Colours are told apart by readers with any colour vision (Okabe and Ito's), and no two methods share a marker or dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.records import write_atomically
from bcppo.report.bars import component_bars, sensitivity_bars
from bcppo.report.canvas import (
    COLOURS,
    DASHES,
    MARKERS,
    STYLE,
    Figure,
    add_legend,
    matplotlib_module,
    pale,
    panels_on,
    plain_log,
    steps_axis,
)
from bcppo.report.curves import QUANTITIES, curves, evaluation_points
from bcppo.report.load import StudyRecords
from bcppo.report.names import (
    COMPONENTS,
    METHODS,
    OURS,
    RAW_SIGMA,
    TASKS,
    in_order,
    label,
    task_label,
    variant_key,
)
from bcppo.report.stats import Statistics, with_frontier

MAIN_WINDOW, ABLATION_WINDOW = 25, 15
"""Records of the rolling means in the paper's curves of σ, and of its ablations."""


def figures_of(records: StudyRecords, stats: Statistics) -> list[Figure]:
    """Every figure a study gives."""
    several = with_frontier(stats.cells).group_by("task").len().filter(pl.col("len") > 1).height > 0
    found = [_pareto(stats)] if several else []
    varied = records.runs.filter(pl.col("variant") != "").height > 0
    ablated = varied and records.planned
    for quantity in QUANTITIES:
        if ablated and quantity in ("episode_cost_rate", "sigma_c", "multiplier"):
            found += _ablation_curves(records, quantity)
        elif not ablated:
            found += _training_curves(records, quantity)
    if varied:
        found += component_bars(stats) + sensitivity_bars(stats)
    return found


def write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write each as NAME.pdf, NAME.png and NAME.csv; returns the PNGs."""
    matplotlib = matplotlib_module()
    folder.mkdir(parents=True, exist_ok=True)
    images = []
    for figure in figures:
        with matplotlib.rc_context(STYLE):
            drawn = figure.draw()
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")  # laid out once, not again for each file
            _save(folder / f"{figure.name}.pdf", drawn, {"format": "pdf", "metadata": {"CreationDate": None}})
            _save(folder / f"{figure.name}.png", drawn, {"format": "png", "dpi": 170})
        _write_csv(folder / f"{figure.name}.csv", figure.rows)
        images.append(folder / f"{figure.name}.png")
    return images


def _save(path: Path, drawn: Any, options: dict[str, Any]) -> None:
    write_atomically(path, lambda part: drawn.savefig(part, **options))


def _write_csv(path: Path, rows: pl.DataFrame) -> None:
    write_atomically(path, rows.write_csv)


# --- reward against tail ---


def _pareto(stats: Statistics) -> Figure:
    cells = with_frontier(stats.cells)
    keep = [f"{m}{end}" for m in ("return", "cvar95") for end in ("", "_low", "_high")]
    rows = cells.select("task", "method", "seeds", "expected", "limit_rate", *keep, "frontier")
    tasks = in_order(rows["task"], TASKS)

    def draw() -> Any:
        matplotlib_module()
        figure, axes, place = panels_on(len(tasks))
        for axis, task in zip(axes, tasks):
            _draw_pareto(axis, rows.filter(pl.col("task") == task))
            axis.set_title(task_label(task))
        for axis in axes[:: min(3, len(axes))]:
            axis.set_ylabel("Return")
        add_legend(
            place, {label(method): {**_look(method), "linestyle": ""} for method in in_order(rows["method"], METHODS)}
        )
        return figure

    caption = (
        "Return against CVaR@95 of the cost per step (log axis); upper left is better. Bars: 95 % bootstrap "
        "intervals over "
        "training seeds. Filled markers and the dark line: not dominated. Dashed: the cost limit. An open ring "
        "around a "
        "marker: seeds are missing."
    )
    if rows["frontier"].has_nulls():
        caption += f" Pale: {METHODS[OURS]}, not in the paper and left out of what dominates."
    return Figure("pareto", caption, draw, rows)


def _draw_pareto(axis: Any, rows: pl.DataFrame) -> None:
    limit = rows["limit_rate"].drop_nulls().to_list()[:1]
    seen = [value for name in ("cvar95", "cvar95_low", "cvar95_high") for value in rows[name].drop_nulls()] + limit
    positive = [value for value in seen if value > 0] or [1.0]
    left, right = min(positive) / 1.35, max(positive) * 1.35
    axis.set_xscale("log")
    axis.set_xlim(left, right)
    plain_log(axis.xaxis, right / left)
    front = rows.filter("frontier").sort("cvar95")
    axis.plot(front["cvar95"].clip(left), front["return"], color="#333333", linewidth=1.1, zorder=1)
    for row in rows.sort("method").iter_rows(named=True):
        look, place = _look(row["method"]), (max(row["cvar95"], left), row["return"])  # no place for 0 on a log axis
        if not row["frontier"]:
            look["markerfacecolor"] = pale(look["color"]) if row["frontier"] is None else "white"
        axis.errorbar(
            *place, xerr=_bar(row, "cvar95"), yerr=_bar(row, "return"), linestyle="", elinewidth=0.8, capsize=1.8,
            zorder=3 if row["method"] == "bcppo" else 2, **look,
        )  # fmt: skip
        if row["seeds"] < row["expected"]:
            axis.plot(*place, "o", markersize=12, markerfacecolor="none", color=look["color"], markeredgewidth=0.6)
    for value in limit:
        axis.axvline(value, color="#888888", linestyle=(0, (4, 3)), linewidth=0.9, zorder=0)
    axis.set_xlabel("CVaR@95 per step")


def _look(method: str) -> dict[str, Any]:
    size = 6.5 if method == "bcppo" else 5
    return {"color": COLOURS.get(method, "#777777"), "marker": MARKERS.get(method, "*"), "markersize": size}


def _bar(row: dict, metric: str) -> list[list[float]] | None:
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    if low is None or high is None:
        return None
    return [[max(0.0, row[metric] - low)], [max(0.0, high - row[metric])]]


# --- curves ---


def _training_curves(records: StudyRecords, quantity: str) -> list[Figure]:
    window = MAIN_WINDOW if quantity in ("sigma_c", "multiplier") else 1
    rows = curves(records, quantity, window=window)
    points = evaluation_points(records) if quantity == "cost_cvar95" else None
    over = f"{window}-record rolling mean of each run" if window > 1 else "over the last 100 training episodes"
    caption = f"{QUANTITIES[quantity]} in training, {over}: mean over training seeds, band ± its standard error."
    if points is not None:
        caption += " Markers: the CVaR@95 of the fixed evaluation episodes recorded at that step."
    return _curve_figure(f"curves_{quantity}", caption, rows, quantity, points)


def _ablation_curves(records: StudyRecords, quantity: str) -> list[Figure]:
    rows = curves(records, quantity, window=ABLATION_WINDOW, spread="std").filter(pl.col("method") == "bcppo")
    groups = {"components": ("", *COMPONENTS), "scale": ("", RAW_SIGMA)}
    found = []
    for name, variants in groups.items():
        own = rows.filter(pl.col("variant").is_in(variants))
        if own["variant"].n_unique() < 2:
            continue
        caption = (
            f"{QUANTITIES[quantity]}: {ABLATION_WINDOW}-record rolling mean of each run; mean over training "
            f"seeds, band ± "
            "their sample standard deviation."
        )
        found += _curve_figure(f"{name}_{quantity}", caption, own, quantity, None)
    return found


def _curve_figure(
    name: str, caption: str, rows: pl.DataFrame, quantity: str, points: pl.DataFrame | None
) -> list[Figure]:
    if not rows.height:
        return []
    if quantity == "multiplier":
        caption += " Logarithmic from 1 on."
    tasks = in_order(rows["task"], TASKS)
    lines = rows.select("method", "variant").unique().rows(named=True)
    lines.sort(
        key=lambda row: (in_order([*METHODS, row["method"]], METHODS).index(row["method"]), variant_key(row["variant"]))
    )

    parts = {"training": rows} if points is None else {"training": rows, "evaluation": points}

    def draw() -> Any:
        matplotlib_module()
        figure, axes, place = panels_on(len(tasks))
        for axis, task in zip(axes, tasks):
            for number, line in enumerate(lines):
                own = (
                    (pl.col("task") == task)
                    & (pl.col("method") == line["method"])
                    & (pl.col("variant") == line["variant"])
                )
                _draw_curve(axis, rows.filter(own), None if points is None else points.filter(own), line, number)
            axis.set_title(task_label(task))
            steps_axis(axis, int(rows.filter(pl.col("task") == task)["step"].max()))  # type: ignore[arg-type]
            positive = (pl.col("task") == task) & (pl.col("mean") > 0)
            _scale(axis, quantity, *(part.filter(positive)["mean"].to_list() for part in parts.values()))
        for axis in axes[:: min(3, len(axes))]:
            axis.set_ylabel(QUANTITIES[quantity])
        add_legend(place, {label(**line): _line(line, number) for number, line in enumerate(lines)})
        return figure

    drawn = pl.concat([part.with_columns(kind=pl.lit(kind)) for kind, part in parts.items()])
    return [Figure(name, caption, draw, drawn)]


def _scale(axis: Any, quantity: str, curves: list[float], points: Sequence[float] = ()) -> None:
    """Costs on a log scale; multipliers, which are 0 most of the time and of very different sizes, on one from 1 on.

    `curves` and `points` are the values that are drawn, as far as they are positive."""
    if quantity == "cost_cvar95" and curves:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        # A band that reaches down to 0 would take the whole of the axis; points are shown however low they are.
        low = min([max(low, min(curves) / 10), *(point / 1.5 for point in points)])
        axis.set_ylim(low, high)
        plain_log(axis.yaxis, high / low)
    elif quantity == "multiplier":
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_ylim(0.0, max(1.0, axis.get_ylim()[1]))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif quantity != "episode_return":
        axis.set_ylim(bottom=max(axis.get_ylim()[0], 0.0))


def _draw_curve(axis: Any, rows: pl.DataFrame, points: pl.DataFrame | None, line: dict, number: int) -> None:
    if not rows.height:
        return
    look = _line(line, number)
    steps, mean, spread = (rows[name].to_numpy() for name in ("step", "mean", "spread"))
    axis.plot(steps, mean, zorder=3 if number == 0 else 2, **look)
    axis.fill_between(steps, mean - spread, mean + spread, color=look["color"], alpha=0.16, linewidth=0)
    if points is not None and points.height:
        own = {**_look(line["method"]), "markersize": 3.6, "linestyle": ""}
        axis.plot(points["step"], points["mean"], zorder=4, clip_on=False, **own)


def _line(line: dict, number: int) -> dict[str, Any]:
    palette = list(COLOURS.values())
    colour = palette[number % len(palette)] if line["variant"] else COLOURS.get(line["method"], "#777777")
    main = line["method"] == "bcppo" and not line["variant"]
    return {"color": colour, "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.8 if main else 1.1}
