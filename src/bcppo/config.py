"""What to run: frozen dataclasses, checked when they are made. The line under a field is its help in the CLI."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from bcppo.errors import ConfigError
from bcppo.tasks.table import TASKS

EVAL_FIRST_SEED = 10_000
"""Evaluation episode i is reset with seed EVAL_FIRST_SEED + i."""

_SHORT_ROLLOUTS = ("button1", "push1")
"""Tasks the paper trains with 256-step rollouts; see `paper_preset`."""

NOT_PROTOCOL = ("seed", "device", "eval_every", "checkpoint_every", "log_every", "tensorboard")
"""Fields that tell runs of one protocol apart, or change nothing a result shows."""


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
    num_envs: int = 1
    """Environments stepped in parallel, each in a process of its own when there are several."""
    eval_every: int = 200_000
    """Steps between evaluations while training; 0 evaluates at the end only."""
    eval_episodes: int = 20
    """Episodes in an evaluation, reset with seeds 10000, 10001, …"""
    checkpoint_every: int = 25_000
    """Steps between checkpoints: what a killed run may have to do over."""
    log_every: int = 4096
    """Steps between points of the TensorBoard curves."""
    tensorboard: bool = True
    """Write TensorBoard curves into the run folder."""
    device: str = "cpu"
    """Where the learner computes: cpu, cuda or auto."""

    def __post_init__(self) -> None:
        _settle_types(self)
        _require(self, "steps", self.steps >= 1, "at least 1")
        _require(self, "seed", self.seed >= 0, "at least 0")
        _require(self, "num_envs", self.num_envs >= 1, "at least 1")
        _require(self, "eval_every", self.eval_every >= 0, "at least 0")
        _require(self, "eval_episodes", self.eval_episodes >= 1, "at least 1")
        _require(self, "checkpoint_every", self.checkpoint_every >= 1, "at least 1 step")
        _require(self, "log_every", self.log_every >= 1, "at least 1 step")
        _require(self, "device", self.device in ("cpu", "cuda", "auto"), "cpu, cuda or auto")
        if self.cost_limit_rate is not None:
            _require_number(self, "cost_limit_rate", low=0.0)

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


@dataclass(frozen=True)
class PPOConfig(RunConfig):
    """The PPO family of the paper: one loop, one controller, several cost signals."""

    rollout: int = 1024
    """Steps collected between updates."""
    minibatch: int = 512
    """Rows in a gradient step."""
    epochs: int = 3
    """Passes over a rollout."""
    learning_rate: float = 3e-4
    """Adam's step size, for the policy, the values and the critics alike."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden tanh layers, of every network."""
    discount: float = 0.99
    """γ, of rewards and of costs."""
    trace_decay: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """ε of the clipped objective."""
    initial_log_std: float = -0.5
    """Log standard deviation the policy starts with."""
    max_grad_norm: float = 0.0
    """Gradient norm above which a network's gradient is scaled down; 0 for never, as in the paper."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy in its objective; 0 in the paper."""
    proportional_gain: float = 0.2
    """K_P of the multiplier's controller, on the error of the mean cost."""
    integral_gain: float = 0.02
    """K_I, on the sum of the errors."""
    derivative_gain: float = 0.05
    """K_D, on the change of the error."""
    multiplier_max: float = 50.0
    """λ_max, the multiplier's ceiling."""
    anti_windup: bool = True
    """Freeze the integral while the multiplier is saturated, and clip it on reversal."""
    branch_normalization: bool = True
    """Standardise the reward and cost branches apart; off is the paper's ablation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_batches(self)
        _require_number(self, "learning_rate", low=0.0, open_low=True)
        for name in ("discount", "trace_decay"):
            _require_number(self, name, low=0.0, high=1.0)
        _require_number(self, "clip", low=0.0, open_low=True)
        _require_number(self, "initial_log_std", low=-20.0, high=5.0)
        for name in ("max_grad_norm", "entropy_bonus", "proportional_gain", "integral_gain", "derivative_gain"):
            _require_number(self, name, low=0.0)
        _require_number(self, "multiplier_max", low=0.0, open_low=True)


@dataclass(frozen=True)
class BCPPOConfig(PPOConfig):
    """BCPPO: disagreement of an ensemble of cost critics, priced by Bachelier's expected excess."""

    members: int = 5
    """M, cost critics in the ensemble."""
    alpha: float = 0.95
    """α, the level of the reference strike, inside (0, 1)."""
    beta: float = 0.15
    """β, weight of the penalty in the cost branch; 0 is PPO with the PID multiplier."""
    kappa: float = 0.15
    """κ, shift of the strike further into the tail, in standard deviations."""
    keep_probability: float = 0.8
    """Chance that a sample enters a member's loss in a minibatch."""
    disagreement_floor: float = 1e-6
    """σ_min, below which the disagreement is not let fall."""
    raw_disagreement: bool = False
    """Penalise σ_c itself instead of h·σ_c (the paper's scale diagnostic: 69 times stronger at the defaults)."""
    bonus: bool = False
    """Put the penalty into the reward branch as a bonus (the paper's placement ablation)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self, "members", self.members >= 1, "at least 1")
        _require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        for name in ("beta", "kappa"):
            _require_number(self, name, low=0.0)
        _require_number(self, "keep_probability", low=0.0, high=1.0, open_low=True)
        _require_number(self, "disagreement_floor", low=0.0, open_low=True)


@dataclass(frozen=True)
class CPPOConfig(PPOConfig):
    """CPPO: a Monte Carlo upper-tail weight on the cost advantage."""

    alpha: float = 0.95
    """α, the level above which a trajectory's cost counts as tail, inside (0, 1)."""
    weight_max: float = 10.0
    """w_max, the largest weight. Branch normalisation takes it out again, so it matters without it only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        _require_number(self, "weight_max", low=0.0, open_low=True)


@dataclass(frozen=True)
class QRPPOConfig(PPOConfig):
    """QR PPO: the upper tail of a quantile cost critic in the cost branch."""

    quantiles: int = 32
    """N_q, heads of the critic; head i estimates the quantile of level (i + ½) / N_q."""
    alpha: float = 0.95
    """α: the mean of the quantiles of at least this level is the tail signal."""
    beta: float = 0.15
    """β, weight of the tail signal in the cost branch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self, "quantiles", self.quantiles >= 1, "at least 1")
        _require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        _require_number(self, "beta", low=0.0)
        highest = (self.quantiles - 0.5) / self.quantiles
        _require(self, "alpha", self.alpha <= highest, f"at most {highest:g}, the highest quantile of {self.quantiles}")


