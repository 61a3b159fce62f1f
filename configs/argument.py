"""What stands behind the colon of `--config=configs/FILE.py:NAME[,option=value …]`."""

import ast
from typing import Any


def parse(argument: str, default: str = "") -> tuple[str, dict[str, str]]:
    """Splits `NAME[,option=value …]`.

    Args:
      argument: What stands behind the colon.
      default: The name where there are options alone; without one the first word is a name, whatever it is.

    Raises:
      ValueError: An option without a value, or one that is there twice.
    """
    name, *settings = argument.split(",")
    if default and (not name or "=" in name):
        settings = [name, *settings] if name else settings
        name = default
    options: dict[str, str] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} behind {name!r} needs a value: {setting}=…")
        if option in options:
            raise ValueError(f"{option} is there twice; leave one out.")
        options[option] = value
    return name, options


def value_of(text: str) -> Any:
    """An option's value: a number, a flag or None where the text is one, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
