"""Tables of published studies as docs/results.md has them: `python bench/results.py results/main [cells claims …]`.

    cells        each cell beside the paper's: mean ± sample standard deviation over training seeds with a 95 %
                 bootstrap interval, CVaR@95 again from 200 episodes where runs have them, and how far the means of
                 return and CVaR@95 lie from the paper's, in its standard deviations
    far          the cells more than two of them off
    misses       the cell means more than two standard errors of the difference off: fewer where seeds spread much
    places       how often each method's mean pair is not dominated, and how many others it dominates
    firm         what remains of three of the claims without any one training seed, and in resampled seeds
    tails        runs whose mean cost keeps the limit and whose CVaR@95 does not, by 20 episodes and by 200
    claims       the paper's claims, what the study says to each, and the rule of the verdict
    disagreement BCPPO less PPO-PID by seed, with intervals; CVaR@95 by 200 episodes too, where both runs have them
    way          the same of CVaR@95 at each evaluation on the way, with the number of seeds in which BCPPO's is lower
    effects      the variants of the 500,000-step studies less BCPPO by seed, with intervals
    signs        how many of those differences are told from 0 at all, by the paper's five seeds and by ours, and how
                 many point the same way
    more         of more seeds: CVaR@95 of a variant of `components` less BCPPO's, or of BCPPO less PPO-PID's, by seed,
                 of these and with the others
    sweep        sensitivity's settings in the order of β_eff, the one number that β, κ and α amount to, and the rank
                 correlation of our means with the paper's
    seeds        return and CVaR@95 of every run

`--into FILE` prints nothing and puts them between the lines of a Markdown file that ask for them:
`<!-- bench/results.py results/main claims -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import kruskal, spearmanr, ttest_1samp

from bcppo.errors import BcppoError
from bcppo.math.bachelier import effective_beta
from bcppo.records import write_atomically
from bcppo.report.claims import COMPLETE, agrees, claims_of
from bcppo.report.entries import MAIN
from bcppo.report.load import StudyRecords, load_study
from bcppo.report.names import NAVIGATION, PAPER_METHODS, TASKS, label
from bcppo.report.paper_tables import POSITIVE_SHARE, SEEDS, paper_value
from bcppo.report.stats import (
    CELL,
    DRAWS,
    Statistics,
    bootstrap_interval,
    dominates,
    generator,
    meets_mean_not_tail,
    run_metrics,
    statistics,
)
from bcppo.run import make_config

ROOT = Path(__file__).parents[1]
METRICS = ("return", "cost", "cvar95")
NAMES = dict(zip(METRICS, ("return", "cost", "CVaR@95")))
TITLES = ("return", "cost rate (per step)", "CVaR@95 (per step)")
FAR = 2.0
EVALUATED_EVERY = 200_000
MORE = {"more-seeds": "components", "more-seeds-1m": "main"}
"""Studies of more seeds → of which study."""
BLOCK = re.compile(r"(<!-- bench/results\.py (\S+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


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


def line(cells: Iterable[str]) -> str:
    return re.sub(r" +\|", " |", minus("| " + " | ".join(cells) + " |"))


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    header = list(header)
    return [line(header), "|" + "---|" * len(header), *map(line, rows)]


def whole(stats: Statistics) -> list[dict[str, Any]]:
    return [cell for cell in stats.cells.iter_rows(named=True) if cell["seeds"] >= cell["expected"]]


def named(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Each task's name in the first of its rows only."""
    before = ["", *(row[0] for row in rows)]
    return [("" if row[0] == last else row[0], *row[1:]) for row, last in zip(rows, before)]


# --- the blocks -------------------------------------------------------------------------------------------------------


