"""Updates that overlap with steps: the pieces and what they are handed, here without a GPU, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bcppo.algorithms.overlap import laid_out, shapes, views
from bcppo.algorithms.wcsac import WCSAC
from bcppo.records import RunFolder
from bcppo.run import Run, Trainer
from bcppo.settings import WCSACConfig
from bcppo.streams import Streams
from bcppo.watch import Watch

SEEDS = (3, 4, 5)
WIDTHS = 5, 3


def learner() -> WCSAC:
    configs = [
        WCSACConfig(
            task="own", cost_limit_rate=0.3, seed=seed, steps=100, minibatch=8, hidden=(16,), buffer=24,
            learning_rate=10.0 ** -(seed - 1),
        )
        for seed in SEEDS
    ]  # fmt: skip
    streams = [Streams(seed, 1) for seed in SEEDS]
    return WCSAC(configs, WIDTHS, streams, torch.device("cpu"))


def test_a_launch_is_a_store_an_update_and_the_heads_after_it() -> None:
    """40 steps; the buffer holds 24, and the first 10 are stored without an update."""
    plain, other = learner(), learner()
    overlapped = other.overlapped()
    draw = np.random.default_rng(0)
    for number in range(40):
        transitions = draw.standard_normal((3, 16)).astype(np.float32)
        transitions[:, -1] = draw.integers(2, size=3)
        seen = draw.standard_normal((3, 5)).astype(np.float32)
        plain.store(transitions)
        if number < 10:
            other.store(transitions)
            continue
        plain.update()
        overlapped.prepare()
        overlapped.launch(transitions, list(seen))
        assert overlapped.launched
        if number % 3 and number < 39:
            overlapped.prepare()  # ahead of the heads, or later, and never twice
        np.testing.assert_array_equal(overlapped.heads(), plain.heads(seen))
        assert not overlapped.launched
    assert other.stored == plain.stored == 40
    assert torch.equal(other._buffer, plain._buffer)
    for one, two in zip(plain.changing(), other.changing()):
        assert torch.equal(one, two)
    for one, two in zip(plain.optimizers().values(), other.optimizers().values()):
        assert one.steps == two.steps
    found = other.metrics()
    for name, values in plain.metrics().items():
        assert torch.equal(values, found[name]), name
    assert plain._minibatches[0].bit_generator.state == other._minibatches[0].bit_generator.state


def test_the_first_piece_moves_the_policy_and_the_second_everything_else() -> None:
    one = learner()
    for row in np.random.default_rng(0).standard_normal((20, 3, 16)).astype(np.float32):
        one.store(row)
    before = [tensor.clone() for tensor in one.changing()]
    draws = one.draw()
    between = one.begin(draws)
    moved = [not torch.equal(a, b) for a, b in zip(before, one.changing())]
    assert moved == [True] * 3 + [False] * (len(moved) - 3)  # weights and two moments
    policy = one.policy.flat.detach().clone()
    one.complete(draws, between)
    assert torch.equal(policy, one.policy.flat)
    assert not any(torch.equal(a, b) for a, b in zip(before, one.changing()))


def test_what_is_handed_over_lies_apart_in_one_block() -> None:
    fields = shapes(learner())
    memory = torch.zeros(laid_out(fields)[1], dtype=torch.uint8)
    for number, field in enumerate(views(memory, fields), start=1):
        field.fill_(number)
    for number, (name, field) in enumerate(zip(fields, views(memory, fields)), start=1):
        assert (field == number).all(), name


class Plain:
    """What overlapping does, without it."""

    launched = False

    def __init__(self, learner: WCSAC) -> None:
        self._learner = learner

    def prepare(self) -> None:
        pass

    def launch(self, transitions: np.ndarray, observations: list[np.ndarray]) -> None:
        self._learner.store(transitions)
        self._learner.update()


def test_runs_trained_with_overlap_end_as_without(tmp_path: Path) -> None:
    settings = {
        "task": "hopper", "steps": 70, "random_steps": 25, "window": 20, "minibatch": 16, "hidden": (8,), "buffer": 32,
        "eval_every": 20, "eval_episodes": 1, "checkpoint_every": 20, "tensorboard": False,
    }  # fmt: skip
    folders: dict[str, list[Path]] = {}
    for name, kind in (("with", WCSAC.overlapped), ("without", Plain)):
        runs = []
        for seed in (0, 1):
            config = WCSACConfig(**settings, seed=seed)
            folder = RunFolder(tmp_path / name / str(seed))
            folder.create("wcsac", config, "cpu")
            runs.append(Run("wcsac", config, folder))
        trainer = Trainer(runs, Watch(bar=False))
        trainer.loop.overlap = kind(trainer.learner)
        trainer.train()
        for run in runs:
            run.close()
        folders[name] = [run.folder.path for run in runs]
    for one, two in zip(folders["with"], folders["without"]):
        for name in ("policy.safetensors", "checkpoint.safetensors"):  # the latter with the streams, not ahead of it
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
        rows = [RunFolder(path).read_rows("progress") for path in (one, two)]
        np.testing.assert_equal(*rows)
