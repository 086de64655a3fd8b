"""The navigation environments: two engines that are one, a rearranged model, rules by hand, what Gymnasium expects."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bcppo.errors import BcppoError, ConfigError
from bcppo.tasks.navigation import LEVELS, model
from bcppo.tasks.navigation.compiled import load_kernel
from bcppo.tasks.navigation.engine import contact_layout
from bcppo.tasks.navigation.env import NavigationEnv
from bcppo.tasks.navigation.layout import Stream

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))

from policies import go_to_goal, push_the_box  # noqa: E402

LEVEL_IDS = [level.env_id for level in LEVELS.values()]
every_level = pytest.mark.parametrize("level", LEVELS.values(), ids=[f"{task}{number}" for task, number in LEVELS])
needs_the_kernel = pytest.mark.skipif(load_kernel() is None, reason="the compiled kernel was not built")


class Pair:
    """The same environment on both engines, stepped side by side."""

    def __init__(self, level, monkeypatch) -> None:
        self.monkeypatch = monkeypatch
        self.kernel = self._on("0", NavigationEnv, level.task, level.level)
        self.python = self._on("1", NavigationEnv, level.task, level.level)
        assert type(self.kernel._engine).__name__ == "KernelEngine"
        assert type(self.python._engine).__name__ == "PythonEngine"

    def _on(self, pure: str, call, *args, **kwargs):
        self.monkeypatch.setenv("BCPPO_PURE_PYTHON", pure)
        return call(*args, **kwargs)

    def reset(self, seed: int | None) -> np.ndarray:
        ours, _ = self._on("0", self.kernel.reset, seed=seed)
        theirs, _ = self._on("1", self.python.reset, seed=seed)
        assert_same_numbers(ours, theirs)
        return ours

    def step(self, action) -> tuple[np.ndarray, dict]:
        ours, theirs = self.kernel.step(action), self.python.step(action)
        assert_same_numbers(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]
        return ours[0], ours[4]

    def change(self, edit) -> None:
        for env in (self.kernel, self.python):
            edit(env.model, env.data)


def assert_same_numbers(ours: np.ndarray, theirs: np.ndarray) -> None:
    """To the bit; but for the lidars on a CPU where NumPy's |x + iy| has no fused multiply-add, as the kernel has."""
    assert (ours[:12] == theirs[:12]).all()
    assert np.abs(ours - theirs).max() <= (0.0 if _numpy_fuses() else 1e-12)


@functools.cache
def _numpy_fuses() -> bool:
    """Whether |x + iy| is computed as large · sqrt(1 + q²), q = small / large, with 1 + q² rounded once."""
    points = [(k / 101, 1 + k / 211) for k in range(1, 100)]
    return all(np.abs(complex(x, y)) == y * math.sqrt(float(Fraction(x / y) ** 2 + 1)) for x, y in points)


@needs_the_kernel
@every_level
def test_kernel_and_python_engine_agree_to_the_bit(level, monkeypatch):
    pair, random = Pair(level, monkeypatch), np.random.default_rng(0)
    scripted = push_the_box if level.task == "push" else go_to_goal(level.task)
    touched = goals = 0
    for seed, steps in ((20, 300), (None, 120), (7, 60)):
        observation, action = pair.reset(seed), np.zeros(2)
        for step in range(steps):
            action = 0.8 * action + 0.6 * random.normal(size=2)
            # The scripted policy meets goals and bumps into things; the random one goes where it does not.
            observation, info = pair.step(scripted(observation) if step < steps / 2 or steps == 300 else action)
            goals += "goal_met" in info
            touched += pair.kernel._engine.look()[0] > 0
    assert goals > 0 or level.task == "push"
    assert touched > 0 or level.task == "push" or level.level < 2


