"""The argument after the colon of `--config=configs/FILE.py:NAME[,option=value …]`."""

import ast
from typing import Any


def parse(argument: str, default: str = "") -> tuple[str, dict[str, str]]:
    """Splits `NAME[,option=value …]` into the name and the options.

    Args:
      argument: The argument after the colon.
      default: The name if the argument has only options; if empty, the first word is always the name.

    Raises:
      ValueError: An option has no value, or occurs twice.
    """
    name, *settings = argument.split(",")
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
    """Returns an option's value: the literal that the text spells, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
