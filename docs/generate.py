"""Writes docs/config.md, every key of a config, from its dataclasses: `python docs/generate.py`.

With `--pictures`, it also runs the tutorial and stores its pictures as docs/tutorial-*.png.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

DOCS = Path(__file__).parent
ROOT = DOCS.parent

# --- Every key of a config ------------------------------------------------------------------------

_HEAD = """# Every key of a config

**`--config.SECTION.KEY=VALUE` sets any value of a config.** An unknown key is an error that suggests the
nearest one. Every config file sets the keys without a default, and some others: `config.json` in the folder
of a run has all values. `python docs/generate.py` writes this page from the dataclasses of the sections.

## Long Range Arena

These are the sections of `run_lra.py`.
"""
_ATTENTION = """
### attention

`name` is the attention. Its options are the other keys, and also the arguments of `make_core(name, …)`. A
default in parentheses is that of `make_core`, where it differs.
"""
_PRETRAINING = """
## Pretraining

`run_pretrain.py` has the sections optimizer, train, eval, mesh, checkpoint and log of the Long Range Arena,
and these. The section model has `embed_dim`, `num_layers`, `num_heads`, `mlp_dim`, `dropout_rate`,
`attention_dropout_rate` and `dtype` of [`NystromformerConfig`](api.md). The optimizer is always
AdamW, so these configs have no key `optimizer.method`.
"""
_FINETUNING = """
## Fine-tuning

