"""A study's figures, as PDF and PNG, each with a CSV of the rows it draws.

Colours are told apart by readers with any colour vision (Okabe and Ito's), and no two methods share a marker or dash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bcppo.errors import MissingDependency
from bcppo.records import write_atomically
from bcppo.report.curves import QUANTITIES, curves, evaluation_points
from bcppo.report.load import StudyRecords
from bcppo.report.names import (
    COMPONENTS,
    METHODS,
    RAW_SIGMA,
    TASKS,
    canonical,
    in_order,
    label,
    task_label,
    variant_key,
)
from bcppo.report.stats import Statistics, with_frontier

MAIN_WINDOW, ABLATION_WINDOW = 25, 15
"""Records of the rolling means in the paper's curves of σ, and of its ablations."""

COLOURS = {
    "bcppo": "#D55E00", "cppo": "#0072B2", "qrppo": "#009E73", "ppolag": "#CC79A7", "cpo": "#56B4E9",
    "focops": "#B8860B", "wcsac": "#4D4D4D", "ppopid": "#7B5EA7", "ppo": "#999999",
}  # fmt: skip
MARKERS = {
    "bcppo": "D", "cppo": "o", "qrppo": "s", "ppolag": "^", "cpo": "v", "focops": "P", "wcsac": "X",
    "ppopid": "<", "ppo": ">",
}  # fmt: skip
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)))
STYLE = {
    "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E4E4E4", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "lines.linewidth": 1.3, "pdf.fonttype": 42, "axes.titlelocation": "left",
    "axes.titleweight": "bold", "axes.edgecolor": "#666666", "svg.hashsalt": "bcppo",
}  # fmt: skip
WIDTH = 7.0
"""Inches: the text width of a two-column page."""


@dataclass(frozen=True)
class Figure:
    """A figure, and the rows it draws."""

    name: str
    caption: str
    draw: Callable[[], Any]
    rows: pl.DataFrame


def figures_of(records: StudyRecords, stats: Statistics) -> list[Figure]:
    """Every figure a study gives."""
    several = with_frontier(stats.cells).group_by("task").len().filter(pl.col("len") > 1).height > 0
    found = [_pareto(stats)] if several else []
    ablated = records.runs.filter(pl.col("variant") != "").height > 0
    for quantity in QUANTITIES:
        if ablated and quantity in ("episode_cost_rate", "sigma_c", "multiplier"):
            found += _ablation_curves(records, quantity)
        elif not ablated:
            found += _training_curves(records, quantity)
    if ablated:
        found += _component_bars(stats) + _sensitivity_bars(stats)
    return found


def write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write each as NAME.pdf, NAME.png and NAME.csv; returns the PNGs."""
    matplotlib = _matplotlib()
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


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.ticker
    except ImportError:
        raise MissingDependency("Figures need matplotlib: pip install 'bcppo[report]'.") from None
    return matplotlib


# --- panels ---


def _panels(count: int, *, height: float = 2.05, legend: bool = True) -> tuple[Any, list[Any], Any]:
    """(figure, axes, axis for the legend): three across; the legend takes a free place, or a strip below."""
    from matplotlib.figure import Figure as Canvas

    columns = min(3, count)
    rows = math.ceil(count / columns)
    free = rows * columns - count > 0
    width = {1: 0.62, 2: 0.85}.get(columns, 1.0) * WIDTH
    strip = 0.35 if legend and not free else 0.0
    figure = Canvas(figsize=(width, rows * height + strip), layout="constrained")
    grid = figure.add_gridspec(rows + (strip > 0), columns, height_ratios=[height] * rows + [strip] * (strip > 0))
    axes = [figure.add_subplot(grid[i // columns, i % columns]) for i in range(count)]
    place = figure.add_subplot(grid[rows, :] if strip else grid[rows - 1, columns - 1]) if legend else None
    if place is not None:
        place.axis("off")
    return figure, axes, place


def _legend(place: Any, entries: dict[str, dict[str, Any]]) -> None:
    """Name → how its line or marker looks."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look) for look in entries.values()]
    strip = place.get_subplotspec().colspan.start == 0
    columns = min(5, len(handles)) if strip else 1 if len(handles) <= 6 else 2
    place.legend(handles, list(entries), loc="center", ncols=max(1, columns), frameon=False, handlelength=2.4)


