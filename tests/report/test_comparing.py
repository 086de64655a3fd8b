"""Runs that were made twice, compared: published or not, and what is said where they part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_tools import add_long
from synthetic import make_study

from bcppo.cli import main
from bcppo.records import read_rows, write_rows
from bcppo.report import StudyError, pack_study
from bcppo.report.comparing import DIFFERS, OTHER, SAME, compare_studies

RUN = "hopper-bcppo-seed0"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose runs have more updates than a row of a packed curve stands for."""
    study = make_study(tmp_path_factory.mktemp("made") / "first", tasks=("hopper",), methods=("bcppo",), steps=20_480)
    pack_study(study, study.parent / "published")
    return study


@pytest.fixture
def again(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "again"))


@pytest.mark.parametrize("other", ["first", "published"])
def test_runs_made_again_are_the_same(original: Path, again: Path, other: str) -> None:
    for pair in ((again, original.parent / other), (original.parent / other, again)):
        found = compare_studies(*pair)
        assert [(one.run, one.state) for one in found] == [(RUN, SAME), ("hopper-bcppo-seed1", SAME)]
        rows = 20 if other == "first" else 4
        assert found[0].sentence == f"{RUN} is the same: 40 evaluation episodes, {rows} rows of curves."


def change(run: Path, rows: str, column: str, row: int) -> None:
    values = read_rows(run / f"{rows}.parquet")
    values[column][row] += 1e-5 if rows == "progress" else 1e-15
    write_rows(run / f"{rows}.parquet", values)


@pytest.mark.parametrize(
    ("other", "changed", "said"),
    [
        ("first", ("progress", "sigma_c", 7), "row of its curves 8 of 20, at step 8,192, sigma_c"),
        ("published", ("progress", "sigma_c", 7), "row of its curves 2 of 4, at step 10,240, sigma_c"),
        ("first", ("evaluations", "cost_rate", 3), "evaluation episode 4 of 40, at step 10,240, cost_rate"),
        ("published", ("evaluations", "cost_rate", 3), "evaluation episode 4 of 40, at step 10,240, cost_rate"),
    ],
)
def test_a_run_that_parts_says_where_and_what_made_it(
    original: Path, again: Path, other: str, changed: tuple[str, str, int], said: str
) -> None:
    change(again / "runs" / RUN, *changed)
    provenance = again / "runs" / RUN / "provenance.json"
    provenance.write_text(json.dumps(json.loads(provenance.read_text()) | {"processor": "Abacus"}))
    differs, same = compare_studies(again, original.parent / other)
    assert (differs.state, same.state) == (DIFFERS, SAME)
    assert said in differs.sentence
    assert "processor Abacus and" in differs.sentence


def test_a_curve_with_fewer_rows_differs(original: Path, again: Path) -> None:
    path = again / "runs" / RUN / "progress.parquet"
    write_rows(path, {name: values[:4] + values[5:] for name, values in read_rows(path).items()})
    assert "19 and 20 times a row of its curves" in compare_studies(again, original)[0].sentence


def test_evaluations_on_the_way_are_compared_where_both_have_them(original: Path, again: Path) -> None:
    path = again / "runs" / RUN / "evaluations.parquet"
    rows = read_rows(path)
    write_rows(path, {name: [value for value, last in zip(rows[name], rows["final"]) if last] for name in rows})
    assert "is the same: 20 evaluation episodes" in compare_studies(again, original)[0].sentence


def test_another_policy_is_told_from_the_one_that_was_evaluated(original: Path, again: Path, tmp_path: Path) -> None:
    """Of a published run the many episodes say which file the policy was."""
    published = Path(shutil.copytree(original, tmp_path / "evaluated"))
    rates = read_rows(again / "runs" / RUN / "evaluations.parquet")
    add_long(published / "runs" / RUN, [rate for rate, last in zip(rates["cost_rate"], rates["final"]) if last])
    pack_study(published, tmp_path / "packed")
    policy = again / "runs" / RUN / "policy.safetensors"
    policy.write_bytes(RUN.encode())
    assert "rows of curves, the policy file." in compare_studies(again, tmp_path / "packed")[0].sentence
    policy.write_bytes(b"another")
    assert "its policy is another file" in compare_studies(again, tmp_path / "packed")[0].sentence


def test_other_settings_and_nothing_in_common(original: Path, tmp_path: Path) -> None:
    longer = make_study(tmp_path / "longer", tasks=("hopper",), methods=("bcppo",), steps=40_960)
    found = compare_studies(original, longer)[0]
    assert found.state == OTHER
    assert found.sentence.endswith("has other settings in one than in the other: steps 20480 and 40960.")
    with pytest.raises(StudyError, match="are one folder"):
        compare_studies(original, original.parent / "first")
    others = make_study(tmp_path / "others", tasks=("ant",), methods=("bcppo",), steps=20_480)
    with pytest.raises(StudyError, match="no finished run in common"):
        compare_studies(original, others)


def test_what_only_one_of_them_has_of_a_curve_is_named(original: Path, again: Path) -> None:
    """As kept runs have, whose curves are λ and the mean cost."""
    path = again / "runs" / RUN / "progress.parquet"
    rows = read_rows(path)
    write_rows(path, {name: rows[name] for name in ("update", "step", "mean_cost")})
    found = compare_studies(again, original)[0]
    assert found.state == SAME
    assert "20 rows of curves (without episode_return, episode_cost_rate" in found.sentence
    change(path.parent, "progress", "mean_cost", 2)
    assert "row of its curves 3 of 20" in compare_studies(again, original)[0].sentence


def test_what_nobody_knows_is_not_called_the_same(original: Path, again: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(original, tmp_path / "other"))
    for folder in (again, other):
        path = folder / "runs" / RUN / "provenance.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"processor": ""}))
    change(again / "runs" / RUN, "progress", "mean_cost", 0)
    assert "processor unknown in both" in compare_studies(again, other)[0].sentence


def test_the_command_ends_well_only_if_all_are_the_same(original: Path, again: Path, capsys) -> None:
    command = ["study", "compare", str(again), str(original.parent / "published")]
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("2 of 2 runs are the same.\n")
    change(again / "runs" / RUN, "progress", "mean_cost", 0)
    assert main(command) == 2
    assert "1 of 2 runs are the same, 1 differ." in capsys.readouterr().err
