"""Small computations that a GPU can do in one kernel each, where `torch.compile` was asked for.

Compiled, they round differently: a run's numbers come out the same every time, but not the same as without.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")

_on = False


def compile_kernels(on: bool) -> None:
    """Whether `fusible` computations are compiled from now on, in this process."""
    global _on
    _on = on


def fusible(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A computation on tensors alone, compiled once for each set of shapes where that is on."""

    @cache  # importing the compiler takes a second
    def compiled() -> Callable[Given, Result]:
        return torch.compile(function, dynamic=False, fullgraph=True)

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return (compiled() if _on else function)(*args, **kwargs)

    return call
