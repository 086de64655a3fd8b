"""Loading a study: whole ones load as they are, and what is wrong with others is named and left out."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_tools import cells_of, frames_equal
from synthetic import config_for, make_study

from bcppo.config import protocol_id
from bcppo.errors import BcppoError
from bcppo.records import RunFolder, read_rows, write_rows
from bcppo.report import StudyError, StudyRecords, load_study, pack_study
from bcppo.report.curves import curves
from bcppo.report.entries import Entry, Problem, brief, settings_of
from bcppo.report.stats import statistics


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return make_study(tmp_path_factory.mktemp("study") / "made-up", seeds=(0, 1, 2))


@pytest.fixture
def study(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "study"))


def sentences(folder: Path, run: str) -> list[str]:
    return [problem.sentence for problem in load_study(folder).problems if problem.run == run]


def edit_json(path: Path, change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_rows(path: Path, **columns) -> None:
    """Change columns of a Parquet file and give it a checksum that holds."""
    write_rows(path, read_rows(path) | columns)


def test_a_whole_study_loads_without_problems(original):
    records = load_study(original)
    assert records.problems == ()
    assert records.runs.height == 2 * 2 * 3
    assert records.runs["usable"].all()
    assert records.episodes.height == 12 * 20
    assert records.episodes["episode_seed"].unique().sort().to_list() == list(range(10_000, 10_020))
    assert set(records.evaluations["final"]) == {True, False}


RUN = "goal1-bcppo-seed1"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "has not been run"),
        (lambda run: (run / "status.json").write_text('{"state": "running", "message": ""}'), "has not finished"),
        (lambda run: (run / "status.json").write_text('{"state": "diverged", "message": "at step 3"}'), "at step 3"),
        (lambda run: (run / "status.json").write_text('{"state": 3}'), "does not say what state"),
        (lambda run: (run / "evaluations.sum").unlink(), "the checksum beside it"),
        (lambda run: (run / "evaluations.parquet").unlink(), "evaluations.parquet"),
        (lambda run: (run / "progress.parquet").write_bytes(b"PAR1"), "checksum does not match"),
        (lambda run: (run / "config.json").write_text("{"), "is not whole"),
        (lambda run: edit_json(run / "config.json", lambda v: v["config"].update(beta=0.2)), "not those in study.json"),
        (lambda run: edit_json(run / "config.json", lambda v: v.update(method="cppo")), "a run of 'cppo'"),
        (lambda run: edit_json(run / "provenance.json", lambda v: v.update(protocol="x")), "its protocol is 'x'"),
        (lambda run: edit_rows(run / "evaluations.parquet", cost_rate=[float("nan")] * 40), "not finite"),
        (lambda run: edit_rows(run / "evaluations.parquet", episode_seed=[*range(40)]), "seeds 10000 to 10019"),
        (lambda run: edit_rows(run / "evaluations.parquet", stochastic=[True] * 40), "sampled actions"),
        (lambda run: edit_rows(run / "evaluations.parquet", cost_rate=["1"] * 40), "of type String"),
        (lambda run: edit_rows(run / "evaluations.parquet", step=[1] * 40), "at the end of its training"),
        (lambda run: edit_rows(run / "progress.parquet", step=[2048, 1024]), "out of order"),
        (lambda run: edit_rows(run / "progress.parquet", multiplier=[0.0, float("inf")]), "not finite"),
        (lambda run: edit_rows(run / "evaluations.parquet", final=[False] * 40), "seeds 10000 to 10019"),
    ],
)
def test_what_is_wrong_with_a_run_is_named_and_only_that_run_is_left_out(study, damage, said):
    damage(study / "runs" / RUN)
    (sentence,) = sentences(study, RUN)
    assert RUN in sentence
    assert said in sentence
    records = load_study(study)
    assert records.runs.filter(~pl.col("usable"))["id"].to_list() == [RUN]
    assert RUN not in records.episodes["run"]
    assert RUN not in records.progress["run"]
    row = statistics(records, draws=50).cells.row(0, named=True)
    assert (row["task"], row["method"], row["seeds"], row["expected"]) == ("goal1", "bcppo", 2, 3)


def test_failed_attempts_are_told_whether_or_not_the_run_finished(study):
    line = json.dumps({"attempt": 1, "error": "The disk is full.", "seconds": 3.0}) + "\n"
    (study / "runs" / f"{RUN}.failures.jsonl").write_text(line + "{half a li")
    said = sentences(study, RUN)
    assert said[0] == f"{RUN} finished after a failure: attempt 1: The disk is full."
    assert "damaged" in said[1]
    assert load_study(study).runs["usable"].all()
    (study / "runs" / f"{RUN}.failures.jsonl").write_text(line)
    shutil.rmtree(study / "runs" / RUN)
    assert sentences(study, RUN) == [f"{RUN} failed and left no run: attempt 1: The disk is full."]


def test_runs_of_another_protocol_are_not_averaged_with_the_others(study):
    config = config_for("bcppo", "goal1", 1, 2048, {"beta": 0.4})
    shutil.rmtree(study / "runs" / RUN)
    make_study(study / "other", tasks=["goal1"], methods=["bcppo"], seeds=[1], variants={"": {"beta": 0.4}})
    shutil.move(study / "other" / "runs" / RUN, study / "runs" / RUN)

    def change(values):
        entry = next(entry for entry in values["runs"] if entry["id"] == RUN)
        entry["config"]["beta"], entry["protocol"] = 0.4, protocol_id("bcppo", config)

    edit_json(study / "study.json", change)
    assert sentences(study, RUN) == [f"{RUN} is not used: the runs of bcppo on goal1 follow 2 protocols."]


def test_a_copied_run_is_found_out(study):
    for name in ("evaluations.parquet", "evaluations.sum"):
        shutil.copy(study / "runs" / "goal1-bcppo-seed0" / name, study / "runs" / RUN / name)
    assert "the same episodes as goal1-bcppo-seed0" in sentences(study, RUN)[0]
    assert "the same episodes as goal1-bcppo-seed1" in sentences(study, "goal1-bcppo-seed0")[0]


def test_a_run_listed_twice_counts_for_nothing(study):
    edit_json(study / "study.json", lambda values: values["runs"].append(values["runs"][0]))
    (sentence,) = sentences(study, "goal1-bcppo-seed0")
    assert "listed 2 times" in sentence
    assert "goal1-bcppo-seed0" not in load_study(study).runs["id"]


def test_an_entry_left_out_of_the_study_shows_as_a_missing_seed(study):
    edit_json(study / "study.json", lambda values: values["runs"].pop(0))
    cells = cells_of(load_study(study))
    assert cells["goal1", "bcppo", ""]["seeds"] == 2
    assert cells["goal1", "bcppo", ""]["expected"] == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "runs": []}', '{"format": 1}', "[" * 100_000])
def test_a_folder_without_a_study_is_refused_in_one_sentence(tmp_path, text):
    with pytest.raises(StudyError, match="holds neither a study"):
        load_study(tmp_path)
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(BcppoError) as error:
        load_study(tmp_path)
    assert "\n" not in str(error.value)


def test_an_id_cannot_lead_out_of_the_study(study):
    edit_json(study / "study.json", lambda values: values["runs"][0].update(id="../../secret"))
    assert any("cannot be a folder's name" in problem.sentence for problem in load_study(study).problems)


def test_the_papers_settings_are_told_from_others():
    def settings(variant="", steps=None, **changes):
        config = config_for("bcppo", "push1", 0, steps, changes)
        values = json.loads(json.dumps(vars(config)))
        return settings_of(Entry("x", "push1", "bcppo", variant, 0, protocol_id("bcppo", config), values))

    assert settings().paper == "main"
    assert settings(steps=500_000).paper == "ablation"
    assert settings(steps=500_000, beta=0.4).paper == ""
    assert settings("beta=0.4", steps=500_000, beta=0.4).paper == "ablation"
    assert settings(steps=20_480).paper == ""
    assert settings(eval_episodes=5).paper == ""
    assert settings(eval_every=7, device="cuda").paper == "main"
    assert settings(beta=0.4).differs == "beta=0.4"


# --- packed ---


def test_a_packed_study_gives_the_same_episodes_and_statistics(study, tmp_path):
    (study / "runs" / RUN / "evaluations.parquet").write_bytes(b"")
    pack_study(study, tmp_path / "packed")
    whole, packed = load_study(study), load_study(tmp_path / "packed")
    assert frames_equal(whole.evaluations, packed.evaluations)
    assert frames_equal(whole.runs, packed.runs)
    assert whole.problems == packed.problems
    assert statistics(whole, 50).cells.equals(statistics(packed, 50).cells)


def test_thinned_curves_keep_the_papers_rolling_means(tmp_path):
    folder = make_study(tmp_path / "study", tasks=["push1"], methods=["bcppo"], seeds=(0, 1), steps=256 * 103)
    pack_study(folder, tmp_path / "packed", every=5)
    whole = curves(load_study(folder), "sigma_c", window=25)
    packed = curves(load_study(tmp_path / "packed"), "sigma_c", window=25)
    assert packed.height == 21  # 103 updates: 20 rows of five, and the last three
    both = packed.join(whole, on="step", suffix="_whole")[:20]
    np.testing.assert_allclose(both["mean"], both["mean_whole"], rtol=1e-6)


@pytest.mark.parametrize("name", ["study.json", "runs.parquet", "episodes.parquet", "progress.parquet", "runs.sum"])
def test_a_packed_study_with_a_damaged_file_is_refused(study, tmp_path, name):
    pack_study(study, tmp_path / "packed")
    path = tmp_path / "packed" / name
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 1
    path.write_bytes(bytes(payload))
    with pytest.raises(BcppoError):
        load_study(tmp_path / "packed")


# --- adding to a packed study ---


@pytest.fixture
def pieces(tmp_path):
    """A study of two tasks, and each task's runs by themselves."""
    whole = make_study(tmp_path / "whole")
    apart = [make_study(tmp_path / task, tasks=[task]) for task in ("goal1", "hopper")]
    return whole, *apart