def _plain_log(axis: Any, ratio: float) -> None:
    """Ticks at 1, 2 and 5 where a log axis is short, written as plain numbers."""
    ticker = _matplotlib().ticker
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if ratio < 30 else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def _steps_axis(axis: Any, steps: int) -> None:
    unit, name = (1e6, "M") if steps >= 4e5 else (1e3, "k")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}{name}" if value else "0")
    axis.xaxis.set_major_locator(_matplotlib().ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_xlim(0, steps * 1.02)
    axis.set_xlabel("Environment steps")


# --- reward against tail ---


def _pareto(stats: Statistics) -> Figure:
    cells = with_frontier(stats.cells)
    keep = [f"{m}{end}" for m in ("return", "cvar95") for end in ("", "_low", "_high")]
    rows = cells.select("task", "method", "seeds", "expected", "limit_rate", *keep, "frontier")
    tasks = in_order(rows["task"], TASKS)

    def draw() -> Any:
        _matplotlib()
        figure, axes, place = _panels(len(tasks))
        for axis, task in zip(axes, tasks):
            _draw_pareto(axis, rows.filter(pl.col("task") == task))
            axis.set_title(task_label(task))
        for axis in axes[:: min(3, len(axes))]:
            axis.set_ylabel("Return")
        _legend(
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
    return Figure("pareto", caption, draw, rows)


def _draw_pareto(axis: Any, rows: pl.DataFrame) -> None:
    limit = rows["limit_rate"].drop_nulls().to_list()[:1]
    seen = [value for name in ("cvar95", "cvar95_low", "cvar95_high") for value in rows[name].drop_nulls()] + limit
    positive = [value for value in seen if value > 0] or [1.0]
    left, right = min(positive) / 1.35, max(positive) * 1.35
    axis.set_xscale("log")
    axis.set_xlim(left, right)
    _plain_log(axis.xaxis, right / left)
    front = rows.filter("frontier").sort("cvar95")
    axis.plot(front["cvar95"].clip(left), front["return"], color="#333333", linewidth=1.1, zorder=1)
    for row in rows.sort("method").iter_rows(named=True):
        look, place = _look(row["method"]), (max(row["cvar95"], left), row["return"])  # no place for 0 on a log axis
        if not row["frontier"]:
            look["markerfacecolor"] = "white"
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
    tasks = in_order(rows["task"], TASKS)
    lines = rows.select("method", "variant").unique().rows(named=True)
    lines.sort(
        key=lambda row: (in_order([*METHODS, row["method"]], METHODS).index(row["method"]), variant_key(row["variant"]))
    )

    def draw() -> Any:
        _matplotlib()
        figure, axes, place = _panels(len(tasks))
        for axis, task in zip(axes, tasks):
            for number, line in enumerate(lines):
                own = (
                    (pl.col("task") == task)
                    & (pl.col("method") == line["method"])
                    & (pl.col("variant") == line["variant"])
                )
                _draw_curve(axis, rows.filter(own), None if points is None else points.filter(own), line, number)
            axis.set_title(task_label(task))
            _steps_axis(axis, int(rows.filter(pl.col("task") == task)["step"].max()))  # type: ignore[arg-type]
            if quantity == "cost_cvar95":
                axis.set_yscale("log")
                low, high = axis.get_ylim()
                _plain_log(axis.yaxis, high / low)
        for axis in axes[:: min(3, len(axes))]:
            axis.set_ylabel(QUANTITIES[quantity])
        _legend(place, {label(**line): _line(line, number) for number, line in enumerate(lines)})
        return figure

    parts = {"training": rows} if points is None else {"training": rows, "evaluation": points}
    drawn = pl.concat([part.with_columns(kind=pl.lit(kind)) for kind, part in parts.items()])
    return [Figure(name, caption, draw, drawn)]


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


# --- bars ---


def _component_bars(stats: Statistics) -> list[Figure]:
    found = []
    for name, variants in (("components", ("", *COMPONENTS)), ("scale", ("", RAW_SIGMA))):
        rows = _bar_rows(stats, variants)
        if rows["variant"].n_unique() > 1:
            tasks = in_order(rows["task"], TASKS)
            panels = [
                (f"{task_label(t)}: {title}", m, rows.filter(pl.col("task") == t))
                for m, title in _BARS.items()
                for t in tasks
            ]
            found.append(_bars(f"{name}_bars", panels, rows))
    return found


_BARS = {"return": "Return", "cost": "Cost", "cvar95": "CVaR@95"}
_DEFAULTS = {"beta": "0.15", "kappa": "0.15", "alpha": "0.95", "M": "5"}
_SYMBOLS = {"beta": "β", "kappa": "κ", "alpha": "α", "M": "M"}


def _sensitivity_bars(stats: Statistics) -> list[Figure]:
    """One row of panels for each swept setting that the study has, the default among its values."""
    swept = [canonical(v) for v in stats.cells["variant"].unique() if re.fullmatch(r"\w+=[-\d.]+", canonical(v))]
    panels, parts = [], []
    for name in [name for name in _DEFAULTS if any(v.startswith(f"{name}=") for v in swept)]:
        own = [v for v in stats.cells["variant"].unique().to_list() if canonical(v).startswith(f"{name}=")]
        rows = _bar_rows(stats, ["", *own]).with_columns(sweep=pl.lit(name))
        for task in in_order(rows.filter(pl.col("variant") != "")["task"], TASKS):
            here = rows.filter(pl.col("task") == task)
            parts.append(here)
            panels += [(f"{_SYMBOLS[name]} on {task_label(task)}: {title}", m, here) for m, title in _BARS.items()]
    return [_bars("sensitivity_bars", panels, pl.concat(parts).unique(maintain_order=True))] if panels else []


def _bar_rows(stats: Statistics, variants: Sequence[str]) -> pl.DataFrame:
    keep = [f"{metric}{end}" for metric in _BARS for end in ("", "_std")]
    cells = stats.cells.filter(
        pl.col("method") == "bcppo", pl.col("variant").is_in(list(variants)), pl.col("return").is_not_null()
    )
    return cells.select("task", "variant", "seeds", "expected", *keep)


def _bars(name: str, panels: list[tuple[str, str, pl.DataFrame]], rows: pl.DataFrame) -> Figure:
    def draw() -> Any:
        _matplotlib()
        figure, axes, _ = _panels(len(panels), height=1.7, legend=False)
        for axis, (title, metric, own) in zip(axes, panels):
            if "sweep" in own.columns:
                _draw_sweep(axis, own, metric)
            else:
                _draw_variants(axis, own, metric, named=axis in axes[:: min(3, len(axes))])
            axis.set_title(title, fontsize=8)
        return figure

    caption = "Final evaluation: mean over training seeds, bars ± sample standard deviation. * seeds are missing."
    return Figure(name, caption, draw, rows)


def _draw_variants(axis: Any, rows: pl.DataFrame, metric: str, *, named: bool) -> None:
    """Bars to the right, names at the left of a row of panels only."""
    items = sorted(rows.iter_rows(named=True), key=lambda row: variant_key(row["variant"]))
    names = [label("bcppo", row["variant"]) + ("*" if row["seeds"] < row["expected"] else "") for row in items]
    places = range(len(items))
    axis.barh(places, [row[metric] for row in items], xerr=_errors(items, metric), color=_bar_colours(items), **_BAR)
    axis.set_yticks(places, names if named else [""] * len(items))
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.axvline(0, color="#666666", linewidth=0.7)
    axis.xaxis.set_major_locator(_matplotlib().ticker.MaxNLocator(4))


def _draw_sweep(axis: Any, rows: pl.DataFrame, metric: str) -> None:
    default = _DEFAULTS[rows["sweep"][0]]
    pairs = [(canonical(row["variant"]).partition("=")[2] or default, row) for row in rows.iter_rows(named=True)]
    pairs.sort(key=lambda pair: float(pair[0]))
    items = [row for _, row in pairs]
    names = [text + ("*" if row["seeds"] < row["expected"] else "") for text, row in pairs]
    axis.bar(
        range(len(items)),
        [row[metric] for row in items],
        yerr=_errors(items, metric),
        color=_bar_colours(items),
        **_BAR,
    )
    axis.set_xticks(range(len(items)), names)
    axis.grid(visible=False, axis="x")
    axis.axhline(0, color="#666666", linewidth=0.7)


_BAR: dict[str, Any] = {"error_kw": {"elinewidth": 0.9, "capsize": 2}}


def _errors(items: list[dict], metric: str) -> list[float]:
    return [row[f"{metric}_std"] or 0.0 for row in items]


def _bar_colours(items: list[dict]) -> list[str]:
    return [COLOURS["bcppo"] if not row["variant"] else "#9DB7CC" for row in items]
