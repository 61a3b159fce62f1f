import dataclasses
import functools
import json
from typing import get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import models
from nystromformer_jax.cores import CORES, core_class
from nystromformer_jax.dropout import Dropout
from nystromformer_jax.models import (
    Nystromformer,
    NystromformerConfig,
    NystromformerForMaskedLM,
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
    hidden_states,
)
from tests.helpers import (
    HALF,
    OTHER_FRAMEWORK,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
)

VOCAB, EMBED, LABELS, MAX_LEN = 31, 12, 5, 29
# Initialised wider than BERT, so that attention is not uniform.
CONFIG = NystromformerConfig(
    vocab_size=VOCAB,
    max_len=MAX_LEN,
    embed_dim=EMBED,
    num_layers=2,
    num_heads=3,
    mlp_dim=7,
    num_landmarks=5,
    conv_kernel_size=3,
    num_labels=LABELS,
    initializer_range=0.5,
)
ONE_LAYER = dataclasses.replace(CONFIG, num_layers=1)
BATCH, LENGTH = 2, 23
ONE_SEQUENCE = [
    Nystromformer,
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
    NystromformerForQuestionAnswering,
]


def config(**changes):
    return dataclasses.replace(CONFIG, **changes)


def tokens(rngs, *shape):
    return jax.random.randint(next(rngs), shape, 0, VOCAB)


@functools.cache
def variables_of(model):
    """Random variables of the initial shapes and scales, without compiling the initialization."""
    axes = 3 if isinstance(model, NystromformerForMultipleChoice) else 2
    inputs = jnp.zeros((1,) * (axes - 1) + (model.config.max_len,), jnp.int32)
    shapes = jax.eval_shape(
        functools.partial(model.init, deterministic=True), jax.random.key(0), inputs
    )
    numbers = np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key in ("bias", "scale"):
            return jnp.full(leaf.shape, float(path[-1].key == "scale"), leaf.dtype)
        return jnp.asarray(
            model.config.initializer_range * numbers.normal(size=leaf.shape), leaf.dtype
        )

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def compiled(model):
    return jax.jit(functools.partial(model.apply, variables_of(model), deterministic=True))


def parameters(model, inputs=(1, 7)):
    init = functools.partial(model.init, deterministic=True)
    shapes = jax.eval_shape(init, jax.random.key(0), jnp.zeros(inputs, jnp.int32))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.slow_except("3-nystrom")
@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
@pytest.mark.parametrize("conv_kernel_size", [0, 3])
def test_padding_at_either_end_changes_nothing_at_real_tokens(rngs, attention, conv_kernel_size):
    model = NystromformerForMaskedLM(config(attention=attention, conv_kernel_size=conv_kernel_size))
    inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
    expected = compiled(model)(inputs, mask)
    pad = lambda x, before, **value: jnp.pad(x, ((0, 0), (before, 6 - before)), **value)
    behind = pad(inputs, 0, constant_values=7)
    actual = compiled(model)(behind, pad(mask, 0))
    assert_close(actual[:, :LENGTH], expected, REFERENCE, where=mask)
    unmasked = compiled(model)(behind, jnp.ones_like(behind, bool))[:, :LENGTH]
    assert jnp.abs(unmasked - expected).max() > 1e-2  # because of the mask, not of the weights
    actual = compiled(model)(pad(inputs, 6, constant_values=7), pad(mask, 6))
    # The convolution sums in another order, and the pseudoinverse amplifies rounding errors.
    assert_close(actual[:, 6:], expected, OTHER_FRAMEWORK, where=mask)


@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
@pytest.mark.slow_except("nystrom")
def test_an_example_is_independent_of_its_batch(rngs, attention):
    model = NystromformerForMaskedLM(config(attention=attention))
    inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 3], LENGTH)
    alone = [compiled(model)(inputs[i : i + 1], mask[i : i + 1]) for i in range(BATCH)]
    assert_close(compiled(model)(inputs, mask), jnp.concatenate(alone), REFERENCE, where=mask)


