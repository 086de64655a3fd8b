"""Adam on networks stacked over runs: one handful of operations a step, as it is or inside a repeated CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bcppo.fused import fusible
from bcppo.nets import Scalar, Stack


class Adam:
    """Adam on a stack's parameters `flat` [R, N, P], with a learning rate for each run.

    `apart` takes the gradient norm of each network of a run by itself, as if each had an optimiser of its own.
    """

    def __init__(
        self,
        stack: Stack | Scalar,
        learning_rate: Sequence[float],
        max_grad_norm: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        *,
        apart: bool = False,
    ):
        self.stack = stack
        self.first, self.second = (torch.zeros_like(stack.flat, requires_grad=False) for _ in range(2))
        self.rates = [float(rate) for rate in learning_rate]
        self.steps = [0] * len(self.rates)
        self.active: Sequence[bool] | None = None
        """The runs that take steps; all, where it is None."""
        self.by: Tensor | None = None
        """Where `numbers` are, in a computation that is repeated as a CUDA graph."""
        self._betas, self._epsilon, self._max_grad_norm = betas, epsilon, max_grad_norm
        self._axes = -1 if apart else (-2, -1)

    def descend(self, loss: Tensor, penalty: Tensor | None = None) -> None:
        """One step down the sum of the runs' losses; of the active runs only, where some have stopped.

        `penalty` [R, 1, 1] is the weight of the parameters' sum of squares in the loss; it is added to the gradient.
        """
        (gradient,) = torch.autograd.grad(loss.sum(), self.stack.flat)
        with torch.no_grad():
            if penalty is not None:
                gradient.addcmul_(self.stack.flat, penalty, value=2.0)
            if self._max_grad_norm:
                norm = gradient.square().sum(self._axes, keepdim=True).sqrt()
                gradient *= (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            if self.by is None:
                self._step(gradient)
            else:
                self._step_by(gradient, self.by)

    def _step(self, gradient: Tensor) -> None:
        """θ ← θ − lr·m̂ / (√v̂ + ε), the bias corrections folded into lr and ε."""
        if (self.active is None or all(self.active)) and len(set(zip(self.steps, self.rates))) == 1:
            self._move(gradient, self.stack.flat, self.first, self.second, 0)
            self.steps = [self.steps[0] + 1] * len(self.steps)
            return
        for run in range(len(self.steps)):  # one by one, so that each rounds as it would alone
            if self.active is None or self.active[run]:
                self._move(gradient[run], self.stack.flat[run], self.first[run], self.second[run], run)
                self.steps[run] += 1

    def _move(self, gradient: Tensor, parameter: Tensor, first: Tensor, second: Tensor, run: int) -> None:
        steps, (beta1, beta2) = self.steps[run] + 1, self._betas
        root = math.sqrt(1 - beta2**steps)
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = torch.sqrt(second, out=gradient).add_(self._epsilon * root)
        parameter.addcdiv_(first, scale, value=-self.rates[run] * root / (1 - beta1**steps))

    def numbers(self, count: int) -> np.ndarray:
        """Count K = `count` steps of the active runs and return what each takes of each run, [K, 4, R]: the weights of
        the new gradient in the two moments, ε and the step size. A run that is not active has weights of 0, and stays
        as it is."""
        beta1, beta2 = self._betas
        active = np.ones(len(self.steps), bool) if self.active is None else np.array(self.active)
        steps = np.array(self.steps) + np.arange(1, count + 1)[:, None]
        root = np.sqrt(1 - beta2**steps)
        numbers = np.empty((count, 4, len(active)))
        numbers[:, 0], numbers[:, 1] = 1 - beta1, 1 - beta2
        numbers[:, 2], numbers[:, 3] = self._epsilon * root, np.array(self.rates) * root / (1 - beta1**steps)
        numbers[..., ~active] = np.array([0.0, 0.0, 1.0, 0.0])[:, None]
        self.steps = [steps + count * bool(moves) for steps, moves in zip(self.steps, active)]
        return numbers

    def _step_by(self, gradient: Tensor, numbers: Tensor) -> None:
        """A step with `numbers` [4, R] in a tensor, so that a captured CUDA graph can repeat it."""
        first, second, epsilon, size = (row.view(-1, 1, 1) for row in numbers.unbind(0))
        self.first.lerp_(gradient, first)
        self.second.lerp_(gradient.square(), second)
        self.stack.flat.sub_(self.first / (self.second.sqrt() + epsilon) * size)

    def schedule(self) -> list[float]:
        """Count a step and return what depends on the count: [ε, each run's step size], bias corrections folded in."""
        self.steps = [steps + 1 for steps in self.steps]
        beta1, beta2 = self._betas
        root = math.sqrt(1 - beta2 ** self.steps[0])
        return [self._epsilon * root] + [rate * root / (1 - beta1 ** self.steps[0]) for rate in self.rates]

    @torch.no_grad()
    def step_on_schedule(self, gradient: Tensor, schedule: Tensor) -> None:
        """A step with the numbers of `schedule` [1 + R] in a tensor, so that a captured CUDA graph can repeat it."""
        moments = self.first, self.second
        _step_on_schedule(self.stack.flat.detach(), moments, gradient, schedule, self._betas)

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, by name; views."""
        kinds = {"parameter": self.stack.flat.detach(), "first": self.first, "second": self.second}
        return {f"{kind}.{name}": part for kind, flat in kinds.items() for name, part in self.stack.named(flat).items()}


@fusible
def _step_on_schedule(
    flat: Tensor, moments: tuple[Tensor, Tensor], gradient: Tensor, schedule: Tensor, betas: tuple[float, float]
) -> None:
    (first, second), (beta1, beta2) = moments, betas
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    change = second.sqrt().add_(schedule[0])
    torch.div(first, change, out=change)
    flat.sub_(change.mul_(schedule[1:].view(-1, 1, 1)))
