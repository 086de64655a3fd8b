"""What to run: each method's settings, checked when they are made. The line under a field is its help in the CLI."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from bcppo.config import RunConfig, require, require_number
from bcppo.errors import ConfigError, unknown_name

_SHORT_ROLLOUTS = ("button1", "push1")
"""Tasks the paper trains with 256-step rollouts; see `paper_preset`."""


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
    normalize_observations: bool = False
    """Train and act on observations less their running mean, over their running standard deviation, clipped to ±5."""
    reward_scale: float = 1.0
    """Factor on the rewards that values and advantages are learnt from; records keep the environment's."""
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
        require_number(self, "learning_rate", low=0.0, open_low=True)
        for name in ("discount", "trace_decay"):
            require_number(self, name, low=0.0, high=1.0)
        require_number(self, "clip", low=0.0, open_low=True)
        require_number(self, "initial_log_std", low=-20.0, high=5.0)
        for name in ("max_grad_norm", "entropy_bonus", "proportional_gain", "integral_gain", "derivative_gain"):
            require_number(self, name, low=0.0)
        for name in ("multiplier_max", "reward_scale"):
            require_number(self, name, low=0.0, open_low=True)


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
        require(self, "members", self.members >= 1, "at least 1")
        require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        for name in ("beta", "kappa"):
            require_number(self, name, low=0.0)
        require_number(self, "keep_probability", low=0.0, high=1.0, open_low=True)
        require_number(self, "disagreement_floor", low=0.0, open_low=True)


@dataclass(frozen=True)
class CPPOConfig(PPOConfig):
    """CPPO: a Monte Carlo upper-tail weight on the cost advantage."""

    alpha: float = 0.95
    """α, the level above which a trajectory's cost counts as tail, inside (0, 1)."""
    weight_max: float = 10.0
    """w_max, the largest weight. Branch normalisation takes it out again, so it matters without it only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        require_number(self, "weight_max", low=0.0, open_low=True)


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
        require(self, "quantiles", self.quantiles >= 1, "at least 1")
        require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        require_number(self, "beta", low=0.0)
        highest = (self.quantiles - 0.5) / self.quantiles
        require(self, "alpha", self.alpha <= highest, f"at most {highest:g}, the highest quantile of {self.quantiles}")


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
            require_number(self, name, low=0.0, open_low=True)
        for name in ("critic_penalty", "max_grad_norm", "episode_cost_limit"):
            require_number(self, name, low=0.0)
        for name in ("discount", "trace_decay"):
            require_number(self, name, low=0.0, high=1.0)
        require_number(self, "initial_log_std", low=-20.0, high=5.0)
        require(self, "window", self.window >= 1, "at least 1")
        require(self, "cost_advantage_scale", self.cost_advantage_scale in ("length", "one"), "length or one")

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
            require_number(self, name, low=0.0, open_low=True)
        require_number(self, "multiplier_start", low=0.0)


@dataclass(frozen=True)
class PPOLagConfig(LagrangeConfig):
    """PPOLag: clipped PPO on (A_r − λ·A_c) / (1 + λ)."""

    clip: float = 0.2
    """ε of the clipped objective."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "clip", low=0.0, open_low=True)


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
            require_number(self, name, low=0.0, open_low=True)


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
        require_number(self, "damping", low=0.0)
        for name in ("conjugate_gradient_steps", "search_steps"):
            require(self, name, getattr(self, name) >= 1, "at least 1")


