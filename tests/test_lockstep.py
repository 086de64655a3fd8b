"""Steps through shared memory: the same as collected in this process, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from test_kill import results

from bcppo.errors import BcppoError, Diverged
from bcppo.fleet import train_fleet
from bcppo.policy import NumpyPolicy, Sampler, UniformPolicy
from bcppo.pool import Worker
from bcppo.remote import RemoteCollector
from bcppo.rollout import Collector, Rollout
from bcppo.run import make_config, train
from bcppo.worker import environment_factory

BOUNDS = np.array([-20.0, 2.0], np.float32)
ARRAYS = ("observation", "next_observation", "action", "reward", "cost", "terminated", "truncated")
TINY = "tiny_cmdp:make"


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])


@pytest.fixture
def worker():
    one = Worker()
    yield one
    one.close()


class Pair:
    """The same environment in a worker and in this process."""

    def __init__(self, worker: Worker, task: str, seed: int = 0) -> None:
        limit = 0.3 if task == TINY else None
        self.streams, self.local_streams = streams(seed), streams(seed)
        self.remote = RemoteCollector(worker, task, limit, *self.streams)
        self.local = Collector(environment_factory(task, limit), *self.local_streams)
        width, low, high = self.local.spaces
        self.widths, draw = (width, len(low)), np.random.default_rng(7)
        weights = {
            "weight0": draw.standard_normal((width, 8)), "bias0": draw.standard_normal(8),
            "weight1": draw.standard_normal((8, 2 * len(low))), "bias1": draw.standard_normal(2 * len(low)),
            "log_std_bounds": BOUNDS,
        }  # fmt: skip
        self.policy, self.uniform = NumpyPolicy(weights, low, high), UniformPolicy(low, high)

    def enter(self) -> None:
        self.remote.start_lockstep(BOUNDS)
        self.remote.await_lockstep()

    def leave(self) -> None:
        self.remote.end_lockstep()
        self.remote.await_lockstep()

    def ask(self, policy: Sampler) -> None:
        self.remote.start_step(policy.last_layer(self.remote.observation) if policy is self.policy else None)

    def compare(self, policy: Sampler) -> Rollout:
        """The step that was asked for, with a step of the environment in this process."""
        found, expected = blank(*self.widths), self.local.collect(policy, 1)
        self.remote.finish_step(found, 0)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        assert (found.episodes, found.native_cost) == (expected.episodes, expected.native_cost)
        np.testing.assert_array_equal(self.remote.observation, self.local.observation)
        return found

    def step(self, policy: Sampler) -> Rollout:
        self.ask(policy)
        return self.compare(policy)

    def check_state(self) -> None:
        """What a checkpoint holds of it."""
        for own, other in zip(self.streams, self.local_streams):
            assert own.bit_generator.state == other.bit_generator.state
        seed, actions = self.remote.state()
        assert seed == self.local.state()[0]
        np.testing.assert_array_equal(actions, self.local.state()[1])


def blank(observation: int, action: int) -> Rollout:
    def room(*shape: int, dtype: type = np.float32) -> np.ndarray:
        return np.zeros((1, *shape), dtype)

    return Rollout(
        room(observation), room(observation), room(action), room(dtype=np.float64), room(dtype=np.float64),
        room(dtype=bool), room(dtype=bool), [], 0.0, {"act": 0.0, "simulate": 0.0},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("task", "steps", "crowded"), [(TINY, 30, False), (TINY, 30, True), ("goal1", 1005, True), ("hopper", 60, True)]
)
def test_steps_equal_those_collected_here_bit_for_bit(
    task: str, steps: int, crowded: bool, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the ends of episodes: after 8 steps, by the time limit of 1,000, by falling. Spinning, and with naps."""
    monkeypatch.setattr("bcppo.remote.crowded", lambda: crowded)
    pair, ended = Pair(worker, task), 0
    pair.enter()
    for number in range(steps):
        step = pair.step(pair.uniform if number % 5 == 0 else pair.policy)
        ended += len(step.episodes)
        if step.episodes or number % 100 == 0:
            pair.check_state()
    assert ended >= 1
    pair.check_state()


def test_leaving_and_entering_again_changes_nothing(worker: Worker) -> None:
    pair = Pair(worker, TINY)
    for _ in range(3):
        pair.enter()
        for _ in range(5):
            pair.step(pair.policy)
        pair.leave()
        pair.check_state()
        pair.remote.start(pair.policy, 6)
        found, expected = pair.remote.finish(), pair.local.collect(pair.policy, 6)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        pair.check_state()
        pair.remote.start_evaluation(pair.policy, [1, 2])
        assert pair.remote.finish_evaluation() == pair.local.evaluate(pair.policy, [1, 2])


def test_an_episode_goes_on_in_another_worker_from_its_state(worker: Worker) -> None:
    """As when a run is resumed."""
    pair = Pair(worker, TINY)
    pair.enter()
    for _ in range(11):
        pair.step(pair.policy)
    again = Pair(worker, TINY, seed=5)
    for stream, state in zip(again.streams, pair.streams):
        stream.bit_generator.state = state.bit_generator.state
    again.remote.restore(*pair.remote.state())
    again.local = pair.local
    again.enter()
    for _ in range(11):
        again.step(again.policy)


