"""What may go wrong in a stacked fleet, and what of it goes on: each run answers for itself."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from test_fleet import STORED, check, small
from test_kill import results
from tiny_cmdp import BrokenAfter, TinyCMDP

from bcppo.errors import BcppoError, ConfigError, EnvironmentFailed
from bcppo.fleet import name_runs, train_fleet
from bcppo.policy import NumpyPolicy
from bcppo.pool import Worker, close_all, take_in
from bcppo.records import RunFolder
from bcppo.remote import RemoteCollector
from bcppo.rollout import Collector
from bcppo.run import Run, make_config, train
from bcppo.training import Trainer
from bcppo.watch import FleetWatch
from bcppo.worker import environment_factory

TINY = "tiny_cmdp:make"


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """What would wait for ever fails instead."""

    def late(*_) -> None:
        raise AssertionError(f"not within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker()
    yield one
    one.close()


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])


def still(low: np.ndarray, high: np.ndarray) -> NumpyPolicy:
    """The same distribution whatever is seen."""
    zeros = {"weight0": np.zeros((2, 1), np.float32), "bias0": np.zeros(1, np.float32)}
    return NumpyPolicy(zeros | {"log_std": np.zeros(1, np.float32)}, low, high)


def test_more_requests_than_fit_into_the_pipes_are_answered_all(worker: Worker) -> None:
    with within(30):
        many = [RemoteCollector(worker, TINY, 0.3, *streams(seed)) for seed in range(600)]
        assert {collector.spaces[0] for collector in many} == {2}


def test_workers_are_heard_beyond_the_first_thousand_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
    try:
        worker = Worker()
        collector = RemoteCollector(worker, TINY, 0.3, *streams(0))
        assert worker.fileno() > 1024
        with within(30):
            while not collector.ready():
                take_in([worker], 1.0)
        worker.close()
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_answer_that_nobody_took_is_not_taken_twice_once_its_worker_is_dead(worker: Worker) -> None:
    """The environment starts from before it and is asked again: the old answer would be one too many."""
    remotes = [RemoteCollector(worker, TINY, 0.3, *streams(seed)) for seed in (0, 1)]
    locals_ = [Collector(environment_factory(TINY, 0.3), *streams(seed)) for seed in (0, 1)]
    _, low, high = remotes[0].spaces
    policy = still(low, high)
    remotes[0].start(policy, 20)
    remotes[1].start(policy, 20_000)
    with within(30):
        while not remotes[0].ready():
            take_in([worker], 1.0)
        old = worker.pid
        os.kill(old, signal.SIGKILL)
        while worker.pid == old:
            take_in([worker], 1.0)
        for steps in ((20, 20_000), (20, 20), (20, 20)):
            for remote, local, count in zip(remotes, locals_, steps):
                np.testing.assert_array_equal(remote.finish().reward, local.collect(policy, count).reward)
                remote.start(policy, 20)


def test_environments_are_ready_together_only_if_all_answers_are_there(worker: Worker) -> None:
    """That one of them is left out shows when the worker is brought back, without the others' answers."""
    good = RemoteCollector(worker, TINY, 0.3, *streams(0))
    deadly = RemoteCollector(worker, "tiny_cmdp:make_deadly", 0.3, *streams(1))
    policy = still(*good.spaces[1:])
    for collector in (good, deadly):
        collector.start(policy, 20)
    with within(60):
        while not (good.ready() and deadly.ready()):
            time.sleep(0.001)
        assert worker._inbox[0]
        with pytest.raises(EnvironmentFailed, match="died 3 times"):
            deadly.finish()


def test_an_environment_that_is_left_out_between_its_steps_is_not_waited_for(worker: Worker) -> None:
    collector = RemoteCollector(worker, TINY, 0.3, *streams(0))
    _ = collector.spaces
    collector.start_lockstep(np.array([-5.0, 2.0], np.float32))
    collector.await_lockstep()
    worker._leave_out(0, EnvironmentFailed("It could not be put back."))
    with within(30):
        os.kill(worker.pid, signal.SIGKILL)
        while worker.alive:
            time.sleep(0.01)
        worker.revive()
        collector.start_step(None)
        assert collector.ready()
        with pytest.raises(EnvironmentFailed, match="could not be put back"):
            collector._await_step()