def cells(records: StudyRecords, stats: Statistics) -> list[str]:
    rows = stats.long.cells.iter_rows(named=True) if stats.long else ()
    long = {tuple(row[name] for name in CELL): row for row in rows}
    lines: list[tuple[str, ...]] = []
    for cell in whole(stats):
        task, row, paper = TASKS[cell["task"]], label(cell["method"], cell["variant"]), paper_row(cell)
        if paper:
            lines.append((task, row, "paper", *paper))
        ours = our_row(cell, long.get(tuple(cell[name] for name in CELL)))
        lines.append((task, "" if paper else row, "ours" if paper else "ours alone", *ours))
    header = ("task", "method", "", *TITLES, "CVaR@95, 200 episodes", "λ > 0", "SDs off: return, CVaR@95")
    return table(header, named(lines))


def far(records: StudyRecords, stats: Statistics) -> list[str]:
    found, compared = [], 0
    for cell in whole(stats):
        off = {metric: value for metric, value in distances(cell).items() if abs(value) > FAR}
        compared += bool(distances(cell))
        name = f"{label(cell['method'], cell['variant'])} on {TASKS[cell['task']]}"
        if off:
            found.append(f"- {name}: " + ", ".join(f"{NAMES[metric]} {beyond(value)}" for metric, value in off.items()))
    within = f"{compared - len(found)} of {compared} cells lie within two of the paper's standard deviations"
    lead = f"{within} in return and in CVaR@95." + (" The others:" if found else "")
    return [lead, *([""] if found else []), *map(minus, found)]


def beyond(value: float) -> str:
    """With as many digits as show that it is."""
    return f"{value:+.1f}" if abs(round(value, 1)) > FAR else f"{value:+.2f}"


def misses(records: StudyRecords, stats: Statistics) -> list[str]:
    found, compared = [], 0
    for cell in whole(stats):
        known = [metric for metric in METRICS if printed(cell, metric)]
        off = [NAMES[metric] for metric in known if not agrees(cell, metric)]
        compared += len(known)
        if off:
            found.append((f"{label(cell['method'], cell['variant'])} on {TASKS[cell['task']]}", off))
    count = sum(len(off) for _, off in found)
    them = "; ".join(f"{name} ({', '.join(off)})" for name, off in found)
    lead = f"{count} of {compared} cell means are more than two standard errors of the difference off"
    return [f"{lead}: {them}." if them else f"{lead}."]


def places(records: StudyRecords, stats: Statistics) -> list[str]:
    """Each of the paper's methods among its seven; PPO-PID in BCPPO's place."""
    means = {(cell["task"], cell["method"]): (cell["return"], cell["cvar95"]) for cell in whole(stats)}
    rows = []
    for method in (*PAPER_METHODS, "ppopid"):
        others = [other for other in PAPER_METHODS if other not in (method, "bcppo" if method == "ppopid" else "")]
        pairs = {task: [(means[task, method], means[task, other]) for other in others] for task in TASKS}
        front = sum(not any(dominates(other, own) for own, other in pairs[task]) for task in TASKS)
        below = [sum(dominates(own, other) for own, other in pairs[task]) for task in TASKS]
        where = f"{sum(below)} ({', '.join(map(str, below))})"
        rows.append((label(method, "") + (" in BCPPO's place" if method == "ppopid" else ""), str(front), where))
    tasks = ", ".join(TASKS.values())
    return table(("method", "not dominated, of 5 tasks", f"dominates, of 30 ({tasks})"), rows)


