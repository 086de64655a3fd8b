"""What every test shares. That this file is here also puts the folder on the import path: all find `tiny_cmdp`."""

from __future__ import annotations

import os

# Before torch or a BLAS is imported: one thread, as the Makefile sets it for every run.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
