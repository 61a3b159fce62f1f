import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import models
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
from nystromformer_jax.models import (
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
from tests.tiny_models import (
    BATCH,
    CONFIG,
    EMBED,
    LABELS,
    LENGTH,
    MAX_LEN,
    ONE_LAYER,
    ONE_SEQUENCE,
    VOCAB,
    compiled,
    config,
    parameters,
    tokens,
    variables_of,
)


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
        with pytest.raises(ValueError, match=r"positions must be from 0 to 6 .* got 7\.(\n|$)"):
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


def test_no_positions_give_no_logits():
    assert models._at(jnp.ones((2, 7, 3)), jnp.zeros((2, 0), int)).shape == (2, 0, 3)
