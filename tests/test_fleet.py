"""Fleets: whatever company a run keeps, and whatever dies meanwhile, its folder holds the same."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_kill import results

from bcppo.errors import BcppoError, ConfigError
from bcppo.fleet import name_runs, train_fleet, vary
from bcppo.pool import Worker, wait
from bcppo.records import FolderError, RunFolder, read_json
from bcppo.remote import RemoteCollector
from bcppo.run import Run, make_config, resume, train
from bcppo.training import Trainer
from bcppo.turns import Turns
from bcppo.watch import FleetWatch

SMALL = {
    "task": "tiny_cmdp:make", "cost_limit_rate": 0.3, "steps": 512, "rollout": 64, "minibatch": 32, "epochs": 2,
    "hidden": (16,), "eval_every": 256, "eval_episodes": 2, "checkpoint_every": 128, "tensorboard": False,
}  # fmt: skip
STORED = {
    "task": "tiny_cmdp:make", "cost_limit_rate": 0.3, "steps": 300, "hidden": (16,), "minibatch": 32, "window": 50,
    "random_steps": 100, "eval_every": 100, "eval_episodes": 2, "checkpoint_every": 100, "tensorboard": False,
}  # fmt: skip
METHODS = ("bcppo", "cppo", "ppolag")


def small(method: str, seed: int, **changes):
    return method, make_config(method, seed=seed, **(SMALL | changes))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Each run trained by itself, in this process."""
    folder = tmp_path_factory.mktemp("alone")
    runs = [small(method, seed) for method in METHODS for seed in (0, 1, 2)]
    return {
        name: results(train(config, method=method, out=folder / name).path)
        for name, (method, config) in zip(name_runs(runs), runs)
    }


def check(folders: list[RunFolder], alone: dict[str, dict]) -> None:
    assert folders
    for folder in folders:
        assert folder.status()["state"] == "finished"
        assert results(folder.path) == alone[folder.path.name], folder.path.name


@pytest.mark.parametrize("stacked", [True, False])
def test_a_run_of_a_fleet_equals_the_run_alone(stacked: bool, alone: dict[str, dict], tmp_path: Path) -> None:
    """Bit for bit."""
    seeds = (0, 1, 2) if stacked else (0,)
    runs = [small(method, seed) for method in METHODS for seed in seeds]
    folders = train_fleet(runs, out=tmp_path, workers=2, stacked=stacked)
    check(folders, alone)
    found = read_json(folders[0] / "provenance.json")["fleet"]
    rounding = {"tf32": False, "compiled": False}
    assert found == {"runs": len(runs), "stacked": stacked, "workers": 2, "apart": False, **rounding}


def test_a_fleet_that_learns_from_stored_transitions_equals_its_runs_alone(tmp_path: Path) -> None:
    runs = [("wcsac", make_config("wcsac", seed=seed, **STORED)) for seed in (0, 1, 2)]
    folders = train_fleet(runs, out=tmp_path / "fleet", workers=2, stacked=True)
    for folder, (method, config) in zip(folders, runs):
        assert results(train(config, method=method, out=tmp_path / folder.path.name).path) == results(folder.path)


def test_the_settings_of_a_sweep_share_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ["beta=0.1,5.0", "learning_rate=1e-3", "proportional_gain=0.3"]
    runs = [(m, c) for m, c in vary(["bcppo"], ["hopper"], [0], changes)]
    assert [(c.beta, c.learning_rate) for _, c in runs] == [(0.1, 1e-3), (5.0, 1e-3)]
    sweep = [
        small("bcppo", 0, beta=beta, alpha=alpha) for beta, alpha in ((0.1, 0.9), (5.0, 0.95), (0.0, 0.99), (1.0, 0.9))
    ]
    sizes = []
    counted = lambda runs, *rest, **how: sizes.append(len(runs)) or Trainer(runs, *rest, **how)  # noqa: E731
    monkeypatch.setattr("bcppo.stacked.Trainer", counted)

    folders = train_fleet(sweep, out=tmp_path / "fleet", workers=1, stacked=True)
    assert sizes == [2, 1, 1]  # one stack in parts that take turns
    for index, (method, config) in enumerate(sweep):
        single = train(config, method=method, out=tmp_path / f"single{index}")
        assert results(single.path) == results(folders[index].path)


