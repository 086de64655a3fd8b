"""What a BCPPO run's cost critics say about logged steps: μ_c and σ_c of observations and actions, without torch.

For looking back at a deployed policy's logs: where do the critics of its training expect cost, and where do they
disagree? **σ_c is not a probability**: neither the chance of a costly event nor a bound on an error. In the paper it
ranks boundary hits (AUC 0.868) and is all but unrelated to the critics' own error (Spearman −0.030). A high σ_c says
that the critics saw little like this step; a low one does not say that it is safe.

>>> from bcppo.monitor import load_monitor                   # doctest: +SKIP
>>> monitor = load_monitor("runs/goal1-0")                   # doctest: +SKIP
>>> mu_c, sigma_c = monitor.measure(observations, actions)   # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bcppo.errors import BcppoError, ConfigError, FolderError
from bcppo.tensors import read_tensors

_ROWS = 4096
"""Rows taken at once: a log of any length fits in memory."""
_PREFIX = "critics.parameter."


class Measured(NamedTuple):
    """Of each logged step, [N] float32."""

    mu_c: np.ndarray
    """Mean of the critics' predictions of the discounted cost to come (eq:mu)."""
    sigma_c: np.ndarray
    """Their population standard deviation, at least the run's floor (eq:sigma). Not a probability."""


class Monitor:
    """The M cost critics of a run, in float32."""

    def __init__(
        self, layers: list[tuple[np.ndarray, np.ndarray]], policy: Mapping[str, np.ndarray], floor: float
    ) -> None:
        """`policy`: the action space's low and high, and where observations are normalised, offset, scale and bound."""
        self._layers, self._floor = layers, np.float32(floor)
        self._low, self._high = (policy[name].astype(np.float32) for name in ("low", "high"))
        names = ("offset", "scale", "bound") if "offset" in policy else ()
        self._normalization = [policy[name].astype(np.float32) for name in names]
        self.members = layers[0][0].shape[0]
        self.action_width = len(self._low)
        self.observation_width = layers[0][0].shape[1] - self.action_width

    def predict(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Each critic's prediction, [M, N]; actions as logged, clipped here as the critics saw them in training."""
        observations, actions = self._rows(observations, actions)
        parts = []
        for start in range(0, len(observations), _ROWS):
            rows = slice(start, start + _ROWS)
            executed = np.clip(actions[rows], self._low, self._high)
            hidden = np.concatenate([self._seen(observations[rows]), executed], axis=1)[None]
            for weight, bias in self._layers[:-1]:
                hidden = np.tanh(hidden @ weight + bias[:, None])
            weight, bias = self._layers[-1]
            parts.append((hidden @ weight + bias[:, None])[..., 0])
        return np.concatenate(parts, axis=1) if parts else np.zeros((self.members, 0), np.float32)

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        """What the critics are shown of observations."""
        if not self._normalization:
            return observations
        offset, scale, bound = self._normalization
        return np.clip((observations - offset) / scale, -bound, bound)

    def measure(self, observations: np.ndarray, actions: np.ndarray) -> Measured:
        """μ_c and σ_c of logged steps: observations [N, obs] in which actions [N, act] were taken."""
        predictions = self.predict(observations, actions)
        return Measured(predictions.mean(axis=0), np.maximum(predictions.std(axis=0), self._floor))

    def _rows(self, observations: Any, actions: Any) -> tuple[np.ndarray, np.ndarray]:
        observations, actions = (np.atleast_2d(np.asarray(rows, np.float32)) for rows in (observations, actions))
        expected = (self.observation_width,), (self.action_width,)
        if (observations.shape[1:], actions.shape[1:]) != expected or len(observations) != len(actions):
            raise ConfigError(
                f"The log must hold as many observations of {expected[0][0]} numbers as actions of {expected[1][0]}, "
                f"but their shapes are {observations.shape} and {actions.shape}."
            )
        for name, rows in (("observations", observations), ("actions", actions)):
            if not np.isfinite(rows).all():
                raise BcppoError(f"The log's {name} are not all finite.")
        return observations, actions


def load_monitor(folder: str | Path) -> Monitor:
    """The critics that a BCPPO run ended its training with, from its checkpoint."""
    folder = Path(folder)
    settings = _settings(folder)
    checkpoint, _ = read_tensors(folder / "checkpoint.safetensors")
    policy, _ = read_tensors(folder / "policy.safetensors")
    try:
        layers = _layers(checkpoint, settings, len(policy["low"]))
        return Monitor(layers, policy, float(settings["disagreement_floor"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FolderError(f"The checkpoint in {folder} does not fit its config: {error}.") from error


def _settings(folder: Path) -> Mapping[str, Any]:
    try:
        stored = json.loads((folder / "config.json").read_text())
        method, settings = stored["method"], stored["config"]
    except OSError as error:
        raise FolderError(f"{folder} holds no run: there is no config.json in it.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FolderError(f"{folder / 'config.json'} is not that of a run.") from error
    if method != "bcppo":
        raise ConfigError(f"Only a BCPPO run has an ensemble of cost critics to monitor with; this one is {method!r}.")
    return settings


def _layers(tensors: Mapping[str, np.ndarray], settings: Mapping[str, Any], actions: int) -> list:
    """(weight [M, in, out], bias [M, out]) of each layer; the last is stored wider than it is and cut to one number."""
    hidden, members = settings["hidden"], settings["members"]
    first = tensors[f"{_PREFIX}weight0"].shape[1]
    sizes = [first, *hidden, 1]
    if first <= actions:
        raise ValueError("the critics see no observation")
    layers = []
    for layer, (width_in, width_out) in enumerate(pairwise(sizes)):
        weight, bias = (tensors[f"{_PREFIX}{name}{layer}"] for name in ("weight", "bias"))
        weight, bias = weight[..., :width_out], bias[..., :width_out]
        if weight.shape != (members, width_in, width_out) or bias.shape != (members, width_out):
            raise ValueError(f"layer {layer} has shape {weight.shape}")
        if weight.dtype != np.float32 or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError(f"layer {layer} is not finite float32")
        layers.append((np.ascontiguousarray(weight), np.ascontiguousarray(bias)))
    return layers
