"""The methods, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from bcppo.config import RunConfig
from bcppo.settings import (
    BCPPOConfig,
    CPOConfig,
    CPPOConfig,
    FOCOPSConfig,
    PPOConfig,
    PPOLagConfig,
    QRPPOConfig,
    WCSACConfig,
)


@dataclass(frozen=True)
class Method:
    """A method: its settings, how to make its learner, and what it is."""

    config: type[RunConfig]
    learner: Callable[[], Any]
    """Returns the learner's class; called late, since learners import torch. Its `shared_fields` are the settings that
    runs of one stack have in common."""
    summary: str
    off_policy: bool = False
    """Whether it learns after every step from stored transitions, not from a rollout at a time."""


def _with_signal(module: str, signal: str) -> Callable[[], Any]:
    """BCPPO's loop with another cost signal."""

    def load() -> Any:
        from bcppo.algorithms.bcppo import BCPPO

        kind = getattr(import_module(f"bcppo.algorithms.{module}"), signal)
        learner: Any = partial(BCPPO, signal=kind)
        learner.shared_fields = (*BCPPO.shared_fields, *kind.shared_fields)
        return learner

    return load


def _learner(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(import_module(f"bcppo.algorithms.{module}"), name)


METHODS: dict[str, Method] = {
    "bcppo": Method(
        BCPPOConfig, _with_signal("bcppo", "Disagreement"), "the priced disagreement of cost critics in the cost branch"
    ),
    "ppopid": Method(PPOConfig, _with_signal("ppo", "NoSignal"), "PPO with the PID multiplier: BCPPO with β = 0"),
    "ppo": Method(PPOConfig, _with_signal("ppo", "Unconstrained"), "PPO on the reward alone; cost is only measured"),
    "cppo": Method(CPPOConfig, _with_signal("cppo", "TailWeight"), "a Monte Carlo tail weight on the cost advantage"),
    "qrppo": Method(QRPPOConfig, _with_signal("qrppo", "QuantileTail"), "the upper tail of a quantile cost critic"),
    "ppolag": Method(PPOLagConfig, _learner("ppolag", "PPOLag"), "clipped PPO with a multiplier, as in OmniSafe 0.5.0"),
    "focops": Method(FOCOPSConfig, _learner("focops", "FOCOPS"), "first-order constrained steps in policy space"),
    "cpo": Method(CPOConfig, _learner("cpo", "CPO"), "a constrained step in a trust region, with a line search"),
    "wcsac": Method(
        WCSACConfig, _learner("wcsac", "WCSAC"), "soft actor-critic under a Gaussian CVaR of the cost", off_policy=True
    ),
}

CONFIGS: dict[str, type[RunConfig]] = {name: method.config for name, method in METHODS.items()}
