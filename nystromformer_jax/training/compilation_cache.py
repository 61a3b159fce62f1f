"""The persistent compilation cache: the second run on a machine starts at once."""

import os
from pathlib import Path

import jax

__all__ = ["enable_compilation_cache"]


def enable_compilation_cache(folder: Path) -> None:
    """Keeps compiled programs under `folder`, unless JAX_COMPILATION_CACHE_DIR names another."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
