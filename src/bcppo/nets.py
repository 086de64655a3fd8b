"""Networks as stacks: every tensor has a leading axis of runs, then one of networks within a run.

A stack of R runs is R independent learners in one computation: the gradient of the sum of their losses is each one's
own gradient, and Adam works entry by entry. On the CPU each run's numbers come out the same, bit for bit, whatever else
is in the stack; a test holds that, and says for which odd sizes it does not.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

PAD = 16
"""Last layers and log-stds are stored this wide. A narrower product is summed in an order that depends on how many
there are in the batch, and a run's numbers may fall into a vector loop's scalar tail, which may round differently: in a
stack, a run would not come out as it does alone. What is beyond the real width is never read, so its gradient is 0."""


LOG_STD_BOUNDS = (-20.0, 2.0)
"""Of a squashed policy's log-std."""

_MINUS_ONE = torch.tensor(-1.0)


class _QuickTanh(torch.autograd.Function):
    """tanh x = 2σ(2x) − 1, in place: torch's sigmoid is vectorised where its tanh costs three times as much.

    The absolute error is under 2e-7, a rounding error of float32 numbers around 1.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        sigmoid = x.mul_(2.0).sigmoid_()
        y = torch.add(_MINUS_ONE, sigmoid, alpha=2.0, out=sigmoid)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        # In place: in a stack nothing else holds the gradient of a layer's output.
        return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


def tanh_(x: Tensor) -> Tensor:
    """tanh in place; see _QuickTanh."""
    return x.tanh_() if x.is_cuda else _QuickTanh.apply(x)


def keep_freed_memory() -> None:
    """Ask the C library not to hand freed memory back to the system between operations.

    A gradient step allocates and frees the same megabytes over and over; getting them back zeroed, page by page, each
    time takes a third of the update. Does nothing where the C library is not glibc.
    """
    trim_threshold, mmap_threshold, keep = -1, -3, 1 << 30
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(mmap_threshold, keep)
    mallopt(trim_threshold, keep)


class Stack:
    """N tanh or ReLU networks for each of R runs: weights [R, N, in, out], PyTorch's default Linear initialisation."""

    def __init__(
        self,
        sizes: Sequence[int],
        networks: int,
        streams: Sequence[np.random.Generator],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        relu: bool = False,
    ):
        self.sizes, self.networks, self.runs, self.dtype = tuple(sizes), networks, len(streams), dtype
        self._activate = torch.relu_ if relu else tanh_
        self.parameters: dict[str, Tensor] = {}
        last = len(sizes) - 2
        for layer, (width_in, width_out) in enumerate(pairwise(sizes)):
            bound = 1.0 / math.sqrt(width_in)
            draws = [
                (
                    stream.uniform(-bound, bound, (networks, width_in, width_out)),
                    stream.uniform(-bound, bound, (networks, width_out)),
                )
                for stream in streams
            ]
            weight, bias = (np.stack([draw[part] for draw in draws]) for part in (0, 1))
            if layer == last:
                weight, bias = padded(weight), padded(bias)
            self._add(f"weight{layer}", weight, device)
            self._add(f"bias{layer}", bias, device)

    def _add(self, name: str, values: np.ndarray, device: torch.device) -> None:
        self.parameters[name] = torch.tensor(values, dtype=self.dtype, device=device).requires_grad_()

    def __call__(self, x: Tensor) -> Tensor:
        """[R, B, in] → [R, N, B, out]; every network of a run sees the run's rows."""
        runs, rows, width = x.shape
        hidden = x.unsqueeze(1).expand(runs, self.networks, rows, width).reshape(runs * self.networks, rows, width)
        layers = len(self.sizes) - 1
        for layer in range(layers):
            weight = self.parameters[f"weight{layer}"].flatten(0, 1)
            bias = self.parameters[f"bias{layer}"].flatten(0, 1).unsqueeze(1)
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < layers - 1:
                hidden = self._activate(hidden)
        return hidden.view(runs, self.networks, rows, -1)[..., : self.sizes[-1]]

    def arrays(self, run: int) -> dict[str, np.ndarray]:
        """A copy of one run's parameters as NumPy arrays, without the padding."""
        arrays = {name: tensor[run].detach().cpu().numpy().copy() for name, tensor in self.parameters.items()}
        for name in ("weight", "bias"):
            last = f"{name}{len(self.sizes) - 2}"
            arrays[last] = arrays[last][..., : self.sizes[-1]]
        return arrays


