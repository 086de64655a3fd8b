"""Hopper and Ant step as Gymnasium's own do, bit for bit."""

import gymnasium
import numpy as np
import pytest

from bcppo.tasks.locomotion import QUICK


@pytest.mark.parametrize("env_id", QUICK)
@pytest.mark.parametrize("strength", [0.05, 0.5, 1.0])
def test_quick_step_equals_gymnasiums_over_whole_episodes(env_id, strength):
    genuine = gymnasium.make(env_id, disable_env_checker=True)
    quick = QUICK[env_id](gymnasium.make(env_id, disable_env_checker=True))
    random = np.random.default_rng(0)
    terminations = truncations = 0
    for seed in (3, None, 7):
        expected, _ = genuine.reset(seed=seed)
        observed, _ = quick.reset(seed=seed)
        assert np.array_equal(expected, observed)
        over = False
        while not over:
            action = np.clip(strength * random.standard_normal(genuine.action_space.shape[0]), -1, 1)
            expected = genuine.step(action)
            observed = quick.step(action)
            assert np.array_equal(expected[0], observed[0])
            assert expected[1:4] == observed[1:4]
            assert expected[4]["x_position"] == observed[4]["x_position"]
            assert expected[4]["x_velocity"] == observed[4]["x_velocity"]
            terminations, truncations = terminations + observed[2], truncations + observed[3]
            over = observed[2] or observed[3]
    # Weak actions keep the ant up to the time limit; the hopper always falls. Both ends are seen.
    assert terminations + truncations == 3
    assert truncations > 0 or env_id == "Hopper-v4" or strength > 0.1
