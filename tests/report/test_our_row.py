"""PPO-PID, a row of our own in the paper's main study: shown everywhere, counted in nothing that is the paper's.

Where a study is made up, its ppopid dominates every other method: counted where it should not be, it shows.
"""

from __future__ import annotations

import dataclasses
import shutil

import polars as pl
import pytest
from report_tools import cells_of, paper_statistics, runs_table
from synthetic import make_study

from bcppo.report import load_study
from bcppo.report.claims import _MAIN_CLAIMS, REPRODUCED, claims_of
from bcppo.report.figures import figures_of
from bcppo.report.names import aside
from bcppo.report.page import _run_facts, render_page
from bcppo.report.pagedata import page_data
from bcppo.report.stats import Statistics, run_metrics, statistics, with_frontier
from bcppo.report.tables import Table, tables_of
from bcppo.study.folder import StudyFolder
from bcppo.study.named import find_study

TASKS = ("goal1", "button1", "push1", "hopper", "ant")
OTHERS = ("bcppo", "cppo", "cpo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("ours") / "study", methods=(*OTHERS, "ppopid"))


@pytest.fixture(scope="module")
def records(folder):
    return load_study(folder)


@pytest.fixture(scope="module")
def without(folder, tmp_path_factory):
    """The same study, the row left out."""
    return load_study(make_study(tmp_path_factory.mktemp("others") / "study", methods=OTHERS))


def tables(records) -> dict[str, Table]:
    return {table.name: table for table in tables_of(records, statistics(records, 50))}


# --- the paper's claims ---


def paper_and_ours(*, seeds: int) -> Statistics:
    """The paper's statistics and a row of ours that would turn each of its counts."""
    paper = paper_statistics()
    rows = []
    for number, row in enumerate(paper.cells.filter(pl.col("method") == "bcppo").iter_rows(named=True)):
        better = 1 if number < 3 else -1  # it dominates BCPPO on three tasks and is dominated on two
        row |= {"method": "ppopid", "seeds": seeds, "positive_share": 1.0}
        row |= {"return": row["return"] + better, "cvar95": row["cvar95"] - better}
        rows.append(row if seeds else row | dict.fromkeys(("return", "cost", "cvar95", "positive_share")))
    beyond = runs_table([(task, "ppopid", seed, 1.0, 1.1, 0.9, 1.0) for task in TASKS for seed in range(seeds)])
    favoured = pl.DataFrame([{"task": task, "method": "ppopid", "favours": True} for task in TASKS])
    return Statistics(
        pl.concat([paper.runs, beyond.cast(dict(paper.runs.schema))]),
        pl.concat([paper.cells, pl.DataFrame(rows, schema=paper.cells.schema)]),
        pl.concat([paper.comparisons, favoured]),
    )


@pytest.mark.parametrize("seeds", [5, 2, 0])
def test_no_claim_of_the_papers_counts_our_row_or_waits_for_it(records, seeds):
    paper = claims_of(records, paper_statistics())
    assert {claim.title: claim.verdict for claim in paper} == dict.fromkeys([c[0] for c in _MAIN_CLAIMS], REPRODUCED)
    assert claims_of(records, paper_and_ours(seeds=seeds)) == paper
    texts = [claim.ours for claim in paper]
    assert texts[:3] == ["non-dominated in 5 of 5 tasks", "dominates 13 of 30", "18 of 175 runs"]
    assert texts[3] == "Ant–WCSAC, Push1–FOCOPS, Push1–WCSAC"
    assert texts[5:] == ["14.2% of updates", "105 of 105 cell means agree"]


def test_variants_of_our_row_make_no_ablation_of_the_papers_study(records):
    stats = paper_and_ours(seeds=5)
    variant = pl.when(pl.col("method") == "ppopid").then(pl.lit("beta=0.1")).otherwise("variant").alias("variant")
    changed = dataclasses.replace(stats, cells=stats.cells.with_columns(variant))
    assert claims_of(records, changed) == claims_of(records, paper_statistics())


def test_runs_of_our_row_alone_test_no_claim(tmp_path):
    found = make_study(tmp_path / "study", tasks=["push1"], methods=["ppopid"], seeds=[0], steps=None)
    (found / "study.json").unlink()
    records = load_study(found)
    assert records.runs["usable"].to_list() == [True]
    assert claims_of(records, statistics(records, 50)) == []


# --- what dominates ---


def test_the_frontier_is_that_of_the_study_without_our_row(records, without):
    stats = statistics(records, 50)
    for _, group in stats.cells.group_by("task"):
        best = group.sort("return")["method"][-1], group.sort("cvar95")["method"][0]
        assert best == ("ppopid", "ppopid")
    fronts = [set(with_frontier(statistics(r, 50).cells).select("task", "method", "frontier").iter_rows())
              for r in (records, without)]  # fmt: skip
    assert fronts[0] - fronts[1] == {("goal1", "ppopid", None), ("hopper", "ppopid", None)}
    assert fronts[1] <= fronts[0]
    points = page_data(records, stats)["points"]
    assert [point["frontier"] for point in points if point["aside"]] == [False, False]
    assert sum(point["frontier"] for point in points) == sum(front is True for *_, front in fronts[1])


def test_our_row_stands_in_the_main_table_marked_and_never_bold(records, without):
    main, other = tables(records)["main"], tables(without)["main"]
    assert main.rows[:9] == other.rows
    assert [row[0] for row in main.rows[9:]] == ["PPO-PID (ours)", "", ""]
    assert not any(value.bold for row in main.rows[9:] for value in row[2:])
    assert all(value.mean is not None for row in main.rows[9:] for value in row[2:])
    assert "PPO-PID (ours) is BCPPO with β = 0, a row the paper does not have" in main.caption
    assert "PPO-PID" not in other.caption
    beside = tables(records)["paper_and_ours"]
    assert [value.text for row in beside.rows[9:] for value in row[2::2]] == ["–"] * 6


def test_our_row_is_drawn_in_the_figure_and_the_curves(records):
    figures = {figure.name: figure for figure in figures_of(records, statistics(records, 50))}
    assert "Pale: PPO-PID (ours)" in figures["pareto"].caption
    for name in ("pareto", "curves_episode_return", "curves_cost_cvar95", "curves_multiplier"):
        assert "ppopid" in set(figures[name].rows["method"])


def test_without_the_papers_comparators_it_is_a_method_like_any_other(tmp_path):
    assert aside(["bcppo", "ppopid", "ppo"]) == set()
    assert aside(["bcppo", "ppopid", "cpo"]) == {"ppopid"}
    records = load_study(make_study(tmp_path / "study", tasks=["goal1"], methods=["bcppo", "ppopid"]))
    front = with_frontier(statistics(records, 50).cells)
    assert dict(front.select("method", "frontier").iter_rows()) == {"bcppo": False, "ppopid": True}
    assert _run_facts(records.runs) == [("4 of 4 runs", False)]


# --- what disagreement adds ---


def test_bcppo_is_compared_with_our_row_in_a_table_of_its_own(records, without):
    found = tables(records)
    assert found["comparisons"] == tables(without)["comparisons"]
    assert "disagreement" not in tables(without)
    rows = found["disagreement"].rows
    assert [row[:3] for row in rows] == [(task, "PPO-PID (ours)", "is dominated") for task in ("Goal1", "Hopper")]
    assert found["disagreement"].header[3:6] == ("Return difference", "Cost difference", "CVaR@95 difference")
    runs = {row["run"]: row for row in run_metrics(records).iter_rows(named=True)}
    for task, row in zip(("goal1", "hopper"), rows):
        for metric, value in zip(("return", "cost", "cvar95"), row[3:6]):
            pairs = [runs[f"{task}-bcppo-seed{s}"][metric] - runs[f"{task}-ppopid-seed{s}"][metric] for s in (0, 1)]
            assert value.mean == pytest.approx(sum(pairs) / 2)
            assert value.interval == pytest.approx((min(pairs), max(pairs)))  # a quarter of all draws each


# --- what is missing ---


def test_seeds_and_gaps_of_our_row_are_its_own(folder, tmp_path):
    study = shutil.copytree(folder, tmp_path / "study")
    for task in ("goal1", "hopper"):
        shutil.rmtree(study / "runs" / f"{task}-ppopid-seed1")
    records = load_study(study)
    main = tables(records)["main"]
    assert {value.note for row in main.rows[:9] for value in row[2:]} == {""}
    assert {value.note for row in main.rows[9:] for value in row[2:]} == {"1 of 2 seeds"}
    assert "provisional" not in main.caption
    page = render_page(records, statistics(records, 50), [], [])
    assert "<li>12 of 12 runs of the paper&#x27;s methods</li>" in page
    assert "<li class=warn>2 of 4 runs of PPO-PID (ours)</li>" in page


def test_the_papers_methods_are_not_asked_for_seeds_only_our_row_has(tmp_path):
    make_study(tmp_path, tasks=["goal1"], methods=["bcppo", "cppo"], seeds=(0, 1))
    make_study(tmp_path, tasks=["goal1"], methods=["ppopid"], seeds=(0, 1, 2))
    (tmp_path / "study.json").unlink()
    expected = {key[1]: (cell["seeds"], cell["expected"]) for key, cell in cells_of(load_study(tmp_path)).items()}
    assert expected == {"bcppo": (2, 2), "cppo": (2, 2), "ppopid": (3, 3)}


def test_the_papers_175_runs_and_our_25_are_counted_apart(tmp_path):
    StudyFolder(tmp_path).adopt(find_study("main"))
    listed = load_study(tmp_path).runs
    ours = pl.col("method") == "ppopid"
    done = listed.with_columns(usable=pl.lit(True))
    paper, own = "runs of the paper's methods", "runs of PPO-PID (ours)"
    assert _run_facts(done) == [(f"175 of 175 {paper}", False), (f"25 of 25 {own}", False)]
    assert _run_facts(done.with_columns(usable=~ours)) == [(f"175 of 175 {paper}", False), (f"0 of 25 {own}", True)]
    assert _run_facts(done.with_columns(usable=ours)) == [(f"0 of 175 {paper}", True), (f"25 of 25 {own}", False)]
    assert _run_facts(done.filter(~ours)) == [("175 of 175 runs", False)]
    another = done.with_columns(method=pl.col("method").replace("wcsac", "ppo"))
    assert _run_facts(another)[0] == ("175 of 175 runs of the other methods", False)
