"""The methods, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bcppo.config import BCPPOConfig, RunConfig


@dataclass(frozen=True)
class Method:
    """A method: its settings, how to make its learner, and what it is."""

    config: type[RunConfig]
    learner: Callable[[], Any]
    """Returns the learner's class; called late, since learners import torch."""
    summary: str


def _bcppo() -> Any:
    from bcppo.algorithms.bcppo import BCPPO

    return BCPPO


METHODS: dict[str, Method] = {
    "bcppo": Method(BCPPOConfig, _bcppo, "PPO-Lagrangian whose cost branch prices the disagreement of cost critics"),
}

CONFIGS: dict[str, type[RunConfig]] = {name: method.config for name, method in METHODS.items()}
