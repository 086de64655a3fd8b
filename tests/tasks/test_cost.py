"""The paper's rare-event cost by hand, the table of tasks, environments of one's own, and what happens to bad input."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import gymnasium
import mujoco
import numpy as np
import pytest

import bcppo
from bcppo.errors import BcppoError, ConfigError, MissingDependency
from bcppo.tasks import TASKS, Task, make_task

#            environment                     c_a    c_b   C_lim        observations, actions
PAPER = {
    "goal1": ("bcppo/SafetyPointGoal1-v0", 0.005, 10.0, 0.65, 60, 2),
    "button1": ("bcppo/SafetyPointButton1-v0", 0.01, 5.0, 0.65, 76, 2),
    "push1": ("bcppo/SafetyPointPush1-v0", 0.005, 10.0, 0.65, 76, 2),
    "hopper": ("Hopper-v4", 0.01, 5.0, 0.015898692, 11, 3),
    "ant": ("Ant-v4", 0.01, 5.0, 3.4, 27, 8),
}


def test_the_table_is_the_papers():
    assert list(TASKS) == list(PAPER)
    for name, (env_id, action_cost, boundary_cost, limit, *_) in PAPER.items():
        assert TASKS[name] == Task(name, env_id, action_cost, boundary_cost, limit, threshold=15.0, horizon=1000)
    with pytest.raises(FrozenInstanceError):
        TASKS["goal1"].threshold = 1.0


@pytest.mark.parametrize("name", PAPER)
def test_the_rare_event_cost_by_hand(name):
    """c_a·‖a‖² + c_b·1{‖o‖ > 15}, of the clipped action and of the observation in which it is taken."""
    _, action_cost, boundary_cost, limit, observations, actions = PAPER[name]
    env = make_task(name)
    assert env.observation_space.shape == (observations,)
    assert env.action_space.shape == (actions,)
    assert env.cost_limit_rate == limit
    random, hits, steps = np.random.default_rng(0), 0, 0
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        for _ in range(400):
            action = random.normal(scale=2.0, size=actions)
            beyond = math.sqrt(sum(float(x) ** 2 for x in observation)) > 15
            by_hand = action_cost * sum(min(max(float(x), -1.0), 1.0) ** 2 for x in action) + boundary_cost * beyond
            observation, _, terminated, truncated, info = env.step(action)
            assert info["cost"] == pytest.approx(by_hand, rel=1e-12)
            assert info["boundary_hit"] is beyond
            assert isinstance(info["cost"], float)
            assert info["native_cost"] in ((0.0,) if name in ("hopper", "ant") else (0.0, 1.0))
            hits, steps = hits + beyond, steps + 1
            if terminated or truncated:
                break
    assert 0 < hits < steps or name == "hopper"  # both sides of the boundary were seen


@pytest.mark.parametrize("name", PAPER)
def test_the_action_outside_the_box_is_executed_clipped(name):
    one, other = make_task(name), make_task(name)
    for env in (one, other):
        env.reset(seed=1)
    for scale in (3.0, -1e9):
        ones = np.full(one.action_space.shape, scale)
        first, second = one.step(ones), other.step(np.sign(ones))
        assert (first[0] == second[0]).all()
        assert first[1:] == second[1:]


@pytest.mark.parametrize("name", PAPER)
def test_without_clipping_the_action_is_charged_as_given_and_moves_no_more_than_the_clipped_one(name):
    raw, clipped = make_task(name, clip_actions=False), make_task(name)
    for env in (raw, clipped):
        env.reset(seed=1)
    assert np.isinf(raw.action_space.low).all()
    assert np.isinf(raw.action_space.high).all()
    action = np.full(raw.action_space.shape, 3.0)
    first, second = raw.step(action), clipped.step(action)
    assert (first[0] == second[0]).all()  # MuJoCo limits the actuators
    added = first[4]["cost"] - second[4]["cost"]
    assert added == pytest.approx(raw.task.action_cost * 8.0 * action.size)


@pytest.mark.parametrize("name", ["goal1", "button1", "push1"])
def test_native_cost_is_the_simulators_own(name):
    task, bare = make_task(name), gymnasium.make(PAPER[name][0])
    costs = []
    for env in (task, bare):
        env.reset(seed=0)
    for step in range(20):
        if step == 10:
            for base in (task.unwrapped, bare.unwrapped):  # a hazard comes to the agent
                base.model.body("hazard0").pos[:2] = base.data.body("agent").xpos[:2]
                mujoco.mj_forward(base.model, base.data)
        charged, native = task.step(np.array([0.1, 0.1])), bare.step(np.array([0.1, 0.1]))
        assert charged[4]["native_cost"] == native[4]["cost"]
        assert charged[1] == native[1]
        costs.append(native[4]["cost"])
    assert costs == [0.0] * 10 + [1.0] * 10


# --- environments of one's own --------------------------------------------------------------------------------------


class Line(gymnasium.Env):
    """Shows, one after the other, the observations it is given; says what it was told to do."""

    def __init__(self, rows=((0.0, 0.0),), info=None, six=False, observation_space=None, action_space=None) -> None:
        self.rows, self.info, self.six = [np.array(row) for row in rows], info or {}, six
        self.observation_space = observation_space or gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action_space or gymnasium.spaces.Box(-0.5, 2.0, (1,), np.float64)
        self.executed: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.rows[0].copy(), {}

    def step(self, action):
        self.executed.append(action)
        self.at = min(self.at + 1, len(self.rows) - 1)
        observation = self.rows[self.at].copy()
        cost = self.info.get("cost")
        rest = (False, False, {name: value for name, value in self.info.items() if not self.six or name != "cost"})
        return (observation, 1.0, cost, *rest) if self.six else (observation, 1.0, *rest)


gymnasium.register("bcppo-test/Line-v0", entry_point=Line)


def test_the_boundary_is_strict_and_looks_at_the_observation_acted_in():
    """Norms 15 (9, 12), a little more, 0: only the second counts, and it counts in the step taken there."""
    task = Task("line", "bcppo-test/Line-v0", action_cost=0.5, boundary_cost=4.0, cost_limit_rate=1.0)
    env = make_task(task, rows=((9.0, 12.0), (9.0, math.nextafter(12.0, 13.0) + 1e-9), (0.0, 0.0), (0.0, 0.0)))
    env.reset(seed=0)
    infos = [env.step(np.array([action]))[4] for action in (1.0, -3.0, 3.0)]
    assert [info["boundary_hit"] for info in infos] == [False, True, False]
    assert [info["cost"] for info in infos] == [0.5 * 1, 0.5 * 0.25 + 4, 0.5 * 4]  # −3 and 3 are clipped to −0.5 and 2
    assert [info["native_cost"] for info in infos] == [0.0, 0.0, 0.0]
    assert [float(action[0]) for action in env.unwrapped.executed] == [1.0, -0.5, 2.0]
    assert make_task(task, rows=((9.0, 12.0),)).reset(seed=0)
    other = make_task(replace(task, threshold=14.0), rows=((9.0, 12.0), (0.0, 0.0)))
    other.reset()
    assert other.step([0.0])[4]["boundary_hit"]
    other.reset()
    assert other.step([0.0])[4]["boundary_hit"]  # a reset looks anew


def test_a_tasks_horizon_is_its_time_limit():
    for name in ("hopper", "ant", "goal1"):
        env = make_task(replace(TASKS[name], horizon=3))
        env.reset(seed=0)
        assert [env.step(env.action_space.sample() * 0)[3] for _ in range(3)] == [False, False, True]


def test_a_cost_function_sees_the_observation_acted_in_and_the_executed_action():
    calls = []

    def cost(observation, action):
        calls.append((observation.tolist(), action.tolist()))
        return 0.25

    env = make_task(Line(rows=((1.0, 0.0), (2.0, 0.0))), cost=cost, cost_limit_rate=0.1)
    env.reset()
    _, reward, terminated, truncated, info = env.step(np.array([7.0]))
    env.step(np.array([0.5]))
    assert calls == [([1.0, 0.0], [2.0]), ([2.0, 0.0], [0.5])]
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert info == {"cost": 0.25, "native_cost": 0.0, "boundary_hit": False}
    assert env.cost_limit_rate == 0.1


@pytest.mark.parametrize("six", [False, True])
def test_an_environments_own_cost_is_taken(six):
    """From info["cost"], or from Safety-Gymnasium's (observation, reward, cost, terminated, truncated, info)."""
    env = make_task(Line(info={"cost": 3, "note": "kept"}, six=six), cost_limit_rate=0.5)
    env.reset()
    info = env.step([0.0])[4]
    assert info == {"cost": 3.0, "native_cost": 3.0, "note": "kept", "boundary_hit": False}
    other = make_task(Line(info={"cost": 3}, six=six), cost=lambda observation, action: 1, cost_limit_rate=0.5)
    other.reset()
    assert other.step([0.0])[4]["cost"] == 1.0
    assert other.step([0.0])[4]["native_cost"] == 3.0


