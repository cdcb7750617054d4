"""Sphinx configuration: ``make docs`` builds the pages into docs/_build."""

project = "HangScope"
author = "The HangScope authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "HangScope"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
