"""Sphinx configuration: ``make docs`` builds the pages into docs/_build.

Pages that follow from the code are made by ``make pages``; a test shows which are older than it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = "HangScope"
author = "The HangScope authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "HangScope"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"
