"""Long Range Arena: tasks, models, training, figures and reports. Requires the extra `lra`."""

import importlib.util

if not importlib.util.find_spec("tqdm"):
    raise ModuleNotFoundError(
        "lra needs tqdm, not installed here. Install the extra: pip install -e '.[lra]'.",
        name="tqdm",
    )