def test_shared_memory_is_reserved_or_refused_in_one_sentence(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is missing when it is written to would end the worker by SIGBUS."""
    worker.place({"a": ("<f8", [100_000])})
    assert os.fstat(worker._file.fileno()).st_blocks * 512 >= 800_000

    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BcppoError, match=r"The 1\.5 MB that a worker shares do not fit into .*: No space left"):
        worker.place({"b": ("<f8", [100_000])})
    monkeypatch.undo()
    assert worker.place({"b": ("<f8", [100])})["b"][2] < 801_000, "what was refused takes no room"


def test_workers_that_do_not_end_are_waited_for_together() -> None:
    workers = [Worker() for _ in range(4)]
    for one in workers:
        os.kill(one.pid, signal.SIGSTOP)
    begun = time.monotonic()
    close_all(workers)
    assert time.monotonic() - begun < 4.0  # 2 s for all, not for each
    assert not any(one.alive for one in workers)


# --- a run that goes wrong, and those beside it ---


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Runs trained by themselves, in this process."""
    folder = tmp_path_factory.mktemp("alone")
    runs = [small("bcppo", seed) for seed in (0, 1, 2)]
    return {
        name: results(train(config, method=method, out=folder / name).path)
        for name, (method, config) in zip(name_runs(runs), runs)
    }


class Warned(FleetWatch):
    """Remembers what it was to warn of."""

    sentences: tuple[str, ...] = ()

    def warn(self, sentence: str) -> None:
        self.sentences += (sentence,)


def broken(result: list) -> None:
    raise RuntimeError("this one environment is broken")


def make_broken() -> gymnasium.Env:
    """Raises an error in its 100th step."""
    return BrokenAfter(TinyCMDP(), 100, broken)


def make_stillborn() -> gymnasium.Env:
    """Ends its process when it is made."""
    os.kill(os.getpid(), signal.SIGKILL)
    return TinyCMDP()


@pytest.mark.parametrize(
    ("task", "first", "said"),
    [
        ("test_fleet_faults:make_broken", True, "RuntimeError: this one environment is broken"),
        ("tiny_cmdp:make_deadly", True, "died 3 times in a row (SIGKILL); the run can be resumed"),
        ("tiny_cmdp:make_deadly", False, "died 3 times in a row (SIGKILL); the run can be resumed"),
        ("test_fleet_faults:make_stillborn", True, "died 3 times in a row (SIGKILL); the run can be resumed"),
    ],
)
def test_a_bad_environment_stops_its_own_run_and_no_other_of_its_stack_or_worker(
    task: str, first: bool, said: str, alone: dict[str, dict], tmp_path: Path
) -> None:
    good, bad = [small("bcppo", seed) for seed in (0, 1, 2)], small("bcppo", 7, task=task)
    runs = [bad, *good] if first else [*good, bad]  # three stacks, the first of two: the first and the last
    warned = Warned(bar=False)
    with within(120):
        folders = train_fleet(runs, out=tmp_path, workers=1, stacked=True, watch=warned)
    sick = folders.pop(0 if first else -1)
    check(folders, alone)
    assert sick.status()["state"] == "failed"
    assert said in sick.status()["message"]
    assert warned.sentences == (f"{sick.path.name}: {sick.status()['message']}",)


@pytest.mark.parametrize(
    ("task", "said"),
    [("test_fleet_faults:make_broken", "RuntimeError: this one"), ("tiny_cmdp:make_deadly", "(SIGKILL)")],
)
def test_a_bad_environment_in_lockstep_stops_its_own_run(task: str, said: str, tmp_path: Path) -> None:
    good = [("wcsac", make_config("wcsac", seed=seed, **STORED)) for seed in (0, 1)]
    bad = "wcsac", make_config("wcsac", seed=7, **(STORED | {"task": task}))
    with within(120):
        *folders, sick = train_fleet([*good, bad], out=tmp_path / "fleet", workers=1, stacked=True)
    assert sick.status()["state"] == "failed"
    assert said in sick.status()["message"]
    for folder, (method, config) in zip(folders, good):
        assert results(train(config, method=method, out=tmp_path / folder.path.name).path) == results(folder.path)


def test_an_environment_that_cannot_be_made_stops_its_own_run(alone: dict[str, dict], tmp_path: Path) -> None:
    nowhere = {"task": "nomodule:make"}
    wcsac = "wcsac", make_config("wcsac", seed=1, **(STORED | nowhere))
    good, *bad = train_fleet(
        [small("bcppo", 0), small("bcppo", 1, **nowhere), wcsac], out=tmp_path, workers=2, stacked=True
    )
    check([good], alone)
    for folder in bad:
        assert folder.status()["state"] == "failed"
        assert "The module 'nomodule'" in folder.status()["message"]


def test_a_worker_that_cannot_be_started_again_leaves_its_runs_to_the_others(
    alone: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    start, record, killed = Worker._start, Run.record, []

    def start_or_not(self: Worker) -> None:
        if killed:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(self)

    def murder(self: Run, *arguments) -> None:
        record(self, *arguments)
        if self.step == 128 and self.config.seed == 1 and not killed:
            os.kill(self.collectors[0].worker.pid, signal.SIGKILL)
            killed.append(self.step)

    monkeypatch.setattr(Worker, "_start", start_or_not)
    monkeypatch.setattr(Run, "record", murder)
    check(train_fleet([small("bcppo", seed) for seed in (0, 1, 2)], out=tmp_path, workers=3, stacked=True), alone)
    assert "could not be started again: Resource temporarily unavailable" in capsys.readouterr().err


def test_without_any_worker_left_the_runs_stop_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = Worker._start, []

    def start_once(self: Worker) -> None:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(self)
        start(self)

    monkeypatch.setattr(Worker, "_start", start_once)
    runs = [small("bcppo", 0), small("bcppo", 1, task="tiny_cmdp:make_deadly")]
    for folder in train_fleet(runs, out=tmp_path, workers=1, stacked=True):
        assert folder.status()["state"] == "failed"
        assert "could not be started again" in folder.status()["message"]


def test_a_run_whose_rows_cannot_be_written_when_another_diverges_stops_no_other(
    alone: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Run.write_rows

    def full(self: Run) -> None:
        if self.config.seed in (0, 5):
            raise OSError("no room")
        write(self)

    monkeypatch.setattr(Run, "write_rows", full)
    runs = [*(small("bcppo", seed) for seed in (0, 1, 2)), small("bcppo", 5, learning_rate=1e18)]
    *healthy, sick = train_fleet(runs, out=tmp_path, workers=1, stacked=True)
    check(healthy, alone)
    assert sick.status()["state"] == "diverged"


def test_runs_that_differ_in_shape_are_stacked_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[list[int]] = []
    restore = Trainer.restore

    def noting(self: Trainer, stored: list) -> None:
        stacks.append([run.config.seed for run in self.runs])
        restore(self, stored)

    monkeypatch.setattr(Trainer, "restore", noting)
    shapes = [{"members": 4}, {"minibatch": 16}, {"members": 4, "beta": 0.3}, {"hidden": (8,)}, {"minibatch": 16}]
    runs = [small("bcppo", seed, steps=64, **shape) for seed, shape in enumerate(shapes)]
    cpo = [small("cpo", 5, steps=64, conjugate_gradient_steps=2), small("cpo", 6, steps=64, search_steps=3)]
    folders = train_fleet([*runs, *cpo], out=tmp_path, workers=1, stacked=True)
    assert {folder.status()["state"] for folder in folders} == {"finished"}
    assert sorted(stacks) == [[0, 2], [1, 4], [3], [5], [6]]


def test_runs_of_one_stack_may_normalise_or_not_where_their_method_allows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bcppo.stacked.FEWEST_PARTS", 0)
    runs = [small("ppolag", seed, steps=192, normalize_observations=seed == 1) for seed in (0, 1)]
    folders = train_fleet(runs, out=tmp_path / "fleet", workers=1, stacked=True)
    for folder, (method, config) in zip(folders, runs):
        assert results(train(config, method=method, out=tmp_path / folder.path.name).path) == results(folder.path)


def test_runs_whose_devices_have_two_names_share_a_stack(alone: dict[str, dict], tmp_path: Path) -> None:
    """The command line's 'auto' stays in the config of a run that was begun alone."""
    runs = [small("bcppo", seed) for seed in (0, 1)]
    RunFolder(tmp_path / name_runs(runs)[0]).create(*small("bcppo", 0, device="auto"), "cpu")
    folders = train_fleet(runs, out=tmp_path, workers=1, stacked=True, apart=True, device="cpu")
    assert [folder.status()["state"] for folder in folders] == ["finished", "finished"]
    check(folders[1:], alone)


def test_a_fleet_that_needs_more_files_than_the_system_allows_is_refused(tmp_path: Path, monkeypatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, 6))
    with pytest.raises(ConfigError, match="but the system allows 6"):
        train_fleet([small("bcppo", 0)], out=tmp_path, stacked=True)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, 5000))
    train_fleet([small("bcppo", 0, steps=64)], out=tmp_path / "other", workers=1, stacked=True)
    assert raised == [(5000, 5000)]