`run_finetune.py` has the sections init, mesh, checkpoint and log from above, and these. Sizes are those of
the checkpoint; the section model has only `dropout_rate`, `attention_dropout_rate` and `dtype`. The section
attention has a `name`, empty for the checkpoint's attention, and the options that follow it after the colon
of `--config`: those of nystrom above, without `conv_groups`.
"""


def config_page() -> str:
    """Returns docs/config.md."""
    from configs.common import ATTENTIONS
    from language.config import FINETUNING, InitConfig, ObjectiveConfig
    from language.corpus.data import CorpusConfig
    from language.finetune.files import FilesConfig
    from language.finetune.glue import GlueConfig
    from lra.config import ModelConfig
    from lra.data import DataConfig
    from nystromformer_jax.training.config import SECTIONS

    parts = [
        _HEAD,
        _section("data", DataConfig),
        _section("model", ModelConfig),
        _ATTENTION,
    ]
    parts += [_attention(name, options) for name, options in ATTENTIONS.items()]
    parts += [_section(name, SECTIONS[name]) for name in SECTIONS]
    parts += [
        _PRETRAINING,
        _section("data", CorpusConfig),
        _section("objective", ObjectiveConfig),
    ]
    parts += [_section("init", InitConfig), _FINETUNING]
    parts += [_section("data, for your own files", FilesConfig)]
    parts += [_section("data, for GLUE and IMDb", GlueConfig)]
    parts += [
        _section(name, FINETUNING[name])
        for name in ("optimizer", "train", "eval")
    ]
    return "".join(parts)


def _section(title: str, schema: type) -> str:
    """Returns the table of a section."""
    return f"\n### {title}\n\n" + _table(_rows(schema))


def _attention(name: str, options: dict[str, Any]) -> str:
    from nystromformer_jax.cores import CORES

    rows = []
    for key, values, default, meaning in _rows(CORES[name]):
        if (key := key.strip("`")) in options:
            own = _code(options[key])
            rows.append(
                (
                    f"`{key}`",
                    values,
                    own if own == default else f"{own} ({default})",
                    meaning,
                )
            )
    return f"\n**{name}**\n\n" + (_table(rows) if rows else "No options.\n")


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [("key", "values", "default", "meaning"), ("---",) * 4, *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n"
        for line in lines
    )


def _rows(schema: type) -> list[tuple[str, str, str, str]]:
    """Returns key, values, default and meaning of each field; a field without a meaning is an error."""
    annotations = typing.get_type_hints(schema, include_extras=True)
    meanings = _meanings(schema)
    rows = []
    for field in dataclasses.fields(schema):
        if field.name in ("parent", "name"):  # of every Module
            continue
        default = (
            "–"
            if field.default is dataclasses.MISSING
            else _code(field.default)
        )
        values = _values(annotations[field.name])
        rows.append((f"`{field.name}`", values, default, meanings[field.name]))
    return rows


def _code(value: Any) -> str:
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _values(annotation: Any) -> str:
    """Returns the accepted values of a field, or their type."""
    origin, arguments = (
        typing.get_origin(annotation),
        typing.get_args(annotation),
    )
    if origin is Annotated:  # the second argument is the type in config files
        return _values(arguments[1])
    if origin is Literal:
        return ", ".join(map(_code, arguments))
    if origin is tuple:
        return f"tuple of {_values(arguments[0])}"
    if arguments:  # a union
        return " or ".join(
            "`None`" if x is type(None) else _values(x) for x in arguments
        )
    return str(annotation.__name__)


def _meanings(schema: type) -> dict[str, str]:
    """Returns the meaning of each field, from the docstring or the comment of its class."""
    from nystromformer_jax import nystrom_attention
    from nystromformer_jax.attention.options import NystromOptions

    found: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        documented = nystrom_attention if base is NystromOptions else base
        found |= _of_docstring(inspect.getdoc(documented) or "")
        if dataclasses.is_dataclass(base):
            found = (
                dict(_of_comments(textwrap.dedent(inspect.getsource(base))))
                | found
            )
    return found


def _of_docstring(text: str) -> dict[str, str]:
    """Returns the entries of `Args:` or `Attributes:`."""
    section = re.search(
        r"^(?:Args|Attributes)[^\n]*:\n((?:  .*\n?|\n)+)", text, re.MULTILINE
    )
    entries = re.split(
        r"^  (?=\w+: )", section[1] if section else "", flags=re.MULTILINE
    )
    pairs = (entry.partition(": ") for entry in entries if entry.strip())
    return {name: " ".join(meaning.split()) for name, _, meaning in pairs}


def _of_comments(source: str) -> Iterator[tuple[str, str]]:
    """Yields each field with the comment on its line, or the one above it."""
    lines = source.splitlines()
    (parsed,) = ast.parse(source).body
    assert isinstance(parsed, ast.ClassDef)
    for field in parsed.body:
        if isinstance(field, ast.AnnAssign):
            above = field.lineno - 2
            while lines[above].strip().startswith("#"):
                above -= 1
            comments = [*lines[above + 1 : field.lineno - 1]]
            comments += re.findall(r"#.*$", lines[field.lineno - 1])
            if comments:
                meaning = " ".join(
                    comment.strip().removeprefix("#").strip()
                    for comment in comments
                )
                yield (
                    ast.unparse(field.target),
                    f"{_capitalized(meaning).rstrip('.')}.",
                )


def _capitalized(text: str) -> str:
    """Returns a text with a capital, unless it begins with a symbol or a value."""
    is_word = re.match(r"[a-z]+(?![\w₁₂])", text)
    return text[0].upper() + text[1:] if is_word else text


# --- The tutorial ---------------------------------------------------------------------------------

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run_tutorial() -> None:
    """Runs the blocks of the tutorial and stores its pictures."""
    names: dict[str, Any] = {}
    for block in _BLOCK.finditer(
        (DOCS / "tutorial.md").read_text(encoding="utf-8")
    ):
        exec(compile(block[1], "tutorial.md", "exec"), names)
    for picture in sorted(names["folder"].glob("*.png")):
        (DOCS / f"tutorial-{picture.name}").write_bytes(picture.read_bytes())


def main() -> None:
    """Writes the page, and with `--pictures` also the pictures."""
    (DOCS / "config.md").write_text(config_page(), encoding="utf-8")
    if "--pictures" in sys.argv:
        run_tutorial()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
