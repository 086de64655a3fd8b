"""Running what is missing of a study: skipped, gone on with, tried again, given up; here and in child processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from test_cli import run
from test_import import modules_after
from tiny_studies import MENDED, HereEngine, plain_results, stored, study_results, tiny_run, write_study

from bcppo.errors import BcppoError
from bcppo.run import train
from bcppo.study.engine import run_study
from bcppo.study.fleets import FleetEngine
from bcppo.study.folder import StudyFolder
from bcppo.study.local import LocalEngine
from bcppo.study.plan import study_from_json

PUBLISHED = Path(__file__).parents[2] / "results" / "scale"
GOOD, BAD = "tiny_cmdp-make-bcppo-seed0", "tiny_studies-broken-bcppo-seed0"


def made(tmp_path: Path, *runs: dict) -> StudyFolder:
    folder = StudyFolder(tmp_path / "study")
    folder.adopt(study_from_json(stored(*runs)))
    return folder


def go(folder: StudyFolder, attempts: int = 3) -> tuple[list[str], list[str], HereEngine]:
    """(runs that failed, what was said, the engine)"""
    engine, said = HereEngine(folder), []
    lost = run_study(folder, folder.study(), engine, attempts=attempts, say=said.append)
    assert engine.stopped
    return lost, said, engine


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_runs_end_with_the_bytes_of_plain_training(tmp_path: Path) -> None:
    folder = made(tmp_path, *(tiny_run(method=method, seed=seed) for method in ("bcppo", "cppo") for seed in (0, 1)))
    assert go(folder)[0] == []
    assert study_results(folder.path) == plain_results(folder.study(), tmp_path / "plain")


def test_finished_runs_are_skipped_and_left_as_they_are(tmp_path: Path) -> None:
    folder = made(tmp_path, tiny_run(seed=0), tiny_run(seed=1))
    entry = folder.study().runs[0]
    train(entry.config, method=entry.method, out=folder.run(entry.id).path)
    before = stamps(folder.run(entry.id).path)
    _, said, engine = go(folder)
    assert engine.started == [("tiny_cmdp-make-bcppo-seed1",)]
    assert "1 of 2 runs done, 1 to run" in said[0]
    assert stamps(folder.run(entry.id).path) == before
    assert go(folder)[2].started == []


def test_a_failing_run_is_tried_again_up_to_attempts_and_the_others_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(MENDED, str(tmp_path / "mended"))
    folder = made(tmp_path, tiny_run(task="tiny_studies:broken"), tiny_run(), tiny_run(seed=1))
    lost, said, engine = go(folder, attempts=2)
    assert lost == [BAD]
    assert engine.started.count((BAD,)) == 2
    assert folder.state(GOOD) == "done"
    assert [row["attempt"] for row in folder.failures(BAD)] == [1, 2]
    assert {row["error"] for row in folder.failures(BAD)} == {"RuntimeError: the gripper fell off"}
    assert sum("attempt 1 failed, going on: RuntimeError" in line for line in said) == 1

    # Mended, it goes on from its checkpoint and ends as if nothing had been; what went wrong is kept.
    (tmp_path / "mended").write_text("")
    lost, _, engine = go(folder)
    assert (lost, engine.started) == ([], [(BAD,)])
    assert folder.state(BAD) == "done"
    assert len(folder.failures(BAD)) == 2
    assert study_results(folder.path) == plain_results(folder.study(), tmp_path / "plain")


def test_a_run_that_diverged_is_not_tried_again(tmp_path: Path) -> None:
    folder = made(tmp_path, tiny_run(learning_rate=1e38), tiny_run(seed=1))
    lost, _, engine = go(folder)
    assert lost == [GOOD]
    assert engine.started.count((GOOD,)) == 1
    (failure,) = folder.failures(GOOD)
    assert failure["error"].startswith("Training diverged at step 20")
    lost, said, engine = go(folder)
    assert (lost, engine.started) == ([GOOD], [])
    assert any("diverged before, not tried again" in line for line in said)


def test_impossible_numbers_are_refused_and_the_engine_is_stopped(tmp_path: Path) -> None:
    folder = made(tmp_path, tiny_run())
    engine = HereEngine(folder)
    with pytest.raises(BcppoError, match="attempts must be at least 1"):
        run_study(folder, folder.study(), engine, attempts=0, say=print)
    assert engine.stopped
    with pytest.raises(BcppoError, match="workers must be at least 1"):
        LocalEngine(folder, 0)


def test_a_folder_is_worked_on_by_one_command_at_a_time(tmp_path: Path, capsys) -> None:
    path, out = write_study(tmp_path / "own.json", tiny_run()), tmp_path / "study"
    folder = made(tmp_path, tiny_run())
    with folder.locked():
        code, _, err = run(capsys, "study", "run", path, "--out", out)
    assert code == 2
    assert "Another process is at work" in err


def test_local_processes_run_a_study_and_status_tells_how_it_went(tmp_path: Path, monkeypatch, capsys) -> None:
    """The command, with children of its own: one run is done, one fails with its error kept."""
    monkeypatch.setenv(MENDED, str(tmp_path / "mended"))
    path, out = write_study(tmp_path / "own.json", tiny_run(), tiny_run(task="tiny_studies:broken")), tmp_path / "study"
    code, _, err = run(capsys, "study", "run", path, "--out", out, "--workers", "2", "--attempts", "1")
    assert code == 2
    assert "error: 1 of 2 runs failed; `bcppo study status" in err
    folder = StudyFolder(out)
    study = folder.study()
    good = study_from_json(stored(tiny_run()))
    assert study_results(out)[GOOD] == plain_results(good, tmp_path / "plain")[GOOD]
    assert [folder.state(entry.id) for entry in study.runs] == ["done", "failed"]
    assert "the gripper fell off" in (out / "runs" / f"{BAD}.log").read_text()
    assert not (out / "runs" / f"{GOOD}.log").exists(), "nothing printed, no log"

    code, shown, _ = run(capsys, "study", "status", out)
    assert code == 0
    assert "2 runs: 1 done, 1 failed" in shown
    assert "RuntimeError: the gripper fell off" in shown
    assert "40 of 60" not in shown
    assert "20 of 60" in shown, "rows as far as they go: the environment broke in its second rollout"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "mian", "--out", "{out}"], "Did you mean 'main'"),
        (["run", "smoke", "--out", "{out}", "--tasks", "goal9"], "no task named 'goal9'"),
        (["run", "smoke", "--out", "{out}", "--compiled"], "--compiled is for a fleet"),
        (["run", "smoke", "--out", "{out}", "--methods", "ppo"], "no method named 'ppo'"),
        (["run", "smoke", "--out", "{out}", "--steps", "0"], "steps must be at least 1"),
        (["run", "smoke", "--out", "{out}", "--seeds", "-1"], "seed must be at least 0"),
        (["run", "smoke", "--out", "{out}", "--address", "auto"], "--address is for --engine ray"),
        (["run", "{out}/none.json", "--out", "{out}"], "cannot be read"),
        (["run", str(PUBLISHED), "--out", "{out}"], f"the file in it, {PUBLISHED}/study.json"),
        (["status", "{out}"], "holds no study"),
        (["evaluate", "{out}"], "holds no study"),
        (["stauts", "{out}"], "Did you mean 'study status'"),
        (["list", "now"], "takes no arguments"),
    ],
)
def test_mistakes_on_the_command_line_are_told_in_one_sentence(arguments, complaint, tmp_path, capsys) -> None:
    out = tmp_path / "none"
    code, _, err = run(capsys, "study", *(word.format(out=out) for word in arguments))
    assert code == 2
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_runs_that_ask_for_a_gpu_are_refused_where_there_is_none_before_anything_is_made(tmp_path, capsys) -> None:
    asked = (PUBLISHED / "study.json", "--tasks", "push1", "--seeds", "0", "--attempts", "1")
    code, _, err = run(capsys, "study", "run", *asked, "--out", tmp_path / "again")
    assert code == 2
    assert "torch finds none on this machine; --device cpu runs them here, with other numbers." in err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "scale", "--out", "{out}"],
        ["status", "{out}"],
        ["evaluate", "{out}"],
        ["gather", "{out}", "--out", "{out}"],
    ],
)
def test_a_published_study_is_not_taken_for_one_that_waits_for_its_runs(arguments, tmp_path, capsys) -> None:
    out = tmp_path / "scale"
    shutil.copytree(PUBLISHED, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    code, _, err = run(capsys, "study", *(word.format(out=out) for word in arguments))
    assert code == 2
    assert "published form" in err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_list_names_every_study_and_its_size(capsys) -> None:
    code, out, _ = run(capsys, "study", "list")
    assert code == 0
    for name, size in (("main", 200), ("components", 75), ("sensitivity", 65), ("scale", 30), ("smoke", 16)):
        assert any(f"│ {name} " in line and f" {size} │" in line for line in out.splitlines())


def test_planning_and_looking_need_neither_torch_nor_ray() -> None:
    imported = modules_after("import bcppo.study.status\nfrom bcppo.cli import main\nmain(['study', 'list'])")
    assert "bcppo" in imported
    assert imported.isdisjoint(("torch", "ray", "mujoco"))


def test_a_study_as_one_fleet_ends_with_the_bytes_of_plain_training(tmp_path: Path) -> None:
    """As with --device cuda, here on the CPU; one of its environments cannot be made."""
    whole = {"rollout": 32, "minibatch": 16, "steps": 64}  # a minibatch of a multiple of 16 rows: equal to the bit
    good = [tiny_run(method=method, seed=seed, **whole) for method in ("bcppo", "cppo") for seed in (0, 1)]
    folder = made(tmp_path, *good, tiny_run(task="tiny_studies:nowhere", **whole))
    said: list[str] = []
    engine = FleetEngine(folder, folder.study().runs, workers=2, device="cpu")
    lost = run_study(folder, folder.study(), engine, attempts=2, say=said.append)
    assert lost == ["tiny_studies-nowhere-bcppo-seed0"]
    assert [failure["error"] for failure in folder.failures(lost[0])] == 2 * [
        "The module 'tiny_studies' has no function 'nowhere' to make the environment with."
    ]
    found = study_results(folder.path)
    expected = plain_results(study_from_json(stored(*good)), tmp_path / "plain")
    assert {run: found[run] for run in expected} == expected
    assert len(expected) == 4
