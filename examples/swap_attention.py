"""Replaces flax's attention in a Transformer by Nyström attention and compares the two.

    python examples/swap_attention.py

The encoder below is ordinary flax.linen. Flax's attention and ours are one line each, under the same
name. The parameters are the same except for the shapes of four kernels (`to_ours`).

Weights and tokens are random, so the difference shows only the order of magnitude. In a trained model
attention is sharper, which is harder to approximate, and neighbors are more alike, which is easier.
With 64 landmarks the difference is 8.5 % at 512 tokens and 11.5 % at 4,096. With 256 landmarks it is 4.2 %
and 9.2 %. With 64, ours was 1.7 and 16.6 times as fast (2 cores with other work, float32, jax 0.10.2).
"""

import argparse
import time
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from nystromformer_jax import SelfAttention, make_core


class Encoder(nn.Module):
    """A pre-norm Transformer encoder; `num_landmarks=0` uses flax's attention."""

    num_layers: int = 2
    num_heads: int = 4
    num_landmarks: int = 0

    @nn.compact
    def __call__(self, x, mask):
        """Encodes x [B L E]; mask [B L] is True at real tokens."""
        for layer in range(self.num_layers):
            y = nn.LayerNorm(name=f"attention_norm_{layer}")(x)
            name = f"attention_{layer}"
            if self.num_landmarks:
                core = make_core("nystrom", num_landmarks=self.num_landmarks)
                attention = SelfAttention(self.num_heads, core, name=name)
                x = x + attention(y, mask, deterministic=True)
            else:
                attention = nn.MultiHeadDotProductAttention(self.num_heads, name=name)
                x = x + attention(y, mask=nn.make_attention_mask(mask, mask))
            y = nn.LayerNorm(name=f"mlp_norm_{layer}")(x)
            y = nn.gelu(nn.Dense(4 * x.shape[-1], name=f"mlp_in_{layer}")(y))
            x = x + nn.Dense(x.shape[-1], name=f"mlp_out_{layer}")(y)
        return x


def to_ours(variables):
    """Reshapes flax's attention kernels [E H D] and [H D E] to ours, [E H·D] and [H·D E]."""

    def reshape(path, x):
        if not path[-3].startswith("attention_") or path[-2] not in (
            "query",
            "key",
            "value",
            "out",
        ):
            return x
        if path[-1] == "bias":
            return x.reshape(-1)
        return x.reshape(-1, x.shape[-1]) if path[-2] == "out" else x.reshape(x.shape[0], -1)

    flat = flatten_dict(variables)
    return unflatten_dict({path: reshape(path, x) for path, x in flat.items()})


def milliseconds(function, *arguments, repeats=5):
    """Returns the median time of a call that is already compiled."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the time of both attentions and the difference of their outputs by length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--num_landmarks", type=int, default=64)
    parser.add_argument("--embed_dim", type=int, default=128)
    given = parser.parse_args(arguments)
    theirs, ours = Encoder(), Encoder(num_landmarks=given.num_landmarks)
    run_theirs, run_ours = jax.jit(theirs.apply), jax.jit(ours.apply)

    tokens = jax.random.normal(jax.random.key(0), (1, max(given.lengths), given.embed_dim))
    variables = jax.jit(theirs.init)(jax.random.key(1), tokens[:, :1], jnp.ones((1, 1), bool))
    print("length   flax, ms   ours, ms   times as fast   difference")
    for length in given.lengths:
        x = tokens[:, :length]
        mask = jnp.arange(length)[None] < length - length // 8  # an eighth is padding
        exact, landmark = run_theirs(variables, x, mask), run_ours(to_ours(variables), x, mask)
        real = mask[..., None]
        difference = jnp.linalg.norm((landmark - exact) * real) / jnp.linalg.norm(exact * real)
        their_ms = milliseconds(run_theirs, variables, x, mask)
        our_ms = milliseconds(run_ours, to_ours(variables), x, mask)
        print(
            f"{length:6,} {their_ms:10.1f} {our_ms:10.1f} {their_ms / our_ms:14.1f}× {difference:12.2%}"
        )


if __name__ == "__main__":
    main()
