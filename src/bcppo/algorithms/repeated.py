"""A computation done over and over, on minibatch after minibatch: as it is on the CPU, as a CUDA graph on a GPU.

A minibatch of stacked runs is a few hundred small kernels, which a GPU runs faster than Python can launch them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bcppo.nets import Adam, capture

Metrics = dict[str, Tensor]
"""Name → [R]."""


class Repeated:
    """`step(data, *inputs)` takes optimisers' steps and returns metrics."""

    def __init__(
        self, step: Callable[..., Metrics], optimizers: Callable[[], Mapping[str, Adam]], device: torch.device
    ) -> None:
        self._step, self._optimizers, self._device = step, optimizers, device
        self._data: Sequence[Tensor] = ()
        self._inputs: Sequence[Tensor] = ()
        self._numbers: Tensor | None = None
        self._graph: Any = None
        self._names: list[str] = []
        self._seen: Tensor | None = None

    def begin(self, data: Sequence[Tensor]) -> None:
        """What stays the same over the minibatches to come."""
        if self._graph is None:
            self._data = data
            return
        for kept, new in zip(self._data, data):
            kept.copy_(new)

    def __call__(self, *inputs: Tensor) -> Metrics:
        if self._device.type != "cuda":
            return self._step(self._data, *inputs)
        numbers = torch.tensor([optimizer.numbers() for optimizer in self._optimizers().values()])
        if self._graph is None or self._numbers is None:
            self._capture(inputs, numbers)
        assert self._numbers is not None
        assert self._seen is not None
        for kept, new in zip((*self._inputs, self._numbers), (*inputs, numbers)):
            kept.copy_(new)
        self._graph.replay()
        return dict(zip(self._names, self._seen.clone().unbind(0)))

    def _capture(self, inputs: Sequence[Tensor], numbers: Tensor) -> None:
        self._inputs, self._numbers = [part.clone() for part in inputs], numbers.to(self._device)
        optimizers = list(self._optimizers().values())
        for optimizer, own in zip(optimizers, self._numbers):
            optimizer.by = own
        changing = [t for o in optimizers for t in (o.stack.flat.detach(), o.first, o.second)]
        self._graph = capture(self._take, changing)

    def _take(self) -> None:
        seen = self._step(self._data, *self._inputs)
        stacked = torch.stack([value.double() for value in seen.values()])
        self._names = list(seen)
        if self._seen is None:
            self._seen = stacked
        else:
            self._seen.copy_(stacked)
