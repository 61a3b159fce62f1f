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
from typing import Annotated, Any, Literal, get_args, get_origin

ROOT = Path(__file__).parents[1]
sys.path.insert(
    0, str(ROOT)
)  # the code of this repository, not an installed one

project = "nystromformer-jax"
author = "The nystromformer-jax authors"
project_copyright = author
version = release = importlib.import_module("nystromformer_jax").__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
pygments_dark_style = (
    "github-dark"  # furo's default underlines every imported module
)

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
nitpick_ignore_regex = [
    (r"py:.*", r"(?!nystromformer_jax\b).*"),
    (r"py:class", r"nystromformer_jax\.cores\.core\.CoreInputs"),
]

# Public names in backquotes become links.
_PUBLIC = {
    name: f"{module}.{name}"
    for module in (
        "nystromformer_jax.pretrained",
        "nystromformer_jax.training",
        "nystromformer_jax",
    )
    for name in importlib.import_module(module).__all__
    if not inspect.ismodule(getattr(importlib.import_module(module), name))
}
_NAME = re.compile(r"(?<![`\w:])`(\w+)`(?!`)")
_ONE_LETTER = re.compile(r"^( +\w+: [A-Z])\.(?= |$)")
_CITATION = re.compile(r"(Source|Differs\b[^:]*):")
_SECTION = re.compile(
    rf"(Args|Attributes|Raises|Returns|Yields):|{_CITATION.pattern}"
)


def files_as_downloads(app: Any, page: str, source: list[str]) -> None:
    """Makes links to Markdown files outside of this folder downloads, because they have no page."""
    source[0] = re.sub(r"\]\((\.\./[^)#]+\.md)\)", r"](path:\1)", source[0])


def as_written(
    app: Any,
    what: str,
    name: str,
    thing: Any,
    options: Any,
    signature: str,
    returns: str,
) -> tuple[str, str] | None:
    """Returns the signature with annotations as written in the source: `Float[Array, "B L H D"]`."""
    if inspect.isclass(thing):
        return _of_class(thing)
    if not isinstance(thing, FunctionType):
        return None
    function = _parsed(inspect.unwrap(thing))
    if what == "method":
        del function.args.args[0]
    function = _WithChoices(inspect.getmodule(thing)).visit(function)
    return f"({ast.unparse(function.args)})", ast.unparse(
        function.returns or []
    )


class _WithChoices(ast.NodeTransformer):
    """Writes out the names of `Literal` types: `Pinv` becomes `Literal['iterative', 'ridge']`."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        alias = getattr(self.module, node.id, None)
        if (
            get_origin(alias) is Annotated
        ):  # the second argument is the type in config files
            alias = get_args(alias)[1]
        if get_origin(alias) is not Literal:
            return node
        choices = ", ".join(map(repr, get_args(alias)))
        return ast.parse(f"Literal[{choices}]", mode="eval").body


def _of_class(thing: type) -> tuple[str, str] | None:
    """Returns the fields of a dataclass or named tuple, without those that Flax adds to Modules."""
    if not (dataclasses.is_dataclass(thing) or issubclass(thing, tuple)):
        return None
    fields = {}
    for base in reversed(thing.__mro__):
        if base.__module__.startswith(("nystromformer_jax.", "lra.")):
            for line in (
                _WithChoices(inspect.getmodule(base)).visit(_parsed(base)).body
            ):
                if isinstance(
                    line, ast.AnnAssign
                ) and "ClassVar" not in ast.unparse(line):
                    fields[ast.unparse(line.target)] = ast.unparse(
                        line
                    ).replace(" = ", "=")
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
    own = name.rpartition(".")[2]
    lines[:] = [
        _NAME.sub(lambda found: _linked(found, own), line) for line in made
    ]


def _linked(found: re.Match[str], own: str) -> str:
    """Returns a public name as a link, unless it is the object itself."""
    target = _PUBLIC.get(found[1])
    return f":py:obj:`~{target}`" if target and found[1] != own else found[0]


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