def test_logits_at_positions_equal_logits_everywhere(rngs):
    inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
    positions = jnp.array([[0, 22, 5], [10, 3, 3]])
    model = NystromformerForPreTraining(ONE_LAYER)
    everywhere, order = compiled(model)(inputs, mask)
    chosen, chosen_order = compiled(model)(inputs, mask, positions=positions)
    assert_close(chosen_order, order, SAME_ARITHMETIC)
    everywhere, positions = np.asarray(everywhere), np.asarray(positions)
    expected = np.stack([row[at] for row, at in zip(everywhere, positions, strict=True)])
    assert chosen.shape == (BATCH, 3, VOCAB)
    assert_close(chosen, expected, REFERENCE)
    params = variables_of(model)["params"]
    tokens_alone = {"params": {name: params[name] for name in ("nystromformer", "mlm")}}
    masked = NystromformerForMaskedLM(ONE_LAYER)
    masked = jax.jit(functools.partial(masked.apply, deterministic=True))
    assert_close(masked(tokens_alone, inputs, mask), everywhere, REFERENCE)
    again = masked(tokens_alone, inputs, mask, positions=jnp.asarray(positions))
    assert_close(again, chosen, REFERENCE)


@pytest.mark.slow(minutes=0.1)
def test_jit_changes_nothing(rngs):
    model = NystromformerForMaskedLM(ONE_LAYER)
    inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
    expected = model.apply(variables_of(model), inputs, mask, deterministic=True)
    assert_close(compiled(model)(inputs, mask), expected, REFERENCE)


@pytest.mark.parametrize("name", get_args(models.AttentionName))
@pytest.mark.slow_except("nystrom", "softmax", "reformer")
def test_every_attention_builds_and_runs(rngs, name):
    model = Nystromformer(config(attention=name, num_layers=1))
    hidden = compiled(model)(tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH))
    assert hidden.shape == (BATCH, LENGTH, EMBED)
    assert jnp.isfinite(hidden).all()


@pytest.mark.parametrize("name", get_args(models.AttentionName))
def test_every_attention_name_builds_its_own_core(name):
    model, built = Nystromformer(config(attention=name, num_layers=1)), set()

    def spy(call, args, kwargs, context):
        built.add(type(context.module))
        return call(*args, **kwargs)

    with nn.intercept_methods(spy):
        init = functools.partial(model.init, deterministic=True)
        jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))
    assert {core for other in CORES if (core := core_class(other)) in built} == {core_class(name)}


def test_attention_has_the_options_of_the_config():
    options = {
        "num_landmarks": 7,
        "conv_kernel_size": 9,
        "pinv_iters": 3,
        "pinv_start": "batch_max",
        "landmark_layout": "hf",
        "landmark_selection": "kmeans",
        "mask_conv": False,
        "implementation": "xla",
    }
    core = config(**options).make_core()()
    assert {name: getattr(core, name) for name in options} == options
    softmax = config(**options, attention="softmax", attention_dropout_rate=0.3).make_core()()
    assert (softmax.dropout_rate, softmax.conv_kernel_size, softmax.mask_conv) == (0.3, 9, False)


