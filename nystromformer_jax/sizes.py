"""A size that is none, in words."""


def check_size(name: str, size: int, least: int = 1) -> None:
    """Refuses what is no whole number, or a too small one."""
    if type(size) is not int or size < least:  # True would be an int
        raise ValueError(f"{name} must be a whole number from {least} on, got {size!r}.")
