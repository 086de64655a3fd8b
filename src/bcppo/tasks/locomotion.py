"""Hopper-v4 and Ant-v4 as Gymnasium makes them, stepped without the overhead of its Python layers.

Environment, model, reset, rendering and spaces are Gymnasium's own. Only `step` is written out here: more than half of
the time of Gymnasium's goes into checks, copies and properties around `mj_step`. A test compares the two over whole
episodes, bit for bit.
"""

from __future__ import annotations

from math import hypot
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
        self._qpos, self._qvel, self._ctrl = base.data.qpos, base.data.qvel, base.data.ctrl
        self._seconds = base.dt
        self._steps = 0

    def reset(self, **kwargs: Any):
        self._steps = 0
        return self.env.reset(**kwargs)

    def _simulate(self, action: np.ndarray) -> bool:
        """Advance the physics; True where the time limit is reached."""
        self._ctrl[:] = action
        mujoco.mj_step(self._model, self._data, self._frames)
        self._steps += 1
        return self._steps >= self._horizon


class QuickHopper(_QuickStep):
    """One leg that hops: rewarded for speed and for standing, ended when it falls."""

    def step(self, action):
        before = float(self._qpos[0])
        truncated = self._simulate(action)
        x, height, angle, *joints = self._qpos.tolist()
        velocity = self._qvel.tolist()
        speed = (x - before) / self._seconds
        # A short vector has no long entry, and none that is not a number: that settles it in nearly every step.
        bounded = hypot(*joints, *velocity) < 100.0 or all(-100 < value < 100 for value in (*joints, *velocity))
        healthy = height > 0.7 and -0.2 < angle < 0.2 and bounded
        first, second, third = action.tolist()
        reward = (speed + 1.0) - 1e-3 * (first * first + second * second + third * third)
        observation = np.array([height, angle, *joints, *velocity])
        if not hypot(*velocity) < 10.0:
            observation[5:] = np.minimum(np.maximum(self._qvel, -10.0), 10.0)
        return observation, reward, not healthy, truncated, {"x_position": x, "x_velocity": speed}


class QuickAnt(_QuickStep):
    """Four legs that run: rewarded for speed and for being upright, ended when the torso leaves [0.2, 1] metres."""

    def __init__(self, env: gymnasium.Env, horizon: int = HORIZON) -> None:
        super().__init__(env, horizon)
        self._xpos = self._data.xpos[mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_BODY, "torso")]

    def step(self, action):
        qpos, qvel, xpos = self._qpos, self._qvel, self._xpos
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
