"""Names under which Gymnasium finds the navigation tasks."""

from __future__ import annotations

import gymnasium

from bcppo.tasks.navigation.levels import HORIZON, LEVELS


def register_tasks() -> None:
    """Register `bcppo/SafetyPointGoal1-v0` and its siblings; twice does no harm."""
    for level in LEVELS.values():
        if level.env_id not in gymnasium.registry:
            gymnasium.register(
                level.env_id,
                entry_point="bcppo.tasks.navigation.env:NavigationEnv",
                kwargs={"task": level.task, "level": level.level},
                max_episode_steps=HORIZON,
                # The checker warns on every step about float64 actions and costs more than the lidar does.
                disable_env_checker=True,
            )
