"""Runs without a study: all that lie in a folder are laid out by their settings, and none is passed over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from report_tools import cells_of
from synthetic import make_study
from tiny_cmdp import TinyCMDP

import bcppo
from bcppo import cli
from bcppo.records import read_rows, write_rows
from bcppo.report import StudyError, load_study, pack_study
from bcppo.report.claims import claims_of
from bcppo.report.figures import figures_of
from bcppo.report.pagedata import page_data
from bcppo.report.stats import statistics
from bcppo.report.tables import tables_of
from bcppo.settings import QUICK


def make_runs(folder: Path, **options) -> Path:
    """A folder of run folders as a fleet leaves it: those of a made-up study, without it."""
    made = make_study(folder / ".made", **options)
    for run in (made / "runs").iterdir():
        run.rename(folder / run.name)
    shutil.rmtree(made)
    return folder


def said(folder: Path) -> dict[str, str]:
    return {problem.run: problem.sentence for problem in load_study(folder).problems}


def test_a_folder_of_runs_gives_the_same_cells_as_the_study_they_came_from(tmp_path):
    study = make_study(tmp_path / "study", seeds=(0, 1, 2))
    planned = cells_of(load_study(study))
    (study / "study.json").rename(tmp_path / "kept.json")
    for folder in (study, study / "runs"):
        records = load_study(folder)
        assert records.problems == ()
        assert cells_of(records) == planned


def test_one_run_s_folder_is_reported_by_itself(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], seeds=[3])
    records = load_study(tmp_path / "goal1-bcppo-seed3")
    assert records.runs.select("id", "seed", "usable").rows() == [("goal1-bcppo-seed3", 3, True)]
    assert records.episodes.height == 20


def test_what_is_unfinished_or_damaged_is_named_and_missing_from_its_cell(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], seeds=range(5))
    (tmp_path / "goal1-bcppo-seed1" / "status.json").write_text('{"state": "running", "message": ""}')
    (tmp_path / "goal1-bcppo-seed2" / "config.json").write_text("{")
    (tmp_path / "goal1-bcppo-seed3" / "config.json").unlink()
    (tmp_path / "goal1-bcppo-seed4" / "progress.parquet").write_bytes(b"PAR1")
    problems = said(tmp_path)
    for seed, words in ((1, "has not finished"), (2, "not whole"), (3, "no config.json"), (4, "checksum")):
        assert words in problems[f"goal1-bcppo-seed{seed}"]
    cell = cells_of(load_study(tmp_path))["goal1", "bcppo", ""]
    assert (cell["seeds"], cell["expected"]) == (1, 3)  # of seeds 2 and 3 nobody can say what they were


def test_runs_of_other_settings_are_variants_and_never_averaged(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["cppo"], seeds=(0, 1))
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], seeds=(0, 1))
    make_runs(tmp_path / "sweep", tasks=["goal1"], methods=["bcppo"], seeds=(0, 1),
              variants={"x": {"beta": 0.1}, "y": {"members": 3, "hidden": (32, 32)}})  # fmt: skip
    records = load_study(tmp_path)
    assert records.problems == ()
    by_variant = dict(records.runs.group_by("variant").agg(pl.col("protocol").n_unique()).iter_rows())
    assert by_variant == {"": 2, "beta=0.1": 1, "hidden=32x32, M=3": 1}
    stats = statistics(records, draws=20)
    assert {"main", "variants"} <= {table.name for table in tables_of(records, stats)}
    looks = [(series["light"], series["shape"]) for series in page_data(records, stats)["series"]]
    assert len(set(looks)) == 4


def test_methods_are_compared_only_where_their_steps_agree(tmp_path):
    make_runs(tmp_path / "a", tasks=["goal1"], methods=["bcppo"], seeds=(0, 1), steps=2048)
    make_runs(tmp_path / "b", tasks=["goal1"], methods=["cppo"], seeds=(0, 1), steps=4096)
    records = load_study(tmp_path)
    assert set(records.runs["variant"]) == {"steps=2048", "steps=4096"}
    assert statistics(records, draws=20).comparisons.height == 0
    shutil.rmtree(tmp_path / "b")
    make_runs(tmp_path / "b", tasks=["goal1"], methods=["cppo"], seeds=(0, 1), steps=2048)
    records = load_study(tmp_path)
    assert set(records.runs["variant"]) == {""}
    assert statistics(records, draws=20).comparisons["pairs"].to_list() == [2]


def test_runs_of_another_preset_bear_its_name(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo", "ppolag"], seeds=[0], steps=2048)
    make_runs(tmp_path / "a", tasks=["goal1"], methods=["bcppo"], seeds=[0], steps=None, variants={"": QUICK})
    longer = QUICK | {"steps": 4096, "beta": 0.2}
    make_runs(tmp_path / "b", tasks=["goal1"], methods=["bcppo"], seeds=[0], steps=None, variants={"": longer})
    runs = load_study(tmp_path).runs
    assert dict(runs.select("id", "variant").iter_rows()) == {
        "goal1-bcppo-seed0": "steps=2048", "goal1-ppolag-seed0": "steps=2048",
        "a/goal1-bcppo-seed0": "preset=quick", "b/goal1-bcppo-seed0": "preset=quick, steps=4096, beta=0.2",
    }  # fmt: skip
    assert set(runs["paper"]) == {""}


def test_runs_of_another_version_are_told_apart_by_their_protocol(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], seeds=[0, 1])
    stored = json.loads((tmp_path / "goal1-bcppo-seed1" / "config.json").read_text())
    del stored["config"]["beta"]
    (tmp_path / "goal1-bcppo-seed1" / "config.json").write_text(json.dumps(stored))
    runs = load_study(tmp_path).runs
    protocol = runs["protocol"][1]
    assert runs.select("variant", "usable").rows() == [("steps=2048", True), (f"protocol={protocol}", True)]
    assert runs["differs"][1] == "settings of another version"


def test_seeds_are_counted_against_those_of_the_task(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], seeds=(0, 1, 2))
    make_runs(tmp_path / "more", tasks=["goal1"], methods=["cppo"], seeds=[1])
    make_runs(tmp_path / "else", tasks=["hopper"], methods=["bcppo"], seeds=[4])
    cells = cells_of(load_study(tmp_path))
    assert {key: (cell["seeds"], cell["expected"]) for key, cell in cells.items()} == {
        ("goal1", "bcppo", ""): (3, 3), ("goal1", "cppo", ""): (1, 3), ("hopper", "bcppo", ""): (1, 1),
    }  # fmt: skip


def test_a_run_made_twice_counts_once_the_finished_one(tmp_path):
    make_runs(tmp_path / "first", tasks=["goal1"], methods=["bcppo"], seeds=[0])
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    assert list(said(tmp_path)) == ["second/goal1-bcppo-seed0"]
    (tmp_path / "first" / "goal1-bcppo-seed0" / "status.json").unlink()
    problems = said(tmp_path)
    assert "second/goal1-bcppo-seed0 is a run with the same settings and seed" in problems["first/goal1-bcppo-seed0"]
    assert load_study(tmp_path).runs["id"].to_list() == ["second/goal1-bcppo-seed0"]


def test_a_study_among_the_runs_is_pointed_to(tmp_path):
    make_study(tmp_path / "small", tasks=["goal1"], methods=["bcppo"])
    records = load_study(tmp_path)
    assert records.runs.height == 2
    assert [problem.sentence for problem in records.problems] == [
        "small is a study, of which only runs that were begun are here; `bcppo report` of its own folder has all its "
        "runs."
    ]


def test_a_published_study_among_the_runs_is_not_called_damaged(tmp_path):
    make_runs(tmp_path / "runs", tasks=["goal1"], methods=["bcppo"], seeds=[0])
    pack_study(make_study(tmp_path / "small", tasks=["goal1"], methods=["bcppo"]), tmp_path / "published")
    shutil.rmtree(tmp_path / "small")
    records = load_study(tmp_path)
    assert records.runs["id"].to_list() == ["runs/goal1-bcppo-seed0"]
    assert [problem.sentence for problem in records.problems] == [
        "published is a study, in its published form; `bcppo report` of its own folder has all its runs."
    ]


def test_the_paper_stands_beside_runs_in_its_own_settings_only(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], steps=2048)
    records = load_study(tmp_path)
    stats = statistics(records, draws=20)
    assert "paper_and_ours" not in {table.name for table in tables_of(records, stats)}
    assert claims_of(records, stats) == []
    make_runs(tmp_path / "whole", tasks=["hopper"], methods=["bcppo"], steps=None)
    records = load_study(tmp_path)
    stats = statistics(records, draws=20)
    (table,) = [table for table in tables_of(records, stats) if table.name == "paper_and_ours"]
    row = dict(zip(table.header, table.rows[0]))
    assert row["Hopper paper"].mean == 772.53
    assert row["Goal1 paper"].mean is None
    assert row["Goal1 ours"].mean is not None


def test_a_changed_setting_that_no_variant_names_is_not_the_papers(tmp_path):
    make_runs(tmp_path, tasks=["push1"], methods=["bcppo"], steps=500_000,
              variants={"": {"clip": 0.3}, "beta": {"clip": 0.3, "beta": 0.1}})  # fmt: skip
    runs = load_study(tmp_path).runs
    assert set(runs["variant"]) == {"", "beta=0.1"}
    assert set(runs["paper"]) == {""}


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    """Two environments from Python, and one named as module:function, with limits of their own."""
    folder = tmp_path_factory.mktemp("own")
    short = {"rollout": 64, "minibatch": 32, "epochs": 1, "steps": 64, "eval_episodes": 2, "tensorboard": False}
    bcppo.train(make_env=TinyCMDP, cost_limit_rate=0.25, out=folder / "class", **short)
    bcppo.train(make_env=lambda: TinyCMDP((1.0, 2.0)), cost_limit_rate=0.25, out=folder / "lambda", **short)
    bcppo.train(task="tiny_cmdp:make", cost_limit_rate=0.375, out=folder / "module", **short)
    return folder


def test_environments_of_one_s_own_are_told_apart_and_shown_with_their_limits(own):
    records = load_study(own)
    assert records.problems == ()
    assert dict(records.runs.select("task", "limit_rate").iter_rows()) == {
        "tiny_cmdp:TinyCMDP": 0.25, "test_found:own.<locals>.<lambda>": 0.25, "tiny_cmdp:make": 0.375,
    }  # fmt: skip
    main = next(table for table in tables_of(records, statistics(records, draws=20)) if table.name == "main")
    assert "tiny_cmdp:TinyCMDP 0.25, tiny_cmdp:make 0.375" in main.caption


def test_the_command_line_reports_runs_and_says_which_it_could_not_use(own, tmp_path, capsys):
    folder = Path(shutil.copytree(own, tmp_path / "runs"))
    (folder / "module" / "status.json").write_text('{"state": "failed", "message": "The disk is full."}')
    assert cli.main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "2 of 3 runs used" in out
    assert "module failed: The disk is full." in out
    page = (folder / "report" / "report.html").read_text()
    assert "tiny_cmdp:TinyCMDP, limit 0.25" in page
    assert "bcppo pack" not in page
    assert "--task tiny_cmdp:make" in page
    assert "--task own" not in page  # nothing that `bcppo train` could run
    assert load_study(folder).runs.height == 3  # the report itself is no run


def test_points_far_below_the_curves_and_multipliers_of_all_sizes_are_in_the_panel(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo", "cppo"], seeds=(0, 1), steps=2048)
    for path in tmp_path.glob("*/evaluations.parquet"):
        rows = read_rows(path)
        write_rows(path, rows | {"cost_rate": [1e-4] * len(rows["cost_rate"])})
    for path in tmp_path.glob("*/progress.parquet"):
        large = 1000.0 if "cppo" in path.parent.name and "bcppo" not in path.parent.name else 0.5
        write_rows(path, read_rows(path) | {"cost_cvar95": [2.0, 1.0], "multiplier": [0.0, large]})
    records = load_study(tmp_path)
    figures = {figure.name: figure for figure in figures_of(records, statistics(records, draws=20))}
    tail = figures["curves_cost_cvar95"].draw().axes[0]
    assert tail.get_ylim()[0] < 1e-4
    assert tail.get_ylim()[1] > 2.0
    multiplier = figures["curves_multiplier"].draw().axes[0]
    place = multiplier.transAxes.inverted().transform(multiplier.transData.transform([(0, 0.0), (0, 0.5), (0, 500.0)]))
    assert place[0, 1] == pytest.approx(0.0, abs=1e-6)
    assert place[1, 1] > 0.05, "a multiplier of 0.5 can be told from 0 beside one of 500"
    assert place[2, 1] < 1.0


def test_costs_of_zero_and_bands_down_to_zero_leave_a_figure_to_read(tmp_path):
    make_runs(tmp_path, tasks=["goal1", "hopper"], methods=["bcppo"], seeds=(0, 1), steps=2048)
    for run, tail in (("goal1-bcppo-seed0", [0.2, 0.1]), ("goal1-bcppo-seed1", [1e-17, 0.1]),
                      ("hopper-bcppo-seed0", [0.0, 0.0]), ("hopper-bcppo-seed1", [0.0, 0.0])):  # fmt: skip
        path = tmp_path / run / "progress.parquet"
        write_rows(path, read_rows(path) | {"cost_cvar95": tail})
    records = load_study(tmp_path)
    figures = figures_of(records, statistics(records, draws=20))
    (drawn,) = [figure.draw() for figure in figures if figure.name == "curves_cost_cvar95"]
    goal, hopper = drawn.axes[:2]
    assert (goal.get_yscale(), hopper.get_yscale()) == ("log", "linear")
    assert goal.get_ylim()[0] == pytest.approx(0.01)  # a tenth of the lowest mean, not the band's 1e-17


def test_folders_without_runs_and_packing_without_a_study_are_refused(tmp_path):
    with pytest.raises(StudyError, match="neither a study"):
        load_study(tmp_path)
    with pytest.raises(StudyError, match="There is no folder"):
        load_study(tmp_path / "nowhere")
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"])
    with pytest.raises(StudyError, match="holds no study"):
        pack_study(tmp_path, tmp_path / "packed")


def test_a_config_without_a_task_is_named_as_damaged(tmp_path):
    make_runs(tmp_path, tasks=["goal1"], methods=["bcppo"], seeds=[0])
    config = json.loads((tmp_path / "goal1-bcppo-seed0" / "config.json").read_text())
    config["config"]["task"] = 7
    (tmp_path / "goal1-bcppo-seed0" / "config.json").write_text(json.dumps(config))
    assert "no task or no seed" in said(tmp_path)["goal1-bcppo-seed0"]