@pytest.mark.parametrize("victim", ["worker", "collecting"])
def test_a_worker_that_is_killed_costs_time_and_nothing_else(
    victim: str, alone: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, killed = Run.record, []

    def murder(self: Run, *arguments) -> None:
        record(self, *arguments)
        if self.step in (128, 320) and self.config.seed == 1:
            # Between rollouts of this stack; the other one is collecting in the same worker at this moment.
            os.kill(self.collectors[0].worker.pid, signal.SIGKILL)
            killed.append(self.step)

    monkeypatch.setattr(Run, "record", murder)
    workers = 1 if victim == "collecting" else 2
    folders = train_fleet([small("bcppo", seed) for seed in (0, 1, 2)], out=tmp_path, workers=workers, stacked=True)
    assert killed == [128, 320]
    check(folders, alone)


@pytest.mark.parametrize("first", [True, False])
def test_an_environment_that_ends_its_process_takes_only_its_own_run_along(
    first: bool, alone: dict[str, dict], tmp_path: Path
) -> None:
    deadly = make_config("ppopid", "tiny_cmdp:make_deadly", cost_limit_rate=0.3, steps=128, rollout=64, minibatch=32)
    runs = [("ppopid", deadly), *(small("bcppo", seed) for seed in (0, 1))]
    folders = train_fleet(runs if first else runs[::-1], out=tmp_path, workers=3, stacked=True)
    failed = folders.pop(0 if first else -1)
    died = "An environment's process died 3 times in a row (SIGKILL)"
    message = f"{died}; the run can be resumed from its last checkpoint."
    assert failed.status() == {"state": "failed", "message": message}
    check(folders, alone)


class Stop(FleetWatch):
    """Interrupts a fleet at some update of one of its runs. (Those of one protocol are kept in step by `apart`.)"""

    def __init__(self, step: int) -> None:
        super().__init__(bar=False)
        self._step = step

    def update(self, run: Run) -> None:
        super().update(run)
        if run.step == self._step and run.config.seed == 2:
            raise KeyboardInterrupt


class Seen(FleetWatch):
    """Remembers the steps at which it was told of a run."""

    steps: tuple[int, ...] = ()

    def update(self, run: Run) -> None:
        super().update(run)
        self.steps += (run.step,)


def test_a_fleet_goes_on_alone_or_in_another_fleet(alone: dict[str, dict], tmp_path: Path) -> None:
    runs = [small("bcppo", seed) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=tmp_path, workers=2, stacked=True, apart=True, watch=Stop(320))
    states = {name: RunFolder(tmp_path / name).status()["state"] for name in name_runs(runs)}
    assert "running" in states.values()
    resume(tmp_path / name_runs(runs)[0])
    seen = Seen(bar=False)
    check(train_fleet(runs[:2], out=tmp_path, workers=1, stacked=True, watch=seen), alone)
    assert min(seen.steps) > 128, "it began anew instead of going on"  # checkpoints are every 128 steps
    check(train_fleet(runs, out=tmp_path, workers=2, stacked=False), alone)


def test_it_is_on_record_what_a_run_went_on_with(tmp_path: Path) -> None:
    runs = [small("bcppo", seed) for seed in (0, 1, 2)]
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=tmp_path, workers=2, stacked=True, apart=True, watch=Stop(320))
    alone, *others = (RunFolder(tmp_path / name) for name in name_runs(runs))
    begun = read_json(alone / "provenance.json")
    resume(alone.path)
    step = 256  # of its last checkpoint
    assert read_json(alone / "provenance.json") == begun | {"resumed": [{"step": step, "fleet": None}]}
    train_fleet(runs, out=tmp_path, workers=1, stacked=True)
    (went_on,) = read_json(others[-1] / "provenance.json")["resumed"]
    assert went_on["step"] == step
    assert went_on["fleet"] == begun["fleet"] | {"workers": 1, "apart": False}
    assert set(went_on) == {"step", "fleet"}, "nothing else had changed"


