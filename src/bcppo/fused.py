"""Small computations that a GPU can do in one kernel each, where `torch.compile` was asked for.

Compiled, they round differently: a run's numbers come out the same every time, but not the same as without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.util import find_spec
from shutil import which
from typing import ParamSpec, TypeVar

import torch

from bcppo.errors import ConfigError

Given = ParamSpec("Given")
Result = TypeVar("Result")

_VARIANTS = 256
"""Sets of shapes that one computation may be compiled for. torch gives up after 8; a study's tasks have more."""

_on = False


def require_compiler() -> None:
    """Refuse where nothing can be compiled for a GPU."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "cc", "clang"]
    if find_spec("triton") is None or not any(map(which, compilers)):
        raise ConfigError("Compiled updates need Triton, which comes with torch for CUDA, and a C compiler.")


@contextmanager
def compiled_kernels(on: bool) -> Iterator[None]:
    """Inside, `fusible` computations are compiled, or are not."""
    global _on
    before, _on = _on, on
    if on:
        import torch._dynamo.config as tracing
        import torch._inductor.config as making

        tracing.recompile_limit = tracing.accumulated_recompile_limit = _VARIANTS
        making.deterministic = True  # no kernel is chosen by how fast it is today
    try:
        yield
    finally:
        _on = before


def fusible(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A computation on tensors alone, compiled once for each set of shapes where that is on."""

    @cache  # importing the compiler takes a second
    def compiled() -> Callable[Given, Result]:
        return torch.compile(function, dynamic=False, fullgraph=True)

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return (compiled() if _on else function)(*args, **kwargs)

    return call