def test_pieces_packed_one_after_another_are_the_whole(pieces, tmp_path):
    whole, first, second = pieces
    packed = tmp_path / "packed"
    pack_study(first, packed)
    records = pack_study(second, packed, add=True)
    assert records.runs["usable"].sum() == 8
    one, other = load_study(whole), load_study(packed)
    assert other.problems == ()
    assert frames_equal(one.runs, other.runs)
    assert frames_equal(one.evaluations, other.evaluations)
    assert statistics(one, 50).cells.equals(statistics(other, 50).cells)
    pack_study(second, tmp_path / "second")
    pack_study(first, tmp_path / "of packs")
    pack_study(tmp_path / "second", tmp_path / "of packs", add=True)
    for path in packed.iterdir():
        assert (tmp_path / "of packs" / path.name).read_bytes() == path.read_bytes()
    pack_study(whole, tmp_path / "at once")
    assert frames_equal(load_study(tmp_path / "at once").progress, other.progress)
    stored = [pl.read_parquet(folder / "progress.parquet").schema for folder in (tmp_path / "at once", packed)]
    assert stored[0] == stored[1]


def test_a_run_that_was_missing_is_filled_in_and_one_with_other_episodes_refused(pieces, tmp_path):
    whole, first, _ = pieces
    packed, hopper = tmp_path / "packed", "hopper-bcppo-seed0"
    shutil.rmtree(whole / "runs" / hopper)
    pack_study(whole, packed)
    before = {path.name: path.read_bytes() for path in packed.iterdir()}
    changed = first / "runs" / RUN / "evaluations.parquet"
    rows = read_rows(changed)
    write_rows(changed, rows | {"cost_rate": [rate + 1e-9 for rate in rows["cost_rate"]]})
    with pytest.raises(StudyError, match=f"different results of one run, {RUN}"):
        pack_study(first, packed, add=True)
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == before
    assert [problem.run for problem in load_study(packed).problems] == [hopper]
    pack_study(tmp_path / "hopper", packed, add=True)
    assert load_study(packed).problems == ()
    assert load_study(packed).runs["usable"].all()


