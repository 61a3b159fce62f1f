"""Base of all LRA configs, and parser of the argument after the colon: `:nystrom,num_landmarks=128`.

Default values come from the dataclasses of the sections. A config file calls `base`, sets the values of its
task, and calls `finish`, which applies the recipe or the quirks.
"""

import ast
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from configs import fast, mega, official
from lra.config import ModelConfig
from lra.data import DataConfig
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.support.plugins import is_plugin
from nystromformer_jax.support.spelling import nearest, split_commas
from nystromformer_jax.training.config import SECTIONS
from reporting.records import renamed_recipe


def defaults(schema: type) -> dict[str, Any]:
    """Returns the default values of the dataclass of a section; they are written there only."""
    return {
        field.name: field.default
        for field in dataclasses.fields(schema)
        if field.default is not dataclasses.MISSING
    }


# Options of each attention with their defaults. For Nyström, softmax, Reformer and Linformer, the values are
# from the authors' LRA code (lra_config.py). It passes a relu kernel to Performer, which performer-pytorch
# ignores, so the kernel is softmax here. Longformer's window is 129 there and 257 in Table 1 of the paper.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {
        **defaults(NystromOptions),
        "conv_kernel_size": 35,
        "conv_groups": "head",
        "implementation": "auto",
    },
    "softmax": {"conv_kernel_size": 0, "conv_groups": "head", "dropout_rate": 0.1},
    "reformer": {"num_hashes": 2, "chunk_len": 64, "num_buckets": None, "redraw": True},
    "linformer": {"projection_size": 256},
    "performer": {"num_features": 256, "kernel": "softmax", "orthogonal": True, "redraw": False},
    "longformer": {"window": 257, "num_global": 1},
    "linear": {},
    "chunked": {"chunk_len": 128, "conv_kernel_size": 0, "conv_groups": "head"},
    "none": {"conv_kernel_size": 35, "conv_groups": "head"},
}
DEFAULT = "nystrom"  # attention if the argument does not name one

# Values of `quirks=mlpen`, which reproduce the differences of the authors' code.
MLPEN: dict[str, Any] = {
    # mlpen/Nystromformer, LRA/code at 5689313: attention_nystrom.py L38-39 and L56, model.py L99 with
    # model_wrapper.py L11, run_tasks.py L66 (OneCycleLR cycles the momentum by default).
    "attention.landmark_layout": "mlpen",
    "attention.pinv_start": "batch_max",
    # In dataset.py, the mask is `input_ids != 0`, so black pixels are padding.
    "data.zero_is_padding": True,
    "model.pooling": "padded_mean",
    "optimizer.cycle_beta1": True,
}
# Parts of the authors' batches, from `gpu_memory` in LRA/code/lra_config.py at 2bcc280: 128 of 256 images.
# The start of the inverse depends on which examples are computed together.
MLPEN_PARTS = {"image": 2, "pathfinder32": 2}


def _mlpen(task: str) -> Mapping[str, Any]:
    if task.startswith("mqar-"):  # its blanks, which are 0, would be padding
        raise ValueError(f"quirks=mlpen: the authors' code has no {task}; leave this option out.")
    return {**MLPEN, "train.accumulation": MLPEN_PARTS.get(task.partition("-")[0], 1)}


QUIRKS: dict[str, Callable[[str], Mapping[str, Any]]] = {
    "none": lambda task: {},
    "mlpen": _mlpen,
    "google": official.values,
}

# Values of `recipe=…`; "paper" is the default.
RECIPES: dict[str, Callable[[str], Mapping[str, Any]]] = {
    "paper": lambda task: {},
    "fast": fast.values,
    "mega": mega.values,
    "mega_small": mega.small,
}


def parse(argument: str, default: str = "") -> tuple[str, dict[str, str]]:
    """Splits `NAME[,option=value …]` into the name and the options.

    Args:
      argument: The argument after the colon.
      default: The name if the argument has only options; if empty, the first word is always the name.

    Raises:
      ValueError: An option has no value, or occurs twice.
    """
    name, *settings = split_commas(argument)
    if default and (not name or "=" in name):
        settings = [name, *settings] if name else settings
        name = default
    options: dict[str, str] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} after {name!r} needs a value: {setting}=…")
        if option in options:
            raise ValueError(f"{option} is given twice: leave one out.")
        options[option] = value
    return name, options


