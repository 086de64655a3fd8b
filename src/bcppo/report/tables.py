"""A study's tables in the paper's layout, as Markdown, LaTeX and CSV. A cell that lacks runs says so."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from bcppo.report.entries import ABLATION, MAIN
from bcppo.report.load import StudyRecords
from bcppo.report.long_table import long_table
from bcppo.report.names import METHODS, OURS, TASKS, aside, in_order, label, task_label, variant_key
from bcppo.report.paper_tables import paper_value
from bcppo.report.stats import Statistics, with_frontier
from bcppo.report.table import Table, Value, mark

MAIN_METRICS = {"return": "Return", "cost": "Cost", "cvar95": "CVaR@95"}
MORE_METRICS = {"safety_rate": "Safety Rate", "worst_gap": "Worst Gap", "positive_share": "λ>0 share"}


# --- which tables ---


def tables_of(records: StudyRecords, stats: Statistics) -> list[Table]:
    """Every table a study gives."""
    tables = []
    cells = Cells(records, stats)
    if cells.methods():
        columns = [(method, "") for method in cells.methods()]
        bold = {
            (row["task"], row["method"]) for row in with_frontier(stats.cells).filter("frontier").iter_rows(named=True)
        }
        is_bold: IsBold = lambda task, method, metric: (task, method) in bold and metric in ("return", "cvar95")  # noqa: E731
        caption = _MAIN_CAPTION + (_ASIDE_CAPTION if cells.aside else "") + cells.limits() + cells.provisional_bold()
        tables.append(_layout(cells, ("main", caption), columns, MAIN_METRICS, is_bold))
        tables.append(_layout(cells, ("more_metrics", _MORE_CAPTION), columns, MORE_METRICS))
        tables += _beside(cells, "paper_and_ours", columns)
        tables.append(_intervals(cells, columns))
    ours = pl.col("method") == OURS
    tables += _comparisons("comparisons", _COMPARED_CAPTION, stats.comparisons.filter(~ours), records)
    tables += _comparisons("disagreement", _OURS_CAPTION, stats.comparisons.filter(ours), records)
    tables += long_table(records, stats)
    variants = cells.variants()
    if variants:
        whole = [(method, "") for method in cells.methods() if method in {method for method, _ in variants}]
        caption = _ABLATION_CAPTION if cells.planned else _VARIANT_CAPTION
        name, rows = "ablations" if cells.planned else "variants", whole + variants
        tables.append(_layout(cells, (name, caption + cells.limits()), rows, MAIN_METRICS))
        tables.append(_layout(cells, (f"{name}_more", _MORE_CAPTION), rows, MORE_METRICS))
        tables += _beside(cells, f"{name}_paper_and_ours", rows)
        tables += _effects(f"{name}_effects", variants, stats.effects, records)
    return tables


_MAIN_CAPTION = (
    "Mean ± sample standard deviation over training seeds, from the final evaluation episodes. Higher Return is "
    "better, "
    "lower Cost and CVaR@95 (both per step) are better. Bold Return and CVaR@95: no other method shown has a mean pair "
    "with no lower Return and no higher CVaR@95, one of them strictly."
)
_ASIDE_CAPTION = (
    f" That is among the other methods: {METHODS[OURS]} is BCPPO with β = 0, a row the paper does not have, and takes "
    "no part in it."
)
_MORE_CAPTION = (
    "Safety Rate: share of evaluation episodes whose mean cost per step is within the limit. Worst Gap: CVaR@95 "
    "less the "
    "limit. λ>0 share: updates with a positive multiplier. Mean ± sample standard deviation over training seeds."
)
_ABLATION_CAPTION = (
    "Variants of BCPPO: mean ± sample standard deviation over training seeds. Cost and CVaR@95 are per step."
)

_VARIANT_CAPTION = (
    "Runs with settings of their own, named by what sets them apart from others of their task: mean ± sample standard "
    "deviation over training seeds. Cost and CVaR@95 are per step."
)

IsBold = Callable[[str, str, str], bool]


class Cells:
    """The cells of a study by task, method and variant, as values of a table."""

    def __init__(self, records: StudyRecords, stats: Statistics) -> None:
        self._rows = {(row["task"], row["method"], row["variant"]): row for row in stats.cells.iter_rows(named=True)}
        self.tasks = in_order((key[0] for key in self._rows), TASKS)
        self.ablated = any(variant for _, _, variant in self._rows)
        self.planned = records.planned
        self.aside = aside(method for _, method, _ in self._rows)
        usable = records.runs.filter("usable")
        self._differs = {
            tuple(row[:3]): row[3] for row in usable.select("task", "method", "variant", "differs").iter_rows()
        }

    def methods(self) -> list[str]:
        return in_order((method for _, method, variant in self._rows if variant == ""), METHODS)

    def variants(self) -> list[tuple[str, str]]:
        found = {(method, variant) for _, method, variant in self._rows if variant != ""}
        return sorted(found, key=lambda key: (key[0], variant_key(key[1])))

    def row(self, task: str, method: str, variant: str) -> dict | None:
        return self._rows.get((task, method, variant))

    def value(self, task: str, method: str, variant: str, metric: str) -> Value:
        row = self.row(task, method, variant)
        if row is None:
            return Value(None, note="not part of this study" if self.planned else "no such run")
        if row["seeds"] == 0:
            return Value(None, note=f"0 of {row['expected']} seeds: no run can be used, see Problems")
        if row[metric] is None:
            return Value(None, note="not recorded by this method")
        note = "" if row["seeds"] == row["expected"] else f"{row['seeds']} of {row['expected']} seeds"
        return Value(row[metric], row[f"{metric}_std"], _digits(metric, row[metric], ablated=self.ablated), note=note)

    def provisional_bold(self) -> str:
        """What to say where a method's seeds are missing: bold compares whole columns."""
        short = {
            task for (task, method, variant), row in self._rows.items()
            if variant == "" and row["seeds"] < row["expected"] and method not in self.aside
        }  # fmt: skip
        names = ", ".join(task_label(task) for task in self.tasks if task in short)
        return f" Cells of {names} lack seeds: bold there is provisional." if short else ""

    def limits(self) -> str:
        """The limits in force, which a task of one's own has told nobody else."""
        known = {task: {row["limit_rate"] for (t, *_), row in self._rows.items() if t == task} for task in self.tasks}
        texts = [
            f"{task_label(task)} {' or '.join(f'{rate:.8g}' for rate in sorted(rates - {None}))}"
            for task, rates in known.items() if rates - {None}
        ]  # fmt: skip
        return f" Limit on Cost: {', '.join(texts)}." if texts else ""

    def experiment(self, task: str, method: str, variant: str) -> tuple[str, str]:
        """(the experiment of the paper a cell stands beside, why it is not quite that)"""
        row = self.row(task, method, variant)
        if row is not None and row["paper"]:
            return row["paper"], ""
        if not self.planned:
            return "", ""  # runs that nobody planned stand beside the paper's only where they are the paper's
        differs = self._differs.get((task, method, variant), "")
        guess = ABLATION if self.ablated else MAIN
        return guess, f"settings other than the paper's: {differs}" if differs else ""


