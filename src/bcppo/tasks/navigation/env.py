"""The Gymnasium environment of the navigation tasks."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from bcppo.errors import BcppoError, ConfigError, unknown_name
from bcppo.tasks.navigation.drawing import make_renderer
from bcppo.tasks.navigation.engine import make_engine
from bcppo.tasks.navigation.layout import NoRoom, Point, Stream
from bcppo.tasks.navigation.levels import HORIZON, LEVELS, LIDAR_BINS
from bcppo.tasks.navigation.model import Scene
from bcppo.tasks.navigation.rules import RULES

REWARD_CLIP = 10.0


class NavigationEnv(gymnasium.Env):
    """A point robot among hazards, vases, buttons, gremlins, pillars and a box.

    Observation (float64): accelerometer, velocimeter, gyro and magnetometer (three numbers each), then a 16-bin lidar
    for each kind of object. Action: forward force and turning speed in [−1, 1]. `info["cost"]` is the simulator's own
    cost (per step, 0 or 1); `info["cost_…"]` say for what.

    `model` and `data` are MuJoCo's objects, good for the life of the environment. The state in `data` may be changed
    between steps; after a change of `model` call `mj_forward`, or its first physics step goes by the old one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(
        self,
        task: str = "goal",
        level: int = 1,
        *,
        render_mode: str | None = None,
        width: int = 256,
        height: int = 256,
        camera_name: str = "fixedfar",
    ) -> None:
        if (task, level) not in LEVELS:
            raise unknown_name("navigation task", f"{task}{level}", [f"{name}{number}" for name, number in LEVELS])
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"The render mode '{render_mode}' is not supported; use 'rgb_array' or None.")
        self.level = LEVELS[task, level]
        self.render_mode = render_mode
        self._frame = (width, height, camera_name)
        self._renderer: Any = None
        self._scene = Scene(self.level)
        self.model, self.data = self._scene.model, self._scene.data
        self._engine = make_engine(self._scene)
        self._rules = RULES[task](self._scene, self._engine)
        self._stream: Stream | None = None
        self._layout: dict[str, Point] = {}
        self._fresh = True
        self._steps = HORIZON
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)
        sensors, lidars = self.model.nsensordata, LIDAR_BINS * len(self.level.objects)
        self.observation_space = gymnasium.spaces.Box(
            np.r_[np.full(sensors, -np.inf), np.zeros(lidars)],
            np.r_[np.full(sensors, np.inf), np.ones(lidars)],
            dtype=np.float64,
        )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; without a seed the random stream goes on where it was."""
        super().reset(seed=seed)
        if seed is not None or self._stream is None:
            self._stream = Stream(self.level, seed)
        self._layout = self._stream.layout()
        self._scene.place(self._layout, *self._stream.rotations())
        # The genuine environment compiles its first world once more than the others and so solves it once less.
        self._engine.forward(1 if self._fresh else 2)
        self._rules.choose_goal(self._stream, self._layout)
        self._engine.forward(1)
        self._rules.measure_start()
        self._rules.begin_episode()
        self._engine.forward(2)
        self._fresh = False
        self._steps = 0
        return self._engine.observe(self._rules.hidden_group), {}

    def step(self, action) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        force, turn = self._checked(action)
        if self._steps >= HORIZON:
            raise BcppoError("The episode is over (or none was begun): call reset() before step().")
        self._steps += 1
        self._stream.tick()  # type: ignore[union-attr]
        if not (-1.0 <= force <= 1.0 and -1.0 <= turn <= 1.0):
            force, turn = min(max(force, -1.0), 1.0), min(max(turn, -1.0), 1.0)
        self._engine.advance(force, turn)
        seen = self._engine.look()
        reward, achieved = self._rules.reward(seen)
        info: dict[str, Any] = self._rules.costs(seen)
        info["cost"] = info["cost_sum"]
        self._rules.end_step()
        terminated = False
        if achieved:
            info["goal_met"] = True
            terminated = not self._next_goal()
        truncated = self._steps >= HORIZON
        if terminated:
            self._steps = HORIZON
        if not -REWARD_CLIP <= reward <= REWARD_CLIP:
            reward = min(max(reward, -REWARD_CLIP), REWARD_CLIP)
        return self._engine.observe(self._rules.hidden_group), reward, terminated, truncated, info

    def _next_goal(self) -> bool:
        """Move the goal; False where there is no room for it, which ends the episode."""
        self._engine.forward(1)
        for name in self._layout:
            if not name.startswith("gremlin"):  # they keep the place they were sampled at: the centre of their circle
                self._layout[name] = self._scene.position(self._scene.body(name))
        try:
            self._rules.choose_goal(self._stream, self._layout)  # type: ignore[arg-type]
        except NoRoom:
            return False
        self._engine.forward(1)
        self._rules.measure_start()
        return True

    def _checked(self, action) -> tuple[float, float]:
        try:
            values = action.tolist() if isinstance(action, np.ndarray) else np.asarray(action).tolist()
            force, turn = values
            if math.isfinite(force) and math.isfinite(turn):
                return force, turn
        except (TypeError, ValueError):
            given = f"shape {action.shape}" if isinstance(action, np.ndarray) else repr(action)
            raise ConfigError(
                f"An action is two numbers (forward force, turning speed), but {given} was given."
            ) from None
        raise ConfigError(f"The action {values} is not finite.")

    def render(self) -> Any:
        """An RGB image of the scene, or None where no render mode was asked for."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            width, height, _ = self._frame
            self._renderer = make_renderer(self.model, width, height)
        self._renderer.update_scene(self.data, camera=self._frame[2])
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None and hasattr(self._renderer, "close"):
            self._renderer.close()
        self._renderer = None