class TestHeads:
    """Shapes of the heads, and equalities between them."""

    def test_outputs_are_float32_in_half_precision_too(self, rngs):
        inputs, labels = tokens(rngs, BATCH, LENGTH), (BATCH, LABELS)
        half = dataclasses.replace(ONE_LAYER, dtype="bfloat16")
        shapes = {
            NystromformerForMaskedLM: [(BATCH, LENGTH, VOCAB)],
            NystromformerForPreTraining: [(BATCH, LENGTH, VOCAB), (BATCH, 2)],
            NystromformerForSequenceClassification: [labels],
            NystromformerForTokenClassification: [(BATCH, LENGTH, LABELS)],
            NystromformerForQuestionAnswering: [(BATCH, LENGTH), (BATCH, LENGTH)],
        }
        for kind, expected in shapes.items():
            apply = functools.partial(kind(half).apply, deterministic=True)
            outputs = jax.tree.leaves(jax.eval_shape(apply, variables_of(kind(ONE_LAYER)), inputs))
            assert [output.shape for output in outputs] == expected
            assert {output.dtype for output in outputs} == {jnp.dtype("float32")}

    def test_parameters_and_logits_are_float32_with_x64(self, rngs):
        model = NystromformerForMaskedLM(dataclasses.replace(ONE_LAYER, tie_word_embeddings=False))
        init = functools.partial(model.init_with_output, deterministic=True)
        inputs = tokens(rngs, BATCH, LENGTH)
        with jax.enable_x64(True):
            leaves = jax.tree.leaves(jax.eval_shape(init, next(rngs), inputs))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}

    def test_choices_equal_separate_sequences(self, rngs):
        model = NystromformerForMultipleChoice(ONE_LAYER)
        inputs = tokens(rngs, BATCH, 3, LENGTH)
        mask = mask_of_lengths([LENGTH, 11, 7, 5, 3, 2], LENGTH).reshape(inputs.shape)
        types = jnp.arange(LENGTH) > 4
        types = jnp.broadcast_to(types, inputs.shape).astype(jnp.int32)
        together = compiled(model)(inputs, mask, types)
        alone = [
            compiled(model)(inputs[:, i : i + 1], mask[:, i : i + 1], types[:, i : i + 1])
            for i in range(3)
        ]
        assert_close(together, jnp.concatenate(alone, axis=1), REFERENCE)

    def test_a_classifier_uses_only_its_first_token(self, rngs):
        """Logits equal the head's formula on the first hidden state."""
        model = NystromformerForSequenceClassification(ONE_LAYER)
        inputs = tokens(rngs, BATCH, LENGTH)
        params = variables_of(model)["params"]
        layer = lambda name, x: x @ params[name]["kernel"] + params[name]["bias"][None]

        @jax.jit
        def formula(inputs):
            backbone = {"params": params["nystromformer"]}
            first = Nystromformer(ONE_LAYER).apply(backbone, inputs, deterministic=True)[:, 0]
            return layer("output", jnp.tanh(layer("dense", first)))

        assert_close(compiled(model)(inputs), formula(inputs), REFERENCE)

    @pytest.mark.parametrize(
        "kind", [NystromformerForSequenceClassification, NystromformerForPreTraining]
    )
    def test_the_first_token_may_follow_padding(self, rngs, kind):
        model = kind(dataclasses.replace(ONE_LAYER, attention="softmax", conv_kernel_size=0))
        inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
        front = lambda x, **value: jnp.pad(x, ((0, 0), (3, 0)), **value)
        actual = compiled(model)(front(inputs, constant_values=7), front(mask))
        expected = compiled(model)(inputs, mask)
        assert_close(jax.tree.leaves(actual)[-1], jax.tree.leaves(expected)[-1], OTHER_FRAMEWORK)

    @pytest.mark.parametrize(
        "kind",
        [
            NystromformerForSequenceClassification,
            NystromformerForTokenClassification,
            NystromformerForQuestionAnswering,
        ],
    )
    def test_logits_of_half_precision_are_not_rounded_to_it(self, rngs, kind):
        model = kind(dataclasses.replace(ONE_LAYER, dtype="bfloat16"))
        variables = jax.tree.map(lambda x: x, variables_of(kind(ONE_LAYER)))
        variables["params"]["output"]["bias"] += 4.3
        apply = jax.jit(functools.partial(model.apply, deterministic=True))
        for logits in jax.tree.leaves(apply(variables, tokens(rngs, BATCH, LENGTH))):
            assert (logits != logits.astype(jnp.bfloat16)).mean() > 0.9

    def test_output_depends_on_token_types(self, rngs):
        model, inputs = Nystromformer(ONE_LAYER), tokens(rngs, BATCH, LENGTH)
        first = compiled(model)(inputs, None, jnp.zeros_like(inputs))
        assert_close(compiled(model)(inputs), first, SAME_ARITHMETIC)
        assert jnp.abs(compiled(model)(inputs, None, jnp.ones_like(inputs)) - first).max() > 1e-2