class SquashedPolicy(Stack):
    """A Gaussian whose mean and log-std both come from the observation, for actions squashed by tanh."""

    def __init__(
        self,
        sizes: Sequence[int],
        streams: Sequence[np.random.Generator],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        *below, self.width = sizes
        super().__init__((*below, 2 * self.width), 1, streams, device, dtype, relu=True)

    def heads(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[R, B, obs] → mean before squashing and log-std, [R, B, act] each."""
        out = self(observation).squeeze(1)
        return out[..., : self.width], out[..., self.width :].clamp(*LOG_STD_BOUNDS)

    def arrays(self, run: int) -> dict[str, np.ndarray]:
        arrays = {name: array[0] for name, array in super().arrays(run).items()}
        return arrays | {"log_std_bounds": np.array(LOG_STD_BOUNDS, np.float32)}


class GaussianPolicy(Stack):
    """Diagonal Gaussian over actions with a state-independent log-std."""

    def __init__(
        self,
        sizes: Sequence[int],
        initial_log_std: Sequence[float],
        streams: Sequence[np.random.Generator],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(sizes, 1, streams, device, dtype)
        self._add("log_std", padded(np.repeat(np.array(initial_log_std)[:, None], sizes[-1], axis=1)), device)

    def mean(self, observation: Tensor) -> Tensor:
        """[R, B, obs] → [R, B, act]"""
        return self(observation).squeeze(1)

    @property
    def log_std(self) -> Tensor:
        """[R, act]"""
        return self.parameters["log_std"][:, : self.sizes[-1]]

    def arrays(self, run: int) -> dict[str, np.ndarray]:
        arrays = super().arrays(run)
        return {name: a[: self.sizes[-1]] if name == "log_std" else a[0] for name, a in arrays.items()}


class Adam:
    """Adam with a learning rate for each run, on a stack's parameters.

    `apart` takes the gradient norm of each network of a run by itself, as if each had an optimiser of its own.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        learning_rate: Sequence[float],
        max_grad_norm: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        *,
        apart: bool = False,
    ):
        self.parameters = parameters
        self.first = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        self.rates = [float(rate) for rate in learning_rate]
        self.steps = [0] * len(self.rates)
        self._betas, self._epsilon, self._max_grad_norm = betas, epsilon, max_grad_norm
        self._axes = 2 if apart else 1

    def descend(self, loss: Tensor, active: Sequence[bool] | None = None) -> None:
        """One step down the sum of the runs' losses; of the active runs only, where some have stopped."""
        names = list(self.parameters)
        gradients = torch.autograd.grad(loss.sum(), [self.parameters[name] for name in names])
        clipped = dict(zip(names, self._clipped(gradients)))
        if active is None or (all(active) and len(set(self.steps)) == 1):
            self.step(clipped)
        else:
            self._step_apart(clipped, [run for run, goes_on in enumerate(active) if goes_on])

    def _clipped(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each run's (or network's) gradient, scaled down where its norm exceeds the maximum."""
        if not self._max_grad_norm:
            return gradients
        axes = self._axes
        norm = torch.stack([gradient.flatten(axes).square().sum(axes) for gradient in gradients]).sum(0).sqrt()
        scale = (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        return [gradient * scale.view(*scale.shape, *[1] * (gradient.dim() - axes)) for gradient in gradients]

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor]) -> None:
        """θ ← θ − lr·m̂ / (√v̂ + ε), the bias corrections folded into lr and ε."""
        self.steps = [steps + 1 for steps in self.steps]
        beta1, beta2 = self._betas
        root = math.sqrt(1 - beta2 ** self.steps[0])
        sizes = [rate * root / (1 - beta1 ** self.steps[0]) for rate in self.rates]
        uniform = len(set(sizes)) == 1
        for name, gradient in gradients.items():
            first, second, parameter = self.first[name], self.second[name], self.parameters[name]
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = second.sqrt().add_(self._epsilon * root)
            if uniform:
                parameter.addcdiv_(first, scale, value=-sizes[0])
            else:
                for run, size in enumerate(sizes):  # one by one, so that each rounds as it would alone
                    parameter[run].addcdiv_(first[run], scale[run], value=-size)

    def schedule(self) -> list[float]:
        """Count a step and return what depends on the count: [ε, each run's step size], bias corrections folded in."""
        self.steps = [steps + 1 for steps in self.steps]
        beta1, beta2 = self._betas
        root = math.sqrt(1 - beta2 ** self.steps[0])
        return [self._epsilon * root] + [rate * root / (1 - beta1 ** self.steps[0]) for rate in self.rates]

    @torch.no_grad()
    def step_on_schedule(self, gradients: dict[str, Tensor], schedule: Tensor) -> None:
        """`step` with the numbers of `schedule` [1 + R] in a tensor, so that a captured CUDA graph can repeat it."""
        beta1, beta2 = self._betas
        for name, gradient in gradients.items():
            first, second, parameter = self.first[name], self.second[name], self.parameters[name]
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            change = second.sqrt().add_(schedule[0])
            torch.div(first, change, out=change)
            parameter.sub_(change.mul_(schedule[1:].view(-1, *[1] * (gradient.dim() - 1))))

    @torch.no_grad()
    def _step_apart(self, gradients: dict[str, Tensor], runs: Sequence[int]) -> None:
        """The same for some runs, each at its own count of steps; the others' weights and moments stay untouched."""
        beta1, beta2 = self._betas
        for run in runs:
            self.steps[run] += 1
            root = math.sqrt(1 - beta2 ** self.steps[run])
            size = self.rates[run] * root / (1 - beta1 ** self.steps[run])
            for name, gradient in gradients.items():
                first, second = self.first[name][run], self.second[name][run]
                first.lerp_(gradient[run], 1 - beta1)
                second.mul_(beta2).addcmul_(gradient[run], gradient[run], value=1 - beta2)
                self.parameters[name][run].addcdiv_(first, second.sqrt().add_(self._epsilon * root), value=-size)

    def state(self) -> dict[str, Tensor]:
        return {
            f"{kind}.{name}": tensor
            for kind, tensors in (("parameter", self.parameters), ("first", self.first), ("second", self.second))
            for name, tensor in tensors.items()
        }


def padded(values: np.ndarray) -> np.ndarray:
    width = values.shape[-1]
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -width % PAD)])
