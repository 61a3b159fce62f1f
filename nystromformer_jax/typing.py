"""Array types, and the meaning of the axis letters in shape annotations.

| axis | meaning | axis | meaning |
|---|---|---|---|
| `B` | batch | `E` | model dimension (`E2`: of the input of keys and values, if it differs) |
| `L` | query length | `F` | feed-forward dimension, or width of an output |
| `T` | key length if it differs | `R` | rank or random features |
| `M` | landmarks (`N`: the second M of an M × M) | `W` | convolution width |
| `P` | requested positions | `N` | choices (multiple choice); states (moving averages); bounds, M + 1 |
| `S` | tokens per segment or block | `K` | blocks |
| `H` | heads (`Hkv`: of keys and values, if they differ) | `G` | global tokens; in kernels, heads per group |
| `D` | head dimension (`Dv`: of values, if it differs) | `V` | vocabulary |
| `C` | classes; channels, in moving averages and convolutions | | |
"""

from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

__all__ = ["Array", "Bool", "Float", "Int", "Shaped"]