class TestParameterCounts:
    """Counted by hand."""

    BACKBONE = (
        (VOCAB + MAX_LEN + 2) * EMBED
        + 2 * EMBED
        + 2 * (4 * (EMBED * EMBED + EMBED) + 3 * 3 + EMBED * 7 + 7 + 7 * EMBED + EMBED + 4 * EMBED)
    )
    DENSE = EMBED * EMBED + EMBED
    HEADS = (
        (Nystromformer, 0),
        (NystromformerForMaskedLM, DENSE + 2 * EMBED + VOCAB),
        (NystromformerForPreTraining, 2 * DENSE + 2 * EMBED + VOCAB + 2 * EMBED + 2),
        (NystromformerForSequenceClassification, DENSE + LABELS * EMBED + LABELS),
        (NystromformerForTokenClassification, LABELS * EMBED + LABELS),
        (NystromformerForQuestionAnswering, 2 * EMBED + 2),
        (NystromformerForMultipleChoice, DENSE + EMBED + 1),
    )

    @pytest.mark.parametrize(("kind", "head"), HEADS)
    def test_of_a_tiny_model(self, kind, head):
        inputs = (1, 1, 7) if kind is NystromformerForMultipleChoice else (1, 7)
        assert parameters(kind(CONFIG), inputs) == self.BACKBONE + head

    def test_of_bert_base(self):
        """109,482,240 with its pooler, and 109,514,298 with the masked-token head and no pooler."""
        bert = NystromformerConfig.preset(
            "base", vocab_size=30_522, attention="softmax", conv_kernel_size=0
        )
        assert parameters(Nystromformer(bert)) == 109_482_240 - (768 * 768 + 768)
        assert parameters(NystromformerForMaskedLM(bert)) == 109_514_298

    def test_landmarks_have_no_parameters_and_the_convolution_its_kernels(self):
        sizes = {"vocab_size": 30_522, "conv_kernel_size": 33}
        nystrom = NystromformerConfig.preset("base", **sizes)
        assert parameters(NystromformerForMaskedLM(nystrom)) == 109_514_298 + 12 * 12 * 33


@pytest.mark.slow(minutes=0.1)
def test_half_precision_is_near_float32(rngs):
    inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
    # At BERT's own initialisation: logits of some size, no sharp attention.
    full = NystromformerForMaskedLM(config(initializer_range=0.1))
    half = NystromformerForMaskedLM(config(initializer_range=0.1, dtype="bfloat16"))
    init = jax.jit(functools.partial(full.init, deterministic=True))
    variables = init(jax.random.key(0), inputs[:1])
    expected, actual = (
        jax.jit(functools.partial(model.apply, deterministic=True))(variables, inputs, mask)
        for model in (full, half)
    )
    assert_close(actual, expected, HALF, where=mask)


