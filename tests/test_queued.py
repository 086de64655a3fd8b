"""Numbers on their way from a learner's device to the host."""

from __future__ import annotations

import torch

from bcppo.queued import Arriving, Queue


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