def test_packing_over_runs_that_would_be_lost_is_refused(pieces, tmp_path):
    whole, first, _ = pieces
    packed = tmp_path / "packed"
    pack_study(whole, packed)
    before = {path.name: path.read_bytes() for path in packed.iterdir()}
    with pytest.raises(StudyError, match=r"has 4 finished runs that .* has not \(hopper-bcppo-seed0"):
        pack_study(first, packed)
    other = make_study(tmp_path / "other", name="another")
    with pytest.raises(StudyError, match=r"holds the study 'made-up', and .* is of 'another'"):
        pack_study(other, packed, add=True)
    longer = make_study(tmp_path / "longer", tasks=["goal1"], steps=4096)
    with pytest.raises(StudyError, match="has other settings in"):
        pack_study(longer, packed, add=True)
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == before


def test_runs_that_would_not_count_together_are_not_added(pieces, tmp_path):
    """Two protocols in one cell, as many runs of each: loaded together, neither would be used."""
    first = make_study(tmp_path / "one", tasks=["goal1"], methods=["bcppo"], seeds=(0,))
    second = make_study(tmp_path / "two", tasks=["goal1"], methods=["bcppo"], seeds=(1,), steps=4096)
    pack_study(first, tmp_path / "packed")
    before = {path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()}
    with pytest.raises(StudyError, match="Nothing was packed, since together 2 of these runs would not count"):
        pack_study(second, tmp_path / "packed", add=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "goal1", "hopper", "one", "two", "packed"}