def test_a_run_that_goes_on_with_other_code_says_so_and_from_where(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder(tmp_path)
    folder.create(*small("bcppo", 0), "cpu")
    begun = read_json(folder / "provenance.json")
    monkeypatch.setattr("bcppo.records.revision", lambda: "another")
    resume(folder.path)
    assert read_json(folder / "provenance.json") == begun | {"resumed": [{"step": 0, "revision": "another"}]}
    folder.went_on(512, "cpu")  # with the same once more: nothing new
    folder.went_on(512, "cuda")
    monkeypatch.undo()
    folder.went_on(640, "cuda")
    back = [{"step": 512, "device": "cuda"}, {"step": 640, "revision": begun["revision"]}]
    assert read_json(folder / "provenance.json")["resumed"][1:] == back


@pytest.mark.parametrize("apart", [True, False])
def test_runs_of_one_protocol_can_be_kept_apart_from_others(
    apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[list[tuple[float, int]]] = []
    restore = Trainer.restore

    def noting(self: Trainer, stored: list) -> None:
        stacks.append(sorted((run.config.beta, run.config.seed) for run in self.runs))
        restore(self, stored)

    monkeypatch.setattr(Trainer, "restore", noting)
    runs = [small("bcppo", seed, beta=beta, steps=128) for beta in (0.1, 0.2) for seed in (0, 1)]
    folders = train_fleet(runs, out=tmp_path, workers=1, stacked=True, apart=apart)
    by_protocol = [[(0.1, 0), (0.1, 1)], [(0.2, 0), (0.2, 1)]]
    assert (sorted(stacks) == by_protocol) == apart
    assert read_json(folders[0] / "provenance.json")["fleet"]["apart"] is apart


def test_a_run_that_diverges_leaves_the_others_of_its_stack_as_they_would_be(
    alone: dict[str, dict], tmp_path: Path
) -> None:
    runs = [small("bcppo", 0), small("bcppo", 5, learning_rate=1e18), small("bcppo", 2)]
    sick, *healthy = (train_fleet(runs, out=tmp_path, workers=1, stacked=True)[index] for index in (1, 0, 2))
    assert sick.status()["state"] == "diverged"
    check(healthy, alone)


def damage_checkpoints(folder: Path) -> None:
    for path in folder.glob("checkpoint*"):
        path.write_bytes(path.read_bytes()[:-9])


def damage_rows(folder: Path) -> None:
    (folder / "episodes.parquet").write_bytes(b"PAR1")


def other_shape(folder: Path) -> None:
    """A whole checkpoint whose networks are of another size."""
    loaded = RunFolder(folder).load_checkpoint(pytest.fail)
    assert loaded is not None
    tensors, notes = loaded
    smaller = {name: array[..., :3] if name.startswith("policy.") and array.ndim else array
               for name, array in tensors.items()}  # fmt: skip
    RunFolder(folder).save_checkpoint(smaller, notes)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(damage_checkpoints, "No checkpoint of this run is whole"), (damage_rows, "episodes.parquet"),
     (other_shape, "The checkpoint does not fit its config")],
)  # fmt: skip
def test_a_damaged_folder_does_not_stop_the_others_and_is_left_as_it_is(
    damage, said: str, alone: dict[str, dict], tmp_path: Path, capsys
) -> None:
    runs = [*(small("bcppo", seed) for seed in (0, 1, 2)), small("cppo", 0)]
    with pytest.raises(KeyboardInterrupt):
        train_fleet(runs, out=tmp_path, workers=1, stacked=True, apart=True, watch=Stop(320))
    sick = RunFolder(tmp_path / name_runs(runs)[1])
    damage(sick.path)
    files = {path.name: path.read_bytes() for path in sick.path.glob("*.*") if path.name != "status.json"}
    # Apart, so that the damaged one shares a stack with two that are whole.
    first, _, *rest = train_fleet(runs, out=tmp_path, workers=1, stacked=True, apart=True)
    check([first, *rest], alone)
    status = sick.status()
    assert status["state"] == "failed"
    assert said in status["message"]
    assert f"warning: {sick.path.name}: " in capsys.readouterr().err
    left = {path.name: path.read_bytes() for path in sick.path.glob("*.*") if path.name != "status.json"}
    assert left == files


