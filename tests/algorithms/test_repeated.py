"""What a GPU replays as a graph, tried on the CPU: the same pieces, with a stand-in that calls them instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.algorithms import METHODS, repeated
from bcppo.algorithms.batch import stack_rollouts
from bcppo.algorithms.repeated import Repeated
from bcppo.nets import Stack
from bcppo.queued import settled
from bcppo.rollout import Rollout
from bcppo.run import make_config
from bcppo.streams import Streams

CPU = torch.device("cpu")


class Replayed:
    """What capture leaves behind: tried three times, everything that changes put back, then repeated when asked."""

    made = 0

    def __init__(self, step: Callable[[], Any], changing: Sequence[Tensor]) -> None:
        before = [tensor.clone() for tensor in changing]
        for _ in range(4):
            step()
        for tensor, value in zip(changing, before):
            tensor.copy_(value)
        self.replay = step
        Replayed.made += 1


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    Replayed.made = 0
    monkeypatch.setattr(repeated, "capture", Replayed)
    begin = Repeated.__init__

    def as_on_a_gpu(self: Repeated, *arguments: Any) -> None:
        begin(self, *arguments)
        self._captures = True

    monkeypatch.setattr(Repeated, "__init__", as_on_a_gpu)


def make_one() -> tuple[Repeated, Stack]:
    """Networks that descend to the sum of their inputs."""
    stack = Stack((2, 3, 1), 1, [np.random.default_rng(seed) for seed in (0, 1)], CPU)
    adam = Adam(stack, [0.1, 0.2])

    def step(data: Sequence[Tensor], rows: Tensor, weight: Tensor) -> dict[str, Tensor]:
        inputs = torch.stack([values[own] for values, own in zip(data[0], rows)])
        loss = (weight * (stack(inputs).squeeze(1).squeeze(-1) - inputs.sum(-1)).square()).mean(-1)
        adam.descend(loss)
        return {"loss": loss.detach(), "weight": weight.mean(-1)}

    return Repeated(step, lambda: {"one": adam}, CPU), stack


def minibatches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    random = np.random.default_rng(seed)
    rows = [torch.from_numpy(random.permutation(8)[None, :4].repeat(2, 0)) for _ in range(count)]
    return [(own, torch.full((2, 4), float(index + 1))) for index, own in enumerate(rows)]


def drive(one: Repeated, counts: Sequence[int]) -> list[dict[str, Tensor]]:
    seen = []
    for seed, count in enumerate(counts):
        one.begin([torch.from_numpy(np.random.default_rng(seed).standard_normal((2, 8, 2), dtype=np.float32))])
        seen.append(settled(one.over(minibatches(count, seed))))
    return seen


@pytest.mark.parametrize("counts", [(3, 3, 3), (1, 1), (3, 5, 2), (8, 12)], ids=str)
def test_replaying_is_doing(counts: Sequence[int], monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    """Update after update: each minibatch its own inputs and its own step of Adam, whatever was tried beforehand."""
    plain, plain_stack = make_one()
    expected = drive(plain, counts)
    request.getfixturevalue("captured")
    monkeypatch.setattr(repeated, "MOST", 5)
    one, stack = make_one()
    for found, wanted in zip(drive(one, counts), expected, strict=True):
        assert found["weight"].tolist() == wanted["weight"].tolist()
        torch.testing.assert_close(found["loss"].float(), wanted["loss"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stack.flat, plain_stack.flat, rtol=1e-5, atol=1e-6)
    sizes = [{8: 4, 12: 4}.get(count, count) for count in counts]  # of a graph; the last two are several graphs' work
    assert Replayed.made == sum(1 for before, size in zip((0, *sizes), sizes) if size != before)


def rollout(seed: int, steps: int, observation: int, action: int) -> Rollout:
    random = np.random.default_rng(seed)
    return Rollout(
        observation=random.standard_normal((steps, observation), dtype=np.float32),
        next_observation=random.standard_normal((steps, observation), dtype=np.float32),
        action=random.standard_normal((steps, action), dtype=np.float32),
        reward=random.standard_normal(steps),
        cost=random.random(steps),
        terminated=np.arange(steps) % 20 == 19,
        truncated=np.zeros(steps, bool),
        episodes=[{"cost_rate": 0.5, "length": 20.0, "end": end} for end in range(19, steps, 20)],
        native_cost=0.0,
    )


def updated(method: str) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
    """(Weights, metrics) after three updates of two runs that differ in a setting."""
    small: dict[str, Any] = {"rollout": 64, "minibatch": 16, "hidden": (16, 16), "epochs": 3}
    configs = [make_config(method, "hopper", seed=seed, **small) for seed in (0, 1)]
    learner = METHODS[method].learner()(configs, (5, 2), [Streams(config.seed, 1) for config in configs], CPU)
    low, high = np.full(2, -1.0), np.full(2, 1.0)
    metrics: dict[str, Tensor] = {}
    for update in range(3):
        runs = [[rollout(10 * update + run, 64, 5, 2)] for run in (0, 1)]
        metrics = learner.update(stack_rollouts(runs, low, high, CPU))
    weights = {name: o.stack.flat.detach().numpy().copy() for name, o in learner.optimizers().items()}
    return weights, metrics


@pytest.mark.parametrize("method", ["bcppo", "cppo", "qrppo", "ppo", "ppopid", "ppolag", "focops", "cpo"])
def test_every_method_learns_the_same_when_it_is_replayed(method: str, request: Any) -> None:
    weights, metrics = updated(method)
    request.getfixturevalue("captured")
    again, seen = updated(method)
    assert Replayed.made
    for name, values in weights.items():
        np.testing.assert_allclose(again[name], values, rtol=1e-4, atol=2e-5, err_msg=name)
    for name, value in metrics.items():
        torch.testing.assert_close(seen[name].double(), value.double(), rtol=2e-3, atol=1e-4, msg=name)