def value_of(text: str) -> Any:
    """Parses the value of an option: a Python literal or, if it is not one, the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def core_arguments(text: str) -> dict[str, Any]:
    """Returns the arguments of `make_core` for `NAME[,option=value …]`."""
    name, options = parse(text)
    return {"name": name, **{option: value_of(value) for option, value in options.items()}}


def base(argument: str) -> ConfigDict:
    """Returns the config sections shared by all tasks: the authors' model sizes, optimizer and evaluation.

    Args:
      argument: `ATTENTION[,option=value …]`, with options of the attention, and `recipe=NAME` (see
        `RECIPES`) and `quirks=mlpen|google`, which `finish` applies. The attention is a name in
        `ATTENTIONS`, or `module:Class` for a class of another package.

    Raises:
      ValueError: An attention, option, recipe or quirk is unknown; similar names are suggested.
    """
    config = ConfigDict(
        {
            "data": defaults(DataConfig),
            "model": defaults(ModelConfig),
            "attention": _parse(argument).attention,
            **{section: defaults(schema) for section, schema in SECTIONS.items()},
        }
    )
    config.optimizer.learning_rate = 1e-4
    return config


def finish(config: ConfigDict, argument: str) -> ConfigDict:
    """Overrides values of the task with the values of `recipe=…`, then with the values of `quirks=…`.

    Options of the attention that are set in `argument` are not overridden. For a task of another package,
    the budget is the config's `train.total_steps`: a run with fewer steps is partial.

    Raises:
      ValueError: The recipe or the quirks do not support the task, or are both given.
    """
    parsed = _parse(argument)
    if parsed.recipe != "paper" and parsed.quirks != "none":
        raise ValueError(
            f"quirks={parsed.quirks} and recipe={parsed.recipe} cannot be combined: leave one of them out."
        )
    if is_plugin(config.data.task) and not config.train.budget_steps:
        config.train.budget_steps = config.train.total_steps
    for values in (RECIPES[parsed.recipe], QUIRKS[parsed.quirks]):
        for name, value in values(config.data.task).items():
            section, key = name.split(".")
            if section == "attention" and (key not in config.attention or key in parsed.options):
                continue  # the attention lacks the option; for example, softmax has no landmarks
            config[section][key] = value
    return config


def extract_options(
    argument: str, options: Mapping[str, int | Sequence[int | str]]
) -> tuple[str, dict[str, int | str]]:
    """Extracts the options of a task from `ATTENTION[,option=value …]`.

    Args:
      argument: The argument after the colon.
      options: The allowed values of each option, the default first. An integer instead of a sequence is the
        default of an option that allows any positive integer.

    Returns:
      The rest of the argument, for `base`, and the value of each option.

    Raises:
      ValueError: A value is not allowed, or an option occurs twice.
    """
    name, rest = parse(argument, default=DEFAULT)
    selected = {
        option: allowed if isinstance(allowed, int) else allowed[0]
        for option, allowed in options.items()
    }
    for option in [option for option in options if option in rest]:
        value, allowed = rest.pop(option), options[option]
        if isinstance(allowed, int):
            if not value.isdecimal() or int(value) == 0:
                raise ValueError(f"{option} must be a positive integer, got {value!r}.")
            selected[option] = int(value)
            continue
        values = {str(known): known for known in allowed}
        if value not in values:
            raise ValueError(f"{option} cannot be {value!r}; known: {', '.join(values)}.")
        selected[option] = values[value]
    return ",".join([name, *(f"{option}={value}" for option, value in rest.items())]), selected


class _Argument(NamedTuple):
    """The parsed argument after the colon."""

    attention: dict[str, Any]  # section "attention" of the config
    options: frozenset[str]  # options of the attention that the argument sets
    recipe: str
    quirks: str


def _parse(argument: str) -> _Argument:
    name, options = parse(argument, default=DEFAULT)
    if is_plugin(name):
        section, known_options = _plugin_options(name)
    elif name in ATTENTIONS:
        section = known_options = ATTENTIONS[name]
    else:
        raise ValueError(f"Unknown attention {name!r}{nearest(name, ATTENTIONS)}")
    recipe, quirks = options.pop("recipe", "paper"), options.pop("quirks", "none")
    recipe = renamed_recipe(recipe)
    if recipe not in RECIPES:
        raise ValueError(f"Unknown recipe {recipe!r}{nearest(recipe, RECIPES)}")
    if quirks not in QUIRKS:
        raise ValueError(f"Unknown quirks {quirks!r}{nearest(quirks, QUIRKS)}")
    for option in options:
        if option not in known_options:
            known = [*known_options, "recipe", "quirks"]
            raise ValueError(f"{name} attention has no option {option!r}{nearest(option, known)}")
    values = {option: value_of(value) for option, value in options.items()}
    return _Argument({"name": name, **section, **values}, frozenset(options), recipe, quirks)


def _plugin_options(name: str) -> tuple[dict[str, Any], Collection[str]]:
    """Returns the defaults of the options of `module:Class`, and all options by name.

    Defaults that a config cannot contain are omitted. So is the default of `seed`, which is the seed of
    the run.
    """
    from nystromformer_jax.cores import core_class, option_fields  # imported late: loads jax

    fields = option_fields(core_class(name))
    section = {
        option: field.default
        for option, field in fields.items()
        if option != "seed" and isinstance(field.default, bool | int | float | str | tuple | None)
    }
    return section, fields
