"""Bars of the ablations: components, scale and sensitivity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from bcppo.report.canvas import COLOURS, Figure, matplotlib_module, panels_on
from bcppo.report.names import COMPONENTS, RAW_SIGMA, TASKS, canonical, in_order, label, task_label, variant_key
from bcppo.report.stats import Statistics


def component_bars(stats: Statistics) -> list[Figure]:
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


def sensitivity_bars(stats: Statistics) -> list[Figure]:
    """One row of panels for each swept setting that the study has, the default among its values."""
    swept = [canonical(v) for v in stats.cells["variant"].unique() if re.fullmatch(r"\w+=[-\d.]+", canonical(v))]
    panels, parts = [], []
    for name in [name for name in _DEFAULTS if any(v.startswith(f"{name}=") for v in swept)]:
        values = {v for v in swept if v.startswith(f"{name}=")}
        own = [v for v in stats.cells["variant"].unique().to_list() if canonical(v) in values]
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
        matplotlib_module()
        figure, axes, _ = panels_on(len(panels), height=1.7, legend=False)
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
    axis.xaxis.set_major_locator(matplotlib_module().ticker.MaxNLocator(4))


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
