import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import models
from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)
from tests.helpers import (
    HALF,
    OTHER_FRAMEWORK,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    dropped_shapes,
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


@pytest.mark.slow_except("nystrom-3-at the ends")
@pytest.mark.parametrize(
    ("attention", "conv_kernel_size", "padding"),
    [
        ("nystrom", 3, "at the ends"),
        ("nystrom", 0, "between"),  # there it has an effect on the convolution
        ("softmax", 3, "at the ends"),
        ("softmax", 0, "between"),
    ],
)
def test_an_example_is_independent_of_padding_and_of_its_batch(
    rngs, attention, conv_kernel_size, padding
):
    model = NystromformerForMaskedLM(config(attention=attention, conv_kernel_size=conv_kernel_size))
    inputs, mask = tokens(rngs, BATCH, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
    places = 3 + np.arange(LENGTH)
    if padding == "between":
        places = np.array([*range(9), *range(13, LENGTH + 4)])
    padded = np.full((BATCH, MAX_LEN), 7, np.int32)
    padded[:, places] = inputs
    padded_mask = np.zeros(padded.shape, bool)
    padded_mask[:, places] = mask
    actual = np.asarray(compiled(model)(padded, padded_mask))[:, places]
    alone = compiled(model)(inputs[1:, :11])
    # The convolution sums in another order, and the pseudoinverse amplifies rounding errors.
    assert_close(actual[1:, :11], alone, OTHER_FRAMEWORK)
    unmasked = compiled(model)(padded, np.ones_like(padded_mask))[:, places]
    assert np.abs(unmasked - actual).max() > 1e-2  # because of the mask, not of the weights


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
    again = masked(tokens_alone, inputs, mask, positions=jnp.asarray(positions))
    assert_close(again, chosen, REFERENCE)


class TestHeads:
    """Shapes of the heads, and equalities between them."""

    def test_outputs_are_float32_in_half_precision_and_with_x64(self, rngs):
        inputs, labels = tokens(rngs, BATCH, LENGTH), (BATCH, LABELS)
        half = dataclasses.replace(ONE_LAYER, dtype="bfloat16", tie_word_embeddings=False)
        shapes = {
            NystromformerForMaskedLM: [(BATCH, LENGTH, VOCAB)],
            NystromformerForPreTraining: [(BATCH, LENGTH, VOCAB), (BATCH, 2)],
            NystromformerForSequenceClassification: [labels],
            NystromformerForTokenClassification: [(BATCH, LENGTH, LABELS)],
            NystromformerForQuestionAnswering: [(BATCH, LENGTH), (BATCH, LENGTH)],
        }
        for kind, expected in shapes.items():
            init = functools.partial(kind(half).init_with_output, deterministic=True)
            for setting in (jax.enable_x64(False), jax.enable_x64(True)):
                with setting:
                    outputs, variables = jax.eval_shape(init, next(rngs), inputs)
                outputs = jax.tree.leaves(outputs)
                assert [output.shape for output in outputs] == expected
                leaves = [*outputs, *jax.tree.leaves(variables)]
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

    def test_half_precision_is_near_float32_and_its_logits_are_not_rounded(self, rngs):
        kind = NystromformerForQuestionAnswering
        variables = jax.tree.map(lambda x: 0.3 * x, variables_of(kind(ONE_LAYER)))
        variables["params"]["output"]["bias"] += 4.3
        inputs = tokens(rngs, BATCH, LENGTH)
        full, half = (
            jax.jit(functools.partial(kind(config).apply, deterministic=True))(variables, inputs)
            for config in (ONE_LAYER, dataclasses.replace(ONE_LAYER, dtype="bfloat16"))
        )
        assert_close(half, full, HALF)
        for logits in jax.tree.leaves(half):
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

    def test_of_bert_base_to_which_only_the_convolution_adds_parameters(self):
        """With the masked-token head and no pooler."""
        sizes = {"vocab_size": 30_522, "conv_kernel_size": 33}
        nystrom = NystromformerConfig.preset("base", **sizes)
        bert = dataclasses.replace(nystrom, attention="softmax", conv_kernel_size=0)
        assert parameters(NystromformerForMaskedLM(bert)) == 109_514_298
        assert parameters(NystromformerForMaskedLM(nystrom)) == 109_514_298 + 12 * 12 * 33


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
    model = kind(config(num_layers=1))
    shape = (1, BATCH, LENGTH) if kind is NystromformerForMultipleChoice else (BATCH, LENGTH)
    dropped = dropped_shapes(model, variables_of(model), tokens(rngs, *shape))
    assert dropped == [*[(BATCH, LENGTH, EMBED)] * 3, *of_head]
    model = kind(config(num_layers=1, classifier_dropout_rate=0.0))
    dropped = dropped_shapes(model, variables_of(model), tokens(rngs, *shape))
    assert len(dropped) == 3 + (kind is NystromformerForPreTraining)


CHOICES, WORDS = NystromformerForMultipleChoice, NystromformerForMaskedLM


@pytest.mark.parametrize(
    ("kind", "shape", "changes", "word"),
    [
        # Ids outside a table would be NaN or another token's.
        *(
            (kind, shape, changes, word)
            for kind, shape in ((WORDS, (2, 7)), (CHOICES, (1, 2, 7)))
            for changes, word in (
                ({"inputs": VOCAB}, "vocab_size.* got 31"),
                ({"inputs": -100}, "vocab_size.* got -100"),
                ({"types": 2}, "num_types.* got 2"),
                ({"types": -1}, "num_types.* got -1"),
            )
        ),
        *((kind, (1, MAX_LEN + 1), {}, "at most 29") for kind in ONE_SEQUENCE),
        (CHOICES, (2, 7), {}, r"\[B N L\]"),
        (CHOICES, (2, 3, 7), {"mask": np.ones((3, 2, 7), bool)}, r"\(2, 3, 7\)"),
        (CHOICES, (2, 3, 7), {"types": np.ones((3, 2, 7), int)}, "types"),
        (Nystromformer, (2, 7), {"inputs": [[1, 2]]}, "list"),
        (WORDS, (2, 7), {"positions": np.array([[7], [0]])}, "from 0 to 6 .* got 7"),
        *(
            (WORDS, (2, 7), {"positions": positions}, r"\[B P\]")
            for positions in (np.ones(3, int), np.ones((3, 1), int), np.ones((2, 1)), [[1], [2]])
        ),
    ],
)
def test_rejects_invalid_inputs(no_annotations, kind, shape, changes, word):
    arguments = {"inputs": np.zeros(shape, np.int32), "types": np.zeros(shape, np.int32)}
    for name, value in changes.items():
        if isinstance(value, int):
            arguments[name].flat[-1] = value
        else:
            arguments[name] = value
    model = kind(ONE_LAYER)
    for convert in (lambda x: x, jnp.asarray):
        given = {k: convert(x) if isinstance(x, np.ndarray) else x for k, x in arguments.items()}
        with pytest.raises(ValueError, match=word):
            model.apply(variables_of(model), **given, deterministic=True)


def test_invalid_ids_give_nan_in_a_compiled_program(rngs):
    inputs = tokens(rngs, 1, 7).at[0, 3].set(VOCAB)
    assert jnp.isnan(compiled(NystromformerForMaskedLM(ONE_LAYER))(inputs)).any()


def test_no_positions_give_no_logits():
    assert models._at(jnp.ones((2, 7, 3)), jnp.zeros((2, 0), int)).shape == (2, 0, 3)
