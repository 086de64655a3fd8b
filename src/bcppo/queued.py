"""A learner's work on a GPU beside that of others: a queue of its own, graphs on their way there, numbers on their way
back.

On the CPU work is done when it is asked for, and there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Result = TypeVar("Result")


@contextmanager
def _behind(stream: Any, other: Callable[[torch.device], Any]) -> Iterator[None]:
    """Work inside goes into a stream, behind what another of its device's was asked for; on the CPU, without either."""
    if stream is None:
        yield
        return
    stream.wait_stream(other(stream.device))
    with torch.cuda.stream(stream):
        yield


class Queue:
    """Where a learner's work goes. On a GPU learners that take turns then do not wait for one another's."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work inside goes into the queue, behind all that was asked of the device outside of any.

        What it leaves may be used outside once it has arrived, and not before.
        """
        with _behind(self._stream, torch.cuda.default_stream):
            yield


class Aside:
    """A branch of a queue: work that runs beside what is asked for next, until the two are joined.

    What it reads must not be let go of before that. On the CPU it is done at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work inside comes behind all that was asked for so far, here and in the queue."""
        with _behind(self._stream, torch.cuda.current_stream):
            yield

    def join(self) -> None:
        """What is asked for next in the queue comes behind what was asked for here."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


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


class Launching:
    """A CUDA graph on its way into the queue it is made in.

    A graph of thousands of kernels takes milliseconds to launch. Another thread does that, without Python's lock, while
    this one sees to other learners. What comes behind the graph in the queue must wait until it is `ready`.
    """

    def __init__(self, replay: Callable[[], Any], device: torch.device) -> None:
        self._launched: Future[None] | None = None
        if device.type == "cuda":
            self._launched = _launcher().submit(_launch, replay, torch.cuda.current_stream(device))
        else:
            replay()

    def ready(self) -> bool:
        return self._launched is None or self._launched.done()

    def get(self) -> None:
        if self._launched is not None:
            self._launched.result()


@cache
def _launcher() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "launcher")


def _launch(replay: Callable[[], Any], stream: Any) -> None:
    with torch.cuda.stream(stream):
        replay()


def await_launches() -> None:
    """Until no graph is on its way: while one is captured, no other thread may be at work on the device."""
    _launcher().submit(int).result()


Awaited = Arriving | Launching


def settled(work: Generator[Awaited, None, Result]) -> Result:
    """What comes of work that hands over what it waits for; waited for here and now."""
    while True:
        try:
            next(work).get()
        except StopIteration as end:
            return end.value
