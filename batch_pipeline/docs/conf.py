"""How these pages become a site: `uv run sphinx-build -W --keep-going batch_pipeline/docs site`.

Nothing of the site is fetched from elsewhere when it is read.
"""

import logging
import re
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

_README = re.compile(r"\]\(\.\./\.\./((?:\.\./)*)README\.md")

logging.basicConfig(level=logging.WARNING)  # else a package of the theme's chooses INFO for all

project = "batch-pipeline"
release = version_of("batch-pipeline")
html_title = f"{project} {release}"
html_theme = "furo"
html_css_files = ["site.css"]
html_static_path = ["_static"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # the levels that links such as `s3.md#access` may name
highlight_language = "text"  # of blocks that name none
suppress_warnings = ["misc.highlighting_failure"]  # examples leave parts out by `…`

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
default_role = "code"  # docstrings write code as these pages do, between single back quotes
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
nitpicky = True  # a type of the package in a documented signature is documented, too
nitpick_ignore_regex = [("py:.*", r"(?!batch_pipeline\.).*|.*\._\w+")]


def setup(app: Sphinx) -> None:
    """Connect what these pages need of the build."""
    app.connect("source-read", _link_to_start_page)
    app.connect("doctree-read", _leave_out_of_search)


def _link_to_start_page(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Make links to the README lead to the start page, which includes it."""
    source[0] = _README.sub(r"](\1index.md", source[0])


def _leave_out_of_search(app: Sphinx, _doctree: object) -> None:
    """Keep records of the past from hiding the pages that answer a question."""
    page = app.env.current_document.docname
    if page.startswith("decisions") or page == "changelog":
        app.env.metadata[page]["nosearch"] = "true"