def test_half_precision_sums_the_gradients_of_an_embedding_in_float32(rngs):
    inputs = jnp.ones((64, MAX_LEN), jnp.int32)  # one row of each table for all of 1,856 tokens
    full, half = (models.Embeddings(config(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    params = full.init(jax.random.key(0), inputs, None, deterministic=True)
    weights = jax.random.normal(next(rngs), (EMBED,))

    def gradient_of(model):
        apply = functools.partial(model.apply, deterministic=True)
        total = lambda params: (apply(params, inputs, None) @ weights).sum()
        return jax.jit(jax.grad(total))(params)["params"]["type"]["embedding"][0]

    expected = gradient_of(full)
    assert jnp.abs(gradient_of(half) - expected).max() < 0.02 * jnp.abs(expected).max()


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
def test_gradients_without_real_tokens_are_finite(rngs, attention):
    model = NystromformerForSequenceClassification(config(attention=attention, num_layers=1))
    inputs, mask = tokens(rngs, BATCH, LENGTH), jnp.zeros((BATCH, LENGTH), bool)
    total = lambda variables: model.apply(variables, inputs, mask, deterministic=True).sum()
    gradients = jax.jit(jax.grad(total))(variables_of(model))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    ("kind", "of_head"),
    [
        (NystromformerForMaskedLM, []),
        (NystromformerForPreTraining, [(BATCH, EMBED)]),
        (NystromformerForSequenceClassification, [(BATCH, EMBED)] * 2),
        (NystromformerForTokenClassification, [(BATCH, LENGTH, EMBED)]),
        (NystromformerForQuestionAnswering, []),
        (NystromformerForMultipleChoice, [(BATCH, EMBED)]),
    ],
)
def test_dropout_applies_where_bert_applies_it(rngs, kind, of_head):
    """On embeddings, twice a layer (never on the MLP's hidden units), and in some of the heads."""
    model, dropped = kind(config(num_layers=1)), []
    shape = (1, BATCH, LENGTH) if kind is NystromformerForMultipleChoice else (BATCH, LENGTH)
    variables, inputs = variables_of(model), tokens(rngs, *shape)

    def spy(call, args, kwargs, context):
        if isinstance(context.module, Dropout) and context.module.rate > 0:
            dropped.append((args[0].shape, kwargs["deterministic"]))
        return call(*args, **kwargs)

    apply = functools.partial(model.apply, deterministic=False, rngs={"dropout": next(rngs)})
    with nn.intercept_methods(spy):
        jax.eval_shape(apply, variables, inputs)
    assert dropped == [(shape, False) for shape in (*[(BATCH, LENGTH, EMBED)] * 3, *of_head)]


@pytest.mark.parametrize("kind", ONE_SEQUENCE)
def test_rejects_more_tokens_than_positions(kind):
    model = kind(CONFIG)
    inputs = jnp.zeros((1, MAX_LEN + 1), jnp.int32)
    with pytest.raises(
        ValueError, match="inputs have 30 tokens, but this model supports at most 29"
    ):
        model.apply(variables_of(model), inputs, deterministic=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_heads": 5}, "multiple of num_heads, got 12 and 5"),
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, got 0"),
        ({"dropout_rate": 1.0}, "dropout_rate must be at least 0 and below 1, got 1.0"),
        ({"attention": "nystroem"}, "attention must be one of 'nystrom', .*, got 'nystroem'"),
        ({"activation": "swish"}, "activation must be one of 'gelu', .*, got 'swish'"),
        ({"classifier_activation": "swish"}, "classifier_activation must be one of None, 'gelu'"),
        ({"dtype": "float16"}, "dtype must be one of 'float32', 'bfloat16', got 'float16'"),
        ({"layer_norm_epsilon": -1.0}, r"layer_norm_epsilon must be positive, got -1\.0"),
        ({"initializer_range": -5.0}, r"initializer_range must be at least 0, got -5\.0"),
        ({"num_landmarks": 0}, "num_landmarks must be an integer of at least 1, got 0"),
        ({"conv_kernel_size": -1}, "conv_kernel_size must be an integer of at least 0, got -1"),
        ({"pinv_iters": -3}, "pinv_iters must be an integer from 0 to 100, got -3"),
        ({"landmark_layout": "all"}, "landmark_layout must be one of 'real', .*, got 'all'"),
        ({"landmark_selection": "mean"}, "landmark_selection must be one of .*, got 'mean'"),
        ({"implementation": "gpu"}, "implementation must be one of 'auto', .*, got 'gpu'"),
    ],
)
def test_rejects_invalid_config_values(no_annotations, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        config(**changes)


def test_linformer_supports_max_len_after_a_shorter_initialization():
    model = Nystromformer(config(attention="linformer"))
    tokens = jax.ShapeDtypeStruct((1, MAX_LEN), jnp.int32)
    variables = jax.eval_shape(
        functools.partial(model.init, deterministic=True),
        jax.random.key(0),
        jnp.zeros((1, 2), jnp.int32),
    )
    jax.eval_shape(functools.partial(model.apply, deterministic=True), variables, tokens)


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
    with pytest.raises(ValueError, match="Unknown preset 'smal'; did you mean small"):
        NystromformerConfig.preset("smal", vocab_size=VOCAB)


class TestIds:
    """Token ids and types outside a table would be NaN or another token's, so they are an error."""

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"inputs": VOCAB}, r"inputs must be from 0 to 30 \(vocab_size\), got 31"),
            ({"inputs": -100}, r"inputs must be from 0 to 30 \(vocab_size\), got -100"),
            ({"types": 2}, r"types must be from 0 to 1 \(num_types\), got 2"),
            ({"types": -1}, r"types must be from 0 to 1 \(num_types\), got -1"),
        ],
    )
    @pytest.mark.parametrize("kind", [NystromformerForMaskedLM, NystromformerForMultipleChoice])
    def test_rejects_ids_outside_a_table(self, rngs, no_annotations, kind, changes, sentence):
        shape = (1, 2, 7) if kind is NystromformerForMultipleChoice else (2, 7)
        inputs, types = tokens(rngs, *shape), jnp.zeros(shape, jnp.int32)
        last = (*(size - 1 for size in shape),)
        if "inputs" in changes:
            inputs = inputs.at[last].set(changes["inputs"])
        else:
            types = types.at[last].set(changes["types"])
        model = kind(CONFIG)
        for convert in (jnp.asarray, np.asarray):
            with pytest.raises(ValueError, match=sentence):
                model.apply(
                    variables_of(model), convert(inputs), None, convert(types), deterministic=True
                )

    @pytest.mark.parametrize(
        ("kind", "arguments", "sentence"),
        [
            (Nystromformer, {"inputs": [[1, 2]]}, r"inputs must be a .* \[B L\].*; got a list"),
            (
                NystromformerForMultipleChoice,
                {"inputs": np.ones((2, 7), int)},
                r"inputs must be a non-empty integer array \[B N L\].*; got shape \(2, 7\) of int64",
            ),
            (
                NystromformerForMultipleChoice,
                {"inputs": np.ones((2, 3, 7), int), "mask": np.ones((3, 2, 7), bool)},
                r"mask must .*, \(2, 3, 7\), .*; got shape \(3, 2, 7\) of bool",
            ),
            (
                NystromformerForMultipleChoice,
                {"inputs": np.ones((2, 3, 7), int), "types": np.ones((3, 2, 7), int)},
                r"types must have the shape of inputs; got shape \(3, 2, 7\)",
            ),
            *(
                (
                    NystromformerForMaskedLM,
                    {"inputs": np.ones((2, 7), int), "positions": positions},
                    r"positions must be an integer array \[B P\] with B = 2; got",
                )
                for positions in (
                    np.ones(3, int),
                    np.ones((3, 1), int),
                    np.ones((2, 1)),
                    [[1], [2]],
                )
            ),
        ],
    )
    def test_rejects_arrays_of_other_shapes(self, no_annotations, kind, arguments, sentence):
        init = functools.partial(kind(ONE_LAYER).init, jax.random.key(0), deterministic=True)
        with pytest.raises(ValueError, match=sentence):
            jax.eval_shape(lambda: init(**arguments))

    def test_rejects_positions_outside_the_table(self, rngs):
        model = NystromformerForMaskedLM(config(num_layers=1))
        with pytest.raises(ValueError, match=r"positions must be from 0 to 6 .* got 7\.$"):
            model.apply(
                variables_of(model),
                tokens(rngs, 1, 7),
                positions=jnp.array([[7]]),
                deterministic=True,
            )

    def test_invalid_ids_give_nan_in_a_compiled_program(self, rngs):
        model = NystromformerForMaskedLM(config(num_layers=1))
        inputs = tokens(rngs, 1, 7).at[0, 3].set(VOCAB)
        assert jnp.isnan(compiled(model)(inputs)).any()


