"""Functions raise one-sentence errors for invalid arguments, and valid arguments can be traced."""

import functools
import os
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nystromformer_jax
from nystromformer_jax import (
    Encoder,
    EncoderBlock,
    MlpBlock,
    MultiHeadAttention,
    NystromformerConfig,
    NystromformerForMaskedLM,
    collect,
    depthwise_convolution,
    distribute,
    iterative_pinv,
    make_core,
    nystrom_attention,
    nystrom_attention_rows,
    nystrom_factors,
    pinv_residual,
    segment_means,
    sharded_nystrom_attention,
    softmax_attention,
)
from nystromformer_jax.cores import CORES
from nystromformer_jax.layers.stem import ConvStem
from nystromformer_jax.training import MeshConfig, make_mesh
from tests.cores.test_contract import OPTIONS

B, L, H, D, E, M = 2, 13, 2, 3, 6, 5


def ones(*shape, dtype=jnp.float32):
    return jnp.asarray(np.linspace(-1, 1, int(np.prod(shape))).reshape(shape), dtype)


def of(**arguments):
    return arguments


def inputs(**more):
    return {name: ones(B, L, H, D) for name in ("query", "key", "value")} | more


def applied(module, *arguments, **options):
    """Traces initialization and one call without compiling, because the arguments may be invalid."""
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    run = functools.partial(module.init_with_output, rngs, deterministic=True)
    return jax.eval_shape(lambda: run(*arguments, **options)[0])


def core(name, **options):
    def call(query, key, value, mask=None, query_mask=None, **changed):
        module = make_core(name, **(options | changed))()
        return applied(module, query, key, value, mask, query_mask)

    return call


def attention(inputs_q, inputs_kv=None, mask=None, query_mask=None, **options):
    module = MultiHeadAttention(make_core=make_core("softmax"), **options)
    return applied(module, inputs_q, inputs_kv, mask, query_mask)


def encoder(x, mask=None, *, num_layers, **options):
    block = functools.partial(EncoderBlock, make_core=make_core("softmax"), **options)
    return applied(Encoder(num_layers, block), x, mask)


def stem(x, mask=None, *, kernel_size, **options):
    module = ConvStem((kernel_size,), **options)
    return jax.eval_shape(lambda: module.init_with_output(jax.random.key(0), x, mask)[0])


def language_model(inputs, mask, types, **options):
    return applied(NystromformerForMaskedLM(NystromformerConfig(**options)), inputs, mask, types)


MASK = jnp.arange(L)[None] < jnp.array([[L], [4]])
# Arguments and options of cores besides those of the contract.
MORE_OPTIONS = {
    "linear": {"query_mask": MASK},
    "none": {"conv_groups": "channel"},
    "nystrom": {"conv_groups": "channel"},
    "performer": {"kernel": "softmax"},
    "reformer": {"query_mask": MASK},
    "softmax": {"conv_groups": "head", "dropout_rate": 0.1},
}
X, Y = ones(B, L, H, D), ones(B, L, E)
# Each function with valid arguments.
CALLS = {
    "softmax_attention": (softmax_attention, inputs(mask=MASK, query_mask=MASK)),
    "nystrom_attention": (
        nystrom_attention,
        inputs(mask=MASK, query_mask=MASK, num_landmarks=M, pinv_iters=2, conv_kernel=ones(H, 3)),
    ),
    "sharded_nystrom_attention": (
        lambda **options: sharded_nystrom_attention(
            mesh=make_mesh(MeshConfig(sequence=2), jax.devices()[:2]), **options
        ),
        inputs(mask=MASK, num_landmarks=M, conv_kernel=ones(H, 3), axis="sequence"),
    ),
    "nystrom_factors": (nystrom_factors, of(query=X, key=X, mask=MASK, num_landmarks=M)),
    "nystrom_attention_rows": (
        nystrom_attention_rows,
        of(query=X, key=X, rows=jnp.zeros((B, 1), jnp.int32), num_landmarks=M, mask=MASK),
    ),
    "segment_means": (segment_means, of(x=X, num_landmarks=M, mask=MASK, layout="real")),
    "iterative_pinv": (iterative_pinv, of(kernel=ones(B, H, M, M), num_iters=2, start="exact")),
    "pinv_residual": (pinv_residual, of(kernel=ones(B, M, D), inverse=ones(B, D, M))),
    "depthwise_convolution": (depthwise_convolution, of(value=X, kernel=ones(H, 3))),
    "depthwise_convolution per channel": (
        depthwise_convolution,
        of(value=X, kernel=ones(H, D, 5)),
    ),
    "collect": (collect, of(q_landmarks=ones(B, M, H, D), key=X, value=X, mask=MASK)),
    "distribute": (
        distribute,
        of(
            query=X,
            k_landmarks=ones(B, M, H, D),
            landmark_values=ones(B, M, H, D),
            landmark_mask=MASK[:, :M],
            value=X,
            conv_kernel=ones(H, 3),
            mask=MASK,
        ),
    ),
    **{
        name: (core(name), inputs(mask=MASK, **OPTIONS[name], **MORE_OPTIONS.get(name, {})))
        for name in CORES
    },
    "MultiHeadAttention": (
        attention,
        of(inputs_q=Y, inputs_kv=Y, mask=MASK, query_mask=MASK, num_heads=2, qkv_features=4),
    ),
    "MlpBlock": (
        lambda x, **options: applied(MlpBlock(**options), x),
        of(x=Y, mlp_dim=7, activation="gelu", dropout_rate=0.1),
    ),
    "ConvStem": (stem, of(x=Y, mask=MASK, kernel_size=3, activation="gelu")),
    "Encoder": (
        encoder,
        of(x=Y, mask=MASK, num_layers=1, num_heads=2, mlp_dim=7, norm="pre", dropout_rate=0.1),
    ),
    "NystromformerForMaskedLM": (
        language_model,
        of(
            inputs=jnp.ones((B, L), jnp.int32),
            mask=MASK,
            types=jnp.zeros((B, L), jnp.int32),
            **of(vocab_size=11, max_len=17, embed_dim=6, num_layers=1, num_heads=2, mlp_dim=7),
            **of(attention="nystrom", num_landmarks=M, dropout_rate=0.1),
        ),
    ),
}


