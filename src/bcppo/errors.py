"""Errors a user can act on: one clear sentence each, no traceback needed to understand them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class BcppoError(Exception):
    """Anything the user can put right: bad input, a missing dependency, a folder that holds something else."""


def in_words(error: Exception) -> str:
    """What a run's folder says of an error: our own speak for themselves, of others the kind is part of it."""
    return str(error) if isinstance(error, BcppoError) else f"{type(error).__name__}: {error}"


class ConfigError(BcppoError, ValueError):
    """A value that cannot be meant."""


class FolderError(BcppoError):
    """A run folder, or a file of one, that is not what was asked for."""


class MissingDependency(BcppoError, ImportError):
    """An optional package is needed for what was asked."""


class RunError(BcppoError):
    """What is wrong with one run; in a stack of runs, `run` says with which, where that is known."""

    def __init__(self, sentence: str, run: int | None = None) -> None:
        super().__init__(sentence)
        self.run = run


class Diverged(RunError, ArithmeticError):
    """A number that should be finite is not."""


class EnvironmentFailed(RunError):
    """An environment in a worker raised an error, or ended the worker again and again."""


class WorkerLost(BcppoError):
    """A worker is given up, for none of its environments' fault: they may go on in another."""


@contextmanager
def of_run(index: int) -> Iterator[None]:
    """What is wrong with a run inside is wrong with that one of the stack."""
    try:
        yield
    except RunError as error:
        error.run = index
        raise


def absent_package(what: str, error: ModuleNotFoundError) -> MissingDependency:
    """The error for a package that is not installed; a module of ours that is not there is another matter."""
    if not error.name or error.name.partition(".")[0] == "bcppo":
        raise error
    return MissingDependency(f"{what} needs the package '{error.name}', which is not installed.")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a table: lists the names and the nearest match."""
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    kinds = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return ConfigError(f"There is no {kind} named '{name}'; the {kinds} are {', '.join(names)}.{hint}")
