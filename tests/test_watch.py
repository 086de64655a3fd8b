"""What is shown of a run while it trains."""

from __future__ import annotations

from tiny_cmdp import TinyCMDP

from bcppo.run import train
from bcppo.watch import Watch

SMALL = {"rollout": 64, "minibatch": 32, "epochs": 1, "steps": 64, "eval_episodes": 1, "tensorboard": False}


def test_a_disagreement_is_shown_of_methods_that_have_one_and_never_as_nan(tmp_path, capsys):
    for method in ("bcppo", "ppolag"):
        train(method=method, make_env=TinyCMDP, cost_limit_rate=0.5, out=tmp_path / method, watch=Watch(), **SMALL)
        line = capsys.readouterr().err.splitlines()[-1]
        assert ("σ" in line) == (method == "bcppo")
        assert "nan" not in line
