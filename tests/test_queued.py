"""Numbers on their way from a learner's device to the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

import pytest
import torch

from bcppo.queued import Arriving, Launching, Queue, await_launches, settled


def test_on_the_cpu_everything_has_arrived_and_is_a_copy() -> None:
    weights = torch.tensor([[1.0, 2.0]], requires_grad=True)
    with Queue(torch.device("cpu")).entered():
        arriving = Arriving({"loss": torch.tensor([0.5]), "cost": torch.tensor([0.1], dtype=torch.float64)}, weights)
    weights.data.zero_()
    assert arriving.ready()
    metrics, (kept,) = arriving.get()
    assert {name: values.tolist() for name, values in metrics.items()} == {"loss": [0.5], "cost": [0.1]}
    assert all(values.dtype == "float64" for values in metrics.values())
    assert kept.tolist() == [[1.0, 2.0]]
    assert not kept.requires_grad


def test_on_the_cpu_what_is_launched_is_done_and_work_is_waited_for_where_it_is_asked() -> None:
    done: list[int] = []

    def work():
        for number in (1, 2):
            launching = Launching(lambda number=number: done.append(number), torch.device("cpu"))
            assert launching.ready()
            yield launching
        arriving = Arriving({}, torch.tensor([3.0]))
        yield arriving
        return arriving.get()[1][0].tolist()

    await_launches()
    assert settled(work()) == [3.0]
    assert done == [1, 2]


def test_another_thread_launches_in_order_and_says_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the GPU: the stream is a name."""
    entered: list[str] = []
    launched: list[tuple[int, bool]] = []

    @contextmanager
    def stream(name: str) -> Iterator[None]:
        entered.append(name)
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "own")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    device = torch.device("cuda")

    def launch(number: int) -> None:
        launched.append((number, current_thread() is main_thread()))

    last = [Launching(lambda number=number: launch(number), device) for number in range(5)][-1]
    await_launches()
    assert last.ready()
    last.get()
    assert launched == [(number, False) for number in range(5)]
    assert entered == ["own"] * 5

    def fails() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        Launching(fails, device).get()