def test_an_id_will_do_and_takes_options():
    env = make_task("bcppo-test/Line-v0", cost=lambda observation, action: 0.5, cost_limit_rate=0, rows=((5.0, 6.0),))
    assert env.reset()[0].tolist() == [5.0, 6.0]
    assert env.step([0.0])[4]["cost"] == 0.5
    own = make_task("bcppo/SafetyPointGoal2-v0", cost_limit_rate=0.025)
    own.reset(seed=0)
    assert own.step(np.zeros(2))[4]["cost"] == 0.0


# --- bad input: one clear sentence each -----------------------------------------------------------------------------


def complaint(kind: type[Exception], call, *args, **kwargs) -> str:
    """What is said, having checked that it is one line that ends like a sentence and quotes no traceback."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    said = str(caught.value)
    assert "\n" not in said
    assert "Traceback" not in said
    assert said[0].isupper() or said[0] == "'"
    assert said.endswith((".", "?")), said
    assert isinstance(caught.value, BcppoError)
    return said


def test_an_unknown_task_lists_the_names_and_the_nearest():
    said = complaint(ConfigError, make_task, "gaol1")
    assert said == (
        "There is no task named 'gaol1'; the tasks are ant, button1, goal1, hopper, push1. Did you mean 'goal1'?"
    )
    assert "Did you mean 'push1'?" in complaint(ConfigError, make_task, "Push")
    assert "Did you mean" not in complaint(ConfigError, make_task, "zzzzzz")
    assert "knows no environment 'Nowhere-v0'" in complaint(BcppoError, make_task, "Nowhere-v0", cost_limit_rate=1)
    assert "knows no environment 'no/Where-v0'" in complaint(BcppoError, make_task, "no/Where-v0", cost_limit_rate=1)
    assert "int was given" in complaint(ConfigError, make_task, 3, cost_limit_rate=1)


@pytest.mark.parametrize("name", PAPER)
def test_a_bad_action_is_refused_before_anything_moves(name):
    env, untouched = make_task(name), make_task(name)
    size = env.action_space.shape[0]
    for each in (env, untouched):
        each.reset(seed=0)
    for value in (math.nan, math.inf, -math.inf):
        action = np.zeros(size)
        action[-1] = value
        assert f"{value}] is not finite." in complaint(ConfigError, env.step, action)
    wrong = f"An action has shape ({size},) here, but shape ({size + 1},) was given."
    assert complaint(ConfigError, env.step, np.zeros(size + 1)) == wrong
    assert "but shape (1, " in complaint(ConfigError, env.step, np.zeros((1, size)))
    assert "but shape ()" in complaint(ConfigError, env.step, 0.0)
    assert f"is {size} numbers here, but 'left' was given" in complaint(ConfigError, env.step, "left")
    zeros = np.zeros(size)
    assert (env.step(zeros)[0] == untouched.step(zeros)[0]).all()


@pytest.mark.parametrize("cost", [math.nan, -0.5, math.inf, "0.5", None, [1.0, 2.0]])
def test_a_cost_that_is_none_is_refused(cost):
    said = "A cost is one finite number of at least 0, but the cost of this step was "
    function = make_task(Line(), cost=lambda observation, action: cost, cost_limit_rate=1)
    function.reset()
    assert complaint(BcppoError, function.step, [0.0]) == f"{said}{cost!r}."
    if cost is not None:
        reported = make_task(Line(info={"cost": cost}), cost_limit_rate=1)
        reported.reset()
        assert complaint(BcppoError, reported.step, [0.0]) == f"{said}{cost!r}."


def test_no_cost_at_all_is_one_sentence():
    env = make_task(Line(), cost_limit_rate=1)
    env.reset()
    assert "pass make_task a cost function: cost(observation, action)." in complaint(BcppoError, env.step, [0.0])


def test_a_missing_or_impossible_cost_limit_is_one_sentence():
    assert "needs a cost_limit_rate: the allowed mean cost per step." in complaint(ConfigError, make_task, Line())
    for limit in (-1, math.nan, math.inf, "much"):
        assert f"but {limit!r} was given." in complaint(ConfigError, make_task, Line(), cost_limit_rate=limit)
    assert "has a cost and a limit of its own" in complaint(ConfigError, make_task, "goal1", cost_limit_rate=1)
    assert "has a cost and a limit of its own" in complaint(ConfigError, make_task, "goal1", cost=lambda o, a: 1)
    assert "Options (rows) go with" in complaint(ConfigError, make_task, Line(), cost_limit_rate=1, rows=())


def test_impossible_tasks_are_refused_when_they_are_made():
    for field, value in (("action_cost", -1.0), ("boundary_cost", math.nan), ("threshold", math.inf), ("horizon", 0)):
        assert field in complaint(ConfigError, replace, TASKS["goal1"], **{field: value})


def test_spaces_that_are_not_boxes_are_refused():
    discrete = Line(action_space=gymnasium.spaces.Discrete(3))
    said = complaint(ConfigError, make_task, discrete, cost_limit_rate=1)
    assert said == "Only continuous (Box) actions are supported, but this environment's are Discrete."
    grid = Line(action_space=gymnasium.spaces.Box(-1, 1, (2, 2)))
    said = complaint(ConfigError, make_task, grid, cost_limit_rate=1)
    assert said == "An action must be one vector, but this environment's has shape (2, 2)."
    nested = Line(observation_space=gymnasium.spaces.Dict({"eyes": gymnasium.spaces.Box(0, 1, (3,))}))
    said = complaint(ConfigError, make_task, nested, cost_limit_rate=1)
    assert "this environment's is a Dict; gymnasium.wrappers.FlattenObservation" in said
    picture = Line(observation_space=gymnasium.spaces.Box(0, 1, (8, 8, 3)))
    assert "is shape (8, 8, 3)" in complaint(ConfigError, make_task, picture, cost_limit_rate=1)
    task = Task("line", "bcppo-test/Line-v0", action_cost=0.5, boundary_cost=4.0, cost_limit_rate=1.0)
    space = gymnasium.spaces.Dict({"eyes": gymnasium.spaces.Box(0, 1, (3,))})
    assert "is a Dict" in complaint(ConfigError, make_task, task, observation_space=space)


def test_a_missing_package_is_named():
    gymnasium.register("bcppo-test/Absent-v0", entry_point="a_package_nobody_has.envs:Absent")
    said = complaint(MissingDependency, make_task, "bcppo-test/Absent-v0", cost_limit_rate=1)
    assert said == "'bcppo-test/Absent-v0' needs the package 'a_package_nobody_has', which is not installed."
    said = complaint(MissingDependency, make_task, "a_package_nobody_has:Absent-v0", cost_limit_rate=1)
    assert "a_package_nobody_has" in said

    def refuse(**kwargs):
        raise gymnasium.error.DependencyNotInstalled("swig is not installed,\nrun `pip install swig`")

    gymnasium.register("bcppo-test/Swig-v0", entry_point=refuse)
    said = complaint(MissingDependency, make_task, "bcppo-test/Swig-v0", cost_limit_rate=1)
    assert said.startswith("'bcppo-test/Swig-v0' needs a package that is not installed: swig is not installed, run")


def test_the_public_names_are_these():
    assert bcppo.make_task is make_task
    assert bcppo.TASKS is TASKS
    assert issubclass(ConfigError, ValueError)
    assert issubclass(MissingDependency, ImportError)