def test_a_pack_that_was_being_replaced_when_the_process_was_killed_is_there_again(pieces, tmp_path):
    _, first, second = pieces
    packed, before = tmp_path / "packed", tmp_path / ".packed.before"
    pack_study(first, packed)
    (packed / "report").mkdir()  # of somebody else
    packed.rename(before)  # killed before the new one came
    assert pack_study(second, packed, add=True).runs["usable"].sum() == 8
    assert (packed / "report").is_dir()
    shutil.copytree(packed, before)  # killed after it came
    (packed / "report").rmdir()
    assert pack_study(second, packed, add=True).runs["usable"].sum() == 8
    assert (packed / "report").is_dir()
    assert not before.exists()


def test_a_pack_is_written_into_the_folder_one_is_in(pieces, tmp_path, monkeypatch):
    _, first, second = pieces
    (tmp_path / "packed").mkdir()
    monkeypatch.chdir(tmp_path / "packed")
    pack_study(first, ".")
    monkeypatch.chdir(tmp_path / "packed")
    assert pack_study(second, ".", add=True).runs["usable"].sum() == 8
    assert load_study(tmp_path / "packed").runs["usable"].all()


def test_other_folders_than_packs_are_not_written_into_nor_damaged_ones_with_fewer_runs(pieces, tmp_path):
    whole, first, second = pieces
    for add in (False, True):
        with pytest.raises(StudyError, match="holds a study that is not packed"):
            pack_study(first, second, add=add)
    packed = tmp_path / "packed"
    pack_study(whole, packed)
    (packed / "episodes.parquet").write_bytes(b"PAR1")
    with pytest.raises(StudyError, match="has 4 finished runs"):
        pack_study(first, packed)
    assert pack_study(whole, packed).runs["usable"].all()


# --- fuzz ---


