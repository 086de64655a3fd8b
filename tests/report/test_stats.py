"""The statistics against brute force and arithmetic by hand, and the paper's verdicts from its own numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_tools import cells_of, paper_statistics, runs_table
from synthetic import make_study

from bcppo.report import load_study
from bcppo.report.claims import _MAIN_CLAIMS, OPEN, REPRODUCED, claims_of
from bcppo.report.paper_tables import paper_cells, paper_points, paper_value
from bcppo.report.stats import (
    Statistics,
    bootstrap_interval,
    compare,
    compare_variants,
    dominance_counts,
    dominates,
    frontier,
    generator,
    interquartile_mean,
    meets_mean_not_tail,
    probability_of_improvement,
    run_metrics,
    statistics,
    with_frontier,
)

numbers = st.floats(-5, 5).map(lambda value: round(value, 1))  # coarse, so that ties happen


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return load_study(make_study(tmp_path_factory.mktemp("stats") / "study", tasks=["hopper"], seeds=(0, 1, 2)))


def test_run_metrics_are_those_of_the_episodes(records):
    for row in run_metrics(records).iter_rows(named=True):
        episodes = records.episodes.filter(pl.col("run") == row["run"])
        rates = sorted(episodes["cost_rate"])
        assert len(rates) == 20
        assert row["cvar95"] == rates[-1]  # of 20 at 95 %: the largest
        assert row["cost"] == pytest.approx(sum(rates) / 20)
        assert row["return"] == pytest.approx(sum(episodes["episode_return"]) / 20)
        assert row["safety_rate"] == sum(rate <= 0.015898692 for rate in rates) / 20
        assert row["worst_gap"] == rates[-1] - 0.015898692
        last = records.progress.filter(pl.col("run") == row["run"])[-1]
        assert row["positive_share"] == last["multiplier_positive_share"].item()


def test_cells_have_the_mean_and_sample_deviation_over_seeds(records):
    values = run_metrics(records).filter(pl.col("method") == "bcppo")["return"].to_list()
    mean = sum(values) / 3
    cell = cells_of(records)["hopper", "bcppo", ""]
    assert cell["return"] == pytest.approx(mean)
    assert cell["return_std"] == pytest.approx(math.sqrt(sum((value - mean) ** 2 for value in values) / 2))
    assert cell["return_iqm"] == pytest.approx(mean)  # of three none is left out: a quarter of 3 rounds down to 0


def test_bootstrap_interval_is_that_of_all_resamples():
    values = np.array([1.0, 2.0, 4.0, 8.0])
    means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]  # all 256 resamples
    low, high = bootstrap_interval(values, generator("test"), draws=40_000)
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.26)  # the next mean on the lattice is 0.25 away
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.51)
    assert bootstrap_interval(values, generator("test"), 500) == bootstrap_interval(values, generator("test"), 500)
    assert bootstrap_interval(values[:1], generator("test")) == (None, None)


def test_an_interval_does_not_depend_on_what_else_the_study_holds(records, tmp_path):
    alone = load_study(make_study(tmp_path / "alone", tasks=["hopper"], methods=["bcppo"], seeds=(0, 1, 2)))
    assert cells_of(alone)["hopper", "bcppo", ""] == cells_of(records)["hopper", "bcppo", ""]


def test_interquartile_mean_leaves_out_a_quarter_at_either_end():
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0])) == 2.0
    assert interquartile_mean(np.array([0.0, 1.0, 3.0, 9.0])) == 2.0


@given(st.lists(numbers, min_size=1, max_size=6), st.lists(numbers, min_size=1, max_size=6))
def test_probability_of_improvement_counts_pairs(own, other):
    wins = sum((x > y) + 0.5 * (x == y) for x in own for y in other)
    assert probability_of_improvement(np.array(own), np.array(other)) == pytest.approx(wins / len(own) / len(other))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=7))
def test_frontier_is_what_no_other_point_beats(points):
    for point, on_it in zip(points, frontier(points)):
        beaten = any(r >= point[0] and c <= point[1] and (r > point[0] or c < point[1]) for r, c in points)
        assert on_it is not beaten
    assert any(frontier(points))


def test_dominance_needs_one_strict_side():
    assert dominates((1.0, 0.1), (1.0, 0.2))
    assert dominates((2.0, 0.1), (1.0, 0.1))
    assert not dominates((1.0, 0.1), (1.0, 0.1))
    assert not dominates((2.0, 0.3), (1.0, 0.2))


def test_comparisons_are_paired_by_seed():
    rows = [("ant", "bcppo", seed, 10.0 + seed, 1.0, 0.5, 1.0) for seed in (0, 1, 2)]
    rows += [("ant", "cpo", seed, 9.0 + 2 * seed, 2.0 + seed, float(seed), 1.0) for seed in (2, 1, 5)]
    (row,) = compare(runs_table(rows), draws=2000).iter_rows(named=True)
    assert row["pairs"] == 2  # seeds 1 and 2: 11 - 11 and 12 - 13; 1 - 3 and 1 - 4; 0.5 - 1 and 0.5 - 2
    assert row["return_difference"] == -0.5
    assert (row["return_low"], row["return_high"]) == (-1.0, 0.0)
    assert row["cvar95_difference"] == -2.5
    assert (row["cost_difference"], row["cost_low"], row["cost_high"]) == (-1.0, -1.5, -0.5)
    assert row["favours"] is False
    assert row["dominates"] is False  # means over all seeds: 11 against 14.33
    assert row["improves_cvar95"] == 1.0


def test_a_variant_is_compared_with_its_own_method_by_seed():
    def table(method, variant, values):
        rows = [("ant", method, seed, value, 1.0 - value, 0.5, 1.0) for seed, value in values.items()]
        return runs_table(rows).with_columns(variant=pl.lit(variant))

    plain, other = table("bcppo", "", {0: 1.0, 1: 2.0, 2: 6.0}), table("cppo", "", {0: 9.0, 1: 9.0})
    runs = pl.concat([plain, other, table("bcppo", "M=1", {2: 7.0, 1: 5.0, 4: 8.0}), table("cpo", "x", {0: 1.0})])
    (row,) = compare_variants(runs, draws=2000).iter_rows(named=True)  # the comparator has no variant, CPO's no method
    assert (row["task"], row["method"], row["variant"], row["pairs"]) == ("ant", "bcppo", "M=1", 2)
    assert (row["return_difference"], row["return_low"], row["return_high"]) == (2.0, 1.0, 3.0)  # 5 - 2 and 7 - 6
    assert (row["cvar95_difference"], row["cost_difference"]) == (-2.0, 0.0)
    assert row["improves_return"] == 8 / 9  # of 9 pairs of runs, only 5 against 6 is worse
    assert compare_variants(pl.concat([plain, other])).height == 0


def test_both_axes_favour_only_when_both_intervals_clear_zero():
    better = [("ant", "bcppo", seed, 10.0 + seed, 1.0, 0.5, 1.0) for seed in range(5)]
    worse = [("ant", "cpo", seed, 5.0, 2.0, 0.5, 1.0) for seed in range(5)]
    mixed = [("ant", "cppo", seed, 5.0, (0.5, 3.0)[seed % 2], 0.5, 1.0) for seed in range(5)]
    table = compare(runs_table(better + worse + mixed), draws=2000)
    assert dict(table.select("method", "favours").iter_rows()) == {"cpo": True, "cppo": False}


def test_runs_within_the_mean_budget_and_beyond_it_in_the_tail():
    rows = [
        ("ant", "cpo", 0, 1.0, 1.1, 0.9, 1.0),
        ("ant", "cpo", 1, 1.0, 1.0, 1.0, 1.0),
        ("ant", "cpo", 2, 1.0, 3.0, 1.1, 1.0),
    ]
    assert meets_mean_not_tail(runs_table(rows))["seed"].to_list() == [0]


# --- the paper's own numbers ---


def test_the_papers_means_give_its_verdicts():
    points = paper_points()
    counts = dominance_counts(points)
    assert counts == {"goal1": (2, 6), "button1": (4, 6), "push1": (6, 6), "hopper": (0, 6), "ant": (1, 6)}
    assert sum(count for count, _ in counts.values()) == 13
    front = with_frontier(points.with_columns(variant=pl.lit("")))
    assert front.filter(pl.col("method") == "bcppo")["frontier"].to_list() == [True] * 5
    bold = {  # the bold cells of tab:main_core, read off the page
        "goal1": {"bcppo", "cppo", "cpo", "wcsac"}, "button1": {"bcppo", "qrppo", "cpo"}, "push1": {"bcppo"},
        "hopper": {"bcppo", "cppo", "ppolag", "cpo", "wcsac"}, "ant": {"bcppo", "cppo", "ppolag", "cpo"},
    }  # fmt: skip
    for task, methods in bold.items():
        assert set(front.filter(pl.col("task") == task, "frontier")["method"]) == methods


def test_every_main_claim_is_reproduced_by_the_papers_own_numbers(records):
    claims = claims_of(records, paper_statistics())
    assert {claim.title: claim.verdict for claim in claims} == dict.fromkeys([c[0] for c in _MAIN_CLAIMS], REPRODUCED)


def test_a_claim_about_cells_that_are_not_there_stays_open(records):
    assert {claim.verdict for claim in claims_of(records, statistics(records, 50))} == {OPEN}


def test_a_claim_turns_when_the_numbers_do(records):
    stats = paper_statistics()
    worse = stats.cells.with_columns(
        pl.when(pl.col("method") == "bcppo").then(-1e9).otherwise(pl.col("return")).alias("return")
    )
    verdicts = {c.title: c.verdict for c in claims_of(records, Statistics(stats.runs, worse, stats.comparisons))}
    assert verdicts[_MAIN_CLAIMS[1][0]] == "not reproduced"


def test_the_papers_tables_are_whole():
    cells = paper_cells()
    assert cells.filter(pl.col("experiment") == "main").height == 7 * 5 * 3
    assert paper_value("ablation", "push1", "bcppo", "beta=0.40", "cvar95") == (0.35, 0.276)
    assert paper_value("ablation", "push1", "bcppo", "β = 0.4", "cvar95") == (0.35, 0.276)
    assert paper_value("ablation", "hopper", "bcppo", "raw sigma", "return") == (610.4, 256.35)
    assert paper_value("main", "ant", "ppo", "", "return") is None