def test_environments_of_one_worker_do_not_disturb_one_another(worker: Worker) -> None:
    """Asked together or alone, and one of them by messages while the others are in lock-step."""
    pairs = [Pair(worker, TINY, seed) for seed in range(3)]
    for pair in pairs[:2]:
        pair.enter()
    for number in range(20):
        asked = pairs[:2] if number % 3 else pairs[:1]
        for pair in asked:
            pair.ask(pair.policy)
        pairs[2].remote.start(pair.policy, 3)
        for pair in reversed(asked):
            pair.compare(pair.policy)
        expected = pairs[2].local.collect(pair.policy, 3)
        np.testing.assert_array_equal(pairs[2].remote.finish().reward, expected.reward)
    for pair in pairs:
        pair.check_state()


# --- what goes wrong ---


def wait_for_answer(pair: Pair) -> None:
    while pair.remote._slot.answered[0] != pair.remote._count:
        time.sleep(0.001)


def kill(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    while worker.alive:
        time.sleep(0.001)


def test_a_worker_killed_in_lockstep_costs_time_and_nothing_else(worker: Worker) -> None:
    """Killed before a step is asked for, before it is answered, and when it was answered but nobody has looked."""
    pair, other = Pair(worker, TINY, 0), Pair(worker, TINY, 1)
    first = worker.pid
    for one in (pair, other):
        one.enter()
    for _ in range(5):
        for one in (pair, other):
            one.step(one.policy)
    kill(worker)
    pair.step(pair.policy)
    assert worker.pid != first
    os.kill(worker.pid, signal.SIGSTOP)
    pair.ask(pair.policy)
    kill(worker)
    while not pair.remote.ready():  # where the worker is dead, `finish_step` mends it
        time.sleep(0.001)
    assert pair.remote.ready()
    pair.compare(pair.policy)
    pair.ask(pair.policy)
    wait_for_answer(pair)
    kill(worker)
    other.step(other.policy)  # puts both back to before the step, which is then taken again
    pair.compare(pair.policy)
    for _ in range(10):
        for one in (pair, other):
            one.step(one.policy)
    for one in (pair, other):
        one.check_state()
        one.leave()
        one.remote.start(one.policy, 5)
        np.testing.assert_array_equal(one.remote.finish().action, one.local.collect(one.policy, 5).action)


def test_an_answer_that_nobody_took_is_void_once_its_worker_is_dead(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else the next step could be asked for before the new worker has caught up with it."""
    pair, send, seen = Pair(worker, TINY), worker.send, []
    pair.enter()
    pair.step(pair.policy)
    pair.ask(pair.policy)
    wait_for_answer(pair)
    kill(worker)

    def listen(header: dict, arrays: dict) -> None:
        if header["do"] == "enter":
            seen.append((header["count"], pair.remote._slot.answered[0]))
        send(header, arrays)

    monkeypatch.setattr(worker, "send", listen)
    worker.revive()
    assert seen == [(1, 1)]
    pair.compare(pair.policy)
    pair.step(pair.policy)


def test_a_worker_that_dies_of_its_environment_is_given_up(worker: Worker) -> None:
    pair = Pair(worker, TINY)
    pair.remote = RemoteCollector(worker, "tiny_cmdp:make_deadly", 0.3, *streams(0))
    pair.enter()
    for _ in range(3):
        pair.step(pair.policy)
    pair.ask(pair.policy)
    with pytest.raises(BcppoError, match="died 3 times in a row"):
        pair.remote.finish_step(blank(*pair.widths), 0)


def test_a_step_that_fails_says_why_and_leaves_the_others_alone(worker: Worker) -> None:
    pair, other = Pair(worker, TINY, 0), Pair(worker, TINY, 1)
    for one in (pair, other):
        one.enter()
        one.step(one.policy)
    pair.remote.start_step(np.full(2, np.nan, np.float32))
    with pytest.raises(Diverged, match="the policy's action is not finite"):
        pair.remote.finish_step(blank(*pair.widths), 0)
    assert worker.outstanding == 1
    pair.remote.abandon_lockstep()
    assert worker.outstanding == 0
    other.step(other.policy)


def test_a_worker_in_lockstep_that_loses_its_parent_ends() -> None:
    worker = Worker()
    Pair(worker, TINY).enter()
    process = worker._process
    worker.close()
    assert process.returncode == 0


def test_a_fleet_whose_workers_are_killed_between_checkpoints_equals_its_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "task": TINY, "cost_limit_rate": 0.3, "steps": 90, "hidden": (8,), "minibatch": 16, "window": 45,
        "random_steps": 30, "eval_every": 45, "eval_episodes": 1, "checkpoint_every": 45, "tensorboard": False,
    }  # fmt: skip
    runs = [("wcsac", make_config("wcsac", seed=seed, **settings)) for seed in (0, 1, 2)]
    start, asked = RemoteCollector.start_step, []

    def start_and_kill(self: RemoteCollector, heads: np.ndarray | None) -> None:
        start(self, heads)
        asked.append(self)
        if len(asked) in (40, 182):
            os.kill(self.worker.pid, signal.SIGKILL)

    monkeypatch.setattr(RemoteCollector, "start_step", start_and_kill)
    folders = train_fleet(runs, out=tmp_path / "fleet", workers=2, stacked=True)
    assert len(asked) == 270
    for folder, (method, config) in zip(folders, runs):
        assert results(train(config, method=method, out=tmp_path / folder.path.name).path) == results(folder.path)
