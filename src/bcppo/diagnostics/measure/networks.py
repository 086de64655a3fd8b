"""A learner's networks and memory as they are kept: by the checkpoint's names, without padding and optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcppo.errors import FolderError

_VALUES = "values.parameter."
"""Two networks in the on-policy methods: of the reward, then of the cost."""


def take_networks(learner: Any, *, reward_value: bool = True) -> dict[str, np.ndarray]:
    """A stack's first run; refuses networks whose padding is not 0, since it would not come back."""
    for name, optimizer in learner.optimizers().items():
        beyond = optimizer.stack.flat.detach().clone()
        for part in optimizer.stack.unpadded(beyond).values():
            part.zero_()
        if beyond.any():
            raise FolderError(f"The checkpoint's {name} hold numbers beyond the networks' outputs.")
    return {name: np.array(part.cpu().numpy()) for name, part in _parts(learner, 0, reward_value).items()}


@torch.no_grad()
def put_networks(learner: Any, index: int, tensors: Mapping[str, np.ndarray], *, reward_value: bool = True) -> None:
    """Put kept networks into place `index` of a new learner's stack, whose padding is 0 and whose optimisers are new.

    A reward value that was left out becomes NaN, so that nothing is ever computed from it unnoticed.
    """
    parts = _parts(learner, index, reward_value)
    for name in sorted(parts.keys() ^ tensors.keys()):
        what = f"{name} is missing" if name in parts else f"its config knows no {name}"
        raise FolderError(f"The kept networks do not fit their config: {what}.")
    for name, part in parts.items():
        array = torch.from_numpy(np.array(tensors[name]))
        if (array.shape, array.dtype) != (part.shape, part.dtype):
            found, wanted = (f"{list(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in (array, part))
            raise FolderError(f"The kept networks do not fit their config: {name} is {found}, not {wanted}.")
        part.copy_(array)
    if not reward_value:
        for part in learner.values.unpadded(learner.values.flat.detach()).values():
            part[index, 0] = torch.nan


def _parts(learner: Any, index: int, reward_value: bool) -> dict[str, Tensor]:
    """Views of one run of a stack."""
    parts = {f"controller.{key}": tensor[index] for key, tensor in learner.memory().items()}
    for name, optimizer in learner.optimizers().items():
        named = optimizer.stack.unpadded(optimizer.stack.flat.detach())
        parts |= {f"{name}.parameter.{part}": tensor[index] for part, tensor in named.items()}
    return parts if reward_value else {n: part[1:] if n.startswith(_VALUES) else part for n, part in parts.items()}
