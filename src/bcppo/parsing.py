"""Arguments → a dataclass, by tyro; what it has to object is said in one sentence, as everything else is."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr
from typing import Any, TypeVar

import tyro

from bcppo.errors import ConfigError

Options = TypeVar("Options")
_KINDS = {"INT": "a whole number", "FLOAT": "a number", "{None}|FLOAT": "a number", "[INT [INT ...]]": "whole numbers"}
"""How tyro writes what an option takes → in words."""


def parse(kind: type[Options], arguments: list[str], prog: str, **options: Any) -> Options:
    """The options of a command; --help prints and ends."""
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            parsed = tyro.cli(kind, args=arguments, prog=prog, **options)
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(f"{sentence(told.getvalue(), prog)} `{prog} --help` lists what it takes.") from None
    sys.stderr.write(told.getvalue())
    return parsed


def sentence(box: str, prog: str) -> str:
    """What tyro says in a box, as a sentence."""
    parts = _parts(box)
    first = " ".join(line.strip() for line in parts[0])
    hint = next((f" Did you mean {part[1].split()[0].rstrip(',')}?" for part in parts if _is_hint(part)), "")
    if first.startswith("Missing from"):
        return f"`{prog}` needs {' and '.join(_missing(parts[0][1:]))}."
    if match := re.match(r"Unrecognized options: (.*)", first):
        return f"`{prog}` has no use for {match[1].replace(', ', ' ')}.{hint}"
    if match := re.match(r"Missing value for argument '(.*?)'", first):
        return f"{match[1]} needs a value."
    if match := re.match(r"Error parsing [^-]\S*: (.*)", first):  # a sentence of a config's own
        return f"{match[1].rstrip('.')}."
    if match := re.match(r"Error parsing (\S+): .*?(\[?'.*)", first):
        listed = match[2].partition("]")[0] if match[2].startswith("[") else match[2].partition("' ")[0]
        given = " ".join(re.findall(r"'(.*?)(?:'|$)", listed))
        takes = next((line.strip() for part in parts[1:] for line in part if line.strip().startswith(match[1])), "")
        what = _KINDS.get(takes[len(match[1]) :].strip(), "")
        return f"{match[1]} must be {what}, but {given} was given." if what else f"{match[1]} cannot be {given}."
    return f"{first.rstrip('.')}.{hint}"


def _missing(lines: list[str]) -> list[str]:
    """Each missing argument with its explanation, whose lines stand further right than the names."""
    edge = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if len(line) - len(line.lstrip()) == edge:
            found.append((line.strip(), []))
        elif found:
            found[-1][1].append(line.strip())
    texts = [(name, " ".join(words).replace("(required)", "").strip().rstrip(".")) for name, words in found]
    return [f"{name} ({text})" if text else name for name, text in texts]


def _is_hint(part: list[str]) -> bool:
    return part[0].strip().startswith("Perhaps you meant") and len(part) > 1


def _parts(box: str) -> list[list[str]]:
    """The lines inside a box, in the parts that rules divide them into. Without a box, a title comes first."""
    boxed = [line.strip()[1:-1].rstrip() for line in box.splitlines() if line.strip().startswith("│")]
    parts: list[list[str]] = [[]]
    for line in boxed or box.splitlines():
        if line.strip() and set(line.strip()) <= {"─", "-"}:
            parts.append([])
        elif line.strip():
            parts[-1].append(line)
    found = [part for part in parts if part]
    return found[0 if boxed else 1 :] or found or [["The arguments cannot be understood"]]
