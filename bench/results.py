"""The main table beside the paper's, as docs/results.md has it: `python bench/results.py results/main`.

Each cell's mean ± sample standard deviation over training seeds with a 95 % bootstrap interval, CVaR@95 again from many
episodes where runs have them, and how far the means of return and CVaR@95 lie from the paper's, in the paper's
standard deviations. More than two of them on either are to be looked into; those cells are listed at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bcppo.report.entries import MAIN
from bcppo.report.load import load_study
from bcppo.report.names import METHODS, TASKS
from bcppo.report.paper_tables import POSITIVE_SHARE, paper_value
from bcppo.report.stats import statistics

METRICS = ("return", "cost", "cvar95")
FAR = 2.0


def digits(task: str, metric: str) -> int:
    return 3 if metric != "return" else 1 if task in ("hopper", "ant") else 2


def paper_row(task: str, method: str) -> list[str] | None:
    printed = [paper_value(MAIN, task, method, "", metric) for metric in METRICS]
    if None in printed:
        return None
    cells = [f"{pair[0]:.{digits(task, m)}f} ± {pair[1]:.{digits(task, m)}f}" for m, pair in zip(METRICS, printed)]  # type: ignore[index]
    return [*cells, "", f"{100 * POSITIVE_SHARE[task]:.1f} %" if method == "bcppo" else "", ""]


def our_row(cell: dict[str, Any], long: dict[str, Any] | None) -> list[str]:
    task, method = cell["task"], cell["method"]
    cells = []
    for metric in METRICS:
        d = digits(task, metric)
        mean, std, low, high = (f"{cell[metric + part]:.{d}f}" for part in ("", "_std", "_low", "_high"))
        cells.append(f"{mean} ± {std} [{low}, {high}]")
    many = ""
    if long is not None and long["many_cvar95_low"] is not None:
        many = f"{long['many_cvar95']:.3f} [{long['many_cvar95_low']:.3f}, {long['many_cvar95_high']:.3f}]"
        many += f" ({long['seeds']} seeds)" if long["seeds"] < cell["seeds"] else ""
    apart = distances(cell)
    far = ", ".join(f"{round(value, 1) + 0.0:.1f}" for value in apart.values()) if method != "ppopid" else ""
    return [*cells, many, f"{100 * cell['positive_share']:.1f} %", far]


def distances(cell: dict[str, Any]) -> dict[str, float]:
    """(ours − paper) / the paper's standard deviation, of return and CVaR@95; none where the paper has no cell."""
    found = {}
    for metric in ("return", "cvar95"):
        paper = paper_value(MAIN, cell["task"], cell["method"], "", metric)
        if paper is not None:
            found[metric] = (cell[metric] - paper[0]) / paper[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    options = parser.parse_args()
    found = statistics(load_study(options.study))
    long = {(row["task"], row["method"]): row for row in found.long.cells.iter_rows(named=True)} if found.long else {}
    print("| task | method | | return | cost rate (per step) | CVaR@95 (per step) | CVaR@95, many episodes | λ > 0 "
          "| SDs off: return, CVaR@95 |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    far, last = [], ""
    for cell in found.cells.iter_rows(named=True):
        if cell["seeds"] < cell["expected"]:
            continue
        task, method = cell["task"], cell["method"]
        name = TASKS[task] if task != last else ""
        last = task
        paper = paper_row(task, method)
        if paper:
            print("|", " | ".join([name, METHODS[method], "paper", *paper]), "|")
        first = ["", "", "ours"] if paper else [name, METHODS[method], "ours alone"]
        print("|", " | ".join([*first, *our_row(cell, long.get((task, method)))]), "|")
        far += [
            f"{METHODS[method]} on {TASKS[task]}, {metric}: {value:+.1f}"
            for metric, value in distances(cell).items()
            if abs(value) > FAR
        ]
    print("\nMore than two of the paper's standard deviations off:", "; ".join(far) or "none")
    print("\nBy seed:")
    for (task, method), own in found.runs.sort("seed").group_by("task", "method", maintain_order=True):
        numbers = [
            ", ".join(f"{value:.{digits(str(task), metric)}f}" for value in own[metric])
            for metric in ("return", "cvar95")
        ]
        print(f"- {TASKS[str(task)]}, {METHODS[str(method)]}: return {numbers[0]}; CVaR@95 {numbers[1]}")


if __name__ == "__main__":
    main()
