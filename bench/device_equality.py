"""How far an update on a GPU is from the same update on the CPU: `python bench/device_equality.py [--device cuda]`.

Three runs of each method in a stack, the same weights, rollouts and random streams; after one and three updates, the
largest difference of any weight, beside the largest change that the updates made to one. On a GPU the last column is
between what is computed once a rollout as a CUDA graph and the same without one: 0 where nothing but speed differs.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from bcppo.algorithms import METHODS
from bcppo.algorithms.batch import Batch
from bcppo.settings import paper_preset
from bcppo.streams import Streams

WIDTHS = (60, 2)


def batch(seed: int, runs: int, rows: int, device: torch.device) -> Batch:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.standard_normal(shape, dtype=np.float32)).to(device)

    action = normal(runs, rows, WIDTHS[1])
    ends = torch.from_numpy(random.random((runs, rows)) < 0.01).to(device)
    return Batch(
        normal(runs, rows, WIDTHS[0]), normal(runs, rows, WIDTHS[0]), action, action.clamp(-1, 1),
        normal(runs, rows).double(), normal(runs, rows).abs().double() * 3, ends, ends, 1, [[(500.0, 300.0)]] * runs,
    )  # fmt: skip


def weights(learner: Any) -> torch.Tensor:
    flats = [optimizer.stack.flat.detach().flatten() for optimizer in learner.optimizers().values()]
    return torch.cat([flat.cpu() for flat in flats])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print("| method | after 1 update | after 3 | largest change by 3 updates | without the rollout's graph |")
    print("|---|---|---|---|---|")
    for name, method in METHODS.items():
        if method.off_policy:
            continue  # bench/wcsac.py compares its updates
        configs: list[Any] = [paper_preset(method.config, "goal1") for _ in range(3)]
        devices = [torch.device(place) for place in ("cpu", options.device, options.device)]
        learners = []
        for device in devices:
            streams = [Streams(seed, 1) for seed in range(3)]
            learners.append(method.learner()(configs, WIDTHS, streams, device))
        look = getattr(learners[2], "_look", None)
        if look:
            look._captures = False
        start = weights(learners[0])
        gaps = []
        for update in range(3):
            for device, learner in zip(devices, learners):
                learner.update(batch(update, 3, configs[0].rollout, device))
            one, other, plain = (weights(learner) for learner in learners)
            gaps.append(float((one - other).abs().max()))
        moved, graph = float((one - start).abs().max()), f"{(plain - other).abs().max():.1e}" if look else ""
        print(f"| {name} | {gaps[0]:.1e} | {gaps[2]:.1e} | {moved:.1e} | {graph} |", flush=True)


if __name__ == "__main__":
    main()
