"""The documentation site: `make docs` builds it into build/docs.

The source folder is the project, so that links between docs/, notebooks/ and the other
files are the same here and where the repository is hosted. Notebooks are shown with
their committed outputs. Formulas are plain text, so that no page needs MathJax.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from jaxcomp import __version__  # noqa: E402

project, author, release = "jaxcomp", "the authors of jaxcomp", __version__
root_doc = "docs/index"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "api",
]
include_patterns = ["docs/**", "notebooks/*.ipynb", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist", "runs", "*.egg-info", "**/__pycache__"]

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions: list[str] = []
myst_heading_anchors = 4

autodoc_typehints = "none"  # `Args` says what they are, in words
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True

html_theme = "sphinx_book_theme"
html_title = "jaxcomp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]  # the front page of the folder leads to docs/index.html
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "navigation_with_keys": False,
}