def mutate(folder: Path, rng: random.Random) -> str:
    """Do one thing to a study folder that should not have happened to it; says what."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(paths if rng.random() < 0.8 else [folder / "study.json"])
    kind = rng.choice(["flip", "truncate", "swap", "json", "delete", "junk"])
    payload = path.read_bytes()
    if kind == "flip":
        changed = bytearray(payload)
        for _ in range(rng.choice([1, 1, 8])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(changed))
    elif kind == "truncate":
        path.write_bytes(payload[: rng.randrange(len(payload))])
    elif kind == "swap":
        other = rng.choice([other for other in paths if other.suffix == path.suffix])
        path.write_bytes(other.read_bytes())
        other.write_bytes(payload)
    elif kind == "json":
        path = rng.choice([path for path in paths if path.suffix == ".json"])
        values = json.loads(path.read_bytes())
        change_leaf(values, rng)
        path.write_text(json.dumps(values))
    elif kind == "delete":
        path.unlink()
    else:
        path.write_bytes(rng.randbytes(rng.randrange(200)))
    return f"{kind} {path.relative_to(folder)}"


def change_leaf(values, rng: random.Random) -> None:
    """Put something else in the place of a value somewhere inside."""
    while True:
        key = rng.choice(list(values) if isinstance(values, dict) else range(len(values)))
        inside = values[key]
        if isinstance(inside, (dict, list)) and inside and rng.random() < 0.85:
            values = inside
            continue
        junk = [None, -1, 7, 1e308, "x", "", [], {}, True, float("nan"), "\0", "goal1", "cppo", 10**30]
        if isinstance(values, dict) and rng.random() < 0.2:
            del values[key]
        else:
            values[key] = rng.choice(junk)
        return


def load_or_refusal(folder: Path) -> tuple[StudyRecords | None, str]:
    try:
        return load_study(folder), ""
    except BcppoError as error:
        return None, str(error)


def check_mutations(original: Path, scratch: Path, count: int, seed: int) -> dict[str, int]:
    expected = cells_of(load_study(original))
    rng, outcomes = random.Random(seed), {"refused": 0, "marked": 0, "harmless": 0}
    for number in range(count):
        folder = Path(shutil.copytree(original, scratch / str(number)))
        what = mutate(folder, rng)
        records, refusal = load_or_refusal(folder)
        shutil.rmtree(folder)
        assert "\n" not in refusal, what
        if records is None:
            outcomes["refused"] += 1
            continue
        found = cells_of(records)
        wrong = [key for key, cell in expected.items() if found.get(key) != cell]
        for key in wrong:
            assert key not in found or found[key]["seeds"] < found[key]["expected"], f"{what}: {key}"
        for key in found.keys() - expected.keys():
            assert found[key]["seeds"] < found[key]["expected"], f"{what}: {key}"
        assert not wrong or records.problems or any(found[key]["seeds"] < 2 for key in wrong if key in found), what
        outcomes["marked" if wrong else "harmless"] += 1
    return outcomes


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return make_study(tmp_path_factory.mktemp("small") / "study", tasks=["goal1"], methods=["bcppo", "cppo"])


def test_no_mutation_of_a_study_gives_a_traceback_or_a_wrong_cell(small, tmp_path):
    outcomes = check_mutations(small, tmp_path, 50, seed=0)
    assert outcomes["marked"] > 15


@pytest.mark.full
def test_no_mutation_of_a_thousand_gives_a_traceback_or_a_wrong_cell(small, tmp_path):
    outcomes = check_mutations(small, tmp_path, 1000, seed=1)
    print(outcomes)
    assert outcomes["marked"] > 300


def test_run_folders_of_the_synthetic_studies_are_like_real_ones(small):
    """The tests' studies have the columns that a run writes."""
    folder = RunFolder(small / "runs" / "goal1-bcppo-seed0")
    assert {"step", "final", "stochastic", "episode_seed", "cost_rate"} <= set(folder.read_rows("evaluations"))
    assert folder.status()["state"] == "finished"


# --- where runs come from ---


def test_a_run_that_went_on_with_other_code_has_both_revisions(study):
    def resumed(values: dict) -> None:
        values["resumed"] = [{"step": 64, "revision": "b"}, {"step": 128, "device": "cuda"}, "no part"]

    before = load_study(study)
    assert not before.problems
    first = before.runs["revision"][0]
    edit_json(study / "runs" / RUN / "provenance.json", resumed)
    edit_json(study / "runs" / "goal1-bcppo-seed0" / "provenance.json", lambda values: values.update(revision="b"))
    after = load_study(study)
    (row,) = after.runs.filter(pl.col("id") == RUN).iter_rows(named=True)
    assert (row["revision"], row["device"]) == (f"{first}, then b", "cpu, then cuda")
    assert [problem.sentence for problem in after.problems] == ["The runs come from 2 code revisions; see Provenance."]


# --- in a terminal ---


def test_a_terminal_is_told_of_a_few_problems_of_each_kind_and_how_many_more_there_are():
    mixed = Problem("", "mixed", "two revisions")
    missing = [Problem(f"run{n}", "missing", f"run{n} is missing") for n in range(8)]
    failed = [Problem(f"run{n}", "failed", f"run{n} failed") for n in range(6)]
    lines = brief([mixed, missing[0], *failed, *missing[1:], *[mixed] * 6])
    assert lines[:5] == [f"run{n} is missing" for n in range(5)]
    assert lines[5] == "… and 3 more like these (missing); the report's page lists them all."
    assert lines[6:12] == [f"run{n} failed" for n in range(6)], "one more is a line either way"
    assert lines[12:] == ["two revisions"] * 7, "what is about the study is never left out"
    assert brief([]) == []
