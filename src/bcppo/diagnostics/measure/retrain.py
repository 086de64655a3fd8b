"""Fresh ensembles of cost critics, all trained in one computation: policies × conditions are the stack's axis of runs.

Knows no run folder and no simulator: arrays in, arrays out. Ensembles of one policy share initial weights, minibatch
order and bootstrap masks, so that what differs between two of them is their data alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bcppo.adam import Adam
from bcppo.math.surrogate import masked_td_loss
from bcppo.nets import Stack, keep_freed_memory


@dataclass(frozen=True)
class Schedule:
    """How every ensemble is trained; the updates are the same for all."""

    members: int = 5
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    minibatch: int = 64
    keep_probability: float = 0.8
    check_every: int = 50
    """Updates between looks at the held-out loss."""
    window: int = 6
    """Looks that must pass without progress."""
    tolerance: float = 0.005
    """Fall of the held-out loss, in variances of its target, that counts as progress."""
    flat_share: float = 0.9
    """Share of the watched losses that must be without progress."""
    max_updates: int = 6000
    curve_rows: int = 512
    """Held-out rows, evenly thinned, behind the curve."""


class Policy(NamedTuple):
    """What the critics of one policy are trained and held out on."""

    inputs: np.ndarray  # [N, width] float32, fitting rows: observation and action
    held_out: np.ndarray  # [H, width] float32
    seed: int  # of initial weights, minibatches and masks


class Fit(NamedTuple):
    """One ensemble: which policy, which of its fitting rows, and their targets."""

    policy: int
    rows: np.ndarray  # [n] int; n is the same for all fits of a policy
    target: np.ndarray  # [n] float32
    held_out_target: np.ndarray  # [H] float32
    watched: bool  # whether its held-out loss decides when training has flattened


class Retrained(NamedTuple):
    """What comes of it."""

    predictions: list[np.ndarray]  # a fit: [H, M] float32, discounted
    updates: np.ndarray  # [C], at which the curve was looked at
    curves: np.ndarray  # [fits, C], held-out squared error over the variance of the held-out target
    flattened: bool  # false: max_updates came first


BLOCK = 4
"""Ensembles that take gradient steps together on the CPU. A block takes all steps up to the next look at the held-out
loss before the next block's turn, so that its weights and moments stay in the caches."""