def _digits(metric: str, mean: float, *, ablated: bool) -> int:
    """As the paper prints them: returns to two places, of ablations to three where they are small."""
    return 2 if metric == "return" and not (ablated and abs(mean) < 100) else 3


# --- layouts ---


def _layout(
    cells: Cells, titles: tuple[str, str], rows: Sequence[tuple[str, str]], metrics: dict[str, str],
    is_bold: IsBold | None = None,
) -> Table:  # fmt: skip
    """Methods or variants down, tasks across, metrics under each other: the paper's layout."""
    lines: list[tuple[str | Value, ...]] = []
    for method, variant in rows:
        for number, (metric, title) in enumerate(metrics.items()):
            values = [cells.value(task, method, variant, metric) for task in cells.tasks]
            if is_bold is not None:
                values = [replace(v, bold=is_bold(task, method, metric)) for task, v in zip(cells.tasks, values)]
            lines.append((label(method, variant) if number == 0 else "", title, *values))
    header = ("Variant" if any(variant for _, variant in rows) else "Method", "Metric", *map(task_label, cells.tasks))
    step = len(metrics)
    return Table(*titles, header, tuple(lines), tuple(range(step - 1, len(lines) - 1, step)))


def _beside(cells: Cells, name: str, rows: Sequence[tuple[str, str]]) -> list[Table]:
    """The paper's value and ours, side by side; no table for runs that nobody planned and the paper has not."""
    lines: list[tuple[str | Value, ...]] = []
    for method, variant in rows:
        for number, (metric, title) in enumerate(MAIN_METRICS.items()):
            line: list[str | Value] = [label(method, variant) if number == 0 else "", title]
            for task in cells.tasks:
                experiment, note = cells.experiment(task, method, variant)
                printed = paper_value(experiment, task, method, variant, metric)
                ours = cells.value(task, method, variant, metric)
                line.append(
                    Value(*printed, digits=_digits(metric, printed[0], ablated=cells.ablated))
                    if printed
                    else Value(None)
                )
                line.append(
                    replace(ours, note="; ".join(filter(None, (ours.note, note if ours.mean is not None else ""))))
                )
            lines.append(tuple(line))
    header = ["Variant" if any(variant for _, variant in rows) else "Method", "Metric"]
    for task in cells.tasks:
        header += [f"{task_label(task)} paper", f"{task_label(task)} ours"]
    caption = "The paper's mean ± standard deviation beside ours. – in a paper column: the paper prints no such cell."
    printed_any = any(cell.mean is not None for line in lines for cell in line[2::2] if isinstance(cell, Value))
    table = Table(name, caption, tuple(header), tuple(lines), tuple(range(2, len(lines) - 1, 3)))
    return [table] if cells.planned or printed_any else []