def _edits():
    """What a user may do to the state between two steps."""
    there_and_back: dict = {}

    def look_ahead(m, d):
        there_and_back.update(qpos=d.qpos.copy(), qvel=d.qvel.copy(), qacc_warmstart=d.qacc_warmstart.copy())
        time = d.time
        mujoco.mj_step(m, d, 50)
        for name, value in there_and_back.items():
            getattr(d, name)[:] = value
        d.time = time

    def move(m, d):
        d.qpos[0] += 0.1

    def push(m, d):
        d.qvel[2] -= 0.5

    def pull(m, d):
        d.qfrc_applied[1] = 0.02

    def start_over(m, d):
        mujoco.mj_resetData(m, d)

    def brake(m, d):
        m.dof_damping[:] *= 1.5
        mujoco.mj_forward(m, d)  # a change of the model needs it; see NavigationEnv

    return [look_ahead, move, push, pull, start_over, brake]


@needs_the_kernel
@pytest.mark.parametrize("edit", _edits(), ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("name", [("goal", 1), ("button", 1)], ids=["goal1", "button1"])
def test_kernel_follows_a_state_changed_between_steps(name, edit, monkeypatch):
    """The kernel keeps what a step ended with for the next one: not where somebody else had the data in between."""
    pair, random = Pair(LEVELS[name], monkeypatch), np.random.default_rng(3)
    pair.reset(3)
    before = pair.kernel.data.qpos.copy()
    for step in range(60):
        pair.step(random.uniform(-1, 1, 2))
        if step % 10 == 5:
            pair.change(edit)
    assert (pair.kernel.data.qpos == pair.python.data.qpos).all()
    assert (pair.kernel.data.qpos != before).any()


@pytest.mark.parametrize("time", [0.0, 0.02, 7.5, 19.98, 20.0, 1234.5])
def test_gremlins_are_sent_round_a_circle(time):
    """(0.35 sin t, 0.35 cos t), one sine at a time as the genuine environment takes it, at any time a user may set."""
    env = NavigationEnv("button", 1)
    env.reset(seed=0)
    env.data.time = time
    path = env._engine._mocap_path()
    assert len(path) == 20
    for x, y in zip(path[::2], path[1::2]):
        assert (x, y) == (np.sin(time) * 0.35, np.cos(time) * 0.35)
        time += 0.002
    env.step([0.0, 0.0])
    assert env.data.mocap_pos.tolist() == [[path[-2], path[-1], 0.1]] * 4


@needs_the_kernel
def test_contacts_are_read_where_mujoco_keeps_them():
    """The layout of mjContact is found by looking; here it is held against the bindings' own reading."""
    stride, geom1, geom2 = contact_layout()
    assert geom2 == geom1 + 4
    assert 0 < geom1 < geom2 < stride
    env = NavigationEnv("push", 1)
    env.reset(seed=0)
    env.data.qpos[-7:-4] = *env._scene.position(env._scene.agent), 0.2  # the box onto the agent
    mujoco.mj_forward(env.model, env.data)
    kinds = list(env._scene.geom_kinds())
    pairs = [{kinds[env.data.contact[i].geom1], kinds[env.data.contact[i].geom2]} for i in range(env.data.ncon)]
    assert {"agent", "push_box"} in pairs
    assert env._engine.look()[0] == 0  # nobody charges for the box
    env.data.qpos[-7:-4] = 9, 9, 0.2
    put_agent(env, place_of(env, "pillar", aside=0.25))
    assert env._engine.look()[0] == env._engine.tag_bit["pillar"]


def place_of(env: NavigationEnv, kind: str, index: int = 0, aside: float = 0.0) -> np.ndarray:
    """An object's place, or one some metres to its right."""
    x, y = env._scene.position(env._scene.bodies[kind][index])
    return np.array([x + aside, y])


def put_agent(env: NavigationEnv, place: np.ndarray) -> None:
    """Its slide joints run along the heading it was compiled with, from where it was compiled to be."""
    w, _, _, z = env.model.body_quat[env._scene.agent]
    cos, sin = w * w - z * z, 2 * w * z
    env.data.qpos[:2] = np.array([[cos, sin], [-sin, cos]]) @ (place - env.model.body_pos[env._scene.agent, :2])
    env.data.qvel[:] = 0
    mujoco.mj_forward(env.model, env.data)
    assert np.allclose(env._scene.position(env._scene.agent), place)


# --- the model ------------------------------------------------------------------------------------------------------


def compile_with(level, layout, heading, rotations) -> mujoco.MjModel:
    """The scene with a layout written into its XML, as the genuine environment has it compiled at every reset."""
    tree = ET.fromstring(model.scene(level))
    bodies = {body.get("name"): body for body in tree.iter("body")}

    def put(element, place, height, angle):
        element.set("pos", f"{place[0]!r} {place[1]!r} {height}")
        element.set("quat", " ".join(repr(number) for number in model._turn(angle)))

    put(bodies["agent"], layout["agent"], 0.1, heading)
    for group, angles in zip(level.objects, rotations):
        for name, angle in zip(group.names(), angles):
            body = bodies[model.body_name(group.kind, name)]
            put(body, layout[name], body.get("pos").split()[2], angle)
            if group.kind == "gremlin":
                put(bodies[f"{name}mocap"].find("geom"), layout[name], group.size, angle)
    return mujoco.MjModel.from_xml_string(ET.tostring(tree, encoding="unicode"))


UNMOVED = ("body_ipos", "body_iquat", "body_sameframe", "body_simple")
"""Where the mass of a body is and how that is stored: of no consequence for one that no force moves."""
DRAWN_ONLY = ("cam_poscom0", "light_poscom0", "geom_sameframe")
"""Of cameras and lights that track a centre of mass (there are none) and of the mocap boxes, which touch nothing."""


@every_level
def test_rearranged_model_equals_a_compiled_one(level):
    """Every array of mjModel to the bit; exceptions are named above, and checked where they could matter."""
    scene = model.Scene(level)
    for seed in range(3):
        stream = Stream(level, seed)
        layout, (heading, rotations) = stream.layout(), stream.rotations()
        scene.place(layout, heading, rotations)
        ours, fresh = scene.model, compile_with(level, layout, heading, rotations)
        moves = fresh.body_dofnum > 0
        names = [name for name in dir(fresh) if isinstance(getattr(fresh, name), np.ndarray)]
        assert {"body_pos", "qpos0", "eq_data", "dof_invweight0", "body_invweight0", "tendon_length0"} < set(names)
        for name in names:
            one, other = getattr(ours, name), getattr(fresh, name)
            if name in UNMOVED:
                one, other = one[moves], other[moves]
            if name == "geom_sameframe":
                touching = (fresh.geom_contype | fresh.geom_conaffinity) > 0
                one, other = one[touching], other[touching]
            assert name in DRAWN_ONLY[:2] or np.array_equal(one, other), name
        # The solver's tolerance is relative to it; MuJoCo 4 leaves it, rounded for the first layout, where it was.
        assert ours.stat.meaninertia == pytest.approx(fresh.stat.meaninertia, rel=1e-12)
        for option in dir(fresh.opt):
            if not option.startswith("_") and not callable(getattr(fresh.opt, option)):
                assert np.array_equal(getattr(ours.opt, option), getattr(fresh.opt, option)), option


@pytest.mark.parametrize("name", [("button", 2), ("goal", 2), ("push", 2)], ids=["button2", "goal2", "push2"])
def test_rearranged_model_moves_like_a_compiled_one(name):
    """What was excepted above does not show: the same states, to the bit, after a hundred physics steps."""
    level = LEVELS[name]
    scene, stream = model.Scene(level), Stream(level, 5)
    layout, (heading, rotations) = stream.layout(), stream.rotations()
    scene.place(layout, heading, rotations)
    fresh = compile_with(level, layout, heading, rotations)
    fresh.stat.meaninertia = scene.model.stat.meaninertia
    ours, other = scene.data, mujoco.MjData(fresh)
    for data, owner in ((ours, scene.model), (other, fresh)):
        data.ctrl[:] = 1.0, 0.3
        mujoco.mj_step(owner, data, 100)
        mujoco.mj_forward(owner, data)
    assert (ours.qpos == other.qpos).all()
    assert (ours.qvel == other.qvel).all()
    assert (ours.sensordata == other.sensordata).all()


def test_a_gremlins_mocap_box_is_drawn_around_it():
    env = NavigationEnv("button", 1)
    env.reset(seed=0)
    for steps, near in ((0, 1e-9), (40, 0.1)):
        for _ in range(steps):
            env.step([0.0, 0.0])
        for i in range(4):
            box, gremlin = env.data.geom(f"gremlin{i}mocap").xpos, env.data.body(f"gremlin{i}obj").xpos
            assert np.linalg.norm(box - gremlin) <= near


# --- the random stream ----------------------------------------------------------------------------------------------


@every_level
def test_equal_seeds_give_equal_episodes(level):
    one, other = (NavigationEnv(level.task, level.level) for _ in range(2))
    for seed in (11, None, None):
        first, second = one.reset(seed=seed)[0], other.reset(seed=seed)[0]
        assert (first == second).all()
        assert (one.data.xpos == other.data.xpos).all()
        for _ in range(3):
            assert (one.step([1.0, 0.5])[0] == other.step([1.0, 0.5])[0]).all()
    assert (one.reset(seed=12)[0] != other.reset(seed=11)[0]).any()


def test_unseeded_resets_continue_the_stream():
    """Another layout each time, and one that depends on how many steps were made: each uses up one number."""
    env = NavigationEnv("goal", 1)

    def layouts(steps: int) -> np.ndarray:
        env.reset(seed=4)
        for _ in range(steps):
            env.step([0.0, 0.0])
        env.reset()
        return env.data.xpos.copy()

    first = layouts(0)
    env.reset()
    assert (env.data.xpos != first).any()
    assert (layouts(0) == first).all()
    assert (layouts(1) != first).any()
    assert (layouts(5) == layouts(5)).all()


def test_every_object_keeps_its_distance():
    for level in LEVELS.values():
        stream = Stream(level, 0)
        keepouts = stream._keepout
        for _ in range(5):
            layout = stream.layout()
            places = np.array([layout[name] for name in keepouts])
            radii = np.array(list(keepouts.values()))
            distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
            enough = distances >= radii[:, None] + radii[None] - 1e-12
            assert (enough | np.eye(len(radii), dtype=bool)).all()
            assert (np.abs(places) <= level.extent - radii[:, None]).all()


def test_a_layout_without_room_is_one_sentence(monkeypatch):
    import bcppo.tasks.navigation.layout as module

    monkeypatch.setattr(module, "OBJECT_TRIES", 0)
    monkeypatch.setattr(module, "LAYOUT_TRIES", 3)
    with pytest.raises(BcppoError, match="do not fit"):
        NavigationEnv("goal", 1).reset(seed=0)


def test_no_room_for_another_goal_ends_the_episode(monkeypatch):
    import bcppo.tasks.navigation.layout as module

    env = NavigationEnv("goal", 0)
    observation, _ = env.reset(seed=0)
    policy = go_to_goal("goal")
    monkeypatch.setattr(module, "GOAL_TRIES", 0)
    info: dict = {}
    while "goal_met" not in info:
        observation, _, terminated, truncated, info = env.step(policy(observation))
    assert terminated
    assert not truncated
    with pytest.raises(BcppoError, match="episode is over"):
        env.step([0.0, 0.0])


# --- Gymnasium ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", LEVEL_IDS)
def test_gymnasiums_checker_is_content(env_id):
    env = gymnasium.make(env_id)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*Box observation space m(in|ax)imum")  # sensors have no bounds
        check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("env_id", LEVEL_IDS)
def test_registered_environment(env_id):
    env = gymnasium.make(env_id)
    mujoco_model, data = env.unwrapped.model, env.unwrapped.data
    assert isinstance(mujoco_model, mujoco.MjModel)
    assert isinstance(data, mujoco.MjData)
    assert env.spec.max_episode_steps == 1000
    observation, info = env.reset(seed=0)
    assert info == {}
    env.action_space.seed(0)
    for _ in range(30):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
        assert observation.dtype == np.float64
        assert isinstance(reward, float)
        assert (terminated, truncated) == (False, False)
        assert info["cost"] in (0.0, 1.0)
        assert info["cost"] == max(value for name, value in info.items() if name.startswith("cost_"))
    env.reset()
    assert env.unwrapped.model is mujoco_model
    assert env.unwrapped.data is data


def test_hazards_charge_inside_their_radius():
    """The cost by hand: the agent is put into a hazard of 0.2 m, just inside its rim, just outside."""
    env = NavigationEnv("goal", 1)
    env.reset(seed=0)
    for index in range(8):
        for away, cost in ((0.0, 1.0), (0.199, 1.0), (0.201, 0.0)):
            there = place_of(env, "hazard", index, aside=away)
            put_agent(env, there)
            distances = [np.linalg.norm(there - place_of(env, "hazard", other)) for other in range(8)]
            if sorted(distances)[1] > 0.21:  # no other hazard is in the way
                assert env.step([0.0, 0.0])[4] == {"cost_hazards": cost, "cost_sum": cost, "cost": cost}


def test_vases_cost_nothing_on_level_1_and_charge_for_touch_and_motion_on_level_2():
    for level, cost in ((1, 0.0), (2, 1.0)):
        env = NavigationEnv("goal", level)
        env.reset(seed=0)
        assert env.step([0.0, 0.0])[4]["cost"] == 0
        put_agent(env, place_of(env, "vase", aside=0.15))
        info = env.step([0.0, 0.0])[4]
        assert env._engine.look()[0] & env._engine.tag_bit["vase"]
        assert info["cost"] == max(cost, info["cost_hazards"])
        if level == 2:
            assert info["cost_vases_contact"] == 1
            assert info["cost_vases_velocity"] == 1


@every_level
def test_costs_are_each_charge_by_itself_whatever_is_seen(level):
    """Most steps are charged for nothing, and are told so without asking each charge: that must come to the same."""
    env = NavigationEnv(level.task, level.level)
    env.reset(seed=0)
    rules, (_, *distances) = env._rules, env._engine.look()
    env.data.qvel[:] = 1.0  # vases charge for motion
    bits = env._engine.tag_bit.values()
    for touched in (0, *bits):
        for distance in (0.0, 0.19, 0.21, 5.0):
            seen = touched, *[distance] * len(distances)
            each = {name: float(bool(charged(seen))) for name, charged in rules._charges}
            assert rules.costs(seen) == each | {"cost_sum": max(each.values(), default=0.0)}
    assert rules.costs(seen) is not rules.costs(seen)  # whoever is told may change it


def test_a_wrong_button_charges_once_the_buttons_are_seen():
    """Pressing one is free, and buttons are out of sight, in the ten steps after the goal button was pressed."""
    buttons = slice(12, 28)
    for level, cost in ((0, 0.0), (1, 1.0)):
        each = NavigationEnv("button", level)
        each.reset(seed=0)
        goal = each._rules.goal_button
        put_agent(each, place_of(each, "button", (goal + 1) % 4, aside=0.18))
        info = each.step([0.0, 0.0])[4]
        assert info.get("cost_buttons", 0.0) == cost
        assert "goal_met" not in info
        put_agent(each, place_of(each, "button", goal, aside=0.18))
        observation, reward, _, _, info = each.step([0.0, 0.0])
        assert info["goal_met"]
        assert reward > 0.9
        assert info.get("cost_buttons", 0.0) == 0  # the goal button is not a wrong one
        for step in range(1, 12):
            assert (observation[buttons] == 0).all() == (step <= 10)
            put_agent(each, place_of(each, "button", (each._rules.goal_button + 1) % 4, aside=0.18))
            observation, _, _, _, info = each.step([0.0, 0.0])
            assert info.get("cost_buttons", 0.0) == (cost if step > 10 else 0)


def test_reward_is_the_way_made_good_and_one_for_the_goal():
    env = NavigationEnv("goal", 0)
    env.reset(seed=0)
    goal = place_of(env, "goal")
    before = np.linalg.norm(goal - env._scene.position(env._scene.agent))
    put_agent(env, place_of(env, "goal", aside=0.5))
    reward = env.step([0.0, 0.0])[1]
    assert reward == pytest.approx(before - 0.5, abs=1e-3)
    put_agent(env, place_of(env, "goal", aside=0.2))
    _, reward, _, _, info = env.step([0.0, 0.0])
    assert reward == pytest.approx(0.5 - 0.2 + 1, abs=1e-3)
    assert info["goal_met"]
    assert (place_of(env, "goal") != goal).any()
    env.reset(seed=0)
    put_agent(env, np.array([90.0, 0.0]))
    assert env.step([0.0, 0.0])[1] == -10  # clipped


@pytest.mark.parametrize("name", ["Goal1", "Button1", "Push1"])
def test_an_episode_is_cut_after_a_thousand_steps(name):
    env = gymnasium.make(f"bcppo/SafetyPoint{name}-v0")
    env.reset(seed=0)
    for step in range(1000):
        _, _, terminated, truncated, _ = env.step(np.array([0.1, 1.0]))
        assert (terminated, truncated) == (False, step == 999)
    with pytest.raises(BcppoError, match=r"^The episode is over .*: call reset\(\) before step\(\)\.$"):
        env.step(np.zeros(2))
    env.reset()
    env.step(np.zeros(2))


def test_the_time_limit_needs_no_wrapper():
    env = NavigationEnv("goal", 0)
    env.reset(seed=0)
    assert [env.step([0.0, 0.0])[3] for _ in range(1000)] == [False] * 999 + [True]


def test_a_step_before_the_first_reset_is_one_sentence():
    with pytest.raises(BcppoError, match="call reset"):
        NavigationEnv("goal", 1).step([0.0, 0.0])
    with pytest.raises(gymnasium.error.ResetNeeded):
        gymnasium.make("bcppo/SafetyPointGoal1-v0").step(np.zeros(2))


@pytest.mark.parametrize("pure", ["0", "1"])
def test_returned_arrays_stay_as_they_were(pure, monkeypatch):
    monkeypatch.setenv("BCPPO_PURE_PYTHON", pure)
    env = NavigationEnv("button", 1)
    kept = [env.reset(seed=0)[0]]
    kept += [env.step([1.0, 0.3])[0] for _ in range(5)]
    copies = [array.copy() for array in kept]
    env.step([-1.0, 0.0])
    env.reset()
    assert all((array == copy).all() for array, copy in zip(kept, copies))
    kept[-1][:] = 0  # and a caller may write into them
    assert (env.step([0.0, 0.0])[0] != 0).any()


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        ([np.nan, 0.0], "not finite"),
        ([0.0, np.inf], "not finite"),
        (np.zeros(3), r"two numbers .*, but shape \(3,\) was given"),
        ([1.0, 2.0, 3.0], r"but \[1.0, 2.0, 3.0\] was given"),
        (np.zeros((1, 2)), r"shape \(1, 2\)"),
        (np.zeros((2, 1)), r"shape \(2, 1\)"),
        (0.5, "but 0.5 was given"),
        (None, "two numbers"),
        ("no", "two numbers"),
        ([[1.0], [1.0, 2.0]], "two numbers"),
    ],
)
def test_bad_actions_are_one_sentence_and_leave_the_episode_as_it_was(action, complaint):
    env, untouched = NavigationEnv("goal", 1), NavigationEnv("goal", 1)
    env.reset(seed=0)
    untouched.reset(seed=0)
    with pytest.raises(ConfigError, match=complaint) as caught:
        env.step(action)
    assert "\n" not in str(caught.value)
    assert (env.step([1.0, 0.1])[0] == untouched.step([1.0, 0.1])[0]).all()