OURS = os.path.dirname(nystromformer_jax.__file__)


def refusal(call, *arguments, **options):
    """Returns the message of the ValueError that `call` raises, or None if it raises none.

    Fails unless the message is one sentence and this package raised it.
    """
    try:
        call(*arguments, **options)
    except ValueError as error:
        text = str(error)
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert last.filename.startswith(OURS), f"not ours: {last.filename}, {last.lineno}: {text}"
        assert "\n" not in text, text
        assert text.rstrip(")").endswith((".", "?")), text
        return text
    return None


def traced_refusal(call, arguments):
    arrays = {name: x for name, x in arguments.items() if isinstance(x, jax.Array)}
    others = {name: x for name, x in arguments.items() if name not in arrays}
    return refusal(jax.eval_shape, functools.partial(call, **others), **arrays)


ANY_RANK = {("iterative_pinv", "kernel"), ("pinv_residual", "kernel")}  # any number of matrices


def invalid_values(value, *, any_rank):
    """Returns values that are invalid in place of this one."""
    if isinstance(value, jax.Array):
        other_ranks = [] if any_rank else [value[0], value[None]]
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        return [*other_ranks, *[value.astype(jnp.float8_e4m3fn)] * is_float]
    if isinstance(value, str):
        return ["gel", ""]
    return [-1, np.nan, ""] if isinstance(value, float) else [-1, True, 2.5, ""]


def other_values(value):
    """Returns arrays of other shapes and dtypes, which may be valid in place of this one."""
    if not isinstance(value, jax.Array):
        return []
    x = np.asarray(value)
    shorter = [np.delete(x, 0, axis) for axis in range(x.ndim)]
    return [jax.device_put(other) for other in (*shorter, x[:, :0], x.astype(np.uint8))]


@pytest.mark.parametrize("name", CALLS)
def test_rejects_invalid_arguments(name, no_annotations):
    """One argument at a time is wrong, and all others are valid.

    Traced, not run: other shapes and dtypes give a shape, or one sentence before compilation.
    """
    call, arguments = CALLS[name]
    assert refusal(call, **arguments) is None
    for argument, value in arguments.items():
        for wrong in invalid_values(value, any_rank=(name, argument) in ANY_RANK):
            said = traced_refusal(call, arguments | {argument: wrong})
            assert said is not None, (argument, wrong)
        if name in CORES:
            continue  # they validate as functions
        for other in other_values(value):
            traced_refusal(call, arguments | {argument: other})
