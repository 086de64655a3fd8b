"""Studies on Ray: the same bytes on one node, on three, and when a node dies in the middle."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_local_kill import Driver
from tiny_studies import hopper_run, plain_results, stored, study_results, write_study

from bcppo.errors import BcppoError
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import read_study, study_from_json
from bcppo.study.ray_cluster import RayEngine

STEPS = 256 * 24

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [hopper_run(0, STEPS), hopper_run(1, STEPS), hopper_run(2, STEPS, method="ppolag")]
    return write_study(tmp_path_factory.mktemp("studies") / "own.json", *runs)


@pytest.fixture(scope="module")
def expected(file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    return plain_results(read_study(file), tmp_path_factory.mktemp("plain"))


class Nodes:
    """Ray nodes on one machine, each with its own raylet, object store and workers; the head runs nothing."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster()
        self.add(num_cpus=0, include_dashboard=False)

    @property
    def address(self) -> str:
        return self._cluster.address

    def add(self, **options: Any) -> Any:
        for _ in range(4):
            try:
                return self._cluster.add_node(**options)
            except Exception as error:  # Ray gives a node 30 s to start, which a busy machine may exceed
                late = error
        raise late

    def kill(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.shutdown()


def test_local_processes_end_with_the_same_bytes(file: Path, expected, tmp_path: Path) -> None:
    driver = Driver(file, tmp_path / "study", "--workers", "2")
    driver.finish()
    assert study_results(driver.out) == expected


def test_one_node_ends_with_the_same_bytes(file: Path, expected, tmp_path: Path) -> None:
    driver = Driver(file, tmp_path / "study", "--engine", "ray", "--workers", "2")
    driver.finish()
    assert study_results(driver.out) == expected


def test_three_nodes_end_with_the_same_bytes(file: Path, expected, cluster, tmp_path: Path) -> None:
    for _ in range(2):
        cluster.add(num_cpus=2)
    driver = Driver(file, tmp_path / "study", "--engine", "ray", "--address", cluster.address)
    driver.finish()
    assert study_results(driver.out) == expected


def test_a_node_that_dies_hands_its_runs_to_the_others(file: Path, expected, cluster, tmp_path: Path) -> None:
    """One CPU a node and three runs: when a node is killed, its run goes on elsewhere from its checkpoint."""
    nodes = [cluster.add(num_cpus=1) for _ in range(2)]
    driver = Driver(file, tmp_path / "study", "--engine", "ray", "--address", cluster.address)
    driver.wait_until(lambda: len(driver.begun()) == 2)
    lives = processes(driver.out)
    cluster.kill(nodes[0])
    folder = StudyFolder(driver.out)
    driver.wait_until(lambda: len(processes(driver.out)) < 2)  # its processes end with the node
    (victim,) = set(lives) - set(processes(driver.out))
    # A process gives back its memory, by which it is found here, a moment before its files and the lock with them.
    # Then the run is stopped, or running in another process: never running in none.
    driver.wait_until(
        lambda: folder.state(victim) == "stopped" or processes(driver.out).get(victim, lives[victim]) != lives[victim]
    )
    assert 0 < folder.run(victim).read_rows("progress")["step"][-1] < STEPS
    driver.wait_until(lambda: processes(driver.out).get(victim, lives[victim]) != lives[victim])  # another life
    said = driver.finish()
    assert study_results(driver.out) == expected
    assert "failed" not in said, "a node's death is no failure of the run"


def processes(out: Path) -> dict[str, int]:
    """Runs of a study's folder → the process at work on each."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "bcppo.study.child" in words and str(out) in words:
            found[words[words.index(str(out)) + 1]] = int(path.parent.name)
    return found


def test_an_interrupt_leaves_no_run_at_work(file: Path, expected, cluster, tmp_path: Path) -> None:
    cluster.add(num_cpus=2)
    driver = Driver(file, tmp_path / "study", "--engine", "ray", "--address", cluster.address)
    driver.wait_until(lambda: len(driver.begun()) >= 1)
    driver.process.send_signal(signal.SIGINT)
    _, said = driver.process.communicate(timeout=60)
    assert driver.process.returncode == 130, said
    folder = StudyFolder(driver.out)
    deadline = time.monotonic() + 30
    while "running" in [folder.state(entry.id) for entry in folder.study().runs]:
        assert time.monotonic() < deadline, "a run is still at work"
        time.sleep(0.1)
    Driver(file, driver.out, "--workers", "2").finish()  # another engine may go on with it
    assert study_results(driver.out) == expected


def test_a_cluster_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.adopt(study_from_json(stored(hopper_run(0, 256))))
    with pytest.raises(BcppoError, match=r"The Ray cluster at 127.0.0.1:1 cannot be reached") as caught:
        RayEngine(folder, address="127.0.0.1:1")
    assert "\n" not in str(caught.value)
