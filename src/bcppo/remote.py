"""An environment in a worker, seen from the process that learns: a Collector's calls, answered elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bcppo.lockstep import AT_WORK, FAILED, WENT_ON, Slot, rest, slot_shapes
from bcppo.policy import NumpyPolicy, Sampler
from bcppo.pool import Worker, crowded
from bcppo.rollout import Rollout
from bcppo.worker import Arrays, Places

_LONG = ("collect", "evaluate")
"""Requests that are at work for long; all they hand over lies in shared memory."""
_SPINS = 50
"""How often to look for an answer in shared memory before the processor is offered to others."""


class RemoteCollector:
    """A Collector in a worker: the same calls, but between `start` and `finish` others work too.

    A rollout handed over lies in shared memory and holds until the next `start`.
    """

    def __init__(
        self,
        worker: Worker,
        task: str,
        cost_limit_rate: float | None,
        seeds: np.random.Generator,
        noise: np.random.Generator,
        *,
        clip_actions: bool = True,
    ) -> None:
        self.worker = worker
        self._seeds, self._noise = seeds, noise
        self._made = {
            "do": "make", "task": task, "cost_limit_rate": cost_limit_rate, "clip_actions": clip_actions
        }  # fmt: skip
        self._asked: tuple[dict[str, Any], Arrays] | None = None
        self._policy_places: dict[tuple[str, ...], Places] = {}
        self._rollout_places: Places = {}
        self._actions: list[np.ndarray] = []
        self._slot_places: Places = {}
        self._entering: dict[str, Any] = {}
        self._in_lockstep = self._awaits_step = False
        self._count = 0  # of the steps asked for in shared memory, ever
        self._number = worker.host(self)
        self._spaces: tuple[int, np.ndarray, np.ndarray] | None = None
        self._began = self._stream_states()
        self._ask(self._made | self._began)

    @property
    def spaces(self) -> tuple[int, np.ndarray, np.ndarray]:
        """(observation width, lowest action, highest action). Asked first, so that others are made meanwhile."""
        if self._spaces is None:
            since = self._stream_states()
            header, bounds = self._answer()
            if since != self._began:  # streams that were put back meanwhile stay so
                self._set_streams(since)
            self._spaces = header["observation"], bounds["low"], bounds["high"]
            self.observation = bounds["current"]
            self._episode_seed = header["episode_seed"]
        return self._spaces

    def ready(self) -> bool:
        if self._awaits_step:
            answered = self._slot.answered[0] == self._count
            return answered or self.worker.lost() or self.worker.refuses(self._number)
        return self.worker.ready(self._number)

    def start(self, policy: Sampler, steps: int) -> None:
        """Ask for the next steps."""
        width, low, _ = self.spaces
        shapes = {
            "observation": ("<f4", [steps, width]), "next_observation": ("<f4", [steps, width]),
            "action": ("<f4", [steps, len(low)]), "reward": ("<f8", [steps]), "cost": ("<f8", [steps]),
            "terminated": ("|b1", [steps]), "truncated": ("|b1", [steps]), "current": ("<f4", [width]),
        }  # fmt: skip
        if not self._rollout_places or self._rollout_places["reward"][1] != [steps]:
            self._rollout_places = self.worker.place(shapes)
        self._ask({"do": "collect", "steps": steps, "policy": self._lay(policy), "rollout": self._rollout_places})

    def finish(self) -> Rollout:
        header, _ = self._answer()
        fields: dict[str, Any] = {**self.worker.arrays(self._rollout_places), **header["rest"]}
        self.observation = fields.pop("current")
        rollout = Rollout(**fields)
        ends = np.flatnonzero(rollout.terminated | rollout.truncated)
        if len(ends):
            self._actions.clear()
        self._actions.append(rollout.action[ends[-1] + 1 if len(ends) else 0 :].copy())
        self._episode_seed = header["episode_seed"]
        return rollout

    def start_evaluation(self, policy: NumpyPolicy, seeds: Iterable[int]) -> None:
        self._ask({"do": "evaluate", "policy": self._lay(policy), "episode_seeds": list(seeds)})

    def finish_evaluation(self) -> list[dict[str, float]]:
        return self._answer()[0]["rows"]

    def state(self) -> tuple[int, np.ndarray]:
        """The unfinished episode: its seed and the actions taken so far [n, act]."""
        _, low, _ = self.spaces
        empty = np.zeros((0, len(low)), np.float32)
        return self._episode_seed, np.concatenate([empty, *self._actions])

    def restore(self, seed: int, actions: np.ndarray) -> None:
        """Rebuild an unfinished episode by taking its actions again."""
        _ = self.spaces  # what was asked first is answered first
        self._episode_seed, self._actions = seed, [np.asarray(actions, np.float32)]
        self._ask(*self._restoring())
        self.observation = self._answer()[1]["current"]

    def _restoring(self) -> tuple[dict[str, Any], Arrays]:
        seed, actions = self.state()
        return {"do": "restore", "episode_seed": seed, **self._stream_states()}, {"actions": actions}

    def rebuild(self) -> None:
        """In a fresh process: make the environment again, take the episode's actions again, ask again."""
        if self._asked is None or self._asked[0]["do"] != "make":
            for header, arrays in ((self._made | self._stream_states(), {}), self._restoring()):
                self.worker.send({**header, "environment": self._number}, arrays)
                self.worker.receive(self._number)
        if self._in_lockstep:
            taken = self._count - self._awaits_step
            # An answer that was not taken is given again.
            self._slot.answered[0], self._slot.answered[1] = taken, WENT_ON
            self.worker.send({**self._entering, "count": taken, "environment": self._number}, {})
            self.worker.receive(self._number)
        if self._asked is not None:
            self._ask(*self._asked)

    # --- one step at a time ---

    def start_lockstep(self, log_std_bounds: np.ndarray) -> None:
        """Ask for single steps by `start_step`, until `end_lockstep`. The random streams are ours meanwhile."""
        if not self._slot_places:
            width, low, _ = self.spaces
            self._slot_places = self.worker.place(slot_shapes(width, len(low)))
        self._slot = Slot(self.worker.arrays(self._slot_places))
        self._crowded = crowded()
        self._entering = {"do": "enter", "slot": self._slot_places, "crowded": self._crowded}
        self._entering["log_std_bounds"] = log_std_bounds.tolist()
        self._next_seed = self._peek()
        self._ask(self._entering | {"count": self._count})
        self._enters = True

    def await_lockstep(self) -> None:
        """Until what `start_lockstep` or `end_lockstep` asked for is so."""
        self._answer()
        self._in_lockstep = self._enters

    def end_lockstep(self) -> None:
        """Whole rollouts again; the streams go back to the worker."""
        self._in_lockstep = self._enters = False
        self._ask({"do": "leave", **self._stream_states()})

    def abandon_lockstep(self) -> None:
        """Nothing will be asked of this environment again: its worker need not look after it."""
        self.worker.outstanding -= self._awaits_step
        self._in_lockstep = self._awaits_step = False
        self._ask({"do": "leave"})
        self._asked = None

    def start_step(self, heads: np.ndarray | None) -> None:
        """Ask for a step with the policy's last layer for the current observation; without one, a uniform action."""
        noise = self._noise.standard_normal((1, len(self.spaces[1])), dtype=np.float32)[0]
        self._count += 1
        self._awaits_step = True
        self.worker.outstanding += 1
        self._slot.ask(self._count, heads, noise, self._next_seed)

    def finish_step(self, rollout: Rollout, row: int) -> None:
        """Put the step that was asked for into a row of a rollout."""
        self._await_step()
        slot = self._slot
        if slot.answered[1] == FAILED:
            self.worker.receive(self._number)  # says why, as an error
        step = slot.step()
        rollout.put(row, self.observation, step)
        self.observation = slot.current.copy()
        self._awaits_step = False
        self.worker.outstanding -= 1
        self.worker.answered(self._number)
        if step.summary is None:
            self._actions.append(rollout.action[row : row + 1])
        else:
            self._episode_seed = int(self._seeds.integers(2**31))  # the one that was peeked at
            self._actions.clear()
            self._next_seed = self._peek()

    def _await_step(self) -> None:
        answered, spins = self._slot.answered, _SPINS if self._crowded else 0
        while answered[0] != self._count:
            spins += 1
            if spins > _SPINS:
                rest(self._crowded)
                if self.worker.lost():
                    self.worker.revive()
                if self.worker.refuses(self._number):
                    self.worker.receive(self._number)  # says why, as an error

    @property
    def stepping(self) -> bool:
        """Whether its worker has begun with a step and not ended it."""
        return self._awaits_step and self._slot.answered[0] != self._count and self._slot.answered[1] == AT_WORK

    def _peek(self) -> int:
        """The next episode's seed: the stream gives it out only when this episode ends."""
        state = self._seeds.bit_generator.state
        seed = int(self._seeds.integers(2**31))
        self._seeds.bit_generator.state = state
        return seed

    def release(self) -> None:
        """Nothing will be asked of this environment again: its worker lets go of it."""
        self.worker.outstanding -= self._awaits_step
        self._in_lockstep = self._awaits_step = False
        self._asked = None
        self.worker.release(self._number)

    def close(self) -> None:
        """The worker is closed by whoever made it."""

    def _lay(self, policy: Sampler) -> Places:
        """The policy in shared memory."""
        arrays = policy.weights | {"low": policy.low, "high": policy.high}
        kind = tuple(arrays)
        if kind not in self._policy_places:
            self._policy_places[kind] = self.worker.place({n: (a.dtype.str, a.shape) for n, a in arrays.items()})
        for name, place in self.worker.arrays(self._policy_places[kind]).items():
            place[...] = arrays[name]
        return self._policy_places[kind]

    def _stream_states(self) -> dict[str, Any]:
        return {"seeds": self._seeds.bit_generator.state, "noise": self._noise.bit_generator.state}

    def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> None:
        self._asked = header, arrays or {}
        request = {**header, "environment": self._number}
        if self.worker.given_up:
            return  # whoever asks for the answer is told
        if self.worker.turns and header["do"] in _LONG:
            self.worker.turns.ask(self.worker, request)
        else:
            self.worker.send(request, self._asked[1])

    def _answer(self) -> tuple[dict[str, Any], Arrays]:
        answer = self.worker.receive(self._number)
        self._asked = None
        self._set_streams(answer[0])
        return answer

    def _set_streams(self, states: Mapping[str, Any]) -> None:
        self._seeds.bit_generator.state, self._noise.bit_generator.state = states["seeds"], states["noise"]