def firm(records: StudyRecords, stats: Statistics) -> list[str]:
    """Seeds are left out, and drawn, for all methods and tasks together, as comparisons pair them."""
    names = list(PAPER_METHODS)
    runs = {key: own.sort("seed") for key, own in stats.runs.group_by("task", "method")}
    table_of = [[runs[task, name].select("return", "cvar95").to_numpy() for name in names] for task in TASKS]
    values = np.array(table_of)  # [tasks, methods, seeds, return and CVaR@95]
    seeds = np.arange(values.shape[2])
    without = _counts(values, np.array([np.delete(seeds, seed) for seed in seeds]))
    drawn = _counts(values, generator("firm").choice(seeds, (DRAWS, len(seeds))))
    every = _counts(values, seeds[None])
    lines = []
    for what, most, first in (
        ("non-dominated in tasks", 5, 5),
        ("dominates", 30, 7),
        ("navigation CVaR@95 below", 9, 9),
    ):
        left = ", ".join(f"{count}" for count in without[what])
        share = f"{100 * (drawn[what] >= first).mean():.1f} %"
        lines.append((what, f"{every[what][0]} of {most}", left, f"at least {first}: {share}"))
    by_task = [f"{name} {share:.2f}" for name, share in zip(TASKS.values(), drawn["by task"].mean(1))]
    return [
        *table(("BCPPO", "all five seeds", "without seed 0, 1, 2, 3, 4", f"of {DRAWS:,} draws of five seeds"), lines),
        "",
        f"Non-dominated, share of the draws by task: {', '.join(by_task)}.",
    ]


