"""What may go wrong in a stacked fleet, and what of it goes on: each run answers for itself."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from bcppo.policy import NumpyPolicy
from bcppo.pool import Worker, take_in
from bcppo.remote import RemoteCollector
from bcppo.rollout import Collector
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
    weights = {"weight0": np.zeros((2, 1), np.float32), "bias0": np.zeros(1, np.float32),
               "log_std": np.zeros(1, np.float32)}  # fmt: skip
    policy = NumpyPolicy(weights, low, high)
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
