"""Finished runs on many more episodes: the rows are the policy's, kept once, and nothing stops the other runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cli import run
from test_import import modules_after
from test_kill import alive, results
from tiny_studies import GATE, TINY, hopper_run, stored, tiny_run

from bcppo.cli import main
from bcppo.evaluation import evaluate
from bcppo.long_evaluation import evaluate_long
from bcppo.policy import load_policy, save_policy
from bcppo.records import FolderBusy, RunFolder, policy_digest, read_rows
from bcppo.report import load_study
from bcppo.run import train
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import study_from_json

FIRST, SECOND, OTHER = "tiny_cmdp-make-bcppo-seed0", "tiny_cmdp-make-bcppo-seed1", "tiny_cmdp-make-cppo-seed0"
SHORT = TINY | {"steps": 20, "eval_episodes": 5}
LONG_FILES = {"long_evaluation.parquet", "long_evaluation.sum"}
COLUMNS = ("episode_seed", "episode_return", "cost_rate", "native_cost", "boundary_hits", "length")


def made(path: Path, *runs: dict) -> StudyFolder:
    """A study whose runs are all finished."""
    folder = StudyFolder(path)
    for entry in folder.adopt(study_from_json(stored(*runs))).runs:
        train(entry.config, method=entry.method, out=folder.run(entry.id).path)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [tiny_run(**SHORT), tiny_run(seed=1, **SHORT), tiny_run(method="cppo", **SHORT)]
    return made(tmp_path_factory.mktemp("evaluate") / "study", *runs).path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> StudyFolder:
    return StudyFolder(shutil.copytree(original, tmp_path / "study"))


def told(capsys, folder: StudyFolder, *options: str, episodes: int = 30) -> tuple[int, str]:
    """(exit code, what was said)"""
    code = main(["study", "evaluate", str(folder.path), "--episodes", str(episodes), "--workers", "2", *options])
    return code, capsys.readouterr().err


def rows_of(folder: StudyFolder, id: str) -> list[dict]:
    columns = read_rows(folder.run(id) / "long_evaluation.parquet")
    return [dict(zip(COLUMNS, row)) for row in zip(*(columns[name] for name in COLUMNS))]


def stamps(folder: StudyFolder) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}


def test_every_finished_run_gets_the_episodes_of_its_policy_and_keeps_the_rest(folder, capsys) -> None:
    before = {id: results(folder.run(id).path) for id in (FIRST, SECOND, OTHER)}
    folder.run(OTHER).set_status("running")
    folder.adopt(study_from_json(stored(tiny_run(seed=2, **SHORT))))
    code, said = told(capsys, folder)
    assert code == 0
    assert f"{OTHER}: not evaluated: it has not finished (running)." in said
    assert "tiny_cmdp-make-bcppo-seed2: not evaluated: it has not been run." in said
    for id in (FIRST, SECOND):
        assert rows_of(folder, id) == evaluate(folder.run(id).path, episodes=30)
        assert [row["episode_seed"] for row in rows_of(folder, id)] == list(range(10_000, 10_030))
        found = results(folder.run(id).path)
        assert found.keys() - before[id].keys() == LONG_FILES
        assert {name: found[name] for name in before[id]} == before[id]
    assert said.count("its first 5 episodes are exactly those it recorded") == 2
    assert f"{SECOND}: done in " in said
    assert said.endswith("2 of 4 runs have 30 episodes\n")
    assert not LONG_FILES & results(folder.run(OTHER).path).keys()
    assert not list((folder.path / "runs").glob("*.log"))


def test_what_is_there_is_left_alone_and_more_episodes_are_made(folder, capsys) -> None:
    _, said = told(capsys, folder, "--seeds", "1")
    assert "0 of 1 runs have 30 episodes, 1 to evaluate" in said
    told(capsys, folder, "--methods", "bcppo")
    before = stamps(folder)
    code, said = told(capsys, folder, "--methods", "bcppo", "--tasks", "tiny_cmdp:make", episodes=20)
    assert (code, said.splitlines()[0]) == (0, "study tiny: 2 of 2 runs have 20 episodes, 0 to evaluate")
    assert stamps(folder) == before
    told(capsys, folder, "--seeds", "1", episodes=40)
    assert len(rows_of(folder, SECOND)) == 40
    assert len(rows_of(folder, FIRST)) == 30


def test_a_run_with_its_episodes_is_resumed_run_and_reported_like_any_other(folder, capsys) -> None:
    told(capsys, folder)
    before = stamps(folder)
    code, out, _ = run(capsys, "resume", folder.run(FIRST).path)
    assert (code, "nothing to resume" in out) == (0, True)
    code, _, said = run(capsys, "study", "run", folder.path / "study.json", "--out", folder.path)
    assert (code, "3 of 3 runs done, 0 to run" in said) == (0, True)
    folder.run(FIRST).tidy()
    assert stamps(folder) == before
    records = load_study(folder.path)
    assert records.problems == ()
    assert records.long.group_by("run").len().rows() == [(FIRST, 30), (SECOND, 30), (OTHER, 30)]


def test_another_policy_is_evaluated_anew_and_differs_from_the_record_by_what_is_said(folder, capsys) -> None:
    told(capsys, folder)
    home, entry = folder.run(FIRST), folder.study().by_id[FIRST]
    old = rows_of(folder, FIRST)
    policy = load_policy(home / "policy.safetensors")
    policy.weights["bias1"] = policy.weights["bias1"] + 0.25
    save_policy(home / "policy.safetensors", policy, entry.method, entry.config)
    code, said = told(capsys, folder)
    new = rows_of(folder, FIRST)
    assert code == 0
    assert f"{FIRST}: evaluated anew: its rows are of another policy than the one that is there now." in said
    assert "2 of 3 runs have 30 episodes, 1 to evaluate" in said
    assert new == evaluate(home.path, episodes=30) != old
    assert set(read_rows(home / "long_evaluation.parquet")["policy"]) == {policy_digest(home.path)}
    gaps = [max(abs(a[k] - b[k]) for a, b in zip(old[:5], new[:5])) for k in ("episode_return", "cost_rate")]
    assert min(gaps) > 0
    assert "WARNING: its first 5 episodes are not those it recorded; largest difference " in said
    assert f"of return {gaps[0]:.3g}, of cost rate {gaps[1]:.3g} (both with mujoco " in said


def flip(path: Path) -> None:
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 1
    path.write_bytes(bytes(payload))


def test_damaged_rows_are_made_anew(folder, capsys) -> None:
    told(capsys, folder, "--seeds", "0", "--methods", "bcppo")
    expected = (folder.run(FIRST) / "long_evaluation.parquet").read_bytes()
    flip(folder.run(FIRST) / "long_evaluation.parquet")
    code, said = told(capsys, folder, "--seeds", "0", "--methods", "bcppo")
    assert code == 0
    assert f"{FIRST}: evaluated anew: " in said
    assert "checksum does not match" in said
    assert (folder.run(FIRST) / "long_evaluation.parquet").read_bytes() == expected


DAMAGES: list[tuple[Callable[[RunFolder], object], str]] = [
    (lambda home: flip(home / "policy.safetensors"), "policy.safetensors is damaged"),
    (lambda home: (home / "policy.safetensors").unlink(), "policy.safetensors does not exist"),
    (lambda home: (home / "config.json").write_text("{"), "config.json is not whole"),
    (lambda home: (home / "config.json").write_text(text_of(home).replace('"seed": 3', '"seed": 4')), "other settings"),
    (lambda home: (home / "status.json").write_text("[]"), "does not say what state"),
    (lambda home: flip(home / "evaluations.parquet"), "evaluations.parquet is damaged"),
]


def text_of(home: RunFolder) -> str:
    return (home / "config.json").read_text()


def test_damaged_runs_are_named_and_the_others_are_evaluated(tmp_path, capsys) -> None:
    count = len(DAMAGES) + 1
    folder = made(tmp_path / "study", *(tiny_run(seed=seed, **SHORT) for seed in range(count)))
    ids = [entry.id for entry in folder.study().runs]
    for id, (damage, _) in zip(ids, DAMAGES):
        damage(folder.run(id))
    code, said = told(capsys, folder, episodes=6)
    assert code == 2
    for id, (_, reason) in zip(ids, DAMAGES):
        (line,) = [line for line in said.splitlines() if line.startswith(id)]
        assert line.startswith(f"{id}: not evaluated: ")
        assert reason in line
        assert not LONG_FILES & {path.name for path in folder.run(id).path.iterdir()}
    assert f"error: {count - 1} of {count} runs could not be evaluated" in said
    assert len(rows_of(folder, ids[-1])) == 6


def test_a_run_another_process_works_on_is_left_alone(folder) -> None:
    with folder.run(FIRST).locked(), pytest.raises(FolderBusy):
        evaluate_long(folder.run(FIRST).path, 6)


def test_half_written_rows_of_a_killed_process_are_cleared_away(folder) -> None:
    part = folder.run(FIRST) / ".long_evaluation.parquet.77.part"
    part.write_bytes(b"PAR1")
    assert evaluate_long(folder.run(FIRST).path, 6) == "its first 5 episodes are exactly those it recorded"
    assert not part.exists()


def test_another_stack_is_named_where_episodes_differ(folder) -> None:
    home = folder.run(FIRST)
    rows = home.read_rows("evaluations")
    home.write_rows("evaluations", rows | {"cost_rate": [rate + 0.5 for rate in rows["cost_rate"]]})
    text = (home / "provenance.json").read_text()
    (home / "provenance.json").write_text(text.replace('"mujoco": "', '"mujoco": "0.'))
    said = evaluate_long(home.path, 6)
    assert "largest difference of return 0, of cost rate 0.5 (it was evaluated with mujoco 0." in said


@pytest.fixture
def tests_on_path(monkeypatch) -> None:
    """A fresh Python finds the tasks of these tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.mark.usefixtures("tests_on_path")