def _intervals(cells: Cells, rows: Sequence[tuple[str, str]]) -> Table:
    lines: list[tuple[str | Value, ...]] = []
    for task in cells.tasks:
        for method, variant in rows:
            row = cells.row(task, method, variant)
            if row is None:
                continue
            line: list[str | Value] = [task_label(task), label(method, variant)]
            for metric in MAIN_METRICS:
                ends = (row[f"{metric}_low"], row[f"{metric}_high"])
                line.append(replace(cells.value(task, method, variant, metric), interval=ends))
            line += [Value(row[f"{metric}_iqm"], digits=3) for metric in ("return", "cvar95")]
            lines.append(tuple(line))
    header = ("Task", "Method", "Return", "Cost", "CVaR@95", "IQM Return", "IQM CVaR@95")
    caption = (
        "Means with 95 % percentile bootstrap intervals over training seeds (10,000 seeded draws), and interquartile "
        "means over training seeds."
    )
    return Table("intervals", caption, header, tuple(lines))


def _comparisons(name: str, caption: str, compared: pl.DataFrame, records: StudyRecords) -> list[Table]:
    """Rows of `compare`, in the paper's order; no table where there are none."""
    tasks, methods = in_order(compared["task"], TASKS), in_order(compared["method"], METHODS)
    lines: list[tuple[str | Value, ...]] = []
    for row in sorted(
        compared.iter_rows(named=True), key=lambda row: (tasks.index(row["task"]), methods.index(row["method"]))
    ):
        expected = records.expected_seeds(row["task"], row["method"])
        same = row["return_difference"] == row["cvar95_difference"] == 0 and row["pairs"] == expected
        pair = (
            "dominates" if row["dominates"] else "is dominated" if row["dominated"] else "equals" if same else "trades"
        )
        lines.append((
            task_label(row["task"]), label(row["method"]), pair, *_differences(row, expected),
            "–" if row["favours"] is None else "yes" if row["favours"] else "no",
            Value(row["improves_return"], digits=2), Value(row["improves_cvar95"], digits=2),
        ))  # fmt: skip
    header = (
        "Task", "Comparator", "BCPPO's mean pair", *_DIFFERENCES,
        "Both intervals favour BCPPO", "P(better Return)", "P(lower CVaR@95)",
    )  # fmt: skip
    return [Table(name, caption, header, tuple(lines))] if lines else []


def _effects(name: str, variants: list[tuple[str, str]], effects: pl.DataFrame, records: StudyRecords) -> list[Table]:
    """Rows of `compare_variants`, in the order of the variants' own table; no table where there are none."""
    lines: list[tuple[str | Value, ...]] = []
    for task in in_order(effects["task"], TASKS):
        own = {(row["method"], row["variant"]): row for row in effects.filter(task=task).iter_rows(named=True)}
        for method, variant in variants:
            if (method, variant) in own:
                row = own[method, variant]
                values = _differences(row, records.expected_seeds(task, method))
                chances = [Value(row[f"improves_{metric}"], digits=2) for metric in ("return", "cvar95")]
                lines.append((task_label(task), label(method, variant), *values, *chances))
    header = ("Task", "Variant", *_DIFFERENCES, "P(better Return)", "P(lower CVaR@95)")
    return [Table(name, _EFFECTS_CAPTION, header, tuple(lines))] if lines else []


def _differences(row: dict[str, Any], expected: int) -> list[Value]:
    few = f"{row['pairs']} of {expected} paired seeds" if row["pairs"] < expected else ""
    return [
        Value(row[f"{m}_difference"], digits=3, note=few, interval=(row[f"{m}_low"], row[f"{m}_high"]))
        for m in MAIN_METRICS
    ]


