"""Many more episodes of a study's runs: their table by hand, what is missing named, what is wrong left out, packed."""

from __future__ import annotations

import shutil
from math import sqrt
from pathlib import Path

import pytest
from report_tools import add_long, cells_of, frames_equal
from synthetic import make_study

from bcppo.errors import BcppoError
from bcppo.records import read_rows, write_rows
from bcppo.report import load_study, pack_study
from bcppo.report.long_table import NAME
from bcppo.report.page import render_page
from bcppo.report.stats import statistics
from bcppo.report.tables import Table, tables_of, to_csv

LIMIT = {"": {"cost_limit_rate": 0.5}}
RUNS = [f"goal1-bcppo-seed{seed}" for seed in range(3)]
# Of 50 episodes the tail is 2.5: the two worst and half of the third. By seed, at a limit of 0.5:
#            50 episodes                       CVaR@95   mean     20 episodes     CVaR@95
#   seed 0   (1.0 + 0.8 + 0.6 / 2) / 2.5       0.84      0.142    0.1             0.1
#   seed 1   (0.7 + 0.2 + 0.2 / 2) / 2.5       0.40      0.210    0.7, 0.2 …      0.7
#   seed 2   0.9 five times                    0.90      0.180    0.1             0.1
RATES = (
    [0.1] * 47 + [1.0, 0.8, 0.6],
    [0.7] + [0.2] * 49,
    [0.1] * 20 + [0.9] * 5 + [0.1] * 25,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = make_study(
        tmp_path_factory.mktemp("long") / "study", tasks=["goal1"], methods=["bcppo", "cppo"], seeds=(0, 1, 2),
        variants=LIMIT,
    )  # fmt: skip
    for run, rates in zip(RUNS, RATES):
        add_long(folder / "runs" / run, rates)
    return folder


@pytest.fixture
def study(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "study"))


def table(folder: Path) -> Table | None:
    records = load_study(folder)
    return {table.name: table for table in tables_of(records, statistics(records, 2000))}.get(NAME)


def figures(row: tuple) -> list[tuple]:
    """Of a row's four values: (mean, std) and (mean, interval), by 50 episodes and by 20."""
    return [(value.mean, value.interval or value.std) for value in row[3:7]]


def approx(*pairs: tuple) -> list[tuple]:
    return [(pytest.approx(mean), pytest.approx(spread)) for mean, spread in pairs]


def test_cvar_from_many_episodes_stands_beside_that_of_the_same_runs_final_evaluation(original):
    found = table(original)
    bcppo, cppo, everything = found.rows
    assert found.title == "CVaR@95 from 50 episodes"
    assert found.header[3:7] == (
        "CVaR@95, 50 episodes", "CVaR@95 interval, 50 episodes", "CVaR@95, 20 episodes",
        "CVaR@95 interval, 20 episodes",
    )  # fmt: skip
    # Means 2.14 / 3 and 0.9 / 3. Deviations from 0.3: -0.2, 0.4, -0.2: squares 0.24, over 2: 0.12. From 2.14 / 3:
    # squares 0.84² + 0.4² + 0.9² − 2.14² / 3. Of 27 resamples each extreme is one, more than 2.5 %: the ends.
    deviation = sqrt((0.84**2 + 0.4**2 + 0.9**2 - 2.14**2 / 3) / 2)
    assert figures(bcppo) == approx(
        (2.14 / 3, deviation), (2.14 / 3, (0.4, 0.9)), (0.3, sqrt(0.12)), (0.3, (0.1, 0.7))
    )
    assert bcppo[:3] == ("Goal1", "BCPPO", "3 of 3")
    # By 50 episodes the tails of seeds 0 and 2 exceed 0.5, by 20 that of seed 1; every mean is within it.
    assert bcppo[7:] == ("2 of 3", "1 of 3")
    assert cppo[:3] == ("Goal1", "CPPO", "0 of 3")
    assert [value.text for value in cppo[3:7]] == ["–"] * 4
    assert cppo[7:] == ("–", "–")
    assert everything[1:3] == ("the paper's methods", "3 of 6")
    assert everything[7:] == ("2 of 3", "1 of 3")