def test_neither_the_command_nor_its_processes_import_torch(folder) -> None:
    home = folder.run(FIRST).path
    for code in (
        f"from bcppo.cli import main\nassert main(['study', 'evaluate', {str(folder.path)!r}, '--episodes', '2']) == 0",
        f"from bcppo.study import evaluator\nevaluator.evaluate_long({str(home)!r}, 3)",
    ):
        imported = modules_after(code)
        assert "bcppo" in imported
        assert "torch" not in imported
    assert len(rows_of(folder, FIRST)) == 3


@pytest.mark.full
def test_a_simulators_episodes_are_the_recorded_ones_again(tmp_path, capsys) -> None:
    folder = made(tmp_path / "study", hopper_run(0, 512), hopper_run(0, 512, method="ppolag"))
    code, said = told(capsys, folder, episodes=4)
    assert code == 0
    assert said.count("its first 2 episodes are exactly those it recorded") == 2


# --- killed ---


class Command:
    """`bcppo study evaluate` in a process of its own."""

    def __init__(self, folder: StudyFolder) -> None:
        words = [sys.executable, "-m", "bcppo", "study", "evaluate", str(folder.path), "--episodes", "12"]
        self.process = subprocess.Popen([*words, "--workers", "1"], stderr=subprocess.PIPE, text=True)

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_for(self, path: Path) -> None:
        until(lambda: path.exists() or self.process.poll() is not None)
        assert path.exists(), self.end()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.full
