"""Two engines with one behaviour: a compiled one and a pure-Python one, equal to the bit.

An engine advances the physics by one environment step and answers what the rules of a task ask: how far, in contact
with what, seen how. `make_engine` takes the compiled kernel where it was built and works; `BCPPO_PURE_PYTHON=1` keeps
it off.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import mujoco
import numpy as np

from bcppo.tasks.navigation.compiled import load_kernel, mujoco_library
from bcppo.tasks.navigation.levels import HORIZON, LIDAR_BINS, LIDAR_RANGE, SUBSTEPS
from bcppo.tasks.navigation.model import Scene

NOTHING_HIDDEN = -1
_TAGGED = ("button", "gremlin", "pillar", "vase")
"""Kinds whose contacts with the agent matter to some task."""

Look = tuple[Any, ...]
"""A bit mask of what is in contact with the agent (see `Engine.tag_bit`); then, of each group of objects, the distance
in the plane from the agent to the nearest, in metres."""

_FIELDS = """
model data
mj_checkPos mj_checkVel mj_checkAcc mj_Euler mj_fwdConstraint
mj_sensorPos mj_sensorVel mj_rnePostConstraint mj_sensorAcc mj_forwardSkip mj_normalizeQuat
ctrl mocap_pos qpos qvel xpos xquat xmat cvel sensordata
contacts contact_stride geom1_offset geom2_offset geom_tag observation
nq nv bodies mocaps sensors agent substeps bins groups
""".split()  # noqa: SIM905
"""The order of the members of `World` in kernel.c."""


class Engine:
    """What both engines share: the arrays, and the tags under which contacts are reported."""

    def __init__(self, scene: Scene) -> None:
        model, data = scene.model, scene.data
        self.scene, self.model, self.data = scene, model, data
        self._groups = [scene.bodies[group.kind] for group in scene.level.objects]
        self.group_of = {group.kind: i for i, group in enumerate(scene.level.objects)}
        gremlins = scene.level.find("gremlin")
        self._gremlins = gremlins
        self._timestep, self._travel = float(model.opt.timestep), gremlins.travel if gremlins else 0.0
        self._paths = _whole_circle(self._timestep, self._travel) if gremlins else {}
        self._observation = np.zeros(model.nsensordata + LIDAR_BINS * len(self._groups))
        self._geom_tag = np.zeros(model.ngeom, dtype=np.uint8)
        self.tag_bit: dict[str, int] = {}
        """Object kind (a button's own name) → its bit of what `look` says is touched."""
        for geom, kind in enumerate(scene.geom_kinds()):
            if kind == "agent":
                self._geom_tag[geom] = 1
            elif kind in _TAGGED:
                tag = model.geom(geom).name if kind == "button" else kind
                bit = self.tag_bit.setdefault(tag, 1 << len(self.tag_bit))
                self._geom_tag[geom] = bit.bit_length() + 1

    def forward(self, times: int) -> None:
        """`mj_forward`, several times: each starts the solver from the last solution, so the digits tell how often."""
        for _ in range(times):
            mujoco.mj_forward(self.model, self.data)

    def _mocap_path(self) -> list[float]:
        """Where the gremlins' mocap bodies are sent at each substep of the step to come: x, y, x, y, …"""
        time = self.data.time
        return self._paths.get(time) or next(iter(_circle(time, 1, self._timestep, self._travel).values()))


class PythonEngine(Engine):
    """The plain statement of what happens; used where no compiler was at hand, and as the kernel's reference."""

    def advance(self, force: float, turn: float) -> None:
        """Ten physics steps under a control, ended by three `mj_forward` as in the genuine environment."""
        self.data.ctrl[:] = force, turn
        if self._gremlins is None:
            mujoco.mj_step(self.model, self.data, SUBSTEPS)
        else:
            path = self._mocap_path()
            for x, y in zip(path[::2], path[1::2]):
                self.data.mocap_pos[:] = x, y, self._gremlins.size
                mujoco.mj_step(self.model, self.data)
        self.forward(3)

    def observe(self, hidden_group: int = NOTHING_HIDDEN) -> np.ndarray:
        """Sensors, then one lidar a kind of object; the hidden group's lidar reads zero. A fresh array."""
        count = self.model.nsensordata
        self._observation[:count] = self.data.sensordata
        for index, bodies in enumerate(self._groups):
            lidar = [0.0] * LIDAR_BINS
            if index != hidden_group:
                for place in self.data.xpos[bodies].tolist():
                    self._sense(lidar, place)
            self._observation[count + index * LIDAR_BINS : count + (index + 1) * LIDAR_BINS] = lidar
        return self._observation.copy()

    def look(self) -> Look:
        """(what the agent touches, metres to the nearest object of group 0, of group 1, …)"""
        return self._touched(), *(self._nearest(bodies) for bodies in self._groups)

    def _touched(self) -> int:
        mask = 0
        for contact in self.data.contact[: self.data.ncon] if self.data.ncon else ():
            if contact.geom1 < 0 or contact.geom2 < 0:
                continue
            tags = sorted((int(self._geom_tag[contact.geom1]), int(self._geom_tag[contact.geom2])))
            if tags[0] == 1 and tags[1] > 1:
                mask |= 1 << (tags[1] - 2)
        return mask

    def _nearest(self, bodies: Any) -> float:
        x, y = self.scene.position(self.scene.agent)
        places = self.data.xpos[bodies, :2].tolist()
        return min(math.sqrt((px - x) * (px - x) + (py - y) * (py - y)) for px, py in places)

    def _sense(self, lidar: list[float], place: list[float]) -> None:
        here, turn = self.data.xpos[self.scene.agent].tolist(), self.data.xmat[self.scene.agent].tolist()
        vx, vy, vz = place[0] - here[0], place[1] - here[1], 0.0 - here[2]
        x = (vx * turn[0] + vy * turn[3]) + vz * turn[6]
        y = (vx * turn[1] + vy * turn[4]) + vz * turn[7]
        angle = math.fmod(math.atan2(y, x), 2 * math.pi)
        if angle < 0:
            angle += 2 * math.pi
        width = 2 * math.pi / LIDAR_BINS
        bin_ = int(angle / width)
        closeness = max(0.0, LIDAR_RANGE - float(np.abs(complex(x, y)))) / LIDAR_RANGE
        alias = (angle - width * bin_) / width
        bin_ %= LIDAR_BINS  # a tiny negative angle can round up to a full turn
        after, before = (bin_ + 1) % LIDAR_BINS, (bin_ - 1) % LIDAR_BINS
        lidar[bin_] = max(lidar[bin_], closeness)
        lidar[after] = max(lidar[after], alias * closeness)
        lidar[before] = max(lidar[before], (1 - alias) * closeness)


class KernelEngine(Engine):
    """The same, in C; see kernel.c."""

    def __init__(self, scene: Scene, kernel) -> None:
        super().__init__(scene)
        # Arrays kept here so that the addresses handed to the kernel stay good.
        names = ("ctrl", "mocap_pos", "qpos", "qvel", "xpos", "xquat", "xmat", "cvel", "sensordata")
        self._arrays = {name: getattr(self.data, name) for name in names}
        self._world = kernel.bind(self._describe())
        self._kernel_advance = functools.partial(kernel.advance, self._world)
        self._kernel_observe = functools.partial(kernel.observe, self._world, LIDAR_RANGE)
        self._kernel_look = functools.partial(kernel.look, self._world)

    def advance(self, force: float, turn: float) -> None:
        if self._gremlins is None:
            self._kernel_advance(force, turn)
        else:
            self._kernel_advance(force, turn, *self._mocap_path(), self._gremlins.size)

    def observe(self, hidden_group: int = NOTHING_HIDDEN) -> np.ndarray:
        self._kernel_observe(hidden_group)
        return self._observation.copy()

    def look(self) -> Look:
        return self._kernel_look(self.data.ncon)

    def _describe(self) -> list[int]:
        stride, geom1, geom2 = contact_layout()
        values = {
            "model": self.model._address,
            "data": self.data._address,
            "contacts": _first_contact_address(self.model, self.data),
            "contact_stride": stride,
            "geom1_offset": geom1,
            "geom2_offset": geom2,
            "geom_tag": self._geom_tag.ctypes.data,
            "observation": self._observation.ctypes.data,
            "nq": self.model.nq,
            "nv": self.model.nv,
            "bodies": self.model.nbody,
            "mocaps": self.model.nmocap,
            "sensors": self.model.nsensordata,
            "agent": self.scene.agent,
            "substeps": SUBSTEPS,
            "bins": LIDAR_BINS,
            "groups": len(self._groups),
        }
        if not hasattr(self.data, "flg_rnepost"):
            # Where MuJoCo does not remember having made these body accelerations, mj_sensorAcc makes them each time;
            # where it does, it would take the ones of an earlier state for today's.
            values["mj_rnePostConstraint"] = 0
        values |= {name: array.ctypes.data for name, array in self._arrays.items()}
        library = mujoco_library()
        numbers: list[Any] = [
            values[name] if name in values else ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            for name in _FIELDS
        ]
        for bodies in self._groups:
            numbers += [int(bodies[0]), len(bodies)]
        return [int(number) for number in numbers]


def _circle(start: float, steps: int, timestep: float, travel: float) -> dict[float, list[float]]:
    """Time at which a step begins → x, y of its substeps on the gremlins' circle, one radian a second."""
    phase = np.full(steps * SUBSTEPS, timestep)
    phase[0] = start
    np.add.accumulate(phase, out=phase)  # one addition after another, as MuJoCo's clock does it
    points = np.stack((np.sin(phase), np.cos(phase)), axis=1) * travel
    return dict(zip(phase[::SUBSTEPS].tolist(), points.reshape(steps, 2 * SUBSTEPS).tolist()))


@functools.cache
def _whole_circle(timestep: float, travel: float) -> dict[float, list[float]]:
    """The same for a whole episode, which every episode repeats."""
    return _circle(0.0, HORIZON, timestep, travel)


AnyEngine = PythonEngine | KernelEngine


def make_engine(scene: Scene) -> AnyEngine:
    """The compiled engine where it is to be had, else the pure one."""
    kernel = load_kernel()
    return PythonEngine(scene) if kernel is None else KernelEngine(scene, kernel)


@functools.cache
def contact_layout() -> tuple[int, int, int]:
    """(size of mjContact, offset of its first geom, of its second), found by looking.

    The structure grows between MuJoCo releases. Two contacts are made between geoms of known numbers, and their bytes
    are searched for those numbers.
    """
    spheres = "".join(
        f'<body pos="{x} 0 0.05"><freejoint/><geom name="{x}" size="0.1"/></body>' for x in range(3)
    )
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><geom type="plane" size="9 9 1"/>{spheres}</worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    starts = [_contact_address(data, i) for i in range(data.ncon)]
    stride = starts[1] - starts[0]
    raw = [np.frombuffer(ctypes.string_at(start, stride), dtype=np.int32) for start in starts]
    firsts = [int(data.contact[i].geom1) for i in range(data.ncon)]
    seconds = [int(data.contact[i].geom2) for i in range(data.ncon)]
    second = next(i for i in range(len(raw[0])) if [int(row[i]) for row in raw] == seconds)
    if [int(row[second - 1]) for row in raw] != firsts:
        raise OSError("mjContact is laid out in a way this version does not know.")
    return stride, 4 * (second - 1), 4 * second


def _contact_address(data: mujoco.MjData, index: int) -> int:
    # `pos` follows the one double `dist` that opens the structure.
    return data.contact[index].pos.ctypes.data - 8


def _first_contact_address(model: mujoco.MjModel, data: mujoco.MjData) -> int:
    """Contacts open MuJoCo's arena and stay there, so one look at one contact (the agent's with the floor) serves."""
    mujoco.mj_forward(model, data)
    address = _contact_address(data, 0)
    mujoco.mj_resetData(model, data)
    return address
