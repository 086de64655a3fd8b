"""How tasks, methods and variants are written and ordered in the paper."""

from __future__ import annotations

import re
from collections.abc import Iterable

TASKS = {"goal1": "Goal1", "button1": "Button1", "push1": "Push1", "hopper": "Hopper", "ant": "Ant"}
NAVIGATION = ("goal1", "button1", "push1")
METHODS = {
    "bcppo": "BCPPO", "cppo": "CPPO", "qrppo": "QR PPO", "ppolag": "PPOLag", "cpo": "CPO", "focops": "FOCOPS",
    "wcsac": "WCSAC", "ppopid": "PPO-PID (ours)", "ppo": "PPO",
}  # fmt: skip
COMPARATORS = ("cppo", "qrppo", "ppolag", "cpo", "focops", "wcsac")
"""The six methods BCPPO is compared with in the paper."""
PAPER_METHODS = ("bcppo", *COMPARATORS)
OURS = "ppopid"
"""BCPPO with β = 0, a row of our own: the difference between the two is what disagreement adds."""

COMPONENTS = ("no Bachelier", "uncertainty bonus", "no branch normalization", "no anti-windup")
RAW_SIGMA = "raw sigma"


def task_label(task: str) -> str:
    return TASKS.get(task, task)


def label(method: str, variant: str = "") -> str:
    """A row's name: the method's, or the variant's where it is one; of BCPPO that says enough, as in the paper."""
    name = METHODS.get(method, method)
    return name if not variant else variant if method == "bcppo" else f"{name}, {variant}"


def aside(methods: Iterable[str]) -> set[str]:
    """Of a study's methods, our own row beside the paper's comparators: what is counted of theirs goes without it.

    None where no comparator is there: what is left is then compared like any other.
    """
    return {OURS} & set(methods) if not set(COMPARATORS).isdisjoint(methods) else set()


def canonical(variant: str) -> str:
    """One spelling for a setting: beta=0.4, β = 0.40 and beta=.4 are one variant."""
    text = variant.strip()
    for symbol, word in (("β", "beta"), ("κ", "kappa"), ("α", "alpha"), ("σ", "sigma")):
        text = text.replace(symbol, word)
    match = re.fullmatch(r"(\w+)\s*=\s*([-+]?[\d.]+)", text)
    if not match:
        return text
    try:
        return f"{match[1]}={float(match[2]):g}"
    except ValueError:
        return text


def in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    """Known names in the paper's order, then the others by name."""
    rank = {name: number for number, name in enumerate(order)}
    return sorted(set(names), key=lambda name: (rank.get(name, len(rank)), name))


def variant_key(variant: str) -> tuple:
    """Sorts variants as the paper's tables do: as it is, components, scale, then settings by name and size."""
    if variant == "":
        return (0,)
    if variant in COMPONENTS:
        return 1, COMPONENTS.index(variant)
    if variant == RAW_SIGMA:
        return (2,)
    name, _, value = canonical(variant).partition("=")
    order = ("beta", "kappa", "alpha", "M")
    try:
        return 3, order.index(name) if name in order else len(order), name, float(value)
    except ValueError:
        return 4, variant
