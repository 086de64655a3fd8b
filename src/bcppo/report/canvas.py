"""How every figure looks: colours, markers, panels, legends and axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from bcppo.errors import MissingDependency

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


def matplotlib_module() -> Any:
    try:
        import matplotlib
        import matplotlib.ticker
    except ImportError:
        raise MissingDependency("Figures need matplotlib: pip install matplotlib.") from None
    return matplotlib


def panels_on(count: int, *, height: float = 2.05, legend: bool = True) -> tuple[Any, list[Any], Any]:
    """(figure, axes, axis for the legend): three across; the legend takes a free place, or a strip below three."""
    from matplotlib.figure import Figure as Canvas

    columns = min(3, count + legend)  # a strip below fewer would be too narrow for a legend
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


def add_legend(place: Any, entries: dict[str, dict[str, Any]]) -> None:
    """Name → how its line or marker looks."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look) for look in entries.values()]
    strip = place.get_subplotspec().colspan.start == 0
    columns = min(5, len(handles)) if strip else 1 if len(handles) <= 6 else 2
    place.legend(handles, list(entries), loc="center", ncols=max(1, columns), frameon=False, handlelength=2.4)


def pale(colour: str) -> tuple[float, ...]:
    """A tint without transparency, which Agg would give to a marker's edge too."""
    return tuple(0.3 * part + 0.7 for part in matplotlib_module().colors.to_rgb(colour))


def plain_log(axis: Any, ratio: float) -> None:
    """Ticks at 1, 2 and 5 where a log axis is short, written as plain numbers."""
    ticker = matplotlib_module().ticker
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if ratio < 50 else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def steps_axis(axis: Any, steps: int) -> None:
    unit, name = (1e6, "M") if steps >= 4e5 else (1e3, "k")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}{name}" if value else "0")
    axis.xaxis.set_major_locator(matplotlib_module().ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_xlim(0, steps * 1.02)
    axis.set_xlabel("Environment steps")
