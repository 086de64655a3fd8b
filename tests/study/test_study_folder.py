"""A study's folder: which study it holds, what state its runs are in, and how long it has still to go."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_studies import stored, tiny_run

from bcppo.errors import BcppoError
from bcppo.records import RunFolder, read_json
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Study, study_from_json
from bcppo.study.status import look, seconds_left, summary


def study(*seeds: int, name: str = "tiny", **settings) -> Study:
    return study_from_json(stored(*(tiny_run(seed=seed, **settings) for seed in seeds), name=name))


def run_id(seed: int) -> str:
    return f"tiny_cmdp-make-bcppo-seed{seed}"


def begin(folder: StudyFolder, id: str) -> RunFolder:
    """A run that has begun, as `train` begins it."""
    entry, run = folder.study().by_id[id], folder.run(id)
    run.create(entry.method, entry.config, "cpu")
    run.set_status("running")
    return run


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    folder = StudyFolder(tmp_path / "study")
    folder.adopt(study(0, 1))
    return folder


def test_the_folder_holds_every_setting(folder: StudyFolder) -> None:
    rows = read_json(folder.path / "study.json")["runs"]
    assert [row["id"] for row in rows] == [run_id(0), run_id(1)]
    assert rows[0]["config"]["discount"] == 0.99
    assert folder.study() == study(0, 1)


def test_another_study_is_refused(folder: StudyFolder) -> None:
    before = (folder.path / "study.json").read_bytes()
    with pytest.raises(BcppoError, match="holds the study 'tiny', not 'other'"):
        folder.adopt(study(0, 1, name="other"))
    with pytest.raises(BcppoError, match=r"other settings \(steps of .*seed0: 60 there, 80 asked for\)"):
        folder.adopt(study(0, 1, steps=80))
    assert (folder.path / "study.json").read_bytes() == before


def test_more_seeds_are_added_and_fewer_take_none_away(folder: StudyFolder) -> None:
    assert list(folder.adopt(study(1, 2)).by_id) == [run_id(0), run_id(1), run_id(2)]
    assert list(folder.adopt(study(0)).by_id) == [run_id(0), run_id(1), run_id(2)]
    assert folder.study() == study(0, 1, 2)


def test_a_folder_has_the_title_of_the_study_it_grew_to(folder: StudyFolder) -> None:
    folder.adopt(dataclasses.replace(study(0), title="One run"))
    assert folder.study().title == "A study for a test", "nothing was added"
    folder.adopt(dataclasses.replace(study(2), title="Three runs"))
    assert folder.study().title == "Three runs"


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(BcppoError, match="holds other files and no study"):
        StudyFolder(tmp_path).adopt(study(0))
    assert not (tmp_path / "study.json").exists()


def test_a_run_folder_with_other_settings_is_refused(folder: StudyFolder) -> None:
    other = study(0, steps=80).runs[0]
    folder.run(run_id(0)).create(other.method, other.config, "cpu")
    with pytest.raises(BcppoError, match=r"other settings than study\.json says"):
        folder.check(folder.study().runs[0])


def test_states_follow_the_folder(folder: StudyFolder) -> None:
    id = run_id(0)
    assert folder.state(id) == "waiting"
    run = begin(folder, id)
    assert folder.state(id) == "stopped"
    with run.locked():
        assert folder.state(id) == "running"
    assert folder.add_failure(id, "It broke.", 1.5) == 1
    assert folder.state(id) == "failed"
    with run.locked():
        assert folder.state(id) == "running", "it is being tried again"
    run.set_status("finished")
    assert folder.state(id) == "done"
    begin(folder, run_id(1)).set_status("diverged", "Training diverged.")
    assert folder.state(run_id(1)) == "failed"


def test_failures_are_kept_one_line_an_attempt(folder: StudyFolder) -> None:
    folder.add_failure(run_id(0), "First.", 1.0)
    assert folder.add_failure(run_id(0), "Second, “quoted”.", 2.25) == 2
    lines = (folder.path / "runs" / f"{run_id(0)}.failures.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert folder.failures(run_id(0)) == [
        {"attempt": 1, "error": "First.", "seconds": 1.0},
        {"attempt": 2, "error": "Second, “quoted”.", "seconds": 2.25},
    ]
    assert folder.failures(run_id(1)) == []


def test_a_run_killed_before_it_had_a_config_leaves_nothing_in_the_way(folder: StudyFolder) -> None:
    run, entry = folder.run(run_id(0)), folder.study().runs[0]
    run.path.mkdir(parents=True)
    (run / "provenance.json").write_text("{}")
    (run / ".config.json.77.part").write_text("{")
    run.create(entry.method, entry.config, "cpu")
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "provenance.json"]
    with pytest.raises(BcppoError, match="already holds another run"):
        run.create(entry.method, entry.config, "cpu")


# --- time left ---


def progress(run: RunFolder, steps: list[int], seconds: float) -> None:
    """Rows as `train` writes them: so many seconds an update."""
    run.write_rows("progress", {"step": steps})
    phases = {"collect": 0.5, "update": 0.3, "evaluate": 0.1, "checkpoint": 0.1, "act": 0.2, "simulate": 0.2}
    run.write_rows("timings", {"step": steps} | {name: [part * seconds] * len(steps) for name, part in phases.items()})


def test_time_left_follows_from_each_runs_own_pace(folder: StudyFolder) -> None:
    first, second = (begin(folder, run_id(seed)) for seed in (0, 1))
    assert seconds_left(look(folder)) is None
    progress(first, [20, 40], seconds=10.0)  # 20 s for 40 steps: 0.5 s a step, 20 of 60 steps left: 10 s
    progress(second, [20], seconds=30.0)  # 1.5 s a step, 40 steps left: 60 s
    assert seconds_left(look(folder)) == pytest.approx(70.0), "nobody at work counts as one"
    with first.locked(), second.locked():
        assert seconds_left(look(folder)) == pytest.approx(60.0), "two at work; the longer run is the bound"
    second.set_status("finished")
    assert seconds_left(look(folder)) == pytest.approx(10.0)
    assert summary(look(folder)) == "2 runs: 1 done, 1 stopped; about 0:00:10 left"
    first.set_status("finished")
    assert seconds_left(look(folder)) == 0.0
    assert summary(look(folder)) == "2 runs: 2 done"


def test_a_run_not_begun_is_expected_to_go_like_those_of_its_task_and_method(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    runs = [tiny_run(seed=0), tiny_run(seed=1), tiny_run(method="ppo"), tiny_run(task="hopper", method="ppo")]
    folder.adopt(study_from_json(stored(*runs)))
    progress(begin(folder, run_id(0)), [20, 40, 60], seconds=2.0)  # 0.1 s a step
    progress(begin(folder, "tiny_cmdp-make-ppo-seed0"), [20, 40, 60], seconds=6.0)  # 0.3 s a step
    for id in (run_id(0), "tiny_cmdp-make-ppo-seed0"):
        folder.run(id).set_status("finished")
    # 60 steps of the same method, 0.1 s each; 60 on a task nobody has tried, at the mean of all, 0.2 s.
    assert seconds_left(look(folder)) == pytest.approx(6.0 + 12.0)