def test_what_nobody_expected_stops_one_stack_and_says_where_it_happened(
    alone: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    record = Run.record

    def full(self: Run, *arguments) -> None:
        if self.method == "cppo" and self.step == 128:
            raise RuntimeError("out of memory")
        record(self, *arguments)

    monkeypatch.setattr(Run, "record", full)
    *others, cppo = train_fleet([small("bcppo", 0), small("ppolag", 1), small("cppo", 0)], out=tmp_path, stacked=True)
    check(others, alone)
    assert cppo.status() == {"state": "failed", "message": "RuntimeError: out of memory"}
    said = capsys.readouterr().err
    assert f"warning: {cppo.path.name}: RuntimeError: out of memory" in said
    assert "in full" in said, "where it happened"
    monkeypatch.undo()
    check(train_fleet([small("cppo", 0)], out=tmp_path, stacked=True), alone)


def test_checkpoints_are_written_while_the_fleet_goes_on_and_trouble_with_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, by = RunFolder.save_checkpoint, []

    def slow(folder: RunFolder, *state) -> None:
        by.append(threading.current_thread().name)
        time.sleep(0.05)
        if "-cppo-" in folder.path.name and folder.load_checkpoint(pytest.fail) is not None:
            raise FolderError("There is no room.")
        save(folder, *state)

    monkeypatch.setattr(RunFolder, "save_checkpoint", slow)
    runs = [small("bcppo", 0), small("bcppo", 1), small("cppo", 0)]
    bcppo, other, cppo = train_fleet(runs, out=tmp_path, workers=1, stacked=True)
    assert all(name.startswith("checkpoints") for name in by)
    assert [folder.status()["state"] for folder in (bcppo, other, cppo)] == ["finished", "finished", "failed"]
    assert cppo.status()["message"] == "There is no room."
    loaded = bcppo.load_checkpoint(pytest.fail)
    assert loaded is not None
    assert json.loads(loaded[1]["state"])["step"] == 512


def test_an_interrupted_fleet_ends_when_what_it_had_begun_to_write_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, begun = RunFolder.save_checkpoint, []

    def slow(*state) -> None:
        begun.append(state)
        time.sleep(0.5)
        save(*state)

    def interrupted(*waiting) -> None:
        if begun:
            raise KeyboardInterrupt
        wait(*waiting)

    monkeypatch.setattr(RunFolder, "save_checkpoint", slow)
    monkeypatch.setattr("bcppo.stacked.wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as _held:  # and its frames, so that nothing is closed by being forgotten
        train_fleet([small("bcppo", 0)], out=tmp_path, workers=1, stacked=True)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoints")]
    loaded = RunFolder(next(tmp_path.iterdir())).load_checkpoint(pytest.fail)
    assert loaded is not None
    assert loaded[1]["state"] == begun[-1][2]["state"]


@pytest.mark.parametrize(("rounding", "words"), [("compiled", "compiled updates"), ("tf32", "TF32")])
def test_a_run_begun_with_other_rounding_goes_on_with_it_only(rounding: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "tiny_cmdp.make-bcppo-seed0"
    run = small("bcppo", 0)
    RunFolder(folder).create(*run, "cpu", {"fleet": {rounding: True}})
    for go_on in (lambda: train_fleet([run], out=tmp_path, stacked=True), lambda: resume(folder)):
        with pytest.raises(BcppoError, match=f"was begun with {words}"):
            go_on()


def test_a_run_begun_on_a_gpu_goes_on_there_only(tmp_path: Path) -> None:
    run = small("bcppo", 0)
    RunFolder(tmp_path / "tiny_cmdp.make-bcppo-seed0").create(*run, "cuda")
    with pytest.raises(BcppoError, match="was begun on the device 'cuda' and can only go on there"):
        train_fleet([run], out=tmp_path, device="cpu")


def test_stacks_that_are_few_are_divided_so_that_some_simulate_while_another_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    counted = lambda runs, *rest, **how: sizes.append(len(runs)) or Trainer(runs, *rest, **how)  # noqa: E731
    monkeypatch.setattr("bcppo.stacked.Trainer", counted)
    runs = [*(small("ppopid", seed, steps=64) for seed in range(4)), small("ppolag", 0, steps=64)]
    train_fleet(runs, out=tmp_path, workers=1, stacked=True)
    assert sizes == [2, 1, 1, 1]


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    runs = [small("bcppo", 0)]
    train_fleet(runs, out=tmp_path, workers=1)
    with pytest.raises(BcppoError, match="already holds another run"):
        train_fleet([small("bcppo", 0, beta=0.9)], out=tmp_path, workers=1)
    assert train_fleet([small("bcppo", 0, eval_every=0)], out=tmp_path)[0].status()["state"] == "finished"


def test_a_sweep_s_folders_are_named_by_what_differs() -> None:
    runs = vary(["bcppo"], ["goal1"], [0, 1], ["beta=0.1,0.2", "anti_windup=true,false"])
    assert name_runs(runs)[:3] == [
        "goal1-bcppo-seed0-anti_winduptrue-beta0.1", "goal1-bcppo-seed1-anti_winduptrue-beta0.1",
        "goal1-bcppo-seed0-anti_windupfalse-beta0.1",
    ]  # fmt: skip
    assert len(set(name_runs(runs))) == 8
    assert name_runs(vary(["ppo"], ["my_module:make"], [0], ["cost_limit_rate=0.1"])) == ["my_module.make-ppo-seed0"]


def test_impossible_fleets_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for runs, sentence in (
        ([small("bcppo", 0), small("bcppo", 0)], "twice"),
        ([("bcpo", small("bcppo", 0)[1])], "Did you mean 'bcppo'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            train_fleet(runs, out=tmp_path)
    with pytest.raises(ConfigError, match="for stacked learners on a GPU"):
        train_fleet([small("bcppo", 0)], out=tmp_path, device="cpu", stacked=True, compiled=True)
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        vary(["bcppo"], ["hopper"], [0], ["beta"])
    with pytest.raises(ConfigError, match="There is no setting named 'bta'"):
        vary(["bcppo"], ["hopper"], [0], ["bta=0.1"])
    assert not list(tmp_path.iterdir())


def test_workers_can_run_under_another_python(tmp_path: Path, alone: dict[str, dict]) -> None:
    """The interpreter is named by its path; here the same one by another name."""
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    folders = train_fleet([small("bcppo", 0)], out=tmp_path / "runs", workers=1, stacked=True, worker_python=str(other))
    check(folders, alone)
    assert "bcppo.worker" in (tmp_path / "calls").read_text()
    versions = json.loads((folders[0] / "provenance.json").read_text())["versions"]
    assert versions["workers' numpy"] == np.__version__
    assert versions["mujoco"]


def test_another_python_that_cannot_simulate_is_named_before_anything_is_made(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 'no such module: mujoco' >&2\nexit 1\n")
    other.chmod(0o755)
    for path, why in ((other, "no such module: mujoco"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=f"{path} cannot be used: .*{why}"):
            train_fleet([small("bcppo", 0)], out=tmp_path / "runs", workers=1, stacked=True, worker_python=str(path))
    assert not (tmp_path / "runs").exists()


class Told:
    """Stands for a worker: what it is sent is written down."""

    def __init__(self, name: str, told: list[tuple[str, int]]) -> None:
        self.name, self.told = name, told

    def send(self, header: dict, arrays: dict) -> None:
        self.told.append((self.name, header["environment"]))


def test_long_requests_take_turns_in_the_order_they_came_and_one_a_worker() -> None:
    told: list[tuple[str, int]] = []
    one, two, three = (Told(name, told) for name in ("one", "two", "three"))
    turns = Turns(2)
    for worker, environment in ((one, 0), (one, 1), (two, 0), (three, 0)):
        turns.ask(worker, {"environment": environment})
    assert told == [("one", 0), ("two", 0)]  # the second of `one` waits for its first, and does not hold up `two`
    turns.answered(one, 1)  # to something else that was asked
    assert len(told) == 2
    turns.answered(one, 0)
    assert told[2:] == [("one", 1)]
    turns.forget(two)  # dead: its turn is free, and it asks again
    assert told[3:] == [("three", 0)]
    turns.ask(two, {"environment": 0})
    turns.answered(three, 0)
    assert told[4:] == [("two", 0)]


def test_waiting_takes_in_what_was_said_whoever_it_is_for() -> None:
    worker = Worker()
    streams = [np.random.default_rng(seed) for seed in range(2)]
    first, second = (RemoteCollector(worker, "hopper", None, *streams) for _ in range(2))
    try:
        while not second.ready():
            wait([worker], 60.0)
            # What is left in the pipe would end the next wait at once, and the learner would never rest.
            assert len(worker._inbox[0]) + len(worker._inbox[1]) > 0
        assert first.ready()
        assert not select.select([worker], [], [], 0.0)[0]
        assert first.spaces[0] == second.spaces[0] == 11
    finally:
        worker.close()


def test_a_worker_leaves_no_shared_memory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcppo.pool._SHARED_MEMORY", tmp_path)  # in /dev/shm others come and go
    worker = Worker()
    places = worker.place({"a": ("<f8", [1000])})
    worker.arrays(places)["a"][:] = 1.0
    assert not list(tmp_path.iterdir()), "it would stay behind if this process were killed"
    pid = worker.pid
    worker.close()
    assert not Path(f"/proc/{pid}").exists()


def doomed(kind: str) -> list:
    if kind == "on-policy":
        return [small(method, seed, steps=2048) for method in METHODS for seed in (0, 1, 2)]
    return [("wcsac", make_config("wcsac", seed=seed, **(STORED | {"steps": 1500}))) for seed in (0, 1, 2)]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "stacked"), [("on-policy", True), ("on-policy", False), ("off-policy", True)])
def test_a_whole_fleet_killed_again_and_again_ends_the_same(kind: str, stacked: bool, tmp_path: Path) -> None:
    """SIGKILL to the learner alone, or to it and all its workers or lanes: before there is any checkpoint, then some
    moments after each life's first."""
    runs, fleet = doomed(kind), tmp_path / "fleet"
    code = (
        f"from test_fleet import *\ntrain_fleet(doomed({kind!r}), out={str(fleet)!r}, workers=2, stacked={stacked})\n"
    )
    path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part), "OMP_NUM_THREADS": "1"}
    moments = random.Random(0)

    def checkpoints() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in fleet.glob("*/checkpoint.safetensors")}

    for life in range(5):
        before = checkpoints()
        process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | path, start_new_session=True)
        while not (list(fleet.glob("*/config.json")) if life == 0 else checkpoints() != before):
            assert process.poll() is None, "it was over before it could be killed"
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.1))
        (os.kill if life % 2 else os.killpg)(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
        time.sleep(0.2)
    folders = train_fleet(runs, out=fleet, workers=2, stacked=stacked)
    for folder, (method, config) in zip(folders, runs):
        assert results(train(config, method=method, out=tmp_path / folder.path.name).path) == results(folder.path)
