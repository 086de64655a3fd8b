"""Seconds to load a made-up study of the paper's size: 175 runs of 20 final episodes and their whole curves.

python bench/report.py [--report]   also times the page with all tables and figures
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "report"))

from synthetic import PAPER_METHODS, PAPER_TASKS, make_study

from bcppo.report import load_study, pack_study


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_study(
            Path(scratch) / "study", tasks=PAPER_TASKS, methods=PAPER_METHODS, seeds=range(5), steps=None, name="main"
        )
        print("175 runs, five loads each, seconds:")
        records = _time("run folders", lambda: load_study(folder))
        pack_study(folder, Path(scratch) / "packed")
        _time("packed", lambda: load_study(Path(scratch) / "packed"))
        size = sum(path.stat().st_size for path in (Path(scratch) / "packed").iterdir())
        rows = f"{records.episodes.height} final episodes, {records.progress.height} rows of curves"
        print(f"{rows}; {size / 1e6:.1f} MB packed")
        if "--report" in sys.argv:
            from bcppo.report.page import write_report

            before = perf_counter()
            page = write_report(folder, Path(scratch) / "report")
            print(f"whole report: {perf_counter() - before:.1f} s, page {page.stat().st_size / 1e6:.2f} MB")


def _time(what: str, load):
    seconds = []
    for _ in range(5):
        before = perf_counter()
        result = load()
        seconds.append(perf_counter() - before)
    print(f"  {what:12} {' '.join(f'{value:.3f}' for value in seconds)}")
    return result


if __name__ == "__main__":
    main()
