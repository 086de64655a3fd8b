"""What each navigation task rewards, charges and calls an achievement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bcppo.tasks.navigation.engine import NOTHING_HIDDEN, AnyEngine, Look
from bcppo.tasks.navigation.layout import Point, Stream
from bcppo.tasks.navigation.levels import BUTTON_DELAY, VASE_SPEED_THRESHOLD, Level, Objects
from bcppo.tasks.navigation.model import Scene

ACHIEVEMENT_REWARD = 1.0

Charged = Callable[[Look], Any]
"""(what the engine sees) → whether the step is charged for it"""


class Rules:
    """Goal: come within the goal's radius. Also the frame the other two tasks fill in."""

    hidden_group = NOTHING_HIDDEN
    """The lidar that reads zero at the moment."""

    def __init__(self, scene: Scene, engine: AnyEngine) -> None:
        self.level: Level = scene.level
        self.scene, self.engine = scene, engine
        self._goal_place = 1 + engine.group_of["goal"]  # in a Look
        goal = self.level.find("goal")
        assert goal is not None
        self._goal_size = goal.size
        self._goal_distance = math.inf
        self._charges = [(_charge(group.kind), self._charged_for(group)) for group in self.level.objects if group.costs]
        hazards, vases = self.level.find("hazard"), self.level.find("vase")
        self._watches_vases = bool(vases and vases.costs)
        self._hazard_place = 1 + engine.group_of["hazard"] if hazards else 0
        self._hazard_size = hazards.size if hazards and hazards.costs else -math.inf
        if self._watches_vases:  # vases charge for touch and, last of all, for motion
            self._charges.append(("cost_vases_velocity", lambda seen: self._a_vase_moves()))
        self._uncharged = dict.fromkeys([name for name, _ in self._charges] + ["cost_sum"], 0.0)
        joints = (scene.model.body_jntadr[body] for body in scene.bodies.get("vase", ()))
        self._vase_speeds = [slice(start, start + 3) for start in (scene.model.jnt_dofadr[joint] for joint in joints)]

    def begin_episode(self) -> None:
        """Called once a reset, after the first goal is set."""

    def choose_goal(self, stream: Stream, layout: dict[str, Point]) -> None:
        """Pick a new goal and move it there; raises NoRoom when there is no place for one."""
        stream.move_goal(layout)
        self.scene.set_goal(layout["goal"])

    def measure_start(self) -> None:
        """Take the distances that the next reward is a difference to."""
        self._goal_distance = self.engine.look()[self._goal_place]

    def reward(self, seen: Look) -> tuple[float, bool]:
        """(reward of the step just made, whether the goal was achieved), given what the engine sees."""
        distance = seen[self._goal_place]
        reward = self._goal_distance - distance
        self._goal_distance = distance
        achieved = self._achieved(distance, seen[0])
        return (reward + ACHIEVEMENT_REWARD if achieved else reward), achieved

    def costs(self, seen: Look) -> dict[str, float]:
        """The simulator's own costs of the step, each 0 or 1; `cost_sum` is 1 where any is."""
        if not (seen[0] or seen[self._hazard_place] < self._hazard_size or self._watches_vases):
            return self._uncharged.copy()
        costs = {name: 1.0 if charged(seen) else 0.0 for name, charged in self._charges}
        costs["cost_sum"] = 1.0 if 1.0 in costs.values() else 0.0
        return costs

    def end_step(self) -> None:
        """Called once a step, after reward and cost."""

    def _achieved(self, distance: float, touched: int) -> bool:
        return distance <= self._goal_size

    def _charged_for(self, group: Objects) -> Charged:
        """Hazards charge for coming near, all others for touch."""
        if group.kind == "hazard":
            place, size = 1 + self.engine.group_of["hazard"], group.size
            return lambda seen: seen[place] < size
        bit = self.engine.tag_bit[group.kind]
        return lambda seen: seen[0] & bit

    def _a_vase_moves(self) -> bool:
        velocity = self.scene.data.qvel
        for dofs in self._vase_speeds:
            x, y, z = velocity[dofs].tolist()
            if math.sqrt(x * x + y * y + z * z) >= VASE_SPEED_THRESHOLD:
                return True
        return False


class ButtonRules(Rules):
    """Button: touch the goal button; for some steps after a press, no button is seen or charged."""

    def __init__(self, scene: Scene, engine: AnyEngine) -> None:
        self._buttons = scene.bodies["button"]
        self._bits = [engine.tag_bit[f"button{i}"] for i in range(len(self._buttons))]
        self._group = engine.group_of["button"]
        self._timer = 0
        self.goal_button = self._right = self._wrong = 0  # the button to touch, its bit, and those of the others
        super().__init__(scene, engine)

    @property
    def hidden_group(self) -> int:  # type: ignore[override]
        return self._group if self._timer else NOTHING_HIDDEN

    def begin_episode(self) -> None:
        self._timer = 0

    def choose_goal(self, stream: Stream, layout: dict[str, Point]) -> None:
        self.goal_button = stream.pick(len(self._buttons))
        self._right = self._bits[self.goal_button]
        self._wrong = sum(self._bits) & ~self._right
        self.scene.set_goal(self.scene.position(self._buttons[self.goal_button]))
        self._timer = BUTTON_DELAY

    def end_step(self) -> None:
        self._timer = max(0, self._timer - 1)

    def _achieved(self, distance: float, touched: int) -> bool:
        return bool(touched & self._right)

    def _charged_for(self, group: Objects) -> Charged:
        if group.kind != "button":
            return super()._charged_for(group)
        return lambda seen: not self._timer and seen[0] & self._wrong


class PushRules(Rules):
    """Push: bring the box within the goal's radius; approaching the box and bringing it nearer both pay."""

    def measure_start(self) -> None:
        self._box_distance, self._box_goal_distance = self._box_distances()

    def reward(self, seen: Look) -> tuple[float, bool]:
        to_box, to_goal = self._box_distances()
        reward = (self._box_distance - to_box) * float(self._box_distance > 0)
        reward += self._box_goal_distance - to_goal
        self._box_distance, self._box_goal_distance = to_box, to_goal
        achieved = to_goal <= self._goal_size
        return (reward + ACHIEVEMENT_REWARD if achieved else reward), achieved

    def _box_distances(self) -> tuple[float, float]:
        """Agent to box and box to goal, in metres: in space, not in the plane, as the genuine task has it."""
        xpos = self.scene.data.xpos
        box = xpos[self.scene.bodies["push_box"][0]].tolist()
        agent, goal = xpos[self.scene.agent].tolist(), xpos[self.scene.bodies["goal"][0]].tolist()
        return _distance(box, agent), _distance(box, goal)


RULES = {"goal": Rules, "button": ButtonRules, "push": PushRules}


def _charge(kind: str) -> str:
    """What a cost is called in `info`."""
    return "cost_vases_contact" if kind == "vase" else f"cost_{kind}s"


def _distance(one: list[float], two: list[float]) -> float:
    x, y, z = one[0] - two[0], one[1] - two[1], one[2] - two[2]
    return math.sqrt(x * x + y * y + z * z)
