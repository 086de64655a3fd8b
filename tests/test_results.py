"""What is published in results/: whole, to the byte, and no larger than it may be."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bcppo.kept import check_kept, read_manifest, read_networks
from bcppo.report.load import load_study
from bcppo.study.named import DESIGNS, expand

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "bench"))

from results import BLOCK, _counts, beyond, block, difference, filled  # noqa: E402

RESULTS = ROOT / "results"
MEGABYTE = 10**6


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["final", "100k"])
def test_kept_networks_are_those_that_were_kept(name: str) -> None:
    folder = RESULTS / "networks" / name
    runs = sorted(path for path in folder.iterdir() if path.is_dir())
    assert {file.partition("/")[0] for file in read_manifest(folder)} == {run.name for run in runs}
    for run in runs:
        check_kept(run)
    if name == "final":  # of runs that are published
        main = load_study(RESULTS / "main").runs.filter("usable")
        assert {run.name for run in runs} <= set(main["id"])
    tensors, notes = read_networks(runs[0])
    assert notes["reward_value"] == "kept"
    assert {str(array.dtype) for key, array in tensors.items() if not key.startswith("controller.")} == {"float32"}


def test_networks_and_records_are_small_enough_to_publish() -> None:
    assert size(RESULTS / "networks") < 80 * MEGABYTE
    assert size(RESULTS / "main") < 25 * MEGABYTE


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RESULTS.glob("*/study.json")))
def test_packed_studies_can_be_read(name: str) -> None:
    records = load_study(RESULTS / name)
    assert records.runs["usable"].any()
    per_run = records.episodes.group_by("run").len()
    assert set(per_run["len"]) == {20}


@pytest.mark.parametrize("name", ["main", "components", "scale", "sensitivity"])
def test_the_paper_s_studies_are_there_to_the_last_run(name: str) -> None:
    """As the library defines them today: the same runs, with the same settings, all of them usable."""
    runs = load_study(RESULTS / name).runs
    assert set(runs.select("id", "protocol").iter_rows()) == {
        (entry.id, entry.protocol) for entry in expand(DESIGNS[name]).runs
    }
    assert runs["usable"].all()


def test_tables_in_the_documents_are_what_the_data_give() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    asked = BLOCK.findall(text)
    assert {study for _, study, _, _ in asked} >= {f"results/{name}" for name in ("main", "components", "sensitivity")}
    assert filled(text) == text, "python bench/results.py --into docs/results.md"


def test_a_block_is_refused_of_a_study_it_is_not_about(tmp_path: Path) -> None:
    """Of `components` itself `more` would count each seed twice; so would a copy under another name."""
    with pytest.raises(SystemExit, match="The block more is about more-seeds, more-seeds-1m, not"):
        block(RESULTS / "components", "more")
    shutil.copytree(RESULTS / "components", tmp_path / "more-seeds")
    with pytest.raises(SystemExit, match=r"has seeds of `components` again \(0 the first"):
        block(tmp_path / "more-seeds", "more")


def test_more_seeds_are_five_new_pairs_beside_five_old_ones() -> None:
    """By hand, of the worst of 20 episodes, which CVaR@95 of them is."""
    gaps = []
    for name, seeds in (("components", range(5)), ("more-seeds", range(5, 10))):
        worst = load_study(RESULTS / name).episodes.group_by("run").agg(pl.col("cost_rate").max())
        tails = dict(worst.iter_rows())
        gaps.append([tails[f"button1-bcppo-no-Bachelier-seed{s}"] - tails[f"button1-bcppo-seed{s}"] for s in seeds])
    said = block(RESULTS / "more-seeds", "more").replace("−", "-")
    assert f"by seed: {', '.join(f'{gap:.3f}' for gap in gaps[1])}; mean {sum(gaps[1]) / 5:.3f} [" in said
    assert f"With the 5 of `components`: {sum(gaps[0] + gaps[1]) / 10:.3f} [" in said


NUMBER = r"[−-]?\d+(?:\.\d+)?(?:e[−-]?\d+)?"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")


def intervals(text: str) -> list[tuple[str, ...]]:
    return [tuple(part.replace("−", "-") for part in found) for found in INTERVAL.findall(text)]


def near(said: str, found: str) -> bool:
    """Whether a number is another with fewer digits: within one of its last digit, since that was rounded before."""
    digits, _, power = said.partition("e")
    last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return abs(float(said) - float(found)) <= 0.51 * last + 1e-12


def test_the_diagnostics_in_the_documents_are_those_that_are_published() -> None:
    """Every interval of ours in the table of statistics is one of a published report."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = text[text.index("| statistic | ours") : text.index("| task | | boundary hits")]
    said = [one for row in table.splitlines()[2:] if row for one in intervals(row.split("|")[2])]
    reports = [path.read_text(encoding="utf-8") for path in sorted((RESULTS / "diagnostics").glob("*/report.md"))]
    found = [one for report in reports for one in intervals(report)]
    assert len(said) > 20
    for one in said:
        assert any(all(map(near, one, other)) for other in found), one


def test_what_claims_count_is_counted_again_for_each_draw_of_seeds() -> None:
    """Seed 0: BCPPO is best of all in both. Seed 1: worst. Of both: (−1, 2) beside (0, 1), worst too."""
    values = np.tile(np.array([0.0, 1.0]), (5, 7, 2, 1))
    values[:, 0] = [[1.0, 0.0], [-3.0, 4.0]]
    found = _counts(values, np.array([[0, 0], [1, 1], [0, 1]]))
    assert found["non-dominated in tasks"].tolist() == [5, 0, 0]
    assert found["dominates"].tolist() == [30, 0, 0]
    assert found["navigation CVaR@95 below"].tolist() == [9, 0, 0]


def test_where_methods_are_equal_none_dominates() -> None:
    found = _counts(np.ones((5, 7, 2, 2)), np.array([[0, 1]]))
    assert [found[name][0] for name in ("non-dominated in tasks", "dominates")] == [5, 0]


def test_differences_on_the_way_are_of_the_evaluations_made_there() -> None:
    """By hand, of Button1 after 400,000 steps, whose evaluation is at the end of a rollout of 256."""
    made = load_study(RESULTS / "main").evaluations.filter(step=400_128)
    worst = dict(made.group_by("run").agg(pl.col("cost_rate").max()).iter_rows())
    gaps = [worst[f"button1-bcppo-seed{seed}"] - worst[f"button1-ppopid-seed{seed}"] for seed in range(5)]
    header, *rows = (line.split(" | ") for line in block(RESULTS / "main", "way").replace("−", "-").splitlines())
    row = next(row for row in rows if row[0] == "| Button1")
    assert row[header.index("400,000")] == f"{sum(gaps) / 5:.3f} ({sum(gap < 0 for gap in gaps)} of 5)"


def test_numbers_show_which_side_of_a_bound_they_are_on() -> None:
    assert [beyond(value) for value in (2.04, -2.049, 2.06, -3.21)] == ["+2.04", "-2.05", "+2.1", "-3.2"]
    row = {"task": "push1", "cvar95_difference": -0.2, "cvar95_low": -0.5}
    assert difference(row | {"cvar95_high": -0.01}, "cvar95") == "**-0.200** [-0.500, -0.010]"
    assert difference(row | {"cvar95_high": -0.0003}, "cvar95") == "**-0.2000** [-0.5000, -0.0003]"
    assert difference(row | {"cvar95_high": -0.000004}, "cvar95") == "-0.2000 [-0.5000, -0.0000]"
    assert difference(row | {"cvar95_high": 0.0003}, "cvar95") == "-0.200 [-0.500, 0.000]"
