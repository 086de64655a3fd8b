"""The one thing pyproject.toml cannot say: an optional C kernel for the navigation simulators.

The kernel uses Python's limited API, so one build serves every supported Python, and it is optional: without a compiler
the package installs all the same and falls back to its pure-Python engine (same results, slower).
"""

from setuptools import Extension, setup

kernel = Extension(
    "bcppo.tasks.navigation._kernel",
    sources=["src/bcppo/tasks/navigation/kernel.c"],
    # -ffp-contract=off: a fused multiply-add rounds once where the reference simulator rounds twice.
    extra_compile_args=["-O2", "-ffp-contract=off"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[kernel], options={"bdist_wheel": {"py_limited_api": "cp310"}})
