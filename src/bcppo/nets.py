"""Networks as stacks: every tensor has a leading axis of runs, then one of networks within a run.

A stack of R runs is R independent learners in one computation: the gradient of the sum of their losses is each one's
own gradient, and Adam works entry by entry. On the CPU each run's numbers come out the same, bit for bit, whatever else
is in the stack; a test holds that, and says for which odd sizes it does not.
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcppo.queued import Aside, await_launches

PAD = 16
"""Last layers and log-stds are stored this wide. A narrower product is summed in an order that depends on how many
there are in the batch, and a run's numbers may fall into a vector loop's scalar tail, which may round differently: in a
stack, a run would not come out as it does alone. What is beyond the real width is never read, so its gradient is 0.
With AVX-512 a loop takes 32 at a time: what rounds differently there is done `run_by_run`, since a wider store would
change checkpoints."""


LOG_STD_BOUNDS = (-20.0, 2.0)
"""Of a squashed policy's log-std."""


class _Networks(torch.autograd.Function):
    """All networks of a stack, forward and backward, without a graph of small operations in between.

    Inputs [R, B, in] and the stack's flat parameters [R, N, P] → outputs [R, N, B, out] and the parameters beside the
    layers [R, N, beside]. The gradient of the parameters is written where it belongs in one flat tensor.
    """

    @staticmethod
    def forward(ctx, x: Tensor, flat: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        runs, rows, width = x.shape
        networks, layers = stack.networks, stack.layers(flat)
        hidden = x.unsqueeze(1).expand(runs, networks, rows, width).reshape(runs * networks, rows, width)
        inputs = [hidden]
        # tanh y = 2σ(2y) − 1: torch's sigmoid is vectorised, its tanh costs three times as much. The error is under
        # 2e-7, a rounding error of numbers around 1.
        for weight, bias in layers[:-1]:
            hidden = torch.baddbmm(bias, hidden, weight)
            if stack.relu:
                hidden.relu_()
            elif x.is_cuda:
                hidden.tanh_()
            else:
                hidden.mul_(2.0).sigmoid_()
                torch.add(_MINUS_ONE, hidden, alpha=2.0, out=hidden)
            inputs.append(hidden)
        weight, bias = layers[-1]
        out = torch.baddbmm(bias, hidden, weight).view(runs, networks, rows, -1)
        ctx.save_for_backward(flat, *inputs)
        ctx.stack = stack
        return out[..., : stack.sizes[-1]], stack.beside(flat).clone()

    @staticmethod
    def backward(ctx, out_gradient: Tensor, beside_gradient: Tensor):
        flat, *inputs = ctx.saved_tensors
        stack = ctx.stack
        trained = ctx.needs_input_grad[1]
        gradient = torch.empty_like(flat) if trained else None
        layers, into = stack.layers(flat), stack.layers(gradient) if trained else []
        runs, networks, rows, width = out_gradient.shape
        pulled = inputs[0].new_zeros(runs * networks, rows, width + -width % PAD)
        pulled.view(runs, networks, rows, -1)[..., :width] = out_gradient
        held = []  # until the branch that reads it is joined
        for layer in reversed(range(len(layers))):
            if trained:
                held.append(pulled)
                with stack.aside.entered() if stack.aside else nullcontext():
                    torch.bmm(inputs[layer].transpose(1, 2), pulled, out=into[layer][0])
                    torch.sum(pulled, 1, keepdim=True, out=into[layer][1])
            if layer or ctx.needs_input_grad[0]:
                pulled = torch.bmm(pulled, layers[layer][0].transpose(1, 2))
            if layer and stack.relu:
                torch.ops.aten.threshold_backward.grad_input(pulled, inputs[layer], 0.0, grad_input=pulled)
            elif layer:
                torch.ops.aten.tanh_backward.grad_input(pulled, inputs[layer], grad_input=pulled)
        if trained and stack.aside:
            stack.aside.join()
        if trained:
            stack.clear_beside(gradient)
            stack.beside(gradient).copy_(beside_gradient)
        x_gradient = pulled.view(runs, networks, rows, -1).sum(1) if ctx.needs_input_grad[0] else None
        return x_gradient, gradient, None


_MINUS_ONE = torch.tensor(-1.0)


def run_by_run(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A computation on tensors [R, …] that on the CPU is done for each run by itself, so that it rounds as if alone.

    What is left over of a vector loop may round differently, and in a stack that is other runs' numbers: with AVX-512,
    whatever is no multiple of 32.
    """

    @wraps(compute)
    def of_each(*tensors: Tensor, **named: Tensor) -> Any:
        if tensors[0].is_cuda or len(tensors[0]) == 1:
            return compute(*tensors, **named)
        rows = zip(*(tensor.split(1) for tensor in (*tensors, *named.values())), strict=True)
        parts = [compute(*own[: len(tensors)], **dict(zip(named, own[len(tensors) :]))) for own in rows]
        return torch.cat(parts) if isinstance(parts[0], Tensor) else tuple(map(torch.cat, zip(*parts)))

    return of_each


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


def capture(step: Callable[[], Any], changing: Sequence[Tensor]) -> Any:
    """A computation as a CUDA graph: `replay` repeats it on the same tensors. Leaves those it changes as they were."""
    return capture_pieces([step], changing)[0]


def capture_pieces(pieces: Sequence[Callable[[], Any]], changing: Sequence[Tensor]) -> list[Any]:
    """A computation in pieces, each as a CUDA graph, to be replayed in their order. A piece may use what one before it
    leaves behind, also to differentiate it: all are captured on one stream, where the backward pass of one looks for
    the forward pass of another.

    It is tried a few times first, so that what is made once does not enter the graphs. cuBLAS's workspaces do: PyTorch
    keeps one a stream, of which it has only some to hand out, and graphs that are replayed side by side must not share.
    """
    await_launches()
    gc.collect()  # a graph that nobody has any more must not be destroyed while another is captured
    before = [tensor.clone() for tensor in changing]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            for piece in pieces:
                piece()
    torch.cuda.current_stream().wait_stream(side)
    graphs = []
    for piece in pieces:
        torch._C._cuda_clearCublasWorkspaces()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            piece()
        graphs.append(graph)
    torch._C._cuda_clearCublasWorkspaces()
    for tensor, value in zip(changing, before):
        tensor.copy_(value)
    return graphs


class Stack:
    """N tanh or ReLU networks for each of R runs, PyTorch's default Linear initialisation.

    A network's parameters lie side by side in a row of `flat` [R, N, P], so that an optimiser's step is a handful of
    operations however many layers there are. `parameters` names the parts: views, weights [R, N, in, out].
    """

    def __init__(
        self,
        sizes: Sequence[int],
        networks: int,
        streams: Sequence[np.random.Generator],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        relu: bool = False,
        beside: int = 0,
    ):
        """`beside` parameters of a network belong to no layer; they start at 0."""
        self.aside: Aside | None = None
        """Where the weights' gradients are computed, while those of the layers below go on; with the rest, if None."""
        self.relu = relu
        self.sizes, self.networks, self.runs, self.dtype = tuple(sizes), networks, len(streams), dtype
        places: list[tuple[int, int, int]] = []  # of each layer: (start, inputs, outputs)
        values: list[np.ndarray] = []
        place, last = 0, len(sizes) - 2
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
            values += [weight.reshape(*weight.shape[:2], -1), bias]
            width = bias.shape[-1]
            places.append((place, width_in, width))
            place += (width_in + 1) * width
        self._beside = (place, place + beside)
        values.append(np.zeros((self.runs, networks, beside)))
        flat = padded(np.concatenate(values, axis=-1))
        self._places = places
        self.flat = torch.tensor(flat, dtype=dtype, device=device).requires_grad_()
        self.parameters = self.named(self.flat.detach())

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(weight [R·N, in, out], bias [R·N, 1, out]) of each layer, views of a tensor laid out as `flat`."""
        runs, networks, step = flat.shape
        count = runs * networks
        return [
            (
                flat.as_strided((count, rows, width), (step, width, 1), start),
                flat.as_strided((count, 1, width), (step, width, 1), start + rows * width),
            )
            for start, rows, width in self._places
        ]

    def beside(self, flat: Tensor) -> Tensor:
        """The parameters of no layer [R, N, beside], a view."""
        return flat[..., self._beside[0] : self._beside[1]]

    def clear_beside(self, flat: Tensor) -> None:
        """Zero everything behind the layers."""
        flat[..., self._beside[0] :] = 0.0

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a tensor laid out as `flat`, by name: weight0 [R, N, in, out], bias0 [R, N, out], …"""
        named = {}
        for layer, (weight, bias) in enumerate(self.layers(flat)):
            named[f"weight{layer}"] = weight.unflatten(0, flat.shape[:2])
            named[f"bias{layer}"] = bias.squeeze(1).unflatten(0, flat.shape[:2])
        return named

    def unpadded(self, flat: Tensor) -> dict[str, Tensor]:
        """As `named`, without the padding; what that holds is 0."""
        last = len(self.sizes) - 2
        padded = (f"weight{last}", f"bias{last}", "log_std")
        return {
            name: part[..., : self.sizes[-1]] if name in padded else part for name, part in self.named(flat).items()
        }

    def __call__(self, x: Tensor, flat: Tensor | None = None) -> Tensor:
        """[R, B, in] → [R, N, B, out]; every network of a run sees the run's rows.

        With other parameters where some are given; `flat.detach()` gives the inputs a gradient and the weights none.
        """
        out, _ = _Networks.apply(x, self.flat if flat is None else flat, self)
        return out

    def copy_to_host(self) -> Tensor:
        """A copy of `flat`, for `arrays`."""
        return self.flat.detach().to("cpu", copy=True)

    def arrays(self, run: int, stored: Tensor | None = None) -> dict[str, np.ndarray]:
        """One run's parameters as NumPy arrays, without the padding; views of `stored`, where that was made."""
        if stored is None:
            stored, run = self.flat.detach()[run : run + 1].to("cpu", copy=True), 0
        return {name: tensor[run].numpy() for name, tensor in self.unpadded(stored).items()}


class SquashedPolicy(Stack):
    """A Gaussian whose mean and log-std both come from the observation, for actions squashed by tanh."""

    def __init__(
        self,
        sizes: Sequence[int],
        streams: Sequence[np.random.Generator],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        *below, width = sizes
        super().__init__((*below, 2 * width), 1, streams, device, dtype, relu=True)

    def arrays(self, run: int, stored: Tensor | None = None) -> dict[str, np.ndarray]:
        arrays = {name: array[0] for name, array in super().arrays(run, stored).items()}
        return arrays | {"log_std_bounds": np.array(LOG_STD_BOUNDS, np.float32)}


def head_parts(last_layer: Tensor) -> tuple[Tensor, Tensor]:
    """A squashed policy's mean, before squashing, and log-std. [..., 2·act] → [..., act] each"""
    mean, log_std = last_layer.chunk(2, dim=-1)
    return mean, log_std.clamp(*LOG_STD_BOUNDS)


class Scalar:
    """A trained number of each run. It is stored PAD wide, all alike, for the reason given there."""

    def __init__(self, runs: int, device: torch.device, dtype: torch.dtype = torch.float32):
        self.flat = torch.zeros(runs, 1, PAD, dtype=dtype, device=device)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        return {"value": flat.squeeze(1)}

    unpadded = named
    """All alike: nothing to leave out."""


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
        super().__init__(sizes, 1, streams, device, dtype, beside=sizes[-1] + -sizes[-1] % PAD)
        start = np.repeat(np.array(initial_log_std)[:, None], sizes[-1], axis=1)
        self.log_std.copy_(torch.tensor(start, dtype=dtype, device=device))

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        return super().named(flat) | {"log_std": self.beside(flat).squeeze(1)}

    def distribution(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[R, B, obs] → (mean [R, B, act], log-std [R, act]), both with their gradients."""
        out, beside = _Networks.apply(observation, self.flat, self)
        return out.squeeze(1), beside[:, 0, : self.sizes[-1]]

    def mean(self, observation: Tensor) -> Tensor:
        """[R, B, obs] → [R, B, act]"""
        return self(observation).squeeze(1)

    @property
    def log_std(self) -> Tensor:
        """[R, act], as a number: `distribution` has the one to differentiate."""
        return self.parameters["log_std"][:, : self.sizes[-1]]

    def arrays(self, run: int, stored: Tensor | None = None) -> dict[str, np.ndarray]:
        return {name: a if name == "log_std" else a[0] for name, a in super().arrays(run, stored).items()}


def padded(values: np.ndarray) -> np.ndarray:
    width = values.shape[-1]
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -width % PAD)])
