"""Runs side by side, each in a process of its own: what its environment, its death or its parent's does to it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from test_fleet import Stop, damage_checkpoints, small
from test_kill import alive, results

from bcppo import lanes
from bcppo.fleet import name_runs, train_fleet
from bcppo.records import RunFolder
from bcppo.run import resume, train
from bcppo.watch import FleetWatch


class Listening(FleetWatch):
    """Remembers what it was told: steps and sentences, in order."""

    def __init__(self) -> None:
        super().__init__(bar=False)
        self.told: list[Any] = []

    def hear(self, name: str, news: dict[str, Any]) -> None:
        if "step" in news:
            self.told.append(news["step"])
        super().hear(name, news)

    def warn(self, sentence: str) -> None:
        self.told.append(sentence)


class Interrupting(FleetWatch):
    """Interrupts a fleet as soon as it hears of a run."""

    def hear(self, name: str, news: dict[str, Any]) -> None:
        raise KeyboardInterrupt


def test_what_an_environment_prints_does_not_get_between_the_messages(tmp_path: Path, capfd) -> None:
    talkative = small("ppo", 1, task="tiny_cmdp:make_talkative", steps=128)
    folders = train_fleet([small("ppo", 0, steps=128), talkative], out=tmp_path, workers=2, stacked=False)
    assert [folder.status()["state"] for folder in folders] == ["finished", "finished"]
    assert '{"step": 1}\n[' in capfd.readouterr().err


# --- deaths ---


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says how often the process of 'tiny_cmdp:make_mortal' is killed."""
    path = tmp_path / "lives"
    monkeypatch.setenv("MORTAL", str(path))
    return path


def test_a_process_that_is_killed_costs_time_and_nothing_else(lives: Path, tmp_path: Path) -> None:
    lives.write_text("")
    method, config = mortal = small("bcppo", 0, task="tiny_cmdp:make_mortal")
    expected = results(train(config, method=method, out=tmp_path / "alone").path)
    lives.write_text("xx")
    watch = Listening()
    (folder,) = train_fleet([mortal], out=tmp_path / "fleet", workers=1, stacked=False, watch=watch)
    assert lives.read_text() == "", "it was not killed"
    assert folder.status()["state"] == "finished"
    assert results(folder.path) == expected
    killed = f"The process of {folder.path.name} was killed; it goes on from its last checkpoint."
    after = [watch.told[index + 1] for index, news in enumerate(watch.told) if news == killed]
    # Killed in its 200th step and, 200 after the checkpoint at 128, in the 328th; the next checkpoint was at 256.
    assert after == [128 + 64, 256 + 64]


def test_a_process_that_is_killed_three_times_is_given_up_and_its_run_can_go_on_later(
    lives: Path, tmp_path: Path
) -> None:
    lives.write_text("xxxx")
    runs = [small("bcppo", 0, task="tiny_cmdp:make_mortal"), small("bcppo", 1)]
    mortal, other = train_fleet(runs, out=tmp_path, workers=2, stacked=False, watch=(watch := Listening()))
    assert lives.read_text() == "x"
    said = "The run's process was killed 3 times, last by SIGKILL; the run can be resumed from its last checkpoint."
    assert mortal.status() == {"state": "failed", "message": said}
    assert f"{mortal.path.name}: {said}" in watch.told
    assert other.status()["state"] == "finished"
    lives.write_text("")
    assert resume(mortal.path).status() == {"state": "finished", "message": ""}


# --- failures ---


def test_runs_that_cannot_begin_say_why_in_their_folders(tmp_path: Path) -> None:
    said = {
        "no_such_module:make": "The module 'no_such_module' of the task 'no_such_module:make' cannot be imported",
        "tiny_cmdp:make_none": "RuntimeError: there is no such world",
        "tiny_cmdp:make_leaving": "The run's process ended with code 7; the run can be resumed",
    }
    watch = Listening()
    runs = [small("ppo", 0, task=task) for task in said]
    for folder, words in zip(train_fleet(runs, out=tmp_path, workers=2, stacked=False, watch=watch), said.values()):
        status = folder.status()
        assert status["state"] == "failed"
        assert status["message"].startswith(words)
        assert f"{folder.path.name}: {status['message']}" in watch.told
    assert len(watch.told) == len(said)


