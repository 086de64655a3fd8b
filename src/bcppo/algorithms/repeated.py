"""Computations done over and over, above all on minibatch after minibatch: as they are on the CPU, as CUDA graphs on a
GPU.

A minibatch of stacked runs is a few hundred small kernels, which a GPU runs faster than Python can launch them. So the
minibatches are one graph: what they take goes over before it, and what they leave is fetched after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.nets import capture
from bcppo.queued import Awaited, Launching

MOST = 32
"""Minibatches in one graph: more are several graphs' work, since a graph's memory and the time to make it grow."""

Metrics = dict[str, Tensor]
"""Name → [R], or of several minibatches [K, R]."""


def total(values: Tensor) -> Tensor:
    """The sum over minibatches, [K, R] → [R]; on the CPU one by one, so that it rounds alike however many runs."""
    return values.sum(0) if values.device.type == "cuda" else reduce(torch.add, values.unbind(0))


class Captured:
    """`compute(fixed, *inputs)` of tensors whose shapes stay the same: on a GPU a CUDA graph, made when first needed.

    `fixed` is what is no tensor; where it changes, so does the graph.
    """

    def __init__(self, compute: Callable[..., Sequence[Tensor]], device: torch.device) -> None:
        self._compute, self._captures = compute, device.type == "cuda"
        self._fixed: Any = None
        self._inputs: Sequence[Tensor] = ()
        self._outputs: Sequence[Tensor] = ()
        self._graph: Any = None

    def __call__(self, fixed: Any, *inputs: Tensor) -> Sequence[Tensor]:
        """What it computes holds until the next call."""
        if not self._captures:
            return self._compute(fixed, *inputs)
        if self._graph is None or fixed != self._fixed:
            self._fixed, self._inputs = fixed, [tensor.clone() for tensor in inputs]
            self._graph = capture(self._keep, [])
        for kept, new in zip(self._inputs, inputs):
            kept.copy_(new)
        self._graph.replay()
        return self._outputs

    def _keep(self) -> None:
        self._outputs = self._compute(self._fixed, *self._inputs)


class Repeated:
    """`step(data, *inputs)` takes optimisers' steps and returns metrics."""

    def __init__(
        self, step: Callable[..., Metrics], optimizers: Callable[[], Mapping[str, Adam]], device: torch.device
    ) -> None:
        self._step, self._optimizers, self._device = step, optimizers, device
        self._captures = device.type == "cuda"
        self._data: Sequence[Tensor] = ()
        self._inputs: Sequence[Tensor] = ()
        self._graph: Any = None
        self._streams: list[Any] = []

    def begin(self, data: Sequence[Tensor]) -> None:
        """What stays the same over the minibatches to come."""
        if self._graph is None:
            self._data = data
            return
        for kept, new in zip(self._data, data):
            kept.copy_(new)

    def beside(self, *parts: Callable[[], Metrics]) -> Metrics:
        """Parts of a step that do not need one another: on a GPU side by side, each on a stream of its own.

        What is differentiated in a part must have been computed in it, but for the last, which stays where the step is.
        What parts take from the step must outlive this call.
        """
        if self._device.type != "cuda":
            return {name: value for part in parts for name, value in part().items()}
        *others, last = parts
        here, found = torch.cuda.current_stream(), Metrics()
        while len(self._streams) < len(others):
            self._streams.append(torch.cuda.Stream(self._device))
        for part, stream in zip(others, self._streams):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                found |= part()
        found |= last()
        for stream in self._streams[: len(others)]:
            here.wait_stream(stream)
        return found

    def over(self, minibatches: Iterable[tuple[Tensor, ...]]) -> Generator[Awaited, None, Metrics]:
        """The step for each minibatch's inputs in turn; metrics of each, [K, R]. Hands over what it waits for."""
        if not self._captures:
            each = [self._step(self._data, *inputs) for inputs in minibatches]
            return {name: torch.stack([one[name] for one in each]) for name in each[0]}
        inputs = [torch.stack(column) for column in zip(*minibatches)]
        count, optimizers = len(inputs[0]), list(self._optimizers().values())
        together = max(size for size in range(1, min(count, MOST) + 1) if count % size == 0)
        numbers = np.stack([optimizer.numbers(count) for optimizer in optimizers], axis=1)  # [K, O, 4, R]
        inputs.append(torch.from_numpy(numbers).float().to(self._device, non_blocking=True))
        if self._graph is None or together != len(self._inputs[0]):
            self._capture([column[:together] for column in inputs], optimizers)
        seen = []
        for part in zip(*(column.split(together) for column in inputs)):
            for kept, new in zip(self._inputs, part):
                kept.copy_(new)
            launching = Launching(self._graph.replay, self._device)
            yield launching
            launching.get()
            seen.append(self._seen.clone())
        return dict(zip(self._names, torch.cat(seen).unbind(1)))

    def _capture(self, inputs: Sequence[Tensor], optimizers: Sequence[Adam]) -> None:
        """So many minibatches as one graph."""
        self._graph = None
        self._inputs = [column.clone() for column in inputs]
        changing = [t for o in optimizers for t in (o.stack.flat.detach(), o.first, o.second)]
        self._graph = capture(lambda: self._take_all(optimizers), changing)

    def _take_all(self, optimizers: Sequence[Adam]) -> None:
        seen: list[Metrics] = []
        for *inputs, numbers in zip(*self._inputs):
            for optimizer, own in zip(optimizers, numbers):
                optimizer.by = own
            seen.append(self._step(self._data, *inputs))
        self._names = list(seen[0])
        rows = [torch.stack([value.double() for value in one.values()]) for one in seen]
        self._seen = torch.stack(rows)  # [K, names, R]