def test_missing_runs_are_named_and_out_of_both_figures(study):
    for name in ("long_evaluation.parquet", "long_evaluation.sum"):
        (study / "runs" / RUNS[1] / name).unlink()
    bcppo, cppo, _ = table(study).rows
    assert bcppo[3].note == f"2 of 3 runs: 50 episodes of {RUNS[1]} are missing"
    assert figures(bcppo)[::2] == approx((0.87, 0.06 / sqrt(2)), (0.1, 0.0))
    assert bcppo[7:] == ("2 of 2", "0 of 2")
    named = ", ".join(f"goal1-cppo-seed{seed}" for seed in range(3))
    assert cppo[3].note == f"0 of 3 runs: 50 episodes of {named} are missing"
    assert f"50 episodes of {RUNS[1]} are missing" in to_csv(table(study))


def test_a_run_that_cannot_be_used_is_named_as_missing_too(study):
    shutil.rmtree(study / "runs" / RUNS[2])
    assert table(study).rows[0][3].note == f"2 of 3 runs: 50 episodes of {RUNS[2]} are missing"


def test_runs_are_compared_on_as_many_episodes_as_most_have(study):
    add_long(study / "runs" / RUNS[0], [*RATES[0], 5.0, 5.0])
    assert figures(table(study).rows[0])[0] == approx((2.14 / 3, figures(table(study).rows[0])[0][1]))[0]
    add_long(study / "runs" / RUNS[2], RATES[2][:30])
    add_long(study / "runs" / RUNS[1], RATES[1])
    found = table(study)
    assert found.title == "CVaR@95 from 52 episodes", "of 52, 50 and 30 none is commoner: the most"
    add_long(study / "runs" / RUNS[0], RATES[0])
    found = table(study)
    assert found.title == "CVaR@95 from 50 episodes"
    assert found.rows[0][3].note == f"2 of 3 runs: 50 episodes of {RUNS[2]} are missing"
    assert found.rows[0][3].mean == pytest.approx(0.62)


def test_our_own_row_is_counted_by_itself(tmp_path):
    folder = make_study(
        tmp_path / "study", tasks=["goal1"], methods=["bcppo", "cppo", "ppopid"], seeds=[0], variants=LIMIT
    )
    for method, rates in zip(("bcppo", "cppo", "ppopid"), (RATES[1], RATES[1], RATES[0])):
        add_long(folder / "runs" / f"goal1-{method}-seed0", rates)
    lines = [(row[1], row[2], *row[7:]) for row in table(folder).rows]
    assert lines == [
        ("BCPPO", "1 of 1", "0 of 1", "1 of 1"),
        ("CPPO", "1 of 1", "0 of 1", "1 of 1"),
        ("PPO-PID (ours)", "1 of 1", "1 of 1", "0 of 1"),
        ("the paper's methods", "2 of 2", "0 of 2", "2 of 2"),
        ("PPO-PID (ours)", "1 of 1", "1 of 1", "0 of 1"),
    ]


def edit(run: Path, **columns) -> None:
    write_rows(run / "long_evaluation.parquet", read_rows(run / "long_evaluation.parquet") | columns)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: (run / "long_evaluation.parquet").write_bytes(b"PAR1"), "its checksum does not match"),
        (lambda run: (run / "long_evaluation.sum").unlink(), "the checksum beside it"),
        (lambda run: (run / "policy.safetensors").write_bytes(b"another"), "another policy than the one in its folder"),
        (lambda run: (run / "policy.safetensors").unlink(), "another policy than the one in its folder"),
        (lambda run: edit(run, cost_rate=[float("nan")] * 50), "missing or not finite"),
        (lambda run: edit(run, length=[None] + [1] * 49), "missing or not finite"),
        (lambda run: edit(run, episode_seed=[*range(50)]), "seeds 10000 upwards"),
        (lambda run: edit(run, cost_rate=["1"] * 50), "of type String"),
        (lambda run: write_rows(run / "long_evaluation.parquet", {"cost_rate": [1.0]}), "lacks the columns"),
        (lambda run: shutil.copy(run.with_name(RUNS[0]) / "long_evaluation.parquet", run), "checksum does not match"),
    ],
)
def test_rows_that_cannot_be_trusted_are_named_and_change_no_other_table(study, original, tmp_path, damage, reason):
    damage(study / "runs" / RUNS[1])
    records = load_study(study)
    (problem,) = records.problems
    assert problem.run == RUNS[1]
    assert reason in problem.sentence
    assert f"The many episodes of {RUNS[1]} (long_evaluation.parquet) are not used: " in problem.sentence
    assert records.runs["usable"].all()
    assert cells_of(records) == cells_of(load_study(original))
    assert table(study).rows[0][3].note == f"2 of 3 runs: 50 episodes of {RUNS[1]} are missing"
    pack_study(study, tmp_path / "packed")
    assert load_study(tmp_path / "packed").problems == records.problems


