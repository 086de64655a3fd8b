"""What a table is: rows of texts and of values that may have a spread, an interval, a note, or be absent."""

from __future__ import annotations

from dataclasses import dataclass

ABSENT = "–"


@dataclass(frozen=True)
class Value:
    """A number of a table with its spread, or nothing and the reason."""

    mean: float | None
    std: float | None = None
    digits: int = 3
    bold: bool = False
    note: str = ""
    interval: tuple[float | None, float | None] | None = None
    """Given in place of a spread."""

    @property
    def text(self) -> str:
        if self.mean is None:
            return ABSENT
        text = f"{self.mean:.{self.digits}f}"
        if self.interval is not None:
            low, high = (ABSENT if end is None else f"{end:.{self.digits}f}" for end in self.interval)
            text += f" [{low}, {high}]"
        elif self.std is not None:
            text += f" ± {self.std:.{self.digits}f}"
        return text.replace("-", "−")


@dataclass(frozen=True)
class Table:
    """Rows of texts and values under a header; a rule is drawn after every row whose number is in `rules`."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]
    rules: tuple[int, ...] = ()
    title: str = ""
    """Where its name, in words, does not do."""

    @property
    def notes(self) -> list[str]:
        """The distinct notes of the cells; their marks are a, b, c, … in this order."""
        values = [cell.note for row in self.rows for cell in row if isinstance(cell, Value) and cell.note]
        return list(dict.fromkeys(values))

    def mark(self, cell: str | Value) -> str:
        return mark(self.notes.index(cell.note)) if isinstance(cell, Value) and cell.note else ""


def mark(number: int) -> str:
    """a … z, aa, ab, …"""
    return (mark(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