def retrain(
    policies: Sequence[Policy], fits: Sequence[Fit], schedule: Schedule, device: str = "cpu", threads: int = 0
) -> Retrained:
    """Train all ensembles side by side until the watched held-out losses have flattened.

    On so many threads (0: OMP_NUM_THREADS, or the cores there are); a block's arithmetic is one thread's, so that the
    bits do not depend on their number.
    """
    blocks = stacked(policies, fits, schedule, device)
    looks: list[int] = []
    curves: list[np.ndarray] = []
    flattened = False
    with ThreadPoolExecutor(threads or _threads(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for start in range(0, schedule.max_updates, schedule.check_every):
            count = min(schedule.check_every, schedule.max_updates - start)
            looks.append(start + count)
            curves.append(np.concatenate(list(pool.map(Block.train, blocks, repeat(count)))))
            flattened = has_flattened(np.stack(curves, axis=1)[[fit.watched for fit in fits]], schedule)
            if flattened:
                break
        predictions = [one for block in pool.map(Block.predictions, blocks) for one in block]
    return Retrained(predictions, np.array(looks), np.stack(curves, axis=1), flattened)


def _threads() -> int:
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdigit() and int(told) else len(os.sched_getaffinity(0))


def stacked(
    policies: Sequence[Policy], fits: Sequence[Fit], schedule: Schedule, device: str, block: int = 0
) -> list[Block]:
    """All fits in their order, in stacks of at most `block`; 0: all in one on a GPU, BLOCK on the CPU.

    On the CPU a stack ends where the inputs' width changes, so that nothing is multiplied by zero columns. A block is
    nothing but a place in memory: every ensemble has its policy's streams, whichever block it is in.
    """
    place = torch.device(device)
    most = block or (BLOCK if place.type == "cpu" else len(fits))
    if place.type == "cpu":
        runs = [list(own) for _, own in groupby(fits, lambda fit: policies[fit.policy].inputs.shape[1])]
    else:
        runs = [list(fits)]
    parts = [own[start : start + most] for own in runs for start in range(0, len(own), most)]
    return [_block(policies, part, schedule, place) for part in parts]


def _block(policies: Sequence[Policy], fits: Sequence[Fit], schedule: Schedule, device: torch.device) -> Block:
    own = list(dict.fromkeys(fit.policy for fit in fits))
    return Block(
        [policies[index] for index in own],
        [fit._replace(policy=own.index(fit.policy)) for fit in fits],
        schedule,
        device,
    )


def has_flattened(curves: np.ndarray, schedule: Schedule) -> bool:
    """Whether the best losses [fits, looks] fell by less than the tolerance within the last `window` looks, for nearly
    all fits: a median would leave half of them behind."""
    if curves.shape[1] <= schedule.window:
        return False
    before = curves[:, : -schedule.window].min(axis=1)
    now = curves[:, -schedule.window :].min(axis=1)
    return bool(np.mean(before - now < schedule.tolerance) >= schedule.flat_share)


class Block:
    """The stack, its optimiser and its data on the device. P policies, E ensembles."""

    def __init__(self, policies: Sequence[Policy], fits: Sequence[Fit], schedule: Schedule, device: torch.device):
        keep_freed_memory()
        self.policies, self.fits, self.schedule, self.device = policies, fits, schedule, device
        self.owner = torch.tensor([fit.policy for fit in fits], device=device)
        self.width = max(policy.inputs.shape[1] for policy in policies)
        self.inputs = self._padded([policy.inputs for policy in policies])
        self.held_out = self._padded([policy.held_out for policy in policies])
        longest = max(len(fit.rows) for fit in fits)
        self.chosen = torch.zeros(len(fits), longest, dtype=torch.int64, device=device)
        self.target = torch.zeros(len(fits), longest, device=device)
        for index, fit in enumerate(fits):
            self.chosen[index, : len(fit.rows)] = torch.from_numpy(fit.rows)
            self.target[index, : len(fit.rows)] = torch.from_numpy(fit.target.astype(np.float32))
        self.critics = self._initial_critics()
        self.optimizer = Adam(self.critics, [schedule.learning_rate] * len(fits))
        self._batches = self.batches()

    def _padded(self, arrays: Sequence[np.ndarray]) -> Tensor:
        """[P, most rows, width]: narrower inputs get zero columns, whose weights get no gradient."""
        out = torch.zeros(len(arrays), max(map(len, arrays)), self.width, device=self.device)
        for index, array in enumerate(arrays):
            out[index, : array.shape[0], : array.shape[1]] = torch.from_numpy(array)
        return out

    def _initial_critics(self) -> Stack:
        """The initial weights a policy's ensemble of its own width would have, the same for all of its ensembles."""
        members, cpu = self.schedule.members, torch.device("cpu")
        sizes = (self.width, *self.schedule.hidden, 1)
        stack = Stack(sizes, members, [np.random.default_rng(0)] * len(self.fits), self.device)
        own = {}
        for index, policy in enumerate(self.policies):
            streams = [np.random.default_rng([policy.seed, 0])]
            own[index] = Stack((policy.inputs.shape[1], *self.schedule.hidden, 1), members, streams, cpu).parameters
        with torch.no_grad():
            stack.parameters["weight0"].zero_()
            for index, fit in enumerate(self.fits):
                for name, parameter in stack.parameters.items():
                    value = own[fit.policy][name][0].to(self.device)
                    place = parameter[index, :, : value.shape[1]] if name == "weight0" else parameter[index]
                    place.copy_(value)
        return stack

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless (rows [P, B] of the chosen ones, masks [P, M, B]), each policy from streams of its own."""
        lengths = {fit.policy: len(fit.rows) for fit in self.fits}
        orders = [_shuffled(lengths[index], policy.seed) for index, policy in enumerate(self.policies)]
        masks = [np.random.default_rng([policy.seed, 2]) for policy in self.policies]
        size, keep = self.schedule.minibatch, self.schedule.keep_probability
        while True:
            rows = np.stack([order(size) for order in orders])
            kept = np.stack([mask.random((self.schedule.members, size), dtype=np.float32) < keep for mask in masks])
            yield torch.from_numpy(rows).to(self.device), torch.from_numpy(kept).to(self.device)

    def train(self, updates: int) -> np.ndarray:
        """So many gradient steps; the held-out loss after them, [E]."""
        for _ in range(updates):
            self.descend()
        return self.held_out_loss()

    def descend(self) -> None:
        """One gradient step of every ensemble on its policy's next minibatch."""
        rows, masks = next(self._batches)
        own = rows[self.owner]  # [E, B]
        chosen = self.chosen.gather(1, own)
        predictions = self.critics(self.inputs[self.owner.unsqueeze(1), chosen]).squeeze(-1)
        self.optimizer.descend(masked_td_loss(predictions, self.target.gather(1, own), masks[self.owner]))

    @torch.no_grad()
    def held_out_loss(self) -> np.ndarray:
        """The members' mean squared error on held-out rows over the variance of their targets, [E]."""
        losses = np.empty(len(self.fits))
        rows = [_thinned(len(policy.held_out), self.schedule.curve_rows) for policy in self.policies]
        length = max(map(len, rows))
        spread = torch.stack([torch.from_numpy(np.resize(one, length)) for one in rows]).to(self.device)
        inputs = self.held_out[torch.arange(len(rows), device=self.device).unsqueeze(1), spread]
        predictions = self.critics(inputs[self.owner]).squeeze(-1).cpu().numpy()  # [E, M, length]
        for index, fit in enumerate(self.fits):
            own = rows[fit.policy]
            target = fit.held_out_target[own]
            error = predictions[index, :, : len(own)] - target
            losses[index] = float(np.mean(error**2)) / max(float(target.var()), 1e-12)
        return losses

    @torch.no_grad()
    def predictions(self) -> list[np.ndarray]:
        """Each ensemble on all held-out rows of its policy, [H, M]."""
        parts = [
            self.critics(self.held_out[self.owner, start : start + 256]).squeeze(-1).cpu()
            for start in range(0, self.held_out.shape[1], 256)
        ]
        whole = torch.cat(parts, dim=-1).numpy()
        return [whole[i, :, : len(self.policies[fit.policy].held_out)].T.copy() for i, fit in enumerate(self.fits)]


def _shuffled(length: int, seed: int):
    """How to take the next rows of an endless series of shuffles."""
    random = np.random.default_rng([seed, 1])
    left = np.empty(0, np.int64)

    def take(count: int) -> np.ndarray:
        nonlocal left
        while len(left) < count:
            left = np.concatenate([left, random.permutation(length)])
        taken, left = left[:count], left[count:]
        return taken

    return take


def _thinned(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