def test_episodes_other_than_the_recorded_ones_are_used_and_told(study, tmp_path):
    run = study / "runs" / RUNS[1]
    rows = read_rows(run / "evaluations.parquet")
    rows["cost_rate"] = [rate + 0.25 * (index == 39) for index, rate in enumerate(rows["cost_rate"])]
    write_rows(run / "evaluations.parquet", rows)
    records = load_study(study)
    assert [problem.sentence for problem in records.problems] == [
        f"The first 20 of the many episodes of {RUNS[1]} are not those it recorded: largest difference of return 0, of "
        "cost rate 0.25."
    ]
    assert table(study).rows[0][2] == "3 of 3"
    pack_study(study, tmp_path / "packed")
    assert load_study(tmp_path / "packed").problems == records.problems


def test_a_study_without_many_episodes_has_no_such_table(study):
    for run in RUNS:
        (study / "runs" / run / "long_evaluation.parquet").unlink()
    assert load_study(study).problems == ()
    assert table(study) is None


def test_the_page_shows_the_table(original):
    records = load_study(original)
    stats = statistics(records, 50)
    page = render_page(records, stats, tables_of(records, stats), [])
    assert "<b>CVaR@95 from 50 episodes</b>" in page


# --- packed ---


def test_a_packed_study_brings_the_episodes_back(original, tmp_path):
    pack_study(original, tmp_path / "packed")
    whole, packed = load_study(original), load_study(tmp_path / "packed")
    assert whole.long.height == 150
    assert frames_equal(whole.long, packed.long)
    assert whole.problems == packed.problems == ()
    assert table(original) == table(tmp_path / "packed")


def test_a_pack_from_before_there_were_many_episodes_is_read(study, tmp_path):
    packed = tmp_path / "packed"
    pack_study(study, packed)
    for name in ("long_episodes.parquet", "long_episodes.sum"):
        (packed / name).unlink()
    rows = read_rows(packed / "runs.parquet")
    del rows["long_episodes"]
    write_rows(packed / "runs.parquet", rows)
    records = load_study(packed)
    assert records.runs["usable"].all()
    assert records.long.height == 0
    assert table(packed) is None


def test_a_pack_whose_many_episodes_are_gone_others_or_damaged_is_refused(original, tmp_path):
    path = tmp_path / "packed" / "long_episodes.parquet"
    for damage in (
        path.unlink,
        lambda: path.write_bytes(b"PAR1"),
        lambda: write_rows(path, {name: column[:-1] for name, column in read_rows(path).items()}),
        lambda: write_rows(path, {"run": [""]}),
    ):
        pack_study(original, tmp_path / "packed")
        damage()
        with pytest.raises(BcppoError) as error:
            load_study(tmp_path / "packed")
        assert "\n" not in str(error.value)


def test_packing_again_without_many_episodes_leaves_none_of_the_earlier_ones(study, tmp_path):
    pack_study(study, tmp_path / "packed")
    assert (tmp_path / "packed" / "long_episodes.parquet").exists()
    for run in RUNS:
        (study / "runs" / run / "long_evaluation.parquet").unlink()
    pack_study(study, tmp_path / "packed")
    assert {path.stem for path in (tmp_path / "packed").iterdir()} == {"study", "runs", "episodes", "progress"}
    assert load_study(tmp_path / "packed").long.height == 0


def test_many_episodes_of_packed_runs_are_added(study, tmp_path):
    rows = {run: (study / "runs" / run / "long_evaluation.parquet") for run in RUNS}
    kept = rows[RUNS[0]].read_bytes()
    for path in rows.values():
        path.rename(path.with_suffix(".aside"))
    pack_study(study, tmp_path / "packed")
    rows[RUNS[0]].write_bytes(kept)
    curve = study / "runs" / RUNS[0] / "progress.parquet"
    write_rows(curve, {name: values[-1:] for name, values in read_rows(curve).items()})  # as of a run that was kept
    before = load_study(tmp_path / "packed")
    pack_study(study, tmp_path / "packed", add=True)
    after = load_study(tmp_path / "packed")
    assert set(after.long["run"]) == {RUNS[0]}
    assert frames_equal(before.progress, after.progress)
    assert frames_equal(before.runs, after.runs)
    rows[RUNS[0]].unlink()
    pack_study(study, tmp_path / "packed", add=True)
    assert set(load_study(tmp_path / "packed").long["run"]) == {RUNS[0]}
