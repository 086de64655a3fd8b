"""A diagnostic's report: tables in Markdown, plots as PNG and PDF with a CSV of what they draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bcppo.diagnostics.store import Columns, Measured, NotEligible
from bcppo.errors import MissingDependency
from bcppo.records import write_atomically

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart also by those who see fewer colours."""


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"| {' | '.join(map(str, row))} |" for row in (self.header, ["---"] * len(self.header), *self.rows)]
        return "\n".join([f"### {self.title}", "", *lines, *(["", self.note] if self.note else [])])


@dataclass(frozen=True)
class Drawing:
    """A plot and the rows it draws."""

    name: str
    figure: Any
    rows: Columns


@dataclass
class Report:
    """What a diagnostic says."""

    title: str
    tables: list[Table] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)

    def markdown(self, not_eligible: Sequence[NotEligible], cut_off: Sequence[str] = ()) -> str:
        parts = [f"## {self.title}", *(f"Not finished: {sentence}" for sentence in cut_off)]
        parts += [table.markdown() for table in self.tables]
        if not_eligible:
            rows = [(item.run, item.statistic, item.reason) for item in not_eligible]
            parts.append(Table("Not eligible", ("run", "statistic", "why"), rows).markdown())
        parts += [f"![{drawing.name}]({drawing.name}.png)" for drawing in self.drawings]
        return "\n\n".join(parts) + "\n"


def write_report(folder: Path, report: Report, measured: Measured) -> str:
    """Write report.md and the plots; returns the text."""
    text = report.markdown(measured.not_eligible, measured.cut_off)
    write_atomically(folder / "report.md", partial(_write_text, text=text))
    for drawing in report.drawings:
        _write_drawing(folder, drawing)
    return text


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)


def _write_drawing(folder: Path, drawing: Drawing) -> None:
    import polars
    from matplotlib import pyplot

    for kind, stamp in (("png", {}), ("pdf", {"CreationDate": None})):  # equal rows are equal bytes
        save = partial(drawing.figure.savefig, format=kind, dpi=150, metadata=stamp)
        write_atomically(folder / f"{drawing.name}.{kind}", save)
    write_atomically(folder / f"{drawing.name}.csv", polars.DataFrame(drawing.rows, strict=False).write_csv)
    pyplot.close(drawing.figure)


def panels(count: int, width: float = 4.2, height: float = 3.4, columns: int = 4) -> tuple[Any, list[Any]]:
    """A figure with `count` panels in rows of at most `columns`: (figure, axes)."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependency("Plots need matplotlib, which is not installed: pip install matplotlib.") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    across = min(count, columns)
    down = -(-count // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(width * across, height * down), layout="constrained", squeeze=False
    )
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.set_visible(False)
    for axis in flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, flat[:count]


def dots_by_task(
    axis: Any, tasks: Sequence[str], values: Sequence[float], label: str, level: float | None = None
) -> None:
    """One dot a policy over its task, the tasks' means as bars, and a reference level."""
    names = sorted(set(tasks))
    for position, name in enumerate(names):
        own = [value for task, value in zip(tasks, values) if task == name and math.isfinite(value)]
        if not own:
            axis.text(position, 0.02, "not\neligible", ha="center", transform=axis.get_xaxis_transform(), fontsize=7)
            continue
        spread = [position + 0.12 * (index - (len(own) - 1) / 2) for index in range(len(own))]
        axis.plot(spread, own, "o", color=COLORS[0], alpha=0.8, markersize=5)
        axis.plot([position - 0.3, position + 0.3], [sum(own) / len(own)] * 2, color=COLORS[1], linewidth=2)
    if level is not None:
        axis.axhline(level, color="0.6", linewidth=1, linestyle="--")
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_title(label, fontsize=10)
