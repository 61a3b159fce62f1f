"""Training loop, configuration, data pipeline and checkpoints for trainers. Requires the extra `lra`.

Names are listed in `__init__.pyi` and imported on first use: `nystromformer_jax.training.config` loads
without jax.
"""

import importlib.util

import lazy_loader

if _missing := [n for n in ("chex", "grain", "optax", "orbax") if not importlib.util.find_spec(n)]:
    raise ModuleNotFoundError(
        f"nystromformer_jax.training needs {', '.join(_missing)}, not installed here. Install the extra:"
        " pip install 'nystromformer-jax[lra]'.",
        name=_missing[0],
    )

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