def test_unknown_tasks_and_render_modes_are_one_sentence():
    with pytest.raises(ConfigError, match=r"no navigation task named 'gaol1'.*goal1.*Did you mean 'goal1'"):
        NavigationEnv("gaol", 1)
    with pytest.raises(ConfigError, match="'rgb_array' or None"):
        NavigationEnv("goal", 1, render_mode="ascii")


# --- drawing --------------------------------------------------------------------------------------------------------

DRAW = """
import sys, warnings, gymnasium, numpy as np, bcppo
warnings.simplefilter("ignore")
for task in ("Goal1", "Button1", "Push1"):
    env = gymnasium.make(f"bcppo/SafetyPoint{task}-v0", render_mode="rgb_array", width=160, height=120)
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (120, 160, 3) and first.dtype == np.uint8, (first.shape, first.dtype)
    assert first.std() > 5, "one colour"
    for _ in range(20):
        env.step(np.array([1.0, 0.2]))
    later = env.render()
    assert (first != later).any(), "nothing moved"
    env.reset(seed=0)
    assert (env.render() == first).all(), "the same layout looks different"
    env.close()
frames = []
for name in ("fixednear", "fixedfar", "track", "vision"):
    env = gymnasium.make("bcppo/SafetyPointGoal1-v0", render_mode="rgb_array", camera_name=name)
    env.reset(seed=0)
    frames.append(env.render())
assert all((frames[0] != frame).any() for frame in frames[1:])
plain = gymnasium.make("bcppo/SafetyPointGoal1-v0")
plain.reset(seed=0)
assert plain.unwrapped.render() is None
print("drawn")
"""


