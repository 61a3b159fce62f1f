"""Nyström attention in JAX and Flax: attention functions, and Modules that use them.

Names are listed in `__init__.pyi` and imported on first use, so modules that do not need jax, such as
configs, load without it.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