@dataclass(frozen=True)
class OmniConfig(RunConfig):
    """What PPOLag, FOCOPS and CPO share: OmniSafe 0.5.0's defaults with the paper's 2048 / 256 / 20."""

    steps: int = 999_424
    """Environment steps to train for, rounded up to a whole rollout; 488 rollouts of 2048 in the paper."""
    rollout: int = 2048
    """Steps collected between updates."""
    minibatch: int = 256
    """Rows in a gradient step."""
    epochs: int = 20
    """Passes over a rollout, fewer where the policy's KL divergence stops them."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for the two value networks; it does not decay."""
    critic_penalty: float = 1e-3
    """Weight of the sum of squares of a value network's parameters in its loss."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden tanh layers, of every network."""
    discount: float = 0.99
    """γ, of rewards and of costs."""
    trace_decay: float = 0.95
    """λ of generalised advantage estimation."""
    initial_log_std: float = 0.0
    """Log standard deviation the policy starts with."""
    max_grad_norm: float = 40.0
    """Gradient norm above which a network's gradient is scaled down; 0 for never."""
    target_kl: float = 0.02
    """KL divergence from the rollout's policy beyond which the policy is not to move."""
    normalize_observations: bool = True
    """Train and act on observations less their running mean, over their running standard deviation, clipped to ±5."""
    window: int = 50
    """Finished episodes over which the constraint's statistic is taken."""
    rate_units: bool = True
    """Compare a mean cost per step with cost_limit_rate, as the paper does; off compares episodes' summed cost."""
    episode_cost_limit: float = 25.0
    """Limit on an episode's summed cost, in force where rate_units is off only."""
    cost_advantage_scale: str = "length"
    """In rate units, what the cost advantage is divided by: length (the observed mean episode length) or one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_batches(self)
        for name in ("critic_learning_rate", "target_kl"):
            _require_number(self, name, low=0.0, open_low=True)
        for name in ("critic_penalty", "max_grad_norm", "episode_cost_limit"):
            _require_number(self, name, low=0.0)
        for name in ("discount", "trace_decay"):
            _require_number(self, name, low=0.0, high=1.0)
        _require_number(self, "initial_log_std", low=-20.0, high=5.0)
        _require(self, "window", self.window >= 1, "at least 1")
        _require(self, "cost_advantage_scale", self.cost_advantage_scale in ("length", "one"), "length or one")

    @property
    def updates(self) -> int:
        """Updates in a whole run."""
        return -(-self.steps // self.rollout)


@dataclass(frozen=True)
class LagrangeConfig(OmniConfig):
    """What PPOLag and FOCOPS share: a policy descended by Adam, and a multiplier ascended by Adam."""

    learning_rate: float = 3e-4
    """Adam's step size for the policy at the start."""
    learning_rate_decay: bool = True
    """Let the policy's step size fall linearly, to reach 0 with the end of the run."""
    multiplier_start: float = 0.001
    """λ before the first update."""
    multiplier_learning_rate: float = 0.035
    """Adam's step size for the multiplier, which climbs where the constraint's statistic is above the limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("learning_rate", "multiplier_learning_rate"):
            _require_number(self, name, low=0.0, open_low=True)
        _require_number(self, "multiplier_start", low=0.0)


@dataclass(frozen=True)
class PPOLagConfig(LagrangeConfig):
    """PPOLag: clipped PPO on (A_r − λ·A_c) / (1 + λ)."""

    clip: float = 0.2
    """ε of the clipped objective."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number(self, "clip", low=0.0, open_low=True)


