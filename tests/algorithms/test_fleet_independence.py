"""A run trained inside a stack of other runs equals that run trained alone, bit for bit on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_bcppo import batch, config

from bcppo.algorithms.batch import Batch
from bcppo.algorithms.bcppo import BCPPO
from bcppo.errors import ConfigError
from bcppo.nets import run_by_run
from bcppo.records import RunFolder
from bcppo.run import Run, Trainer
from bcppo.settings import BCPPOConfig
from bcppo.streams import Streams
from bcppo.watch import Watch

FILES = ("progress.parquet", "episodes.parquet", "evaluations.parquet", "checkpoint.safetensors", "policy.safetensors")

# Other seeds, betas, limits, learning rates and controllers; Hopper's own limit is met and λ stays 0, 0.001 is not.
SETTINGS: tuple[dict, ...] = (
    {"seed": 3},
    {"seed": 4, "cost_limit_rate": 0.001, "beta": 5.0, "learning_rate": 1e-3, "anti_windup": False, "clip": 0.1},
    {"seed": 5, "cost_limit_rate": 0.002, "kappa": 0.0, "learning_rate": 5e-4, "discount": 0.9, "entropy_bonus": 0.01,
     "keep_probability": 0.5, "initial_log_std": -1.0, "raw_disagreement": True},
)  # fmt: skip


def hopper(**changes) -> BCPPOConfig:
    values = {
        "task": "hopper", "steps": 1024, "rollout": 256, "minibatch": 64, "epochs": 2, "hidden": (32, 32),
        "eval_every": 512, "eval_episodes": 2, "checkpoint_every": 512, "tensorboard": False,
    }  # fmt: skip
    return BCPPOConfig(**(values | changes))


def train_stack(configs: list[BCPPOConfig], folder: Path) -> list[RunFolder]:
    folders = [RunFolder(folder / str(c.seed)) for c in configs]
    for own, settings in zip(folders, configs):
        own.create("bcppo", settings, "cpu")
    runs = [Run("bcppo", settings, own, None) for own, settings in zip(folders, configs)]
    Trainer(runs, Watch(bar=False)).train()
    for run in runs:
        run.close()
    return folders


@pytest.mark.parametrize("shared", [{}, {"learning_rate": 3e-4, "num_envs": 2}, {"max_grad_norm": 0.1, "members": 1},
                                    {"normalize_observations": True}])  # fmt: skip
def test_a_run_in_a_stack_leaves_the_same_bytes_as_alone(shared: dict, tmp_path: Path) -> None:
    """Weights, critics, Adam's state, controller (all in the checkpoint), policy and every row, after whole runs."""
    configs = [hopper(**settings, **{k: v for k, v in shared.items() if k not in settings}) for settings in SETTINGS]
    together = train_stack(configs, tmp_path / "together")
    multipliers = [folder.read_rows("progress")["multiplier"][-1] for folder in together]
    assert multipliers[0] == 0.0
    assert min(multipliers[1:]) > 0.0
    for settings, inside in zip(configs, together):
        (alone,) = train_stack([settings], tmp_path / "alone")
        for name in FILES:
            assert (inside / name).read_bytes() == (alone / name).read_bytes(), (settings.seed, name)


def test_position_in_the_stack_does_not_matter(tmp_path: Path) -> None:
    configs = [hopper(**settings) for settings in SETTINGS]
    forwards = train_stack(configs, tmp_path / "forwards")
    backwards = train_stack(configs[::-1], tmp_path / "backwards")
    for one, other in zip(forwards, backwards[::-1]):
        assert all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


def test_runs_that_cannot_share_a_loop_are_refused(tmp_path: Path) -> None:
    for number, changes in enumerate(({"steps": 2048}, {"task": "ant"})):
        with pytest.raises(ConfigError, match="Runs of one stack"):
            train_stack([hopper(), hopper(seed=1, **changes)], tmp_path / str(number))