def test_environments_of_finished_runs_are_let_go_of(tmp_path: Path, monkeypatch) -> None:
    """A worker that dies later need not put them back."""
    hosted: list[RemoteCollector | None] = []

    def look_and_close(workers: list[Worker]) -> None:
        hosted.extend(collector for worker in workers for collector in worker._collectors)
        close_all(workers)

    monkeypatch.setattr("bcppo.stacked.close_all", look_and_close)
    runs = [small("bcppo", seed, steps=64) for seed in (0, 1)]
    train_fleet(runs, out=tmp_path, workers=1, stacked=True, device="cpu")
    assert hosted == [None, None]


# --- folders and what was asked for ---


@pytest.mark.parametrize("name", ["status.json", "provenance.json", "config.json"])
def test_a_damaged_record_stops_its_own_run(name: str, alone: dict[str, dict], tmp_path: Path) -> None:
    runs, warned = [small("bcppo", seed) for seed in (0, 1)], Warned(bar=False)
    sick = RunFolder(tmp_path / name_runs(runs)[0])
    sick.create(*runs[0], "cpu")
    (sick / name).write_text("{")
    _, good = train_fleet(runs, out=tmp_path, workers=1, stacked=True, watch=warned)
    check([good], alone)
    assert sick.status()["state"] == "failed"
    assert f"{name} is not whole" in sick.status()["message"]
    assert warned.sentences == (f"{sick.path.name}: {sick.status()['message']}",)


