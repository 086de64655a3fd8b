"""A learner's work on a GPU beside that of others: a queue of its own, and numbers on their way back from there.

On the CPU work is done when it is asked for, and there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Result = TypeVar("Result")


class Queue:
    """Where a learner's work goes. On a GPU learners that take turns then do not wait for one another's."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work inside goes into the queue, behind all that was asked of the device outside of any.

        What it leaves may be used outside once it has arrived, and not before.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.default_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield


class Arriving:
    """Metrics, name → [R], and tensors on their way to the host; made in the queue they are computed in.

    It is waited for as a collector is: `ready` says whether `get` hands over at once.
    """

    def __init__(self, metrics: Mapping[str, Tensor], *tensors: Tensor) -> None:
        self._here = {name: values for name, values in metrics.items() if values.device.type == "cpu"}
        away = {name: values.double() for name, values in metrics.items() if name not in self._here}
        self._names, sent = list(away), [torch.stack(list(away.values()))] if away else []
        # A copy from a GPU that does not block goes into memory that the GPU can write to by itself.
        arriving = [tensor.detach().to("cpu", copy=True, non_blocking=True) for tensor in (*sent, *tensors)]
        self._metrics, self._tensors = arriving[: len(sent)], arriving[len(sent) :]
        self._event: torch.cuda.Event | None = None
        if any(tensor.device.type == "cuda" for tensor in (*sent, *tensors)):
            self._event = torch.cuda.Event()
            self._event.record()

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def get(self) -> tuple[dict[str, np.ndarray], list[Tensor]]:
        """Metrics in float64, and the tensors."""
        if self._event is not None:
            self._event.synchronize()
        found = {name: values.double().numpy() for name, values in self._here.items()}
        for rows in self._metrics:
            found |= zip(self._names, rows.numpy())
        return found, self._tensors


def settled(work: Generator[Arriving, None, Result]) -> Result:
    """What comes of work that hands over what it waits for; waited for here and now."""
    while True:
        try:
            next(work)  # it asks what arrives for its numbers, and that waits
        except StopIteration as end:
            return end.value
