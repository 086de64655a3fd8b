"""What every run has, how a config is checked, stored and named; each method's own settings are in settings.py."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from bcppo.errors import ConfigError
from bcppo.tasks.table import TASKS

EVAL_FIRST_SEED = 10_000
"""Evaluation episode i is reset with seed EVAL_FIRST_SEED + i."""

OWN_TASK = "own"
"""The task's name in the records of a run whose environment came from Python, by `make_env`."""

DEVICES = ("cpu", "cuda", "auto")
NOT_PROTOCOL = ("seed", "device", "eval_every", "checkpoint_every", "log_every", "tensorboard")
"""Fields that tell runs of one protocol apart, or change nothing a result shows."""

LATER: dict[str, Any] = {"clip_actions": True}
"""Fields that came after the first runs were stored → what was done before. Where they hold that value they leave the
identifiers of runs and protocols alone, and a stored config without them is read as having it."""


@dataclass(frozen=True)
class RunConfig:
    """What every method has."""

    task: str = "goal1"
    """One of the paper's tasks, or the id of a Gymnasium environment that reports info['cost']."""
    seed: int = 0
    """Training seed: everything random in a run follows from it."""
    steps: int = 1_000_000
    """Environment steps to train for, rounded up to a whole rollout."""
    cost_limit_rate: float | None = None
    """Limit on the mean cost per step; the task's own where none is given."""
    clip_actions: bool = True
    """Clip actions to the action space before environment and cost see them; off hands over what was sampled."""
    num_envs: int = 1
    """Environments stepped in parallel, each in a process of its own when there are several."""
    eval_every: int = 200_000
    """Steps between evaluations while training; 0 evaluates at the end only."""
    eval_episodes: int = 20
    """Episodes in an evaluation, reset with seeds 10000, 10001, …"""
    checkpoint_every: int = 25_000
    """Steps between checkpoints: what a killed run may have to do over; in a GPU's stack at times twice as many."""
    log_every: int = 4096
    """Steps between points of the TensorBoard curves."""
    tensorboard: bool = True
    """Write TensorBoard curves into the run folder."""
    device: str = "cpu"
    """Where the learner computes: cpu, cuda or auto."""

    def __post_init__(self) -> None:
        _settle_types(self)
        require(self, "steps", self.steps >= 1, "at least 1")
        require(self, "seed", self.seed >= 0, "at least 0")
        require(self, "num_envs", self.num_envs >= 1, "at least 1")
        require(self, "eval_every", self.eval_every >= 0, "at least 0")
        require(self, "eval_episodes", self.eval_episodes >= 1, "at least 1")
        require(self, "checkpoint_every", self.checkpoint_every >= 1, "at least 1 step")
        require(self, "log_every", self.log_every >= 1, "at least 1 step")
        require(self, "device", self.device in DEVICES, "cpu, cuda or auto")
        if self.cost_limit_rate is not None:
            require_number(self, "cost_limit_rate", low=0.0)

    @property
    def limit_rate(self) -> float:
        """The limit in force, a mean cost per step."""
        if self.cost_limit_rate is not None:
            return self.cost_limit_rate
        if self.task in TASKS:
            return TASKS[self.task].cost_limit_rate
        raise ConfigError(
            f"The task '{self.task}' is not one of the paper's: give a cost_limit_rate, a mean cost per step."
        )

    @property
    def eval_seeds(self) -> range:
        return range(EVAL_FIRST_SEED, EVAL_FIRST_SEED + self.eval_episodes)


def text_of(value: Any) -> str:
    """A setting's value in a name: 64x64, true, 0.1."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_json(config: RunConfig) -> dict[str, Any]:
    return dataclasses.asdict(config)


def identity(config: RunConfig) -> dict[str, Any]:
    """The fields that tell a config from others: all, but for those that came later and change nothing."""
    return {name: value for name, value in to_json(config).items() if name not in LATER or value != LATER[name]}


def from_json(kind: type[RunConfig], values: dict[str, Any]) -> RunConfig:
    """A config from its stored fields; unknown or missing fields are refused, but for those that came later."""
    if not isinstance(values, dict):
        raise ConfigError("A stored config is not a set of fields.")
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in LATER.items() if name in known} | values
    if set(values) != known:
        odd = sorted(set(values) ^ known)
        raise ConfigError(f"A stored config does not fit this version: the fields {', '.join(odd)} differ.")
    return kind(**values)


def digest(values: Any) -> str:
    """A short name for a set of values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def protocol_id(method: str, config: RunConfig) -> str:
    """Runs with one identifier may stand in one table: same task, method and settings, whatever the seed or machine."""
    settings = {name: value for name, value in identity(config).items() if name not in NOT_PROTOCOL}
    settings["cost_limit_rate"] = config.limit_rate  # the task's own limit is the same protocol, given or not
    task = TASKS.get(config.task)
    return digest({"method": method, "settings": settings, "task": dataclasses.asdict(task) if task else config.task})


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError
    return float(value)


def _whole_number(value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    number = _number(value)  # 1e6 is a whole number too
    if not number.is_integer():
        raise ValueError
    return int(number)


def _instance(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError
        return value

    return check


def _widths(value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError
    return tuple(_whole_number(width) for width in value)


_KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("a whole number", _whole_number),
    "float": ("a number", _number),
    "float | None": ("a number or nothing", lambda value: None if value is None else _number(value)),
    "bool": ("true or false", _instance(bool)),
    "str": ("a text", _instance(str)),
    "tuple[int, ...]": ("one or more whole numbers", _widths),
}
"""A field's annotation → what it holds, in words, and how to make sure of it."""


def _settle_types(config: RunConfig) -> None:
    """Every field as its type: a setting then has one spelling, and β = 0 and β = 0.0 one protocol identifier."""
    for field in dataclasses.fields(config):
        words, convert = _KINDS[str(field.type)]
        value = getattr(config, field.name)
        try:
            object.__setattr__(config, field.name, convert(value))
        except (ValueError, OverflowError):
            raise ConfigError(f"{field.name} must be {words}, but {value!r} was given.") from None


def require(config: RunConfig, name: str, holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {what}, but {getattr(config, name)!r} was given.")


def require_same(configs: Sequence[Any], names: Iterable[str]) -> None:
    """Runs of one stack agree on what shapes its computation."""
    for name in names:
        if len({getattr(config, name) for config in configs}) > 1:
            raise ConfigError(f"Runs of one stack must agree on {name}; put these runs into separate fleets.")


def require_number(
    config: RunConfig, name: str, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> None:
    value = getattr(config, name)
    inside = (value > low if open_low else value >= low) and (value < high if open_high else value <= high)
    if not (math.isfinite(value) and inside):
        left, right = "(" if open_low else "[", ")" if open_high or math.isinf(high) else "]"
        top = "∞" if math.isinf(high) else f"{high:g}"
        raise ConfigError(f"{name} must be a number in {left}{low:g}, {top}{right}, but {value!r} was given.")
