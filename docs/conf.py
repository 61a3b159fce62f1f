"""The documentation's site: `python -m sphinx -W --keep-going -n -b html docs SITE`, offline."""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the code of this repository, not an installed one

project = "nystromformer-jax"
author = "The nystromformer-jax authors"
project_copyright = author
version = release = importlib.import_module("nystromformer_jax").__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
pygments_dark_style = "github-dark"  # furo's default underlines every imported module

default_role = "code"  # docstrings write `name`, as the pages do
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "special-members": "__call__",
    "exclude-members": "replace",  # added by flax.struct
}
add_module_names = False  # each page describes one module
maximum_signature_line_length = 40
napoleon_use_ivar = True
napoleon_use_rtype = False
# Types of other packages have no page here. A missing name of ours is an error.
nitpick_ignore_regex = [(r"py:.*", r"(?!nystromformer_jax\b).*")]

_ONE_LETTER = re.compile(r"^( +\w+: [A-Z])\.(?= |$)")
_CITATION = re.compile(r"(Source|Differs\b[^:]*):")
_SECTION = re.compile(rf"(Args|Attributes|Raises|Returns|Yields):|{_CITATION.pattern}")


def files_as_downloads(app: Any, page: str, source: list[str]) -> None:
    """Makes links to Markdown files outside of this folder downloads, because they have no page."""
    source[0] = re.sub(r"\]\((\.\./[^)#]+\.md)\)", r"](path:\1)", source[0])


def as_written(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Returns the signature with annotations as written in the source: `Float[Array, "B L H D"]`."""
    if inspect.isclass(thing):
        return _of_class(thing)
    if not isinstance(thing, FunctionType):
        return None
    function = _parsed(inspect.unwrap(thing))
    if what == "method":
        del function.args.args[0]
    return f"({ast.unparse(function.args)})", ast.unparse(function.returns or [])


def _of_class(thing: type) -> tuple[str, str] | None:
    """Returns the fields of a dataclass or named tuple, without those that Flax adds to Modules."""
    if not (dataclasses.is_dataclass(thing) or issubclass(thing, tuple)):
        return None
    fields = {}
    for base in reversed(thing.__mro__):
        if base.__module__.startswith("nystromformer_jax."):
            for line in _parsed(base).body:
                if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line):
                    fields[ast.unparse(line.target)] = ast.unparse(line).replace(" = ", "=")
    return f"({', '.join(fields.values())})", ""


def _parsed(thing: Any) -> Any:
    (statement,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    return statement


def as_restructured_text(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Converts our docstrings to reStructuredText.

    An indented block outside of a section is a formula or code. `Source:` and `Differs:` are paragraphs
    whose continuation lines may be indented. A leading "M." does not number a list.
    """
    made: list[str] = []
    section = ""
    for line in lines:
        if line and not line.startswith(" "):
            section = line if _SECTION.match(line) else ""
            if section:
                made.append("")
        elif line and _CITATION.match(section):
            line = line.lstrip()
        elif line and not section and not made[-1]:
            earlier = next(old for old in reversed(made) if old)
            if not earlier.startswith(" "):
                made += ["::", ""]
        made.append(_ONE_LETTER.sub(r"\1\\.", line))
    lines[:] = made


def named_tuples_fields(
    app: Any, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Skips "Alias for field number 0", because the signature has the fields."""
    return True if type(thing).__name__ == "_tuplegetter" else None


def setup(app: Any) -> None:
    """Connects the hooks; the one for docstrings runs before napoleon's."""
    app.connect("source-read", files_as_downloads)
    app.connect("autodoc-skip-member", named_tuples_fields)
    app.connect("autodoc-process-signature", as_written)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
