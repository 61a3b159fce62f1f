"""Config files, and the flags `--config=FILE[:ARGUMENT]` and `--config.SECTION.KEY=VALUE`."""

import argparse
import ast
import dataclasses
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from cli.commands import Parser
from nystromformer_jax.support.durable import read_config
from nystromformer_jax.support.spelling import nearest, split_commas

CONFIGS = Path(__file__).parents[1] / "configs"
# Programs by the names of their config files; all other configs are of the benchmark.
LANGUAGE_CONFIGS = {
    "finetune": "run_finetune.py",
    "glue": "run_finetune.py",
    "pretrain": "run_pretrain.py",
}
FROM_FOLDER = ("eval", "export", "predict")  # values of --mode that read the config of a run
_OVERRIDE = re.compile(r"--config\.([^=]*)(?:=(.*))?", re.DOTALL)
BARE = "\0"  # the text of --config.KEY without a value
_BOOLS = {BARE: True, "true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
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
        from reporting.records import label_of

        config = with_values(self.sections, values)
        if "cpu_accumulation" in config["train"]:  # of version 0.2.0
            raise ValueError(
                "train.cpu_accumulation was removed: with train.accumulation=0 the program chooses the parts."
            )
        if "attention" not in config:
            raise ValueError("attention: this section is missing from the config.")
        changes = {key: value for key, value in self.overrides.items() if key not in values}
        file, root = Path(self.path).resolve(), CONFIGS.resolve().parent
        shown = str(file.relative_to(root) if file.is_relative_to(root) else file)
        options = split_commas(self.argument)
        recipes = [
            x.removeprefix("recipe=") for x in options if x.startswith(("recipe=", "quirks="))
        ]
        recipes = [recipe for recipe in recipes if recipe not in ("paper", "quirks=none")]
        is_benchmark = file.parent == CONFIGS.resolve() and file.stem not in LANGUAGE_CONFIGS
        command = command_of(Path(sys.argv[0]).name, shown, self.argument, {**changes, **values})
        return {
            **config,
            "label": label_of(config, self.default),
            "recipe": ", ".join(recipes) or ("paper" if is_benchmark else ""),
            "command": shlex.join(command),
        }


def command_of(program: str, path: str, argument: str, values: Mapping[str, Any]) -> list[str]:
    """Returns the words of a command; `values` are those of the config by dotted key."""
    config = f"--config={path}{':' if argument else ''}{argument}"
    return ["python", program, config, *(f"--config.{key}={x}" for key, x in values.items())]


def parse(
    parser: Parser,
    arguments: Sequence[str] | None,
    form: str,
    example: str,
    is_supported: Callable[[str], bool] = bool,
) -> argparse.Namespace:
    """Adds `--config` and parses all arguments; the attribute `config` is a `Given`, or None.

    Args:
      parser: The parser of the other flags.
      arguments: The arguments; None for those of the process.
      form: Forms of the value of `--config`, for the help.
      example: A value of `--config`, for messages.
      is_supported: True for names of config files that the program supports.

    Raises:
      ValueError: The config is missing or invalid, or belongs to another program. `--config` may be missing
        if `--mode` reads the config of the run in `--workdir`.
    """
    text = f"{form}; --config.SECTION.KEY=VALUE changes a value"
    parser.add_argument("--config", metavar="FILE", help=text)
    words, texts = _split(sys.argv[1:] if arguments is None else arguments)
    values = parser.parse_args(words)
    if values.config is None:
        for key in texts:
            raise ValueError(f"--config.{key} needs --config=FILE: pass both or neither.")
        mode = getattr(values, "mode", "")
        if mode != "predict" and not (mode in FROM_FOLDER and values.workdir):
            raise ValueError(f"pass --config={example}, or another file under configs/")
        return values
    values.config = _read(values.config, texts, example, is_supported)
    return values


def _split(arguments: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the words without the values of a config, and these values as texts by dotted key.

    A key without a value is `BARE`, which only a bool allows.
    """
    words: list[str] = []
    texts: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not (match := _OVERRIDE.fullmatch(word)):
            words.append(word)
            continue
        key, text = match.groups()
        if text is None:  # --config.KEY VALUE, or --config.KEY for true
            text = rest.pop(0) if rest and not rest[0].startswith("--") else BARE
        texts[key] = text
    return words, texts


def _read(
    value: str, texts: Mapping[str, str], example: str, is_supported: Callable[[str], bool]
) -> Given:
    """Reads the config file, once, and changes its values."""
    path, colon, argument = value.partition(":")
    if not Path(path).is_file():
        known = config_files(is_supported)
        raise ValueError(f"config file not found: {path!r} in {Path.cwd()}{nearest(path, known)}")
    name, is_own = Path(path).stem, Path(path).resolve().parent == CONFIGS.resolve()
    if is_own and not is_supported(name):
        program = LANGUAGE_CONFIGS.get(name, "run_lra.py")
        raise ValueError(
            f"{path} is a config of {program}: use that program, or pass a config such as {example}"
        )
    get_config = load_file(path)
    config = get_config(*([argument] if colon else []))
    sections = config.to_dict()
    for key in texts:
        require_settable(key, sections, "--config.", "--config=FILE:ATTENTION")
    if attention := texts.get("attention.name"):
        parts = [attention]
        if name in LANGUAGE_CONFIGS:
            given = split_commas(argument or example.partition(":")[2])
            kept = [part for part in given if not part.startswith("attention=")]
            parts = [*kept, f"attention={attention}"]
        raise ValueError(
            "--config.attention.name changes the name and not the options of the attention: pass"
            f" --config={path}:{','.join(parts)}"
        )
    overrides = {
        key: set_value(config, key, text, f"--config.{key}{'' if text is BARE else f'={text}'}")
        for key, text in texts.items()
    }
    own = {**sections.get("attention", {}), "name": ""}
    kept = [option for option in split_commas(argument) if option.partition("=")[0] not in own]
    default = get_config(*([",".join(kept)] if kept != [""] else [])).to_dict()
    return Given(path, argument, config.to_dict(), default, overrides)


def set_value(config: ConfigDict, key: str, text: str, flag: str) -> Any:
    """Sets a value of a config by its text; returns the value.

    Raises:
      ValueError: The text is not of the type of the current value; `flag` names it in the message.
    """
    section, _, name = key.partition(".")
    old = config[section][name]
    if text is BARE and not isinstance(old, bool):
        raise ValueError(f"{flag} needs a value: {flag}=VALUE")
    try:
        config.update_from_flattened_dict({key: _value(text, old)})
    except (TypeError, ValueError):
        kind = _KINDS.get(type(old), f"a {type(old).__name__}")
        raise ValueError(f"{flag} is invalid: {key} needs {kind}.") from None
    return config.to_dict()[section][name]


def _value(text: str, old: Any) -> Any:
    """Parses a text as a value of the type of `old`; returns the text if it is not one."""
    if isinstance(old, str):
        return text
    if isinstance(old, bool):
        return _BOOLS.get(text.lower(), text)
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
        if isinstance(old, float):  # also inf and nan, which a check of the section rejects
            value = float(text)
    return (value,) if isinstance(old, tuple) and not isinstance(value, tuple | list) else value


def require_settable(key: str, sections: Mapping[str, Any], flag: str, attention: str) -> None:
    """Raises ValueError unless `flag`, followed by a key of a config and a value, can set the key.

    `attention` is the flag that takes the attention and its options, for a message.
    """
    keys = keys_of(sections)
    if key not in keys:
        raise ValueError(f"unknown config key {flag}{key}{nearest(key, keys)}")
    value: Any = sections
    for name in key.split("."):
        value = value[name]
    if isinstance(value, dict):
        example = next((one for one in keys if one.startswith(f"{key}.")), f"{key}.KEY")
        raise ValueError(
            f"{flag}{key} is a section: set each value, such as {flag}{example}=VALUE."
        )
    if value is None:  # the type of a value is that of the default
        raise ValueError(
            f"{flag}{key} cannot be set, because its default is None. Pass it after the attention:"
            f" {attention},{name}=VALUE."
        )


def load_file(path: str) -> Callable[..., ConfigDict]:
    """Executes a config file; returns its `get_config`, whose results are validated.

    Raises:
      ValueError: The file has no function `get_config`; later, that it failed or did not return sections.
      ImportError: A module of the file or of its attention cannot be imported.
    """
    functions = _named(path, lambda: runpy.run_path(path))
    if "get_config" not in functions:
        raise ValueError(f"{path}: a config file needs the function get_config.")

    def get_config(*argument: str) -> ConfigDict:
        config = _named(path, lambda: functions["get_config"](*argument))
        if not isinstance(config, ConfigDict):
            raise ValueError(
                f"get_config in {path} must return a ConfigDict, not a {type(config).__name__}."
            )
        for name, section in config.items():
            if not isinstance(section, ConfigDict):
                raise ValueError(
                    f"{path}: {name} must be a section (a ConfigDict), not {section!r}."
                )
        return config

    return get_config


def _named(path: str, run: Callable[[], Any]) -> Any:
    """Runs a user's code; its errors name the file."""
    try:
        return run()
    except ImportError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # a user's file may raise anything
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def config_files(is_supported: Callable[[str], bool]) -> list[str]:
    """Returns the paths `configs/NAME.py` of the config files with `is_supported(NAME)`."""
    return [
        f"configs/{file.name}"
        for file in CONFIGS.glob("[!_]*.py")
        if is_supported(file.stem) and "\ndef get_config(" in file.read_text(encoding="utf-8")
    ]


def keys_of(config: Mapping[str, object], prefix: str = "") -> list[str]:
    """Returns all dotted keys of a config, including sections."""
    keys = []
    for name, value in config.items():
        keys.append(prefix + name)
        if isinstance(value, dict):
            keys += keys_of(value, f"{prefix}{name}.")
    return keys


def config_of_run(folder: Path, given: Given | None, mode: str) -> dict[str, Any]:
    """Returns the config of the run in `folder`, changed by the values of the command line.

    Raises:
      ValueError: The folder has no config, or `--config` has another task or attention.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(
            f"--mode={mode} needs a finished run, and {file} does not exist: pass the run's --workdir."
        )
    own = read_config(folder)
    if given is None:
        return own
    if (here := _subject(given.sections)) != (there := _subject(own)):
        raise ValueError(
            f"{folder} contains a run of {there}, but --config is for {here}: leave --config out, or pass"
            " the run's own."
        )
    return with_values(own, given.overrides)


def _subject(config: Any) -> str:
    """Returns a text with the task and the attention of a config, for messages."""
    task = (config.get("data") or {}).get("task", "pretraining")
    attention = (config.get("attention") or {}).get("name")
    return f"{task} with {attention} attention"


def with_values(config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with other values, by dotted key."""
    for key, value in values.items():
        section, _, name = key.partition(".")
        config = {**config, section: {**config.get(section, {}), name: value}}
    return config


def first_seed(sections: Mapping[str, Any]) -> int:
    """Returns `train.seed` of a config that is not validated yet; by default that of `TrainConfig`.

    Raises:
      ValueError: The section is missing, or the seed is not a whole number.
    """
    from nystromformer_jax.training.config import TrainConfig  # needs the extra `lra`

    if "train" not in sections:
        raise ValueError("train: this section is missing from the config.")
    seed = sections["train"].get("seed", TrainConfig.seed)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"train.seed: needs an int, got {seed!r} ({type(seed).__name__}).")
    return seed