def in_a_python_with(gl: str, code: str) -> subprocess.CompletedProcess:
    """MuJoCo chooses its OpenGL when it is imported, so drawing is tested in a Python of its own, without a screen."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | {"MUJOCO_GL": gl}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def test_rgb_array_shows_the_scene():
    complaints = []
    for gl in ("egl", "osmesa"):
        result = in_a_python_with(gl, DRAW)
        if result.returncode == 0:
            assert result.stdout.strip() == "drawn"
            return
        if "Rendering needs OpenGL" not in result.stderr:
            pytest.fail(f"MUJOCO_GL={gl}: {result.stderr}")
        complaints.append(result.stderr.strip().splitlines()[-1])
    pytest.skip(f"no OpenGL for drawing without a screen was found: {complaints}")


@pytest.mark.parametrize("gl", ["nowhere", "glfw"])
def test_missing_opengl_is_one_sentence(gl):
    """'nowhere' fails when MuJoCo is imported, 'glfw' without a screen when the first picture is drawn."""
    code = (
        "import gymnasium, bcppo\n"
        "try:\n"
        "    env = gymnasium.make('bcppo/SafetyPointGoal1-v0', render_mode='rgb_array')\n"
        "    env.reset(seed=0)\n"
        "    env.render()\n"
        "except bcppo.BcppoError as error:\n"
        "    print(error)\n"
    )
    result = in_a_python_with(gl, code)
    assert result.returncode == 0, result.stderr
    (sentence,) = result.stdout.strip().splitlines()
    assert sentence.startswith("Rendering needs OpenGL: on a machine without a screen install libosmesa6")
    assert f"MUJOCO_GL is '{gl}'" in sentence
