"""Updates of stored transitions on a device while environments step: for learners that update after every step.

The next action depends on the policy alone, which an update goes through first. So an update is launched in two pieces:
the first ends with the policy's last layer for the current observations, and these come back while the second is still
at work. The environments then step beside it. What an update is handed goes over in one copy, and its random numbers
are drawn while the first piece of the one before is at work.

Nothing here waits for the device but for the first piece of the update before. The copy to the device comes before that
piece; so of two blocks of memory to copy from, in turn, one is always free to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bcppo.nets import capture_pieces

if TYPE_CHECKING:
    from bcppo.algorithms.wcsac import WCSAC

_ALIGNMENT = 64


class Handed(NamedTuple):
    """What one step hands to an update; NumPy arrays on this side, tensors on the device."""

    rows: Any  # [R, B] int64, of Draws
    noise: Any  # [R, 2, B, act]
    schedule: Any  # [4, 1 + R]
    position: Any  # [1] int64, where the transitions go
    transitions: Any  # [R, width]
    observation: Any  # [R, obs], the current ones


def shapes(learner: WCSAC) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The fields of Handed: (dtype, shape)."""
    runs, batch, (observation, action), dtype = learner.runs, learner.config.minibatch, learner.widths, learner.dtype
    return {
        "rows": (torch.int64, (runs, batch)),
        "noise": (dtype, (runs, 2, batch, action)),
        "schedule": (dtype, (len(learner.optimizers()), 1 + runs)),
        "position": (torch.int64, (1,)),
        "transitions": (dtype, (runs, 2 * observation + action + 3)),
        "observation": (dtype, (runs, observation)),
    }


def laid_out(fields: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[dict[str, slice], int]:
    """Where in one run of bytes each field lies, and how many bytes there are."""
    places, used = {}, 0
    for name, (dtype, shape) in fields.items():
        size = dtype.itemsize * prod(shape)
        places[name] = slice(used, used + size)
        used += size + -size % _ALIGNMENT
    return places, used


def views(memory: Tensor, fields: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> Handed:
    """The fields in a tensor of bytes."""
    places, _ = laid_out(fields)
    return Handed(**{name: memory[places[name]].view(dtype).view(shape) for name, (dtype, shape) in fields.items()})


class Overlapped:
    """A learner's updates, each begun with the step whose transitions it stores."""

    def __init__(self, learner: WCSAC) -> None:
        self._learner = learner
        self._cuda = learner.device.type == "cuda"
        fields = shapes(learner)
        size = laid_out(fields)[1]
        blocks = [torch.zeros(size, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2)]
        self._there = torch.zeros(size, dtype=torch.uint8, device=learner.device)
        handed = [Handed(*(field.numpy() for field in views(block, fields))) for block in blocks]
        self._free: list[tuple[Tensor, Handed]] = list(zip(blocks, handed))  # the first is written next
        self._inputs = views(self._there, fields)
        heads = learner.runs, 2 * learner.widths[1]
        self._heads = torch.zeros(heads, dtype=learner.dtype, device=learner.device)
        self._heads_here = torch.zeros(heads, dtype=learner.dtype, pin_memory=self._cuda)
        self._between: Any = None
        self._pieces: list[Callable[[], None]] = []
        self._first_done: Any = torch.cuda.Event() if self._cuda else None
        self.launched = False
        """Whether an update was launched whose heads nobody has asked for."""
        self._prepared = False

    def heads(self) -> np.ndarray:
        """The policies' last layer after the update launched last, for the observations it was handed. [R, 2·act]

        Holds until the next `launch`.
        """
        self._await_first_piece()
        return self._heads_here.numpy()

    def prepare(self) -> None:
        """Draw the next update's random numbers, unless they are drawn: that update stores one more transition first.

        Whoever writes a checkpoint next must not have this done before, or the streams would be ahead of it.
        """
        if not self._prepared:
            (_, handed), learner = self._free[0], self._learner
            learner.draw_into(handed.rows, handed.noise, handed.schedule, learner.stored + 1)
            self._prepared = True

    def launch(self, transitions: np.ndarray, observations: Sequence[np.ndarray]) -> None:
        """Store a transition of each run [R, width] and update with what was prepared."""
        self._await_first_piece()
        (block, handed), learner = self._free[0], self._learner
        handed.position[0] = learner.stored % learner.capacity
        handed.transitions[:] = transitions
        for run, observation in enumerate(observations):
            handed.observation[run] = observation
        self._there.copy_(block, non_blocking=True)
        if not self._pieces:
            self._pieces = self._made()
        first, second = self._pieces
        first()
        self._heads_here.copy_(self._heads, non_blocking=True)
        if self._cuda:
            self._first_done.record()
        second()
        learner.count_update()
        self._free.reverse()
        self.launched, self._prepared = True, False

    def _await_first_piece(self) -> None:
        if self.launched and self._cuda:
            self._first_done.synchronize()
        self.launched = False

    def _made(self) -> list[Callable[[], None]]:
        """The two pieces; on CUDA as graphs. Their trial leaves the transitions stored, as the first launch will."""
        pieces = [self._first_piece, self._second_piece]
        if not self._cuda:
            return pieces
        return [graph.replay for graph in capture_pieces(pieces, self._learner.changing())]

    def _first_piece(self) -> None:
        learner, inputs = self._learner, self._inputs
        learner.put(inputs.position, inputs.transitions)
        self._between = learner.begin(self._draws())
        self._heads.copy_(learner.last_layer(inputs.observation))

    def _second_piece(self) -> None:
        self._learner.complete(self._draws(), self._between)

    def _draws(self) -> Any:
        from bcppo.algorithms.wcsac import Draws

        return Draws(*self._inputs[:3])
