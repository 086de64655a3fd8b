"""Sphinx: `make docs` builds docs/_build/html; a warning is an error."""

import bcppo

project, author, release = "bcppo", "the bcppo authors", bcppo.__version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "Tail-risk-aware safe reinforcement learning", "page_width": "1080px"}
myst_heading_anchors = 3
# methods.md has two headings of the first level; a page's own outline is its author's matter.
suppress_warnings = ["myst.header"]
