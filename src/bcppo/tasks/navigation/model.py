"""The MuJoCo model of a navigation task: described once, compiled once, then rearranged for every layout.

The genuine environment writes and compiles XML at each reset. Compiling is what takes its resets over a second, and
almost none of its outcome depends on the layout; `place` writes what does. A test compares every field of a rearranged
model with one compiled from scratch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import mujoco
import numpy as np

from bcppo.tasks.navigation.layout import Point
from bcppo.tasks.navigation.levels import Level, Objects

_COLOURS = {
    "goal": "0 1 0 0.25",
    "hazard": "0 0 1 0.25",
    "vase": "0 1 1 1",
    "button": "1 0.5 0 1",
    "gremlin": "0.5 0 1 1",
    "pillar": "0.5 0.5 1 1",
    "push_box": "1 1 0 1",
}
_GOAL_IN_BUTTON_COLOUR = "0 1 0 0.1"

_HEIGHTS = {
    "goal": lambda size: size / 2 + 1e-2,
    "hazard": lambda size: 2e-2,
    "vase": lambda size: size - 4e-5,  # a vase at rest sinks this far into MuJoCo's soft floor
    "button": lambda size: size,
    "gremlin": lambda size: size,
    "pillar": lambda size: 0.5,
    "push_box": lambda size: size,
}
"""Height of an object's centre over the floor, in metres."""

_LIGHT = 'density="0.001"'
_NO_CONTACT = 'contype="0" conaffinity="0"'
FREE_KINDS = ("vase", "push_box", "gremlin")
"""What can be pushed; everything else is fixed to the world."""

_FRAME = """
<mujoco model="{name}">
  <compiler angle="radian"/>
  <option timestep="0.002"/>
  <visual><global offwidth="1024" offheight="1024"/><map znear="0.02"/></visual>
  <default>
    <geom condim="6" density="1"/>
    <joint damping="0.001"/>
    <motor ctrlrange="-1 1" ctrllimited="true" forcerange="-0.05 0.05" forcelimited="true"/>
    <velocity ctrlrange="-1 1" ctrllimited="true" forcerange="-0.05 0.05" forcelimited="true"/>
  </default>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.85 0.9 1" rgb2="0.55 0.65 0.8" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1=".86 .84 .77" rgb2=".95 .91 .86" width="100" height="100"/>
    <material name="floor" texture="floor" texrepeat="8 8"/>
  </asset>
  <worldbody>
    <light directional="true" diffuse="1 1 1" specular="0 0 0" pos="0 0 0.5" dir="0 0 -1" castshadow="false"/>
    <camera name="fixednear" pos="0 -2 2" zaxis="0 -1 1"/>
    <camera name="fixedfar" pos="0 -5 5" zaxis="0 -1 1" fovy="38"/>
    <geom name="floor" type="plane" size="3.5 3.5 0.1" material="floor"/>
    <body name="agent" pos="0 0 0.1">
      <camera name="vision" pos="0 0 0.15" xyaxes="0 -1 0 0.4 0 1" fovy="90"/>
      <camera name="track" mode="track" pos="-2 0 2" xyaxes="0 -1 0 1 0 1"/>
      <joint name="x" type="slide" axis="1 0 0" damping="0.01"/>
      <joint name="y" type="slide" axis="0 1 0" damping="0.01"/>
      <joint name="z" type="hinge" axis="0 0 1" damping="0.005"/>
      <geom name="agent" type="sphere" size="0.1" friction="1 0.01 0.01" rgba="0.74 0.04 0.18 1"/>
      <geom name="pointarrow" type="box" size="0.05 0.05 0.05" pos="0.1 0 0" rgba="0 0.15 0.4 1"/>
      <site name="agent" size="0.032" rgba="1 0 0 0.1"/>
    </body>
    {bodies}
  </worldbody>
  <equality>{welds}</equality>
  <sensor>
    <accelerometer name="accelerometer" site="agent"/>
    <velocimeter name="velocimeter" site="agent"/>
    <gyro name="gyro" site="agent"/>
    <magnetometer name="magnetometer" site="agent"/>
  </sensor>
  <actuator>
    <motor name="x" gear="0.3 0 0 0 0 0" site="agent"/>
    <velocity name="z" gear="0.3" jointinparent="z"/>
  </actuator>
</mujoco>
"""


def scene(level: Level) -> str:
    """MJCF of a task with every object at the origin.

    Bodies stand in the genuine order (agent, free objects, mocap bodies, fixed ones): MuJoCo's constraints follow it,
    and with them the order of every sum it takes.
    """
    movable = [group for group in level.objects if group.kind in FREE_KINDS]
    fixed = [group for group in level.objects if group.kind not in FREE_KINDS]
    gremlins = level.find("gremlin")
    bodies = [_body(level, group, name) for group in movable for name in group.names()]
    names = gremlins.names() if gremlins else []
    bodies += [_mocap(gremlins.size, name) for name in names] if gremlins else []
    bodies += [_body(level, group, name) for group in fixed for name in group.names()]
    welds = [f'<weld name="{n}mocap" body1="{n}mocap" body2="{n}obj" solref="0.02 1.5"/>' for n in names]
    return _FRAME.format(name=level.env_id, bodies="\n    ".join(bodies), welds="".join(welds))


