"""Tables in three renderings, figures with their rows, and what is missing marked in all of them."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys

import polars as pl
import pytest
from synthetic import make_study

from bcppo.report import load_study
from bcppo.report.canvas import STYLE, matplotlib_module
from bcppo.report.curves import curves, smooth
from bcppo.report.figures import figures_of, write_figures
from bcppo.report.stats import run_metrics, statistics
from bcppo.report.tables import Table, Value, mark, tables_of, to_csv, to_latex, to_markdown


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_study(tmp_path_factory.mktemp("tables") / "study", methods=("bcppo", "cppo", "cpo"), seeds=(0, 1))
    shutil.rmtree(folder / "runs" / "goal1-cppo-seed1")
    for seed in (0, 1):
        shutil.rmtree(folder / "runs" / f"hopper-cppo-seed{seed}")
    return folder


@pytest.fixture(scope="module")
def records(folder):
    return load_study(folder)


@pytest.fixture(scope="module")
def tables(records) -> dict[str, Table]:
    return {table.name: table for table in tables_of(records, statistics(records, 50))}


def test_a_table_has_the_papers_layout(tables):
    main = tables["main"]
    assert main.header == ("Method", "Metric", "Goal1", "Hopper")
    assert [row[:2] for row in main.rows[:4]] == [
        ("BCPPO", "Return"),
        ("", "Cost"),
        ("", "CVaR@95"),
        ("CPPO", "Return"),
    ]
    assert main.rules == (2, 5)


def test_an_incomplete_cell_says_how_many_seeds_it_has(tables):
    main = tables["main"]
    assert main.rows[3][2].note == "1 of 2 seeds"
    assert main.rows[3][3].text == "–"
    assert main.rows[3][3].note.startswith("0 of 2 seeds")
    assert "Goal1, Hopper lack seeds: bold there is provisional" in main.caption
    text = to_markdown(main)
    assert f"<sup>{mark(main.notes.index('1 of 2 seeds'))}</sup> 1 of 2 seeds" in text


def test_bold_is_the_frontier_and_never_a_cost(tables, records):
    main = tables["main"]
    runs = run_metrics(records).filter(pl.col("task") == "goal1")
    means = {
        m: tuple(runs.filter(pl.col("method") == m).select("return", "cvar95").mean().row(0))
        for m in ("bcppo", "cppo", "cpo")
    }
    for row, (name, metric) in zip(main.rows, [(m, k) for m in means for k in ("return", "cost", "cvar95")]):
        own = means[name]
        beaten = any(r >= own[0] and c <= own[1] and (r, c) != own for r, c in means.values())
        assert row[2].bold == (metric != "cost" and not beaten)


def test_csv_has_unrounded_numbers_and_every_rows_name(tables, records):
    rows = list(csv.DictReader(io.StringIO(to_csv(tables["main"]))))
    runs = run_metrics(records).filter(pl.col("task") == "goal1", pl.col("method") == "cpo")
    found = next(row for row in rows if row["Method"] == "CPO" and row["Metric"] == "CVaR@95")
    assert float(found["Goal1"]) == pytest.approx(runs["cvar95"].mean(), rel=1e-12)
    assert float(found["Goal1 std"]) == pytest.approx(runs["cvar95"].std(), rel=1e-12)
    assert found["Goal1 note"] == ""


def test_the_papers_values_stand_beside_ours_with_a_note_on_other_settings(tables):
    beside = tables["paper_and_ours"]
    assert beside.header[2:4] == ("Goal1 paper", "Goal1 ours")
    assert beside.rows[0][2].text == "17.37 ± 6.48"
    assert beside.rows[0][3].note == "settings other than the paper's: steps=2048"


def test_hostile_names_stay_text_in_every_rendering():
    name = "a|b\\c_{d}&%$#<script>\n**x**"
    table = Table("t", "c", ("Method", "x"), ((name, Value(1.0, note=name)),))
    line = next(line for line in to_markdown(table).splitlines() if "script" in line)
    assert line.count("|") - line.count("\\|") == 3
    assert "<script" not in to_markdown(table)
    assert "\\_\\{d\\}\\&\\%\\$\\#" in to_latex(table)
    assert next(csv.reader(io.StringIO(to_csv(table).split("\n", 1)[1])))[0] == name


def test_values_are_written_with_a_true_minus():
    assert Value(-0.294, 0.52, digits=2).text == "−0.29 ± 0.52"
    assert Value(1.0, interval=(None, 2.0), digits=1).text == "1.0 [–, 2.0]"
    assert [mark(number) for number in (0, 25, 26, 27)] == ["a", "z", "aa", "ab"]


def test_rolling_mean_is_over_the_last_records_of_each_run():
    progress = pl.DataFrame({"run": ["a"] * 4 + ["b"] * 2, "step": [1, 2, 3, 4, 1, 2],
                             "sigma_c": [1.0, 3.0, 5.0, 7.0, 10.0, 20.0],
                             "records": [1] * 6})  # fmt: skip
    assert smooth(progress, "sigma_c", 3)["value"].to_list() == pytest.approx([1.0, 2.0, 3.0, 5.0, 10.0, 15.0])


def test_curves_are_means_over_seeds_with_their_standard_error(records):
    (first,) = curves(records, "multiplier").filter(
        pl.col("task") == "goal1", pl.col("method") == "bcppo", pl.col("step") == 1024
    ).iter_rows(named=True)  # fmt: skip
    values = records.progress.filter(pl.col("run").str.starts_with("goal1-bcppo"), pl.col("step") == 1024)["multiplier"]
    assert first["mean"] == pytest.approx(values.mean())
    assert first["spread"] == pytest.approx(values.std() / 2**0.5)
    assert first["seeds"] == 2


def test_every_figure_writes_the_rows_it_draws(records, tmp_path):
    stats = statistics(records, 50)
    figures = [figure for figure in figures_of(records, stats) if figure.name in ("pareto", "curves_sigma_c")]
    write_figures(figures, tmp_path)
    for figure in figures:
        assert (tmp_path / f"{figure.name}.pdf").read_bytes().startswith(b"%PDF")
        assert (tmp_path / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
    rows = pl.read_csv(tmp_path / "pareto.csv")
    cell = stats.cells.filter(pl.col("task") == "goal1", pl.col("method") == "cpo")
    drawn = rows.filter(pl.col("task") == "goal1", pl.col("method") == "cpo")
    assert drawn["cvar95"].item() == cell["cvar95"].item()
    assert drawn["return_low"].item() == cell["return_low"].item()


def test_ablation_studies_have_their_own_tables_and_figures(tmp_path):
    variants = {
        "": {},
        "no Bachelier": {"beta": 0.0},
        "raw sigma": {"raw_disagreement": True},
        "beta=0.4": {"beta": 0.4},
    }
    folder = make_study(tmp_path / "study", tasks=["push1"], methods=["bcppo"], variants=variants, steps=512)
    records = load_study(folder)
    stats = statistics(records, 50)
    tables = {table.name: table for table in tables_of(records, stats)}
    assert [row[0] for row in tables["ablations"].rows[::3]] == ["BCPPO", "no Bachelier", "raw sigma", "beta=0.4"]
    beside = tables["ablations_paper_and_ours"].rows
    assert beside[0][2].text == "0.149 ± 0.342"
    assert beside[9][2].text == "0.458 ± 0.540"
    effects = tables["ablations_effects"].rows
    assert [row[:2] for row in effects] == [("Push1", name) for name in ("no Bachelier", "raw sigma", "beta=0.4")]
    means = {row["variant"]: row["return"] for row in stats.cells.iter_rows(named=True)}
    assert effects[1][2].mean == pytest.approx(means["raw sigma"] - means[""])  # every seed has its pair
    names = {figure.name for figure in figures_of(records, stats)}
    assert {"components_bars", "scale_bars", "sensitivity_bars", "components_multiplier", "scale_sigma_c"} <= names


def test_the_report_imports_neither_torch_nor_an_algorithm():
    code = (
        "import sys, bcppo.report.page;"
        "bad = [n for n in sys.modules if n == 'torch' or n.startswith('bcppo.algorithms')];"
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("tasks", [["hopper"], ["hopper", "ant"], ["goal1", "hopper", "ant"]])
def test_a_legend_lies_within_its_figure_however_few_tasks_there_are(tasks, tmp_path):
    names = ("", "no Bachelier", "uncertainty bonus", "no branch normalization", "no anti-windup")
    variants = {name: {"beta": 0.1 * (index + 1)} if name else {} for index, name in enumerate(names)}
    records = load_study(make_study(tmp_path, tasks=tasks, methods=["bcppo"], variants=variants, name="components"))
    figures = [figure for figure in figures_of(records, statistics(records, 20)) if figure.name.endswith("multiplier")]
    for figure in figures:
        with matplotlib_module().rc_context(STYLE):
            drawn = figure.draw()
            drawn.draw_without_rendering()
        (legend,) = (axis.get_legend() for axis in drawn.axes if axis.get_legend())
        box = legend.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1
    assert figures