def _counts(values: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
    """What three claims count, of means over each draw of seeds [draws, seeds]; `by task` is [tasks, draws]."""
    gain, tail = np.moveaxis(values[:, :, draws].mean(3), -1, 0)  # [tasks, methods, draws] each
    own = PAPER_METHODS.index("bcppo")
    equal = (gain == gain[:, own, None]) & (tail == tail[:, own, None])
    above = (gain >= gain[:, own, None]) & (tail <= tail[:, own, None]) & ~equal
    below = (gain <= gain[:, own, None]) & (tail >= tail[:, own, None]) & ~equal
    expected = [PAPER_METHODS.index(name) for name in ("ppolag", "cpo", "focops")]
    navigation = [list(TASKS).index(task) for task in NAVIGATION]
    lower = tail[navigation][:, [own]] < tail[navigation][:, expected]
    return {
        "by task": ~above.any(1), "non-dominated in tasks": (~above.any(1)).sum(0), "dominates": below.sum((0, 1)),
        "navigation CVaR@95 below": lower.sum((0, 1)),
    }  # fmt: skip


def tails(records: StudyRecords, stats: Statistics) -> list[str]:
    short = meets_mean_not_tail(stats.runs).height
    said = [f"{short} of {stats.runs.height} runs keep the limit on average and not in CVaR@95"]
    if stats.long:
        own = stats.long.runs
        few, many = (meets_mean_not_tail(own, prefix).height for prefix in ("", "many_"))
        through = f"{own.height} that were taken through {stats.long.episodes} episodes"
        said.append(f"of the {through} {many} do by those, {few} by their 20")
    return ["; ".join(said) + "."]


def claims(records: StudyRecords, stats: Statistics) -> list[str]:
    rows = [
        (claim.title, claim.paper, "; ".join([claim.ours, *claim.details]), f"**{claim.verdict}**",
         claim.rule.removesuffix(COMPLETE))
        for claim in claims_of(records, stats)
    ]  # fmt: skip
    return table(("claim", "paper", "ours", "verdict", "rule"), rows)


def disagreement(records: StudyRecords, stats: Statistics) -> list[str]:
    rows = stats.comparisons.filter(method="ppopid").iter_rows(named=True)
    found = [(TASKS[row["task"]], *differences(row), _many(stats, row["task"])) for row in rows]
    return table(("task", *TITLES, "CVaR@95, 200 episodes"), found)


def _many(stats: Statistics, task: str) -> str:
    assert stats.long
    own, other = (stats.long.runs.filter(task=task, method=method) for method in ("bcppo", "ppopid"))
    gaps = by_seed(own, other, "many_cvar95")
    low, high = bootstrap_interval(gaps, generator(task, "ppopid", "many"))
    row = {"task": task, "cvar95_difference": gaps.mean(), "cvar95_low": low, "cvar95_high": high}
    return difference(row, "cvar95") + (f" ({len(gaps)} seeds)" if len(gaps) < own.height else "")


def way(records: StudyRecords, stats: Statistics) -> list[str]:
    """Evaluations take place at the end of the rollout in which they are due."""
    due = {step: round(step / EVALUATED_EVERY) * EVALUATED_EVERY for step in records.evaluations["step"].unique()}
    at = [(place, [step for step, own in due.items() if own == place]) for place in sorted(set(due.values()))]
    runs = [run_metrics(records, records.evaluations.filter(pl.col("step").is_in(steps))) for _, steps in at]
    rows = []
    for task in stats.comparisons.filter(method="ppopid")["task"]:
        row = [TASKS[task]]
        for own in runs:
            pairs = by_seed(*(own.filter(task=task, method=method) for method in ("bcppo", "ppopid")), "cvar95")
            row.append(f"{pairs.mean():.3f} ({(pairs < 0).sum()} of {len(pairs)})")
        rows.append(row)
    return table(("task", *(f"{place:,}" for place, _ in at)), rows)


def effects(records: StudyRecords, stats: Statistics) -> list[str]:
    rows = [
        (TASKS[row["task"]], label(row["method"], row["variant"]), *differences(row))
        for row in sorted(stats.effects.iter_rows(named=True), key=lambda row: list(TASKS).index(row["task"]))
    ]
    return table(("task", "variant", *TITLES), named(rows))


def signs(records: StudyRecords, stats: Statistics) -> list[str]:
    """Each difference in standard errors of its own, so that metrics and tasks can be counted together."""
    cells = {(cell["task"], cell["variant"]): cell for cell in whole(stats)}
    rows = stats.effects.iter_rows(named=True)
    asked = [(cells[row["task"], row["variant"]], cells[row["task"], ""], metric) for row in rows for metric in METRICS]
    paper = [apart(printed(cell, metric), printed(base, metric)) for cell, base, metric in asked]
    ours = [apart(*((own[metric], own[f"{metric}_std"]) for own in (cell, base))) for cell, base, metric in asked]
    told = [sum(abs(value) > FAR for value in found) for found in (paper, ours)]
    both = [a * b for a, b in zip(paper, ours) if a and b]
    rank = spearmanr(paper, ours)
    bold = [row[f"{m}_low"] > 0 or row[f"{m}_high"] < 0 for row in stats.effects.iter_rows(named=True) for m in METRICS]
    paired = [_paired(stats, cell, metric) for cell, _, metric in asked]
    lasting = [name for name, chance in paired if chance < 0.05]
    return [
        f"Of {len(asked)} differences from BCPPO the paper's are more than two standard errors from 0 in {told[0]}, "
        f"ours in {told[1]} (means of five seeds, not paired).",
        f"{sum(product > 0 for product in both)} of the {len(both)} that have a sign in both have the same one.",
        "Rank correlation of the two, in their standard errors: "
        + minus(f"{rank.statistic:.2f} (p = {rank.pvalue:.2f})."),
        f"Paired by seed, {sum(bold)} of our percentile intervals are off 0, which of five pairs are too narrow; by a "
        f"t-test of the pairs p < 0.05 in {len(lasting)}" + (f": {', '.join(lasting)}." if lasting else "."),
    ]


def more(records: StudyRecords, stats: Statistics) -> list[str]:
    study = MORE[records.folder.name]
    _, before = loaded(ROOT / "results" / study)
    if again := set(stats.runs["seed"]) & set(before.runs["seed"]):
        raise SystemExit(f"{records.folder} has seeds of `{study}` again ({min(again)} the first of them).")
    known = _questions(before)
    return [
        minus(
            f"- {what}, by seed: {', '.join(f'{gap:.3f}' for gap in new)}; mean {in_mean(new)}. With the "
            f"{len(known[what])} of `{study}`: {in_mean(np.append(known[what], new))}."
        )
        for what, new in _questions(stats).items()
    ]


def _questions(stats: Statistics) -> dict[str, np.ndarray]:
    """What more seeds are asked for → differences by seed."""
    found = {}
    for row in stats.effects.iter_rows(named=True):
        what = f"{label(row['method'], row['variant'])} on {TASKS[row['task']]}, CVaR@95 less BCPPO's"
        found[what] = gaps_of(stats, row, "cvar95")
    for task in stats.comparisons.filter(method="ppopid")["task"]:
        what = f"BCPPO on {TASKS[task]}, CVaR@95 less PPO-PID's"
        for runs, metric, of in (
            (stats.runs, "cvar95", ""),
            (stats.long.runs if stats.long else None, "many_cvar95", " of 200 episodes"),
        ):
            if runs is not None:
                found[what + of] = by_seed(
                    *(runs.filter(task=task, method=name) for name in ("bcppo", "ppopid")), metric
                )
    return found


def in_mean(gaps: np.ndarray) -> str:
    """Their mean with what a t-test says of it."""
    test = ttest_1samp(gaps, 0.0)
    low, high = test.confidence_interval()
    return f"{gaps.mean():.3f} [{low:.3f}, {high:.3f}] (t-test of {len(gaps)} pairs, p = {test.pvalue:.2f})"


def gaps_of(stats: Statistics, key: dict[str, Any], metric: str) -> np.ndarray:
    """Of a cell's runs less those of its method as it is, by seed."""
    runs = stats.runs.filter(task=key["task"], method=key["method"])
    return by_seed(runs.filter(variant=key["variant"]), runs.filter(variant=""), metric)


def by_seed(own: pl.DataFrame, other: pl.DataFrame, metric: str) -> np.ndarray:
    """Runs less others of the same training seeds."""
    pairs = own.join(other, on="seed", suffix="_other").sort("seed")
    return (pairs[metric] - pairs[f"{metric}_other"]).to_numpy()


def _paired(stats: Statistics, cell: dict[str, Any], metric: str) -> tuple[str, float]:
    """What a difference is of, and the chance that a t-test of its pairs gives it."""
    gaps = gaps_of(stats, cell, metric)
    name = f"{label(cell['method'], cell['variant'])} on {TASKS[cell['task']]} ({NAMES[metric]})"
    return name, float(ttest_1samp(gaps, 0.0).pvalue) if gaps.any() else 1.0


def apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The difference of two means of five seeds in its standard errors."""
    return (one[0] - other[0]) / math.sqrt((one[1] ** 2 + other[1] ** 2) / SEEDS)


def sweep(records: StudyRecords, stats: Statistics) -> list[str]:
    found = sorted(((_effective_beta(cell["variant"]), cell) for cell in whole(stats)), key=lambda row: row[0])
    pairs = {metric: [(cell[metric], printed(cell, metric)[0]) for _, cell in found] for metric in METRICS}
    shown = [(beta, cell["variant"] or "as it is") for beta, cell in found]
    rows = [
        (f"{beta:.6f}", name, f"{tail[0]:.3f}", f"{tail[1]:.3f}", f"{gain[0]:.2f}", f"{gain[1]:.2f}")
        for (beta, name), tail, gain in zip(shown, pairs["cvar95"], pairs["return"])
    ]
    ranks = {name: spearmanr(*zip(*own)) for name, own in zip(NAMES.values(), pairs.values())}
    said = [f"{name} {rank.statistic:.2f} (p = {rank.pvalue:.2f})" for name, rank in ranks.items()]
    by_setting = stats.runs.group_by("variant", maintain_order=True)
    chance = kruskal(*(own["cvar95"].to_list() for _, own in by_setting)).pvalue
    return [
        *table(("β_eff", "setting", "CVaR@95 (per step), ours", "paper", "return, ours", "paper"), rows),
        "",
        minus(f"Rank correlation of our means with the paper's over the {len(rows)} settings: {', '.join(said)}."),
        f"Kruskal–Wallis over the CVaR@95 of our settings: p = {chance:.2f}.",
    ]


def _effective_beta(variant: str) -> float:
    config = make_config("bcppo", "push1")
    given = {name: getattr(config, name) for name in ("alpha", "beta", "kappa")}
    name, _, value = variant.partition("=")
    return effective_beta(**given | ({name: float(value)} if name in given else {}))


def differences(row: dict[str, Any]) -> list[str]:
    """Bold where the interval is off 0, with a digit more than others at most."""
    return [difference(row, metric) for metric in METRICS]


def difference(row: dict[str, Any], metric: str) -> str:
    mean, low, high = (row[f"{metric}_{part}"] for part in ("difference", "low", "high"))
    shown = digits(row["task"], metric)
    nearest = min(abs(low), abs(high)) if low > 0 or high < 0 else 0.0
    shown += nearest > 0 and round(nearest, shown) == 0  # a digit more where that shows that it is off 0
    off = round(nearest, shown) > 0
    text = [f"{value:.{shown}f}" for value in (mean, low, high)]
    return f"{f'**{text[0]}**' if off else text[0]} [{text[1]}, {text[2]}]"


def seeds(records: StudyRecords, stats: Statistics) -> list[str]:
    lines = []
    for (task, method, variant), own in stats.runs.sort("seed").group_by(CELL, maintain_order=True):
        numbers = [
            minus(", ".join(f"{value:.{digits(str(task), metric)}f}" for value in own[metric]))
            for metric in ("return", "cvar95")
        ]
        name = f"{TASKS[str(task)]}, {label(str(method), str(variant))}"
        lines.append(f"- {name}: return {numbers[0]}; CVaR@95 {numbers[1]}")
    return lines


BLOCKS: dict[str, Callable[[StudyRecords, Statistics], list[str]]] = {
    block.__name__: block
    for block in (
        cells,
        far,
        misses,
        places,
        firm,
        tails,
        claims,
        disagreement,
        way,
        effects,
        signs,
        more,
        sweep,
        seeds,
    )
}
ONLY = {
    "places": ("main",), "firm": ("main",), "disagreement": ("main",), "way": ("main",), "more": tuple(MORE),
    "signs": ("components", "scale", "sensitivity"), "sweep": ("sensitivity",),
    "claims": ("main", "components", "scale", "sensitivity"),
}  # fmt: skip
"""Blocks that are about some studies only, by the names of their folders."""


# --- the whole --------------------------------------------------------------------------------------------------------


@cache
def loaded(study: Path) -> tuple[StudyRecords, Statistics]:
    records = load_study(study)
    return records, statistics(records)


def block(study: Path, name: str) -> str:
    if study.name not in ONLY.get(name, (study.name,)):
        raise SystemExit(f"The block {name} is about {', '.join(ONLY[name])}, not about {study}.")
    return "\n".join(BLOCKS[name](*loaded(study))) + "\n"


def filled(text: str) -> str:
    """The text with what its blocks ask for; studies are found from the repository's root."""
    return BLOCK.sub(lambda m: m[1] + block(ROOT / m[2], m[3]) + m[4], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="?")
    parser.add_argument("blocks", nargs="*", help="all where not given")
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    if (options.study is None) == (options.into is None):
        parser.error("a study, or --into FILE")
    if unknown := set(options.blocks) - set(BLOCKS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(BLOCKS)}")
    if options.into:
        text = filled(options.into.read_text(encoding="utf-8"))
        write_atomically(options.into, lambda path: path.write_text(text, encoding="utf-8"))
        return
    study = options.study.resolve()
    try:
        loaded(study)
    except BcppoError as error:
        parser.error(str(error))
    for name in options.blocks or [name for name in BLOCKS if study.name in ONLY.get(name, (study.name,))]:
        print(block(study, name))


if __name__ == "__main__":
    main()