def test_a_busy_folder_is_left_alone_and_stops_no_other_run(alone: dict[str, dict], tmp_path: Path) -> None:
    runs, warned = [small("bcppo", seed) for seed in (0, 1)], Warned(bar=False)
    busy = RunFolder(tmp_path / name_runs(runs)[0])
    busy.create(*runs[0], "cpu")
    with busy.locked():
        _, good = train_fleet(runs, out=tmp_path, workers=1, stacked=True, watch=warned)
    check([good], alone)
    assert not (busy / "status.json").exists()
    (sentence,) = warned.sentences
    assert sentence.startswith(f"{busy.path.name}: Another process is at work")


def test_what_is_no_fleet_is_refused_in_one_sentence_before_anything_is_made(tmp_path: Path) -> None:
    run = small("bcppo", 0)
    for runs, how, sentence in (
        ([run[1]], {}, r"pairs such as \('bcppo', config\), but a BCPPOConfig was given"),
        ([run, small("bcppo", 1)], {"names": ["a"]}, "1 were given for 2 runs"),
        ([run, small("bcppo", 1)], {"names": ["a", "a"]}, "1 were given for 2 runs"),
        ([run], {"device": "cuda:1"}, "must be cpu, cuda or auto, but 'cuda:1' was given"),
        ([run], {"device": "banana"}, "must be cpu, cuda or auto, but 'banana' was given"),
        ([run, small("bcppo", 1, cost_limit_rate=None)], {}, "give a cost_limit_rate"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            train_fleet(runs, out=tmp_path, **how)
    assert not list(tmp_path.iterdir())