def test_runs_of_one_stack_keep_their_own_evaluation_and_checkpoint_steps(tmp_path: Path) -> None:
    configs = [hopper(seed=0, eval_every=0), hopper(seed=1, eval_every=256, checkpoint_every=10_000)]
    quiet, busy = train_stack(configs, tmp_path)
    assert set(quiet.read_rows("evaluations")["step"]) == {1024}
    assert set(busy.read_rows("evaluations")["step"]) == {256, 512, 768, 1024}
    assert (quiet / "checkpoint.previous.safetensors").exists()
    assert not (busy / "checkpoint.previous.safetensors").exists()


@pytest.mark.parametrize("learning_rates", [(3e-4, 3e-4, 3e-4), (3e-4, 1e-3, 2e-4)])
def test_the_papers_networks_on_the_papers_batches_are_bit_equal(learning_rates) -> None:
    """2×256 networks, five members, minibatches of 512 (one update each): the sizes at which results are compared."""
    configs = [
        config(hidden=(256, 256), rollout=1024, minibatch=512, epochs=1, seed=seed, learning_rate=rate)
        for seed, rate in enumerate(learning_rates)
    ]
    assert not disagreements(configs, steps=1024)


def test_odd_sizes_agree_to_rounding() -> None:
    """Where rows × width × networks of a layer is no multiple of 16, the last of a run's numbers fall into the scalar
    tail of the tanh's vector loop, which rounds otherwise, unless another run follows in the stack. A run alone then
    differs from itself in a stack in the last digits of float32. Minibatches of a multiple of 16 rows never do.
    """
    configs = [config(hidden=(10, 7), rollout=50, minibatch=25, seed=seed) for seed in range(3)]
    different = disagreements(configs, steps=50)
    assert max(different.values(), default=0.0) < 1e-6


def disagreements(configs: list[BCPPOConfig], steps: int) -> dict[str, float]:
    """Largest absolute differences between stacked and single updates, by tensor; nothing where they are bit-equal."""
    widths, device = (7, 3), torch.device("cpu")
    together = BCPPO(configs, widths, [Streams(c.seed, 1) for c in configs], device)
    alone = [BCPPO([c], widths, [Streams(c.seed, 1)], device) for c in configs]
    for cycle in range(2):
        batches = [batch(seed=10 * cycle + c.seed, steps=steps) for c in configs]
        fields = [name for name, value in vars(batches[0]).items() if isinstance(value, torch.Tensor)]
        together.update(
            Batch(**{name: torch.cat([getattr(b, name) for b in batches]) for name in fields}, environments=1)
        )
        for learner, own in zip(alone, batches):
            learner.update(own)
    different = {}
    for index, learner in enumerate(alone):
        for group, optimizer in together.optimizers().items():
            own_state = learner.optimizers()[group].state()
            for name, tensor in optimizer.state().items():
                if not torch.equal(tensor[index], own_state[name][0]):
                    gap = (tensor[index] - own_state[name][0]).abs().max().item()
                    different[f"{group}.{name}"] = max(gap, different.get(f"{group}.{name}", 0.0))
        np.testing.assert_array_equal(
            torch.stack(tuple(x.double()[index] for x in together.controller)),
            torch.stack(tuple(x.double()[0] for x in learner.controller)),
        )
    return different


def test_what_is_done_run_by_run_sees_one_run_at_a_time() -> None:
    """On any processor: whether it would round otherwise in a stack depends on the processor."""
    seen = []

    def compute(first: torch.Tensor, *, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((first.shape, second.shape))
        return first + second, second.sum(-1)

    first, second = torch.arange(6.0).view(3, 2), torch.arange(3.0).unsqueeze(1)
    both, sums = run_by_run(compute)(first, second=second)
    assert seen == [((1, 2), (1, 1))] * 3
    assert torch.equal(both, first + second)
    assert torch.equal(sums, torch.arange(3.0))
    with pytest.raises(ValueError, match="shorter"):
        run_by_run(compute)(first, second=second[:1])