@dataclass(frozen=True)
class WCSACConfig(RunConfig):
    """WCSAC, Gaussian: soft actor-critic under a limit on the CVaR of the discounted cost."""

    steps: int = 1_000_000
    """Environment steps to train for, exactly."""
    minibatch: int = 256
    """Stored transitions in an update; an update follows every step."""
    buffer: int = 1_000_000
    """Transitions kept; the oldest make room."""
    random_steps: int = 500
    """Steps taken uniformly at random before the first update."""
    learning_rate: float = 1e-3
    """Adam's step size for the policy, the critics and the entropy temperature."""
    multiplier_rate_factor: float = 50.0
    """Step size of the safety temperature β, as a multiple of learning_rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden ReLU layers, of every network."""
    discount: float = 0.99
    """γ, of rewards and of costs."""
    polyak: float = 0.995
    """What the target networks keep of themselves in an update."""
    alpha: float = 0.95
    """α, the level of the CVaR, inside (0, 1); the risk level of the method's paper is 1 − α."""
    damp: float = 10.0
    """Weight with which the constraint's slack is taken off β in the policy's objective."""
    target_entropy: float = -1.0
    """Entropy the temperature steers the policy to, for each axis of the action."""
    horizon: int = 1000
    """T: the discounted limit is C_lim·(1 − γ^T) / (1 − γ), what T steps at the limit cost."""
    release_variance_target: bool = False
    """Leave (1 − d) out of the variance's target, as the public code does."""
    window: int = 1000
    """Steps between rows of progress; evaluations and checkpoints come at their ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("minibatch", "random_steps", "horizon", "window"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        require(self, "buffer", self.buffer >= self.minibatch, f"at least the minibatch's {self.minibatch}")
        require(self, "num_envs", self.num_envs == 1, "1, since an update follows every single step")
        require(self, "hidden", bool(self.hidden) and min(self.hidden) >= 1, "one or more positive widths")
        for name in ("learning_rate", "multiplier_rate_factor"):
            require_number(self, name, low=0.0, open_low=True)
        for name in ("discount", "polyak"):
            require_number(self, name, low=0.0, high=1.0)
        require_number(self, "alpha", low=0.0, high=1.0, open_low=True, open_high=True)
        require_number(self, "damp", low=0.0)
        require_number(self, "target_entropy", low=-20.0, high=math.log(2.0))

    @property
    def discounted_limit(self) -> float:
        """D, the limit in force on the scale of a discounted sum of costs."""
        if self.discount == 1.0:
            return self.limit_rate * self.horizon
        return self.limit_rate * (1.0 - self.discount**self.horizon) / (1.0 - self.discount)


def paper_preset(method_config: type[RunConfig], task: str) -> RunConfig:
    """The paper's settings of a method on a task."""
    if issubclass(method_config, PPOConfig) and task in _SHORT_ROLLOUTS:
        return method_config(task=task, rollout=256, minibatch=64, epochs=4)
    return method_config(task=task)


QUICK: dict[str, Any] = {
    "steps": 100_000, "rollout": 1024, "minibatch": 256, "epochs": 3, "learning_rate": 5e-4, "proportional_gain": 0.02,
    "integral_gain": 0.0, "derivative_gain": 0.0, "multiplier_max": 1.0,
}  # fmt: skip
"""What a first look changes. The paper's controller adds the sum of the errors to λ itself: λ climbs at once and for
long, and the reward waits for it to come back. This one lets λ grow slowly, and no further than the reward's weight.
Found on Goal1 with seeds 100 to 104 (docs/results.md)."""


def make_preset(name: str, method: str, method_config: type[RunConfig], task: str) -> RunConfig:
    """'paper', the paper's protocol, or 'quick', settings of ours with which short runs of the PPO family learn."""
    preset = paper_preset(method_config, task)
    if name == "paper":
        return preset
    if name != "quick":
        raise unknown_name("preset", name, ("paper", "quick"))
    if not isinstance(preset, PPOConfig):
        raise ConfigError(f"The preset 'quick' is for the PPO family; '{method}' has the preset 'paper' only.")
    return replace(preset, **QUICK)


def _require_batches(config: PPOConfig | OmniConfig) -> None:
    require(config, "rollout", config.rollout >= 2, "at least 2 steps")
    whole = f"the rollout's {config.rollout} steps"
    require(config, "minibatch", 1 <= config.minibatch <= config.rollout, f"between 1 and {whole}")
    require(config, "minibatch", config.rollout % config.minibatch == 0, f"a divisor of {whole}")
    require(config, "num_envs", config.rollout % config.num_envs == 0, f"a divisor of {whole}")
    require(config, "epochs", config.epochs >= 1, "at least 1")
    require(config, "hidden", bool(config.hidden) and min(config.hidden) >= 1, "one or more positive widths")
