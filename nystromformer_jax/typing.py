"""The alphabet of shapes, and the array types that are spelled with it.

| axis | meaning | axis | meaning |
|---|---|---|---|
| `B` | batch | `E` | model dimension |
| `L` | query length | `F` | feed-forward dimension |
| `T` | key length where it differs | `R` | rank or random features |
| `M` | landmarks (`N`: the second M of an M × M) | `W` | convolution width |
| `S` | tokens a segment or a block | `K` | blocks |
| `H` | heads | `G` | global tokens |
| `D` | head dimension (`Dv`: of values, where it may differ) | `V` | vocabulary |
| `C` | classes | | |
"""

from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

__all__ = ["Array", "Bool", "Float", "Int", "Shaped"]
