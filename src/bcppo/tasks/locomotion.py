"""Hopper-v4 and Ant-v4 as Gymnasium makes them, stepped without the overhead of its Python layers.

Environment, model, reset, rendering and spaces are Gymnasium's own. Only `step` is written out here: more than half of
the time of Gymnasium's goes into checks, copies and properties around `mj_step`. A test compares the two over whole
episodes, bit for bit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np

HORIZON = 1000


class _QuickStep(gymnasium.Wrapper):
    """What both robots share: the time limit, and MuJoCo at hand."""

    def __init__(self, env: gymnasium.Env, horizon: int = HORIZON) -> None:
        super().__init__(env)
        self._horizon = horizon
        base: Any = env.unwrapped
        self._model, self._data, self._frames = base.model, base.data, base.frame_skip
        self._seconds = base.dt
        self._steps = 0

    def reset(self, **kwargs: Any):
        self._steps = 0
        return self.env.reset(**kwargs)

    def _simulate(self, action: np.ndarray) -> bool:
        """Advance the physics; True where the time limit is reached."""
        self._data.ctrl[:] = action
        mujoco.mj_step(self._model, self._data, self._frames)
        self._steps += 1
        return self._steps >= self._horizon


class QuickHopper(_QuickStep):
    """One leg that hops: rewarded for speed and for standing, ended when it falls."""

    def step(self, action):
        qpos, qvel = self._data.qpos, self._data.qvel
        before = qpos[0]
        truncated = self._simulate(action)
        position, velocity = qpos.tolist(), qvel.tolist()
        speed = (position[0] - before) / self._seconds
        _, height, angle, *joints = position
        healthy = (
            height > 0.7
            and -0.2 < angle < 0.2
            and all(-100 < value < 100 for value in joints)
            and all(-100 < value < 100 for value in velocity)
            and -100 < angle < 100
        )
        reward = (speed + 1.0) - 1e-3 * np.add.reduce(np.square(action))
        observation = np.concatenate((qpos[1:], np.minimum(np.maximum(qvel, -10.0), 10.0)))
        info = {"x_position": position[0], "x_velocity": float(speed)}
        return observation, float(reward), not healthy, truncated, info


class QuickAnt(_QuickStep):
    """Four legs that run: rewarded for speed and for being upright, ended when the torso leaves [0.2, 1] metres."""

    def __init__(self, env: gymnasium.Env, horizon: int = HORIZON) -> None:
        super().__init__(env, horizon)
        self._torso = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_BODY, "torso")

    def step(self, action):
        qpos, qvel, xpos = self._data.qpos, self._data.qvel, self._data.xpos[self._torso]
        before_x, before_y = xpos[:2].tolist()
        truncated = self._simulate(action)
        x, y = xpos[:2].tolist()
        speed, drift = (x - before_x) / self._seconds, (y - before_y) / self._seconds
        effort = 0.5 * np.add.reduce(np.square(action))
        observation = np.concatenate((qpos[2:], qvel))
        healthy = bool(0.2 <= observation[0] <= 1.0 and np.isfinite(observation).all() and np.isfinite(qpos[:2]).all())
        info = {"x_position": x, "y_position": y, "x_velocity": speed, "y_velocity": drift}
        return observation, float((speed + 1.0) - effort), not healthy, truncated, info


QUICK: dict[str, type[_QuickStep]] = {"Hopper-v4": QuickHopper, "Ant-v4": QuickAnt}
"""Environment id → how to step it quickly."""
