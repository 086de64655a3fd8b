"""A study's table beside the paper's, as docs/results.md has it: `python bench/results.py results/main`.

Any of the paper's studies: variants are beside its ablations after 500,000 steps. Each cell's mean ± sample standard
deviation over training seeds with a 95 % bootstrap interval, CVaR@95 again from many episodes where runs have them, and
how far the means of return and CVaR@95 lie from the paper's, in the paper's standard deviations. More than two of them
on either are to be looked into; those cells are listed at the end.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from bcppo.report.entries import MAIN
from bcppo.report.load import load_study
from bcppo.report.names import TASKS, label
from bcppo.report.paper_tables import POSITIVE_SHARE, paper_value
from bcppo.report.stats import CELL, statistics

METRICS = ("return", "cost", "cvar95")
FAR = 2.0


def digits(task: str, metric: str) -> int:
    return 3 if metric != "return" else 1 if task in ("hopper", "ant") else 2


def printed(cell: dict[str, Any], metric: str) -> tuple[float, float] | None:
    return paper_value(cell["paper"], cell["task"], cell["method"], cell["variant"], metric)


def paper_row(cell: dict[str, Any]) -> list[str] | None:
    task, known = cell["task"], (cell["paper"], cell["method"]) == (MAIN, "bcppo")
    cells = []
    for metric in METRICS:
        pair = printed(cell, metric)
        if pair is None:
            return None
        cells.append(" ± ".join(f"{value:.{digits(task, metric)}f}" for value in pair))
    return [*cells, "", f"{100 * POSITIVE_SHARE[task]:.1f} %" if known else "", ""]


def our_row(cell: dict[str, Any], long: dict[str, Any] | None) -> list[str]:
    cells = []
    for metric in METRICS:
        d = digits(cell["task"], metric)
        mean, std, low, high = (f"{cell[metric + part]:.{d}f}" for part in ("", "_std", "_low", "_high"))
        cells.append(f"{mean} ± {std} [{low}, {high}]")
    many = ""
    if long is not None and long["many_cvar95_low"] is not None:
        many = f"{long['many_cvar95']:.3f} [{long['many_cvar95_low']:.3f}, {long['many_cvar95_high']:.3f}]"
        many += f" ({long['seeds']} seeds)" if long["seeds"] < cell["seeds"] else ""
    far = ", ".join(f"{round(value, 1) + 0.0:.1f}" for value in distances(cell).values())
    return [*cells, many, f"{100 * cell['positive_share']:.1f} %", far]


def distances(cell: dict[str, Any]) -> dict[str, float]:
    """(ours − paper) / the paper's standard deviation, of return and CVaR@95; none where the paper has no cell."""
    pairs = {metric: printed(cell, metric) for metric in ("return", "cvar95")}
    return {metric: (cell[metric] - pair[0]) / pair[1] for metric, pair in pairs.items() if pair is not None}


def minus(text: str) -> str:
    return re.sub(r"-(?=\d)", "−", text)


def line(cells: list[str]) -> str:
    return minus("| " + " | ".join(cells) + " |").replace("|  |", "| |").replace("|  |", "| |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    found = statistics(load_study(parser.parse_args().study))
    rows = found.long.cells.iter_rows(named=True) if found.long else ()
    long = {tuple(row[name] for name in CELL): row for row in rows}
    print("| task | method | | return | cost rate (per step) | CVaR@95 (per step) | CVaR@95, many episodes | λ > 0 "
          "| SDs off: return, CVaR@95 |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    far, last = [], ""
    for cell in found.cells.iter_rows(named=True):
        if cell["seeds"] < cell["expected"]:
            continue
        task, row = TASKS[cell["task"]], label(cell["method"], cell["variant"])
        name, last = task if task != last else "", task
        paper = paper_row(cell)
        if paper:
            print(line([name, row, "paper", *paper]))
        first = ["", "", "ours"] if paper else [name, row, "ours alone"]
        print(line([*first, *our_row(cell, long.get(tuple(cell[name] for name in CELL)))]))
        far += [f"{row} on {task}, {m}: {value:+.1f}" for m, value in distances(cell).items() if abs(value) > FAR]
    print("\nMore than two of the paper's standard deviations off:", minus("; ".join(far)) or "none")
    print("\nBy seed:")
    for (task, method, variant), own in found.runs.sort("seed").group_by(CELL, maintain_order=True):
        numbers = [
            minus(", ".join(f"{value:.{digits(str(task), metric)}f}" for value in own[metric]))
            for metric in ("return", "cvar95")
        ]
        print(f"- {TASKS[str(task)]}, {label(str(method), str(variant))}: return {numbers[0]}; CVaR@95 {numbers[1]}")


if __name__ == "__main__":
    main()
