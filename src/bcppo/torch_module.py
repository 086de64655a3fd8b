"""A policy for PyTorch users who do not have this library: a state dict, and the source of the module it fits.

PyTorch's own containers (TorchScript, torch.export) are archives with pickles in them. Weights as safetensors beside a
page of plain source hold nothing to unpickle, can be read before they are run, and do not depend on one release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from bcppo.errors import ConfigError

_SOURCE = '''"""A policy as a PyTorch module; needs torch and safetensors; nothing is unpickled.

    from {stem} import load
    action = load()(observation)  # float32, [obs] or [batch, obs]

The metadata (task, cost limit, spaces, provenance) are JSON in the header of the safetensors file: `metadata()`.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_name("{weights}")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
{layers}
        )
        for name, size in {buffers}.items():
            self.register_buffer(name, torch.zeros(size))

    def forward(self, observation):
{normalize}        action = {output}
        return torch.minimum(torch.maximum(action, self.low), self.high)


def load(path=WEIGHTS):
    policy = Policy()
    policy.load_state_dict(load_file(path))
    return policy.eval().requires_grad_(False)


def metadata(path=WEIGHTS):
    with safe_open(path, framework="pt") as file:
        return json.loads(json.loads(file.metadata()["notes"])["metadata"])
'''

_NORMALIZE = """        observation = (observation - self.offset) / self.scale
        observation = torch.minimum(torch.maximum(observation, -self.bound), self.bound)
"""
_OUTPUTS = {
    "clip": "self.layers(observation)",
    "squash": "torch.tanh(self.layers(observation)) * ((self.high - self.low) / 2) + (self.low + self.high) / 2",
}


def state_dict(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under the module's names, weights in PyTorch's layout [out, in]."""
    renamed = {}
    for name, array in tensors.items():
        for kind in ("weight", "bias"):
            if name.startswith(kind):
                renamed[f"layers.{2 * int(name[len(kind) :])}.{kind}"] = np.ascontiguousarray(array.T)
                break
        else:
            renamed[name] = array
    return renamed


def module_source(network: Mapping[str, Any], weights: str) -> str:
    """The module as source. Only numbers and this library's own words go into it, and the name of the weights' file."""
    if not re.fullmatch(r"[A-Za-z_]\w*\.safetensors", weights, re.ASCII):
        raise ConfigError(f"The file of a torch policy names a module too: letters, digits and _, but not '{weights}'.")
    sizes = network["sizes"]
    activation = {"tanh": "nn.Tanh()", "relu": "nn.ReLU()"}[network["activation"]]
    layers = f"\n            {activation},\n".join(f"            nn.Linear({a}, {b})," for a, b in pairwise(sizes))
    buffers = {"low": sizes[-1], "high": sizes[-1]}
    if network["normalizes"]:
        buffers |= {"offset": sizes[0], "scale": sizes[0], "bound": 1}
    return _SOURCE.format(
        stem=weights.removesuffix(".safetensors"),
        weights=weights,
        layers=layers,
        buffers=buffers,
        normalize=_NORMALIZE if network["normalizes"] else "",
        output=_OUTPUTS[network["output"]],
    )
