"""Local studies whose processes are killed, one or all, go on and end with the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_kill import alive
from tiny_studies import hopper_run, plain_results, study_results, write_study

from bcppo.study.folder import StudyFolder
from bcppo.study.plan import read_study

STEPS = 256 * 40

pytestmark = pytest.mark.full


class Driver:
    """`bcppo study run` in a process of its own."""

    def __init__(self, file: Path, out: Path, *options: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "bcppo", "study", "run", str(file), "--out", str(out), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not holds():
            assert self.process.poll() is None, f"it ended too early: {self.process.stderr.read()}"  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def finish(self) -> str:
        """What it said; it must have gone well."""
        _, said = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, said
        return said

    def begun(self) -> list[str]:
        """Runs that have a checkpoint."""
        return [path.parent.name for path in self.out.glob("runs/*/checkpoint.safetensors")]


def gone(pids: list[int]) -> None:
    until(lambda: not any(alive(pid) for pid in pids), "a child outlived the command")


def until(holds: Callable[[], bool], otherwise: str = "it did not become so") -> None:
    """Something holds soon: a killed process's locks may outlast what is seen of it by a moment."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    return write_study(folder / "own.json", hopper_run(0, STEPS), hopper_run(1, STEPS, method="ppolag"))


@pytest.fixture(scope="module")
def expected(file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    return plain_results(read_study(file), tmp_path_factory.mktemp("plain"))


def test_a_child_killed_by_a_signal_goes_on_from_its_checkpoint(file: Path, expected, tmp_path: Path) -> None:
    driver = Driver(file, tmp_path / "study", "--workers", "1")
    driver.wait_until(lambda: len(driver.begun()) == 1)
    (victim,) = driver.children()
    subprocess.run(["kill", "-KILL", str(victim)], check=True)
    said = driver.finish()
    assert study_results(driver.out) == expected
    folder, first = StudyFolder(driver.out), read_study(file).runs[0].id
    (failure,) = folder.failures(first)
    assert failure["error"] == "The run's process was killed by SIGKILL."
    assert failure["attempt"] == 1
    assert f"{first}: attempt 1 failed, going on: The run's process was killed by SIGKILL." in said
    assert folder.state(first) == "done"


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_the_whole_command_killed_or_interrupted_leaves_no_child_and_goes_on(kill, file, expected, tmp_path) -> None:
    driver = Driver(file, tmp_path / "study", "--workers", "2")
    driver.wait_until(lambda: len(driver.begun()) == 2)
    children = driver.children()
    assert len(children) == 2
    folder = StudyFolder(driver.out)
    assert [folder.state(entry.id) for entry in folder.study().runs] == ["running", "running"]
    driver.process.send_signal(kill)
    _, said = driver.process.communicate(timeout=60)
    assert driver.process.returncode == (130 if kill == signal.SIGINT else -kill)
    assert kill == signal.SIGKILL or said.endswith("interrupted; the same command goes on from the last checkpoints.\n")
    gone(children)
    until(lambda: [folder.state(entry.id) for entry in folder.study().runs] == ["stopped", "stopped"])

    said = Driver(file, driver.out, "--workers", "2").finish()
    assert "0 of 2 runs done, 2 to run" in said
    assert study_results(driver.out) == expected
    assert not list((driver.out / "runs").glob("*.failures.jsonl")), "an interrupted study has no failures"