_DIFFERENCES = tuple(f"{title} difference" for title in MAIN_METRICS.values())
_EFFECTS_CAPTION = (
    "What each change does: the variant less the method without it, paired by training seed, with 95 % percentile "
    "bootstrap intervals over the pairs; not corrected for several axes or many comparisons. P: share of all pairs of "
    "runs in which the variant's is better, ties half."
)
_PAIRED = (
    "paired by training seed, with 95 % percentile bootstrap intervals over the pairs; not corrected for several axes "
    "or many comparisons. Mean pair and both intervals: of Return and CVaR@95. P: share of all pairs of runs in which "
    "BCPPO's is better, ties half."
)
_COMPARED_CAPTION = f"BCPPO less the comparator, {_PAIRED}"
_OURS_CAPTION = (
    "What disagreement adds (a comparison of ours, not the paper's): BCPPO less PPO-PID, which is BCPPO with β = 0, "
    + _PAIRED
)


# --- renderings ---


def to_markdown(table: Table) -> str:
    def text(cell: str | Value) -> str:
        body = _escape_markdown(cell) if isinstance(cell, str) else cell.text
        body = f"**{body}**" if isinstance(cell, Value) and cell.bold and cell.mean is not None else body
        return body + (f" <sup>{table.mark(cell)}</sup>" if table.mark(cell) else "")

    lines = ["| " + " | ".join(map(_escape_markdown, table.header)) + " |", "|" + "---|" * len(table.header)]
    lines += ["| " + " | ".join(map(text, row)) + " |" for row in table.rows]
    notes = [f"<sup>{mark(number)}</sup> {_escape_markdown(note)}" for number, note in enumerate(table.notes)]
    lines += ["", _escape_markdown(table.caption), *(["", "<br>\n".join(notes)] if notes else [])]
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    flat = re.sub(r"\s+", " ", text)
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def to_latex(table: Table) -> str:
    def text(cell: str | Value) -> str:
        body = _escape_latex(cell if isinstance(cell, str) else cell.text)
        body = f"\\textbf{{{body}}}" if isinstance(cell, Value) and cell.bold and cell.mean is not None else body
        return body + (f"$^{{{table.mark(cell)}}}$" if table.mark(cell) else "")

    texts = sum(all(isinstance(row[i], str) for row in table.rows) for i in range(len(table.header)))
    head = " & ".join(f"\\textbf{{{_escape_latex(title)}}}" for title in table.header)
    lines = [
        f"\\begin{{tabular}}{{@{{}}{'l' * texts}{'c' * (len(table.header) - texts)}@{{}}}}",
        "\\toprule",
        head + " \\\\",
    ]
    lines.append("\\midrule")
    for number, row in enumerate(table.rows):
        lines.append(" & ".join(map(text, row)) + " \\\\")
        if number in table.rules:
            lines.append("\\addlinespace[1.5pt]")
    lines += ["\\bottomrule", "\\end{tabular}"]
    notes = [f"$^{{{mark(number)}}}$ {_escape_latex(note)}." for number, note in enumerate(table.notes)]
    return "\n".join([*lines, f"% {_escape_latex(table.caption)}", *notes]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": r"\textminus{}", "λ": r"$\lambda$",
    "σ": r"$\sigma$", "β": r"$\beta$", "κ": r"$\kappa$", "α": r"$\alpha$", ">": r"$>$", "<": r"$<$", "–": "--",
    "\n": " ", "\r": " ",
}  # fmt: skip


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def to_csv(table: Table) -> str:
    """Numbers unrounded: each column of values becomes mean, spread (or the interval's ends) and note."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    kinds = [next((row[i] for row in table.rows if isinstance(row[i], Value)), "") for i in range(len(table.header))]
    header: list[str] = []
    for title, kind in zip(table.header, kinds):
        if not isinstance(kind, Value):
            header.append(title)
        else:
            ends = ["low", "high"] if kind.interval is not None else ["std"]
            header += [title, *(f"{title} {end}" for end in ends), f"{title} note"]
    writer.writerow(header)
    above = ""
    for row in table.rows:
        above = row[0] if isinstance(row[0], str) and row[0] else above  # a group's name stands on its first row only
        line: list[object] = []
        for cell in (above, *row[1:]):
            if isinstance(cell, str):
                line.append(cell)
            else:
                line += [cell.mean, *(cell.interval if cell.interval is not None else [cell.std]), cell.note]
        writer.writerow(line)
    return buffer.getvalue()


def as_frame(table: Table) -> pl.DataFrame:
    return pl.read_csv(to_csv(table).encode())