def test_a_damaged_folder_says_so_and_is_left_as_it_is(tmp_path: Path) -> None:
    runs = [small("bcppo", 2)]
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=tmp_path, workers=1, stacked=True, watch=Stop(320))
    folder = RunFolder(tmp_path / name_runs(runs)[0])
    damage_checkpoints(folder.path)
    files = results(folder.path)
    train_fleet(runs, out=tmp_path, workers=1, stacked=False)
    status = folder.status()
    assert status["state"] == "failed"
    assert "No checkpoint of this run is whole" in status["message"]
    assert results(folder.path) == files | {"status.json": (folder / "status.json").read_bytes()}


def test_a_run_that_diverges_stays_diverged(tmp_path: Path) -> None:
    sick = small("bcppo", 5, learning_rate=1e18)
    (folder,) = train_fleet([sick], out=tmp_path, workers=1, stacked=False)
    status = folder.status()
    assert status["state"] == "diverged"
    # Killed after that, and taken up once more:
    assert lanes.main(str(folder.path), io.BytesIO()) != 0
    assert lanes._leave(folder.path, "The run diverged and cannot go on.") == "diverged"
    assert folder.status() == status


# --- folders that are busy ---


@pytest.fixture
def waiting(tmp_path: Path) -> RunFolder:
    """A run's folder."""
    folder = RunFolder(tmp_path / "run")
    folder.create(*small("ppo", 0, steps=128), "cpu")
    return folder


def test_a_folder_is_waited_for_while_another_process_is_at_work_in_it(waiting: RunFolder, monkeypatch) -> None:
    waits = 0
    with ExitStack() as other:
        other.enter_context(waiting.locked())

        def sleep(seconds: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 2:
                other.close()

        monkeypatch.setattr(lanes, "sleep", sleep)
        assert lanes.main(str(waiting.path), io.BytesIO()) == 0
    assert waits == 2
    assert waiting.status()["state"] == "finished"


def test_a_folder_that_stays_busy_is_left_alone(waiting: RunFolder, monkeypatch, capsys) -> None:
    monkeypatch.setattr(lanes, "_PATIENCE", 0.0)
    told = io.BytesIO()
    with waiting.locked():
        code = lanes.main(str(waiting.path), told)
    assert b"Another process is at work" in told.getvalue()
    spoken = f"import sys; sys.stdout.write({told.getvalue().decode()!r}); sys.exit({code})"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    monkeypatch.setattr(lanes, "_start", lambda folder: subprocess.Popen([sys.executable, "-c", spoken], **pipes))
    lanes.train_in_lanes([waiting.path], 1, FleetWatch(bar=False))
    assert capsys.readouterr().err.count("warning:") == 1
    assert not (waiting / "status.json").exists()


# --- the parent's end ---


def test_an_interrupted_fleet_leaves_its_runs_to_be_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_fleet([small("ppo", 0, steps=10**6)], out=tmp_path, stacked=False, watch=Interrupting(bar=False))
    folder = RunFolder(next(tmp_path.iterdir()))
    assert folder.status() == {"state": "running", "message": ""}
    with folder.locked():
        pass


def test_a_run_that_nobody_listens_to_ends_and_can_go_on(tmp_path: Path) -> None:
    """Its parent was killed as it spoke."""
    folder = RunFolder(tmp_path / "run")
    folder.create(*small("ppo", 0, steps=10**6), "cpu")
    process = lanes._start(folder.path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    with process.stdin:
        assert process.wait(timeout=60) == 1
    assert folder.status() == {"state": "running", "message": ""}


def test_a_run_whose_parent_is_killed_ends_at_once(tmp_path: Path) -> None:
    """However long it would have been silent."""
    out, pid = tmp_path / "fleet", tmp_path / "pid"
    run = "small('ppo', 0, task='tiny_cmdp:make_slow')"
    code = f"from test_fleet import *\ntrain_fleet([{run}], out={str(out)!r}, stacked=False)"
    path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part), "SLOW": str(pid)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | path)
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < deadline
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    assert parent.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while alive(int(pid.read_text())):
        assert time.monotonic() < deadline, "it outlived its parent"
        time.sleep(0.01)