@pytest.mark.usefixtures("tests_on_path")
@pytest.mark.parametrize("victim", ["command", "child"])
def test_killed_in_the_middle_of_a_run_the_same_command_goes_on(victim, tmp_path, monkeypatch) -> None:
    gated = tiny_run(task="tiny_studies:gated", **SHORT)
    folder = made(tmp_path / "study", tiny_run(**SHORT), gated, tiny_run(seed=1, **SHORT))
    slow, gate = "tiny_studies-gated-bcppo-seed0", tmp_path / "open"
    monkeypatch.setenv(GATE, str(gate))
    command = Command(folder)
    command.wait_for(tmp_path / "reached")
    (child,) = command.children()
    kept = (folder.run(FIRST) / "long_evaluation.parquet").stat().st_mtime_ns
    assert not (folder.run(slow) / "long_evaluation.parquet").exists()
    if victim == "child":
        subprocess.run(["kill", "-KILL", str(child)], check=True)
        code, said = command.end()
        assert code == 2
        assert f"{slow}: not evaluated: The run's process was killed by SIGKILL." in said
        assert len(rows_of(folder, SECOND)) == 12
    else:
        command.process.kill()
        command.end()
        until(lambda: not alive(child))
        assert not (folder.run(SECOND) / "long_evaluation.parquet").exists()
    assert not (folder.run(slow) / "long_evaluation.parquet").exists()

    gate.write_text("")
    code, said = Command(folder).end()
    assert code == 0
    assert f"study tiny: {2 if victim == 'child' else 1} of 3 runs have 12 episodes" in said
    assert said.endswith("3 of 3 runs have 12 episodes\n")
    assert (folder.run(FIRST) / "long_evaluation.parquet").stat().st_mtime_ns == kept
    for entry in folder.study().runs:
        assert rows_of(folder, entry.id) == evaluate(folder.run(entry.id).path, episodes=12)
