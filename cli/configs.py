"""Config files, and the flags `--config=FILE[:ARGUMENT]` and `--config.SECTION.KEY=VALUE`."""

import argparse
import ast
import contextlib
import dataclasses
import functools
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    from ml_collections import ConfigDict
except ModuleNotFoundError as error:
    print(
        f"{Path(sys.argv[0]).name} needs {error.name}, not installed here. Install the extra:"
        " pip install -e '.[lra]', or '.[language]' for language models.",
        file=sys.stderr,
    )
    sys.exit(2)

from cli.commands import BOOLS, Parser
from nystromformer_jax.support.spelling import nearest, split_commas

CONFIGS = Path(__file__).parents[1] / "configs"
# Programs by the names of their config files; all other configs are of the benchmark.
LANGUAGE_CONFIGS = {
    "finetune": "run_finetune.py",
    "glue": "run_finetune.py",
    "pretrain": "run_pretrain.py",
}
FROM_FOLDER = ("eval", "export", "predict")  # values of --mode that read the config of a run
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclasses.dataclass(frozen=True)
class Given:
    """The config of a command line.

    Attributes:
      path: The config file.
      argument: The text after the colon.
      sections: The config with the values of the command line.
      default: The config without options of the attention that change values, for the label of a run.
      overrides: Values of `--config.SECTION.KEY=VALUE`, by dotted key.
    """

    path: str
    argument: str
    sections: dict[str, Any]
    default: dict[str, Any]
    overrides: dict[str, Any]

    def record(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the config with the `values` of one run by dotted key, and how the run is started.

        That is its label, its recipe and its command. The path of the config file is relative to the
        repository, or absolute if the file is outside.
        """
        from reporting.records import RENAMED, label_of

        config = with_values(self.sections, values)
        if "cpu_accumulation" in config["train"]:  # of version 0.2.0
            raise ValueError(
                "train.cpu_accumulation was removed: with train.accumulation=0 the program chooses the parts."
            )
        file, root = Path(self.path).resolve(), CONFIGS.resolve().parent
        shown = str(file.relative_to(root) if file.is_relative_to(root) else file)
        recipes = [
            RENAMED.get(recipe := option.removeprefix("recipe="), recipe)
            for option in split_commas(self.argument)
            if option.startswith(("recipe=", "quirks="))
            and option not in ("recipe=paper", "quirks=none")
        ]
        is_benchmark = file.parent == CONFIGS.resolve() and _program_of(file) == "run_lra.py"
        changed = {key: x for key, x in self.overrides.items() if key not in values} | {**values}
        command = [
            *("python", Path(sys.argv[0]).name),
            f"--config={shown}{':' if self.argument else ''}{self.argument}",
            *(f"--config.{key}={x}" for key, x in changed.items()),
        ]
        return {
            **config,
            "label": label_of(config, self.default),
            "recipe": ", ".join(recipes) or ("paper" if is_benchmark else ""),
            "command": shlex.join(command),
        }


def parse(
    parser: Parser, arguments: Sequence[str] | None, form: str, example: str
) -> argparse.Namespace:
    """Adds `--config` and parses all arguments; the attribute `config` is a `Given`, or None.

    Args:
      parser: The parser of the other flags.
      arguments: The arguments; None for those of the process.
      form: Forms of the value of `--config`, for the help.
      example: A value of `--config`, for messages.

    Raises:
      ValueError: The config is missing or invalid, or belongs to another program. `--config` may be missing
        if `--mode` reads the config of the run in `--workdir`.
    """
    text = f"{form}; --config.SECTION.KEY=VALUE changes a value"
    parser.add_argument("--config", metavar="FILE", help=text)
    words, texts = split_dotted(sys.argv[1:] if arguments is None else arguments, "config")
    values = parser.parse_args(words)
    if values.config is not None:
        values.config = read(values.config, texts, parser.prog, example)
        return values
    for key in texts:
        raise ValueError(f"--config.{key} needs --config=FILE: pass both or neither.")
    mode = getattr(values, "mode", "")
    if mode != "predict" and not (mode in FROM_FOLDER and values.workdir):
        raise ValueError(f"pass --config={example}, or another file under configs/")
    return values


def split_dotted(arguments: Iterable[str], prefix: str) -> tuple[list[str], dict[str, str | None]]:
    """Returns the other words, and the texts of the flags `--PREFIX.KEY=TEXT` or `--PREFIX.KEY TEXT` by key.

    The text of a flag without one is None.
    """
    words: list[str] = []
    texts: dict[str, str | None] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        match = re.fullmatch(rf"--{prefix}\.([^=]*)(?:=(.*))?", word, re.DOTALL)
        if not match:
            words.append(word)
            continue
        key, text = match.groups()
        if text is None and rest and not rest[0].startswith("--"):
            text = rest.pop(0)
        texts[key] = text
    return words, texts


def read(value: str, texts: Mapping[str, str | None], program: str, example: str) -> Given:
    """Reads the config file of `--config=VALUE`, once, and sets the `texts` of values, by dotted key.

    Raises:
      ValueError: The file does not exist, is invalid or belongs to another program than `program`, or a value
        is invalid; `example` is a valid `value`.
    """
    path, colon, argument = value.partition(":")
    file = Path(path).resolve()
    if not file.is_file():
        known = [
            f"configs/{one.name}"
            for one in CONFIGS.glob("[!_]*.py")
            if program in ("run_plan.py", _program_of(one))
            and "\ndef get_config(" in one.read_text(encoding="utf-8")
        ]
        raise ValueError(f"config file not found: {path!r} in {Path.cwd()}{nearest(path, known)}")
    is_ours, own_program = file.parent == CONFIGS.resolve(), _program_of(file)
    if is_ours and program not in ("run_plan.py", own_program):
        raise ValueError(
            f"{path} is a config of {own_program}: use that program, or a config such as {example}"
        )
    get_config = load_file(path)
    config = get_config(*([argument] if colon else []))
    sections = config.to_dict()
    if attention := texts.get("attention.name"):
        option = attention if _program_of(file) == "run_lra.py" else f"attention={attention}"
        raise ValueError(
            "--config.attention.name changes the name and not the options of the attention: pass"
            f" {option} and its options after the colon of --config."
        )
    overrides = {key: _set_value(config, key, text) for key, text in texts.items()}
    own = {**sections["attention"], "name": ""}
    kept = [option for option in split_commas(argument) if option.partition("=")[0] not in own]
    default = get_config(*([",".join(kept)] if kept != [""] else [])).to_dict()
    return Given(path, argument, config.to_dict(), default, overrides)


def _program_of(file: Path) -> str:
    """Returns the program that runs a file of configs/."""
    return LANGUAGE_CONFIGS.get(file.stem, "run_lra.py")


def _set_value(config: ConfigDict, key: str, text: str | None) -> Any:
    """Sets a value of a config by its text; returns the value.

    Raises:
      ValueError: The key is unknown or a section, or the text is not of the type of the current value.
    """
    flag, keys = f"--config.{key}", _keys_of(config.to_dict())
    if key not in keys:
        raise ValueError(f"unknown config key {flag}{nearest(key, keys)}")
    section, _, name = key.partition(".")
    if not name:
        example = next((one for one in keys if one.startswith(f"{key}.")), f"{key}.KEY")
        raise ValueError(f"{flag} is a section: set each value, such as --config.{example}=VALUE.")
    old = config[section][name]
    if text is None and not isinstance(old, bool):
        raise ValueError(f"{flag} needs a value: {flag}=VALUE")
    try:
        config.update_from_flattened_dict({key: True if text is None else _value(text, old)})
    except (TypeError, ValueError):
        kind = _KINDS.get(type(old), f"a {type(old).__name__}")
        raise ValueError(f"{flag}={text} is invalid: {key} needs {kind}.") from None
    return config.to_dict()[section][name]


def _value(text: str, old: Any) -> Any:
    """Parses a text as a value of the type of `old`; returns the text if it is not one."""
    if isinstance(old, str):
        return text
    if isinstance(old, bool):
        return BOOLS.get(text.lower(), text)
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
        if isinstance(old, float):  # also inf and nan, which a check of the section rejects
            value = float(text)
    return (value,) if isinstance(old, tuple) and not isinstance(value, tuple | list) else value


def _keys_of(sections: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Returns the names of the sections, and the dotted keys of their values."""
    return [*sections, *(f"{name}.{key}" for name, own in sections.items() for key in own)]


@functools.cache  # a sweep reads a file for each of its settings; the current folder stays the same
def load_file(path: str) -> Callable[..., ConfigDict]:
    """Executes a config file; returns its `get_config`, whose results are validated.

    Raises:
      ValueError: The file has no function `get_config`; later, that it failed or did not return sections.
      ImportError: A module of the file or of its attention cannot be imported.
    """
    with _naming(path):
        functions = runpy.run_path(path)
    if "get_config" not in functions:
        raise ValueError(f"{path}: a config file needs the function get_config.")

    def get_config(*argument: str) -> ConfigDict:
        with _naming(path):
            config = functions["get_config"](*argument)
        if not isinstance(config, ConfigDict):
            raise ValueError(f"{path}: get_config must return a ConfigDict, not {config!r:.50}.")
        for name in ("data", "attention", "train", *config):
            if not isinstance(section := config.get(name), ConfigDict):
                raise ValueError(f"{path}: {name} must be a ConfigDict, not {section!r:.50}.")
        return config

    return get_config


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Names the file in errors of a user's code, which may raise anything."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f" cannot be loaded: {type(error).__name__}"
        raise ValueError(f"{path}{kind}: {error}") from error


def with_values(config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with other values, by dotted key."""
    for key, value in values.items():
        section, _, name = key.partition(".")
        config = {**config, section: {**config.get(section, {}), name: value}}
    return config


def seed_of(sections: Mapping[str, Any]) -> int:
    """Returns `train.seed` of a config, by default that of `TrainConfig`; ValueError unless it is an int."""
    from nystromformer_jax.training.config import TrainConfig  # needs the extra `lra`

    seed = sections["train"].get("seed", TrainConfig.seed)
    if type(seed) is not int:
        raise ValueError(f"train.seed: needs an int, got {seed!r} ({type(seed).__name__}).")
    return seed
