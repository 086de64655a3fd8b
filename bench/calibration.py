"""The calibration's rule, applied: `python bench/calibration.py STUDY`, on a study of variants (docs/calibration.md).

A setting's distance from the paper is |ours − paper| over the paper's standard deviation, of the mean return and of the
mean CVaR@95 over seeds, each cut off at 5, averaged over both, over the tasks, and over a question's methods.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bcppo.report.entries import MAIN
from bcppo.report.load import load_study
from bcppo.report.names import METHODS, TASKS
from bcppo.report.paper_tables import paper_value
from bcppo.report.stats import run_metrics

CUT = 5.0
METRICS = {"return": 1, "cost": 3, "cvar95": 3}
"""Metric → digits; the cost rate is shown and does not decide."""


def distance(task: str, method: str, means: dict[str, float]) -> float:
    parts = []
    for metric in ("return", "cvar95"):
        paper = paper_value(MAIN, task, method, "", metric)
        assert paper is not None
        parts.append(min(CUT, abs(means[metric] - paper[0]) / paper[1]))
    return sum(parts) / len(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--together", nargs="+", default=[], help="methods that one question is asked of")
    options = parser.parse_args()
    seeds = run_metrics(load_study(options.study)).sort("seed", maintain_order=True)
    found: dict[tuple[str, str], list[float]] = {}
    print("| task | method | setting | return | cost rate (per step) | CVaR@95 (per step) | λ > 0 | distance |")
    print("|---|---|---|---|---|---|---|---|")
    for (task, method), rows in seeds.group_by("task", "method", maintain_order=True):
        printed = [paper_value(MAIN, task, method, "", metric) for metric in METRICS]
        cells = [f"{mean:.{digits}f} ± {std:.{digits}f}" for (mean, std), digits in zip(printed, METRICS.values())]
        print("|", " | ".join([TASKS[task], METHODS[method], "paper", *cells, "", ""]), "|")
        for (variant,), own in rows.group_by("variant", maintain_order=True):
            means = {metric: own[metric].mean() for metric in METRICS}
            far = distance(task, method, means)
            found.setdefault((method, variant), []).append(far)
            cells = [
                f"{means[metric]:.{digits}f} ({', '.join(f'{value:.{digits}f}' for value in own[metric])})"
                for metric, digits in METRICS.items()
            ]
            share = f"{100 * own['positive_share'].mean():.1f} %"
            print("|", " | ".join(["", "", variant, *cells, share, f"{far:.2f}"]), "|")
    print("\n| methods | setting | distance over all tasks |\n|---|---|---|")
    questions = [options.together] if options.together else []
    questions += [[method] for method in dict.fromkeys(method for method, _ in found) if method not in options.together]
    for methods in questions:
        for variant in dict.fromkeys(variant for method, variant in found if method in methods):
            parts = [sum(found[method, variant]) / len(found[method, variant]) for method in methods]
            names = ", ".join(METHODS[method] for method in methods)
            print(f"| {names} | {variant} | {sum(parts) / len(parts):.2f} |")


if __name__ == "__main__":
    main()
