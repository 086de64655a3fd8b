"""Randomness is handed in: one seed a run, spawned into named streams, each of which can be stored and put back."""

from __future__ import annotations

import json

import numpy as np

NAMES = ("init", "minibatches", "masks", "environment", "noise")


class Streams:
    """A run's independent random streams. `environment` and `noise` have one generator for each of its environments."""

    init: np.random.Generator
    minibatches: np.random.Generator
    masks: np.random.Generator

    def __init__(self, seed: int, environments: int) -> None:
        children = dict(zip(NAMES, np.random.SeedSequence(seed).spawn(len(NAMES))))
        for name in ("init", "minibatches", "masks"):
            setattr(self, name, np.random.default_rng(children[name]))
        self.environment = [np.random.default_rng(child) for child in children["environment"].spawn(environments)]
        self.noise = [np.random.default_rng(child) for child in children["noise"].spawn(environments)]

    def _generators(self) -> dict[str, np.random.Generator]:
        named = {name: getattr(self, name) for name in ("init", "minibatches", "masks")}
        for name in ("environment", "noise"):
            named |= {f"{name}{index}": generator for index, generator in enumerate(getattr(self, name))}
        return named

    def dump(self) -> str:
        """The state of every stream, as JSON."""
        return json.dumps({name: generator.bit_generator.state for name, generator in self._generators().items()})

    def load(self, text: str) -> None:
        states = json.loads(text)
        for name, generator in self._generators().items():
            generator.bit_generator.state = states[name]
