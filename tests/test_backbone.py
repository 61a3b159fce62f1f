import functools
import json
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.backbone import AttentionName, Embeddings, Nystromformer, NystromformerConfig
from nystromformer_jax.cores import core_class
from tests.helpers import SAME_ARITHMETIC, assert_close, mask_of_lengths
from tests.tiny_models import (
    BATCH,
    EMBED,
    LENGTH,
    MAX_LEN,
    ONE_LAYER,
    VOCAB,
    compiled,
    config,
    tokens,
    variables_of,
)


@pytest.mark.parametrize("name", get_args(AttentionName))
def test_every_attention_name_builds_its_own_core(name):
    model = Nystromformer(config(attention=name, num_layers=1), deterministic=True)
    assert type(model.config.make_core()()) is core_class(name)
    inputs, mask = jnp.zeros((BATCH, LENGTH), jnp.int32), mask_of_lengths([LENGTH, 11], LENGTH)
    hidden, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), inputs, mask)
    assert hidden.shape == (BATCH, LENGTH, EMBED)


def test_output_depends_on_token_types(rngs):
    model, inputs = Nystromformer(ONE_LAYER), tokens(rngs, BATCH, LENGTH)
    first = compiled(model)(inputs, None, jnp.zeros_like(inputs))
    assert_close(compiled(model)(inputs), first, SAME_ARITHMETIC)
    assert jnp.abs(compiled(model)(inputs, None, jnp.ones_like(inputs)) - first).max() > 1e-2


def test_half_precision_sums_the_gradients_of_an_embedding_in_float32(rngs):
    inputs = jnp.ones((64, MAX_LEN), jnp.int32)  # one row of each table for all of 1,856 tokens
    full, half = (Embeddings(config(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    params = full.init(jax.random.key(0), inputs, None, deterministic=True)
    weights = jax.random.normal(next(rngs), (EMBED,))

    def gradient_of(model):
        apply = functools.partial(model.apply, deterministic=True)
        total = lambda params: (apply(params, inputs, None) @ weights).sum()
        return jax.jit(jax.grad(total))(params)["params"]["type"]["embedding"][0]

    expected = gradient_of(full)
    assert jnp.abs(gradient_of(half) - expected).max() < 0.02 * jnp.abs(expected).max()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_heads": 5}, "12 and 5"),
        ({"num_layers": 0}, "num_layers"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        ({"activation": "swish"}, "'gelu'"),
        ({"classifier_activation": "swish"}, "None, 'gelu'"),
        ({"dtype": "float16"}, "'bfloat16'"),
        ({"layer_norm_epsilon": -1.0}, "positive"),
        ({"initializer_range": -5.0}, "at least 0"),
        ({"num_own_landmarks": 5}, "num_own_landmarks"),
        ({"conv_kernel_size": 32}, "odd"),
        ({"pinv_iters": -3}, "pinv_iters"),
        ({"landmark_layout": "all"}, "'real'"),
        ({"landmark_layout": "hf", "landmark_selection": "kmeans"}, "kmeans"),
        ({"implementation": "gpu"}, "'auto'"),
    ],
)
def test_rejects_invalid_config_values(no_annotations, changes, word):
    with pytest.raises(ValueError, match=word):
        config(**changes)


def test_linformer_supports_max_len_after_a_shorter_initialization():
    model = Nystromformer(config(attention="linformer"), deterministic=True)
    short, long = jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, MAX_LEN), jnp.int32)
    jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0), short), long)


def test_initial_kernels_and_embeddings_have_the_configured_deviation():
    model = Nystromformer(config(initializer_range=0.3, embed_dim=60, mlp_dim=70, num_layers=1))
    init = jax.jit(functools.partial(model.init, deterministic=True))
    params = init(jax.random.key(0), jnp.zeros((1, 7), jnp.int32))
    deviations = [
        float(leaf.std())
        for path, leaf in jax.tree.leaves_with_path(params)
        if path[-1].key in ("kernel", "embedding") and leaf.size > 1000
    ]
    assert len(deviations) >= 6
    assert deviations == pytest.approx([0.3] * len(deviations), rel=0.1)


def test_presets_have_the_sizes_of_bert_and_reject_other_names():
    small = NystromformerConfig.preset("small", vocab_size=VOCAB, max_len=7)
    assert (small.num_layers, small.embed_dim, small.num_heads, small.mlp_dim) == (4, 512, 8, 2048)
    assert small.max_len == 7
    with pytest.raises(ValueError, match="small"):
        NystromformerConfig.preset("smal", vocab_size=VOCAB)


def test_trailing_padding_keeps_its_positions(rngs):
    """Hugging Face's convolution reads the values of padding, so its positions matter."""
    model = Nystromformer(config(attention="softmax", mask_conv=False))
    inputs, mask = tokens(rngs, 1, LENGTH), mask_of_lengths([11], LENGTH)
    embed = lambda model, mask: model.embeddings(inputs, None, mask, deterministic=True)
    counted, plain = (
        jax.jit(functools.partial(model.apply, method=embed))(variables_of(model), given)
        for given in (mask, None)
    )
    assert (counted == plain).all()


def test_values_are_stored_as_json_has_them(no_annotations):
    changed = config(vocab_size=np.int64(11), dropout_rate=np.float32(0.5), dtype=jnp.bfloat16)
    values = [changed.vocab_size, changed.dropout_rate, changed.dtype]
    assert json.dumps(values) == '[11, 0.5, "bfloat16"]'