@dataclass(frozen=True)
class FOCOPSConfig(LagrangeConfig):
    """FOCOPS: towards the best policy near the rollout's, sample by sample, as long as the sample stays near."""

    eta: float = 0.02
    """η: a sample whose KL divergence from the rollout's policy exceeds this drops out of the loss."""
    temperature: float = 1.5
    """Temperature of the target policy; the advantage is divided by it."""
    multiplier_max: float = 2.0
    """The multiplier's ceiling."""
    broadcast_kl: bool = False
    """Pair every sample's KL with every sample's advantage, as OmniSafe 0.5.0 does by a slip of shapes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eta", "temperature", "multiplier_max"):
            _require_number(self, name, low=0.0, open_low=True)


@dataclass(frozen=True)
class CPOConfig(OmniConfig):
    """CPO: one step a rollout to the solution of the linearised problem in a trust region."""

    epochs: int = 10
    """Passes of the value networks over a rollout; the policy takes one step."""
    critic_learning_rate: float = 1e-3
    """Adam's step size for the two value networks."""
    target_kl: float = 0.01
    """δ, the trust region's size: the KL divergence, averaged over the action's axes too, as OmniSafe has it."""
    damping: float = 0.1
    """What is added to the diagonal of the Fisher matrix."""
    conjugate_gradient_steps: int = 10
    """Iterations of each of the two linear solves."""
    search_steps: int = 20
    """Step lengths tried, each 0.8 times the one before; the policy stays where none is good."""
    release_dual: bool = False
    """Solve the dual with the sign of gᵀH⁻¹b as in OmniSafe 0.5.0, where it is reversed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number(self, "damping", low=0.0)
        for name in ("conjugate_gradient_steps", "search_steps"):
            _require(self, name, getattr(self, name) >= 1, "at least 1")


def paper_preset(method_config: type[RunConfig], task: str) -> RunConfig:
    """The paper's settings of a method on a task."""
    if issubclass(method_config, PPOConfig) and task in _SHORT_ROLLOUTS:
        return method_config(task=task, rollout=256, minibatch=64, epochs=4)
    return method_config(task=task)


def to_json(config: RunConfig) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_json(kind: type[RunConfig], values: dict[str, Any]) -> RunConfig:
    """A config from its stored fields; unknown or missing fields are refused."""
    if not isinstance(values, dict):
        raise ConfigError("A stored config is not a set of fields.")
    known = {field.name for field in dataclasses.fields(kind)}
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
    settings = {name: value for name, value in to_json(config).items() if name not in NOT_PROTOCOL}
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


def _require(config: RunConfig, name: str, holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {what}, but {getattr(config, name)!r} was given.")


def _require_batches(config: PPOConfig | OmniConfig) -> None:
    _require(config, "rollout", config.rollout >= 2, "at least 2 steps")
    whole = f"the rollout's {config.rollout} steps"
    _require(config, "minibatch", 1 <= config.minibatch <= config.rollout, f"between 1 and {whole}")
    _require(config, "minibatch", config.rollout % config.minibatch == 0, f"a divisor of {whole}")
    _require(config, "num_envs", config.rollout % config.num_envs == 0, f"a divisor of {whole}")
    _require(config, "epochs", config.epochs >= 1, "at least 1")
    _require(config, "hidden", bool(config.hidden) and min(config.hidden) >= 1, "one or more positive widths")


def _require_number(
    config: RunConfig, name: str, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> None:
    value = getattr(config, name)
    inside = (value > low if open_low else value >= low) and (value < high if open_high else value <= high)
    if not (math.isfinite(value) and inside):
        left, right = "(" if open_low else "[", ")" if open_high or math.isinf(high) else "]"
        top = "∞" if math.isinf(high) else f"{high:g}"
        raise ConfigError(f"{name} must be a number in {left}{low:g}, {top}{right}, but {value!r} was given.")
