"""Long Range Arena: tasks, models, training, figures and reports. Requires the extra `lra`."""

import importlib.util

if _missing := [n for n in ("matplotlib", "numba", "tqdm") if not importlib.util.find_spec(n)]:
    raise ModuleNotFoundError(
        f"lra needs {', '.join(_missing)}, not installed here. Install the extra: pip install -e '.[lra]'.",
        name=_missing[0],
    )
