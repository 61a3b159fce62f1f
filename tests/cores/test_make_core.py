"""Names and options of cores, and arguments that they reject."""

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax.cores import CORES, make_core
from nystromformer_jax.cores.chunked import chunked_attention
from nystromformer_jax.cores.linear import linear_attention
from nystromformer_jax.cores.linformer import LinformerAttention, linformer_attention
from nystromformer_jax.cores.longformer import longformer_attention
from nystromformer_jax.cores.performer import performer_attention
from nystromformer_jax.cores.reformer import lsh_attention

pytestmark = pytest.mark.usefixtures("no_annotations")


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("nystrm", {}, "nystrom"),
        (None, {}, "None"),
        ("nystrom", {"landmarks": 64}, "num_landmarks"),
        ("softmax", {"num_landmarks": 64}, "'num_landmarks'"),
        ("nystrom", {"num_landmarks": [64]}, "tuple"),
        ("nystrom", {"causal": True}, r"jax\.nn\.dot_product_attention"),
        ("nystrom", {"is_causal": True}, r"jax\.nn\.dot_product_attention"),
    ],
)
def test_rejects_unknown_names_and_options(name, options, word):
    with pytest.raises(ValueError, match=word):
        make_core(name, **options)


CONVOLVING = [name for name, core in CORES.items() if hasattr(core, "conv_groups")]
X, LONGER = jnp.ones((1, 9, 2, 4)), jnp.ones((1, 11, 2, 4))
MASK = jnp.ones((1, 11), bool)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        *((name, {"conv_kernel_size": 4}, "odd") for name in CONVOLVING),
        ("softmax", {"conv_groups": "heads"}, "'channel'"),
        ("performer", {"kernel": "rbf"}, "'relu'"),
        ("longformer", {"window": 4}, "odd"),
        ("reformer", {"num_buckets": 6}, "power of two"),
        ("reformer", {"num_buckets": 0}, "power of two"),
        ("linformer", {"projection_size": 0}, "projection_size"),
        ("linformer", {"max_len": 8}, "max_len"),
    ],
)
def test_rejects_invalid_options(name, options, word):
    core = make_core(name, **options)()
    with pytest.raises(ValueError, match=word):
        core.init(jax.random.key(0), X, X, X, deterministic=True)


def apply(name, key, query_mask=None, **options):
    core = make_core(name, **options)()
    core.init(jax.random.key(0), X, key, key, query_mask=query_mask, deterministic=True)


@pytest.mark.parametrize(
    ("attend", "word"),
    [
        (lambda: chunked_attention(X, LONGER, LONGER, chunk_len=4), "self-attention"),
        (lambda: longformer_attention(X, LONGER, LONGER), "self-attention"),
        (lambda: lsh_attention(X, LONGER, jax.random.key(0)), "self-attention"),
        (lambda: linear_attention(X, LONGER, LONGER, mask=MASK), "query_mask"),
        (lambda: linformer_attention(X, X, X, jnp.ones((2, 7, 11))), "H = 2 heads and T = 9"),
        (lambda: performer_attention(X, X, X, jnp.ones((13, 7))), "head_dim = 4"),
        (lambda: apply("reformer", X, query_mask=MASK[:, :9]), "mask"),
        *(
            (lambda name=name: apply(name, LONGER, conv_kernel_size=3), "length")
            for name in CONVOLVING
        ),
    ],
)
def test_rejects_arguments_that_do_not_agree(attend, word):
    with pytest.raises(ValueError, match=word):
        attend()


@pytest.mark.parametrize("max_len", [None, 9])
def test_linformer_rejects_more_keys_than_columns(max_len):
    core = LinformerAttention(projection_size=7, max_len=max_len)
    variables = core.init(jax.random.key(0), X, X, X, deterministic=True)
    with pytest.raises(ValueError, match="max_len"):
        core.apply(variables, X, LONGER, LONGER, deterministic=True)
