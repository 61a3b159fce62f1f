"""The alphabet of shapes, and the array types that are spelled with it.

| axis | meaning | axis | meaning |
|---|---|---|---|
| `B` | batch | `E` | model dimension (`E2`: of what is asked, where it may differ) |
| `L` | query length | `F` | feed-forward dimension |
| `T` | key length where it differs | `R` | rank or random features |
| `M` | landmarks (`N`: the second M of an M × M) | `W` | convolution width |
| `P` | positions asked for | `N` | choices, in a model that picks one |
| `S` | tokens a segment or a block | `K` | blocks |
| `H` | heads | `G` | global tokens; in kernels, heads of a group |
| `D` | head dimension (`Dv`: of values, where it may differ) | `V` | vocabulary |
| `C` | classes | | |
"""

from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

__all__ = ["Array", "Bool", "Float", "Int", "Shaped"]
