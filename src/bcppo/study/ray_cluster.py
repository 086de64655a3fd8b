"""An engine: tasks on a Ray cluster, a fresh one on this machine or one that is there.

The study's folder must be on a file system that every node sees under one path, and every node must have this package
in the same versions. A task only starts a child process, as the local engine does, and hands back how it fared, so a
run's bytes do not depend on the node. Where a node dies its task is run again on another, and the run goes on from its
checkpoint: its lock died with its process, and the new child waits for that.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from sysconfig import get_paths
from typing import Any

from bcppo.errors import ConfigError, MissingDependency
from bcppo.study.child import Outcome, run_group
from bcppo.study.folder import StudyFolder
from bcppo.study.plan import Group, StudyError

NODE_DEATHS = 20
"""How often Ray moves a task to another node; node deaths are no failures of the run, but must not go on for ever."""


class RayEngine:
    """One Ray task for each group of runs."""

    def __init__(
        self,
        folder: StudyFolder,
        workers: int | None = None,
        *,
        address: str | None = None,
        cpus_per_run: float = 1.0,
        gpus_per_run: float = 0.0,
        say: Callable[[str], None] = print,
    ) -> None:
        amounts = (("workers", workers, 1), ("cpus_per_run", cpus_per_run, 0), ("gpus_per_run", gpus_per_run, 0))
        for name, value, least in amounts:
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, but {value} was given.")
        _refuse_unreachable(address)
        self._ray = ray = _import_ray()
        self._folder = str(folder.path)
        self._tasks: dict[Any, Group] = {}
        paths = _own_paths()
        fresh = {} if address else {"num_cpus": max(1, round((workers or os.cpu_count() or 1) * cpus_per_run))}
        try:
            ray.init(
                address or "local", include_dashboard=None if address else False, log_to_driver=False,
                logging_level="error", runtime_env={"env_vars": {"PYTHONPATH": paths}} if paths else None, **fresh,
            )  # fmt: skip
        except Exception as error:  # Ray raises all kinds, the bare one too
            where = f"The Ray cluster at {address} cannot be reached" if address else "Ray cannot be started here"
            raise StudyError(f"{where}: {str(error).splitlines()[0]}") from error
        self.places = workers or 1_000_000  # Ray keeps the queue
        self._run_group = ray.remote(run_group)
        self._resources = {"num_cpus": cpus_per_run, "num_gpus": gpus_per_run}
        if not self._has_room(cpus_per_run, gpus_per_run):
            # Not refused: a cluster that scales itself may add a node that has.
            say(f"No node has {cpus_per_run:g} CPUs and {gpus_per_run:g} GPUs for a run yet: runs wait for one.")

    def start(self, group: Group) -> None:
        task = self._run_group.options(name=group[0], max_retries=NODE_DEATHS, **self._resources)
        self._tasks[task.remote(self._folder, group)] = group

    def wait(self) -> list[tuple[Group, list[Outcome]]]:
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1)
        return [self._answer(task) for task in ready]

    def _answer(self, task: Any) -> tuple[Group, list[Outcome]]:
        group = self._tasks.pop(task)
        try:
            return group, self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            sentence = f"Ray gave the run up: {type(error).__name__}: {str(error).splitlines()[0]}"
            return group, [Outcome(run, sentence, 0.0) for run in group]

    def stop(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._tasks.clear()
        self._ray.shutdown()

    def _has_room(self, cpus: float, gpus: float) -> bool:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return any(node.get("CPU", 0.0) >= cpus and node.get("GPU", 0.0) >= gpus for node in nodes)


def _refuse_unreachable(address: str | None) -> None:
    """Knock at host:port first: Ray itself goes on knocking for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            reason = error.strerror or error
            raise StudyError(f"The Ray cluster at {address} cannot be reached: {reason}.") from error


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingDependency("The engine ray needs Ray: pip install 'bcppo[ray]'.") from None
    return ray


def _own_paths() -> str:
    """Folders on the import path that are none of the interpreter's own: those a 'module:function' task may be in."""
    installed = tuple(get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))
    return os.pathsep.join(path for path in sys.path if path and not path.startswith(installed))