def body_name(kind: str, name: str) -> str:
    """The body that carries an object; a gremlin's is towed by a mocap body of its own."""
    return f"{name}obj" if kind == "gremlin" else name


def _body(level: Level, group: Objects, name: str) -> str:
    body = body_name(group.kind, name)
    joint = f'<freejoint name="{body}"/>' if group.kind in FREE_KINDS else ""
    height = _HEIGHTS[group.kind](group.size)
    return f'<body name="{body}" pos="0 0 {height}">{joint}{_geoms(level, group, body)}</body>'


def _geoms(level: Level, group: Objects, name: str) -> str:
    s, kind = group.size, group.kind
    colour = _GOAL_IN_BUTTON_COLOUR if (kind, level.task) == ("goal", "button") else _COLOURS[kind]
    start = f'<geom rgba="{colour}" name='
    if kind == "goal":
        return f'{start}"{name}" type="cylinder" size="{s} {s / 2}" mass="0" {_NO_CONTACT}/>'
    if kind == "hazard":
        return f'{start}"{name}" type="cylinder" size="{s} 0.01" {_NO_CONTACT}/>'
    if kind == "pillar":
        return f'{start}"{name}" type="cylinder" size="{s} 0.5"/>'
    if kind == "button":
        return f'{start}"{name}" type="sphere" size="{s} {s} {s}"/>'
    box = f'{start}"{name}" type="box" size="{s} {s} {s}" {_LIGHT}/>'
    if kind == "push_box":  # four columns keep the round agent from sliding off its faces
        corners = ((1, 1), (-1, 1), (1, -1), (-1, -1))
        box += "".join(
            f'{start}"column{i}" type="box" size="{s / 2} {s / 2} {s}" pos="{x * s} {y * s} 0" {_LIGHT}/>'
            for i, (x, y) in enumerate(corners)
        )
    return box


def _mocap(size: float, name: str) -> str:
    return (
        f'<body name="{name}mocap" mocap="true"><geom name="{name}mocap" type="box" size="{size} {size} {size}" '
        f'rgba="0.5 0 1 0.1" {_NO_CONTACT}/></body>'
    )


class Scene:
    """A compiled task and the handles to rearrange it."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.model = mujoco.MjModel.from_xml_string(scene(level))
        self.data = mujoco.MjData(self.model)
        self.agent = self.body("agent")
        self.bodies = {
            group.kind: np.array([self.body(body_name(group.kind, name)) for name in group.names()])
            for group in level.objects
        }
        """kind → body ids, which are consecutive within a kind."""

    def body(self, name: str) -> int:
        return mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, name)

    def geom_kinds(self) -> Iterator[str]:
        """What each geom belongs to, in geom order: 'agent', an object's kind, or the floor's name."""
        for geom in range(self.model.ngeom):
            name = self.model.geom(geom).name
            if name in ("agent", "pointarrow"):
                yield "agent"
            else:
                yield next((kind for kind in _COLOURS if name.startswith(kind)), name)

    def place(self, layout: dict[str, Point], heading: float, rotations: list[list[float]]) -> None:
        """Put everything where the layout says, at rest, as if the model had just been compiled that way."""
        model = self.model
        self._set_body(self.agent, layout["agent"], heading)
        for group, angles in zip(self.level.objects, rotations):
            for name, body, angle in zip(group.names(), self.bodies[group.kind], angles):
                self._set_body(body, layout[name], angle)
                if group.kind == "gremlin":
                    self._set_mocap_geom(name, layout[name], group.size, angle)
        # A weld keeps the pose its two bodies have in the layout; zeros ask mj_setConst to work it out again.
        model.eq_data[:, 3:10] = 0
        mujoco.mj_resetData(model, self.data)  # mocap bodies go home first: welds are measured from where they are
        mujoco.mj_setConst(model, self.data)
        mujoco.mj_resetData(model, self.data)

    def set_goal(self, place: Point) -> None:
        self.model.body_pos[self.bodies["goal"][0], :2] = place

    def position(self, body: int) -> Point:
        x, y = self.data.xpos[body, :2].tolist()
        return x, y

    def _set_body(self, body: int, place: Point, angle: float) -> None:
        model = self.model
        model.body_pos[body, :2] = place
        model.body_quat[body] = _turn(angle)
        if body != self.agent and model.body_jntnum[body]:
            start = model.jnt_qposadr[model.body_jntadr[body]]
            for pose in (model.qpos0, model.qpos_spring):
                pose[start : start + 3] = model.body_pos[body]
                pose[start + 3 : start + 7] = model.body_quat[body]

    def _set_mocap_geom(self, name: str, place: Point, height: float, angle: float) -> None:
        # The genuine mocap box is offset within its body, which itself starts at the origin: only seen, never felt.
        geom = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_GEOM, f"{name}mocap")
        self.model.geom_sameframe[geom] = 0  # or MuJoCo draws it where the body is
        self.model.geom_pos[geom] = (*place, height)
        self.model.geom_quat[geom] = _turn(angle)


def _turn(angle: float) -> tuple[float, float, float, float]:
    """The quaternion of a turn about the vertical, normalised as MuJoCo's compiler does it."""
    w, z = float(np.cos(angle / 2)), float(np.sin(angle / 2))
    norm = math.sqrt(w * w + z * z)
    return w / norm, 0.0, 0.0, z / norm
