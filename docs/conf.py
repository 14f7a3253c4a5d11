"""Sphinx configuration: ``sphinx-build -W docs docs/_build``."""

import importlib
import os
import runpy
import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS / "_ext"))

project = "torch_openreg"
author = "the authors of torch_openreg"
copyright = author

_policy = runpy.run_path(str(_DOCS.parent / "torch_openreg" / "_version.py"))
version = release = _policy["__version__"]
_releases = _policy["TORCH_RELEASES"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "tables",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

exclude_patterns = ["_build", "_ext", "_templates"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_js_files = [("versions.js", {"defer": "defer"})]
html_title = f"torch_openreg {release}"
# The theme's, and a line with the releases of torch, to which versions.js adds a choice.
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "version.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_context = {"torch_releases": f"{_releases[0]} to {_releases[-1]}"}
html_copy_source = False
# Prompts are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_show_sphinx = False
# A name that is not found is an error, not a plain text.
nitpicky = True
# The site has no names of other projects, and no private ones, which annotations have.
nitpick_ignore_regex = [("py:.*", r"(?!torch\.openreg\.|torch_openreg\.)\S+|\S+\._\S+")]

# The reference comes from the docstrings of the installed package. It describes the device openreg,
# regardless of the environment of the build.
os.environ["OPENREG_DEVICE_TYPE"] = "openreg"
importlib.import_module("torch_openreg")
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
