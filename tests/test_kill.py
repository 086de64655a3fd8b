"""A run that is killed, however often and wherever, and resumed ends with the same bytes as one that was not."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_cmdp import TinyCMDP

from bcppo.records import RunFolder
from bcppo.run import resume, train

SETTINGS = {
    "task": "hopper", "rollout": 256, "minibatch": 64, "epochs": 1, "hidden": (16, 16), "cost_limit_rate": 0.005,
    "checkpoint_every": 256, "eval_every": 1024, "eval_episodes": 2, "tensorboard": False,
}  # fmt: skip
"""A checkpoint after every rollout, so that many kills land in the writing of one."""


def results(folder: Path) -> dict[str, bytes]:
    """Every file of a run but timings, curves and provenance (it holds the revision, and someone may commit while a
    test runs); a half-written file left behind would be among them."""
    apart = ("timings.parquet", "timings.sum", "provenance.json", "tensorboard")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in apart}


def flags(settings: dict) -> list[str]:
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


class Victim:
    """`bcppo train` or `bcppo resume` in a process of its own, to be killed."""

    def __init__(self, folder: Path, settings: dict) -> None:
        begun = (folder / "config.json").exists()
        begin = ["resume", str(folder)] if begun else ["train", "--out", str(folder), *flags(settings)]
        self.folder = folder
        self._before = self._stamp()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bcppo", *begin, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def _stamp(self) -> int:
        try:
            return (self.folder / "checkpoint.safetensors").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def wait(self, until: Callable[[], bool]) -> None:
        """Spin until something is the case, or the process has ended."""
        deadline = time.monotonic() + 120
        while not until() and self._process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.0005)

    def advanced(self) -> bool:
        """Whether it has written a checkpoint of its own."""
        return self._stamp() not in (0, self._before)

    def writing(self) -> bool:
        """Whether it is in the middle of writing a checkpoint or the rows it covers."""
        return any(path.suffix == ".part" or ".next" in path.name for path in self.folder.glob("*"))

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        complaint = self._process.stderr.read().decode()  # type: ignore[union-attr]
        assert self._process.returncode == -signal.SIGKILL, f"it ended before it could be killed: {complaint}"

    def finish(self) -> None:
        _, complaint = self._process.communicate(timeout=600)
        assert self._process.returncode == 0, complaint.decode()


def killed_often(folder: Path, settings: dict, kills: int, seed: int) -> int:
    """Train with that many kills; the number of them that left a half-written file."""
    moments = random.Random(seed)
    halves = 0
    for number in range(kills):
        victim = Victim(folder, settings)
        if number == 0:  # before there is any checkpoint
            victim.wait((folder / "config.json").exists)
        else:
            victim.wait(victim.advanced)
            time.sleep(moments.uniform(0.0, 0.3))
            if number % 2:
                victim.wait(victim.writing)
        victim.kill()
        halves += bool(list(folder.glob(".*.part")) or list(folder.glob("*.next.*")))
    Victim(folder, settings).finish()
    return halves


def compare(settings: dict, kills: int, tmp_path: Path, seed: int) -> int:
    expected = results(train(out=tmp_path / "whole", **settings).path)
    halves = killed_often(tmp_path / "killed", settings, kills, seed)
    found = results(tmp_path / "killed")
    assert found.keys() == expected.keys()
    for name, payload in expected.items():
        assert found[name] == payload, name
    return halves


def test_killed_twice_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    compare(SETTINGS | {"steps": 256 * 16}, kills=2, tmp_path=tmp_path, seed=0)


@pytest.mark.full
def test_killed_twenty_times_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    halves = compare(SETTINGS | {"steps": 256 * 160}, kills=20, tmp_path=tmp_path, seed=1)
    assert halves >= 3, "too few kills landed in the writing of a checkpoint"


@pytest.mark.full
def test_killed_with_the_papers_settings_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Goal1, 1024/512/3 and 2×256 networks, with TensorBoard; the navigation engine is rebuilt in mid-episode."""
    settings = {"task": "goal1", "steps": 12 * 1024, "checkpoint_every": 1024, "eval_every": 4096, "eval_episodes": 1}
    compare(settings, kills=3, tmp_path=tmp_path, seed=2)


def test_killed_with_two_environment_processes(tmp_path: Path) -> None:
    """The processes of the environments end with the run that is killed, and the resumed run makes new ones."""
    settings = SETTINGS | {"steps": 256 * 12, "num_envs": 2}
    expected = results(train(out=tmp_path / "whole", **settings).path)
    victim = Victim(tmp_path / "killed", settings)
    victim.wait(victim.advanced)
    workers = victim.children()
    assert len(workers) == 2
    victim.kill()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its run"
        time.sleep(0.01)
    Victim(tmp_path / "killed", settings).finish()
    assert results(tmp_path / "killed") == expected


def alive(pid: int) -> bool:
    """Whether a process has a thread left: while one of them ends, its files stay open and its locks held."""
    try:
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads(pid)]
    except (FileNotFoundError, ProcessLookupError):  # a thread ended in between
        return bool(threads(pid))
    return any(state not in "ZX" for state in states)


def threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


# --- every single moment ---

TINY = {
    "steps": 60, "rollout": 20, "minibatch": 10, "epochs": 1, "hidden": (8,), "cost_limit_rate": 0.3, "eval_every": 20,
    "eval_episodes": 1, "checkpoint_every": 20, "tensorboard": False,
}  # fmt: skip


class Killed(BaseException):
    """Not an Exception, so that nothing tidies up on its way out, as after SIGKILL."""


def test_killed_before_any_move_of_a_file_it_ends_with_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    """A run changes its folder by moving whole files into place only: here it is ended before each of those moves in
    turn, and so also between the last checkpoint, the policy and the status at its end."""
    expected = results(train(out=tmp_path / "whole", make_env=TinyCMDP, **TINY).path)
    replace, moves, limit = Path.replace, 0, 10**9

    def counted(self: Path, target: Path) -> Path:
        nonlocal moves
        if moves == limit:
            raise Killed
        moves += 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", counted)
    train(out=tmp_path / "counted", make_env=TinyCMDP, **TINY)
    total = moves
    assert total > 30
    for moment in range(2, total):  # before the second move there is no config.json, hence no run yet
        folder = tmp_path / "killed"
        moves, limit = 0, moment
        with pytest.raises(Killed):
            train(out=folder, make_env=TinyCMDP, **TINY)
        limit = 10**9
        resume(folder, make_env=TinyCMDP)
        found = results(folder)
        assert found.keys() == expected.keys(), moment
        assert not {name for name, payload in expected.items() if found[name] != payload}, moment
        shutil.rmtree(folder)


def test_a_run_resumed_at_every_checkpoint_of_its_life_ends_with_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    """Many kills in one life: the run is ended after each checkpoint it writes, until it is done."""
    settings = TINY | {"steps": 200}
    expected = results(train(out=tmp_path / "whole", make_env=TinyCMDP, **settings).path)
    save = RunFolder.save_checkpoint

    def save_and_die(self: RunFolder, *arguments) -> None:
        save(self, *arguments)
        raise Killed

    monkeypatch.setattr(RunFolder, "save_checkpoint", save_and_die)
    with pytest.raises(Killed):
        train(out=tmp_path / "killed", make_env=TinyCMDP, **settings)
    lives = 1
    while RunFolder(tmp_path / "killed").status()["state"] != "finished":
        lives += 1
        try:
            resume(tmp_path / "killed", make_env=TinyCMDP)
        except Killed:
            continue
    assert lives == 11
    assert results(tmp_path / "killed") == expected
