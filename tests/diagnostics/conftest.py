"""Small real runs to diagnose."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcppo.run import train


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hopper for 512 steps: a limit it exceeds at once (λ > 0), one it keeps (λ = 0), and a run without critics."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {"steps": 512, "rollout": 256, "minibatch": 128, "hidden": (32, 32)}
    quiet = {"eval_episodes": 1, "tensorboard": False}
    own = {**settings, **quiet, "task": "hopper"}
    train(out=folder / "binding", cost_limit_rate=1e-4, **own)
    train(out=folder / "slack", cost_limit_rate=10.0, seed=1, **own)
    train(out=folder / "other", method="ppopid", **own)
    return folder
