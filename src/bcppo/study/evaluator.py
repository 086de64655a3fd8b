"""The process in which runs of a study are evaluated on many episodes: `python -m bcppo.study.evaluator N FOLDER ID…`.

It imports no torch. As child.py's, it answers with a line of JSON a run and ends with whoever started it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from bcppo.long_evaluation import evaluate_long
from bcppo.study.outcome import answer, attempted


def main(episodes: int, folder: Path, runs: list[str]) -> None:
    answer(attempted(run, partial(evaluate_long, folder / "runs" / run, episodes)) for run in runs)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
