"""A policy without torch: what simulation workers, evaluation and deployment run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bcppo.config import RunConfig, to_json
from bcppo.records import FolderError, read_tensors, write_tensors


class NumpyPolicy:
    """A diagonal Gaussian policy on tanh hidden layers, in float32.

    `weights` holds weight0, bias0, … in the layout [in, out], and log_std; where the policy was trained on normalised
    observations also `offset`, `scale` [obs] and `bound` [1]: it sees (observation − offset) / scale, clipped to
    ±bound. The deterministic action is the mean clipped to the action space.
    """

    def __init__(self, weights: dict[str, np.ndarray], low: np.ndarray, high: np.ndarray) -> None:
        self.weights = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()}
        self.low, self.high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        count = sum(name.startswith("weight") for name in weights)
        self._layers = [(self.weights[f"weight{i}"], self.weights[f"bias{i}"]) for i in range(count)]
        self.std = np.exp(self.weights["log_std"])
        self._normalizes = "offset" in weights

    def mean(self, observation: np.ndarray) -> np.ndarray:
        """The unclipped mean action of an observation [obs] or of several [B, obs]."""
        hidden = np.asarray(observation, dtype=np.float32)
        if self._normalizes:
            hidden = (hidden - self.weights["offset"]) / self.weights["scale"]
            bound = self.weights["bound"]
            hidden = np.minimum(np.maximum(hidden, -bound), bound)
        for weight, bias in self._layers[:-1]:
            hidden = hidden @ weight
            hidden += bias
            np.tanh(hidden, out=hidden)
        weight, bias = self._layers[-1]
        return hidden @ weight + bias

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The deterministic action, inside the action space."""
        return np.minimum(np.maximum(self.mean(observation), self.low), self.high)

    def sample(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """An unclipped action drawn with standard normal `noise` (handed in, so that runs repeat)."""
        return self.mean(observation) + self.std * noise


def save_policy(path: Path, policy: NumpyPolicy, method: str, config: RunConfig) -> None:
    """The policy alone, with what it was trained for."""
    tensors = policy.weights | {"low": policy.low, "high": policy.high}
    write_tensors(path, tensors, {"method": method, "config": json.dumps(to_json(config), sort_keys=True)})


def load_policy(path: str | Path) -> NumpyPolicy:
    """A policy from its file; imports no torch."""
    tensors, _ = read_tensors(Path(path))
    if not {"weight0", "bias0", "log_std", "low", "high"} <= set(tensors):
        raise FolderError(f"{path} holds no policy.")
    low, high = tensors.pop("low"), tensors.pop("high")
    return NumpyPolicy(tensors, low, high)
