"""How Sphinx builds the documentation: ``make docs``. Nothing is fetched from anywhere."""

from __future__ import annotations

from sphinx.pycode import ModuleAnalyzer

import spdl_async

project = "spdl_async"
author = "the spdl_async authors"
copyright = f"2026, {author}"  # noqa: A001 -- the name that Sphinx reads
release = version = spdl_async.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
nitpicky = False

# A word in single backticks, in a docstring, is code.
default_role = "code"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of dataclasses are described once, in their class

html_theme = "furo"
html_title = f"spdl_async {release}"
html_show_sphinx = False

# The overloads of the builder's verbs are for type checkers and hide the options and their defaults;
# the reference shows the signatures that its pages write out.
_builder = ModuleAnalyzer.for_module("spdl_async.builder")
_builder.analyze()
_builder.overloads.clear()