@pytest.mark.slow(minutes=0.1)
def test_padding_between_tokens_changes_nothing_without_the_convolution(rngs):
    model = NystromformerForMaskedLM(config(conv_kernel_size=0))
    inputs = tokens(rngs, BATCH, LENGTH)
    expected = compiled(model)(inputs, jnp.ones_like(inputs, bool))
    places = jnp.array([*range(9), *range(13, LENGTH + 4)])
    padded = jnp.full((BATCH, LENGTH + 4), 7).at[:, places].set(inputs)
    mask = jnp.zeros(padded.shape, bool).at[:, places].set(True)
    assert_close(compiled(model)(padded, mask)[:, places], expected, REFERENCE)


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


@pytest.mark.parametrize("model_class", [*ONE_SEQUENCE, NystromformerForMultipleChoice])
def test_deterministic_is_an_attribute_or_an_argument(model_class):
    model = model_class(CONFIG, deterministic=True)
    axes = 3 if model_class is NystromformerForMultipleChoice else 2
    inputs = jnp.zeros((1,) * (axes - 1) + (7,), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), inputs)
    output = jax.eval_shape(model.apply, variables, inputs)  # would need a random key for dropout
    argument = functools.partial(model_class(CONFIG).apply, deterministic=True)
    assert output == jax.eval_shape(argument, variables, inputs)


def test_hidden_states_of_a_model_with_the_attribute_deterministic():
    inputs = jnp.zeros((1, 7), jnp.int32)
    variables = variables_of(Nystromformer(ONE_LAYER))
    model = Nystromformer(ONE_LAYER, deterministic=True)
    states = jax.jit(functools.partial(hidden_states, model))(variables, inputs)
    expected = jax.jit(model.apply)(variables, inputs)
    assert_close(states[-1], expected, REFERENCE)


def test_dtype_is_stored_as_its_name():
    for dtype in ("bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")):
        assert config(dtype=dtype).dtype == "bfloat16"


def test_numpy_scalars_are_stored_as_python_numbers(no_annotations):
    changed = config(vocab_size=np.int64(11), dropout_rate=np.float32(0.5))
    assert json.dumps([changed.vocab_size, changed.dropout_rate]) == "[11, 0.5]"


def test_no_positions_give_no_logits():
    assert models._at(jnp.ones((2, 7, 3)), jnp.zeros((2, 0), int)).shape == (2, 0, 3)
