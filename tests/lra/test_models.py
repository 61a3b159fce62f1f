import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra.models import (
    Classifier,
    DualEncoder,
    ModelConfig,
    SequenceEncoder,
    Tagger,
    first_and_last,
    masked_mean,
    sinusoids,
)
from nystromformer_jax import Encoder, EncoderBlock, make_core
from nystromformer_jax.layers.encoder import MlpBlock
from nystromformer_jax.layers.gated_ema import MultiScaleEma
from nystromformer_jax.layers.stem import ConvStem
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
    random_variables,
)

SOFTMAX = make_core("softmax")
SIZES = {"vocab_size": 11, "max_len": 64, "embed_dim": 12, "head_dim": 5, "mlp_dim": 7}


@functools.partial(jax.jit, static_argnums=0)
def apply(model, variables, *inputs):
    return model.apply(variables, *inputs, deterministic=True)


def small_model(attention="nystrom", sizes=None, kind=Classifier, **options):
    sizes = {"embed_dim": 12, "head_dim": 5, "mlp_dim": 7} | (sizes or {})
    config = ModelConfig(vocab_size=11, max_len=64, **sizes)
    return kind(config, make_core(attention, **options), num_classes=3)


def test_a_tagger_classifies_the_tokens_at_the_positions(rngs):
    inputs = jax.random.randint(next(rngs), (2, 20), 1, 11)
    mask = mask_of_lengths([20, 9], 20)
    model = Tagger(ModelConfig(**SIZES, num_layers=1), SOFTMAX, num_classes=3)
    positions = np.array([[4, 0, 19], [8, 8, 1]])
    variables = random_variables(next(rngs), model, inputs, mask, positions)
    logits = np.asarray(apply(model, variables, inputs, mask, positions))
    assert logits.shape == (2, 3, 3)
    assert_close(logits[1, 0], logits[1, 1], SAME_ARITHMETIC)
    everywhere = apply(model, variables, inputs, mask, np.tile(np.arange(20), (2, 1)))
    expected = np.take_along_axis(np.asarray(everywhere), positions[..., None], axis=1)
    assert_close(logits, expected, SAME_ARITHMETIC)


def test_padded_mean_divides_by_the_padded_length(rngs):
    """The features are those of the mean over real tokens times the fraction of real tokens."""
    inputs = jax.random.randint(next(rngs), (2, 20), 1, 11)
    mask = mask_of_lengths([20, 5], 20)
    mean, padded_mean = (pooled_by(how, inputs, mask)[0] for how in ("mean", "padded_mean"))
    assert_close(padded_mean, mean * jnp.array([[1.0], [0.25]]), SAME_ARITHMETIC)


def pooled_by(pooling, inputs, mask, **sizes):
    config = ModelConfig(**SIZES | {"num_layers": 1} | sizes, pooling=pooling)
    encoder = SequenceEncoder(config, SOFTMAX)
    params = random_variables(jax.random.key(0), encoder, inputs, mask)
    return np.asarray(apply(encoder, params, inputs, mask)), params


def mean_of_encoder(params, x, mask):
    """Encodes embeddings with one layer of `SIZES`, and averages over real tokens."""
    block = functools.partial(EncoderBlock, 2, SOFTMAX, 7, qkv_features=10)
    apply = jax.jit(functools.partial(Encoder(1, block).apply, deterministic=True))
    return masked_mean(apply({"params": params}, x, mask), mask)


def test_all_mean_equals_mean_without_padding(rngs):
    inputs = jax.random.randint(next(rngs), (3, 19), 1, 11)
    everywhere = jnp.ones((3, 19), bool)
    one, other = (pooled_by(how, inputs, everywhere)[0] for how in ("mean", "all_mean"))
    assert_close(one, other, SAME_ARITHMETIC)
    mask = mask_of_lengths([19, 7, 5], 19)
    one, other = (pooled_by(how, inputs, mask)[0] for how in ("mean", "all_mean"))
    assert np.abs(one - other).max() > 1e-3


def test_class_token_is_the_first_token(rngs):
    """With one layer and no positions its output does not depend on the order of the tokens."""
    inputs = jax.random.randint(next(rngs), (2, 13), 1, 11)
    everywhere = jnp.ones((2, 13), bool)
    sizes = {"max_len": 13}
    pooled, params = pooled_by("cls", inputs, everywhere, **sizes)
    assert params["params"]["cls"].shape == (1, 1, 12)
    assert params["params"]["position_embedding"]["embedding"].shape == (14, 12)
    first, _ = pooled_by("first", inputs, everywhere, **sizes)
    assert np.abs(pooled - first).max() > 1e-3
    config = ModelConfig(**SIZES | sizes, num_layers=1, pooling="cls")
    encoder = SequenceEncoder(config, SOFTMAX)
    nowhere = jax.tree.map(lambda leaf: leaf, params)
    nowhere["params"]["position_embedding"]["embedding"] *= 0
    turned, straight = (apply(encoder, nowhere, x, everywhere) for x in (inputs[:, ::-1], inputs))
    assert_close(turned, straight, REFERENCE)


def test_class_token_depends_on_all_real_tokens_and_no_padding(rngs):
    inputs = jax.random.randint(next(rngs), (2, 13), 1, 11)
    mask = mask_of_lengths([13, 7], 13)
    pooled, _ = pooled_by("cls", inputs, mask)
    another = inputs % 10 + 1  # a different token everywhere
    same, _ = pooled_by("cls", jnp.where(mask, inputs, another), mask)
    assert_close(same, pooled, SAME_ARITHMETIC)
    last, _ = pooled_by("cls", inputs.at[1, 6].set(another[1, 6]), mask)
    assert np.abs(last - pooled)[1].max() > 1e-3


def test_class_token_without_real_tokens_is_finite():
    inputs, mask = jnp.zeros((2, 13), jnp.int32), mask_of_lengths([13, 0], 13)
    pooled, _ = pooled_by("cls", inputs, mask)
    assert np.isfinite(pooled).all()


@pytest.mark.parametrize("pooling", ["mean", "padded_mean", "all_mean", "first", "cls", "ends"])
def test_pooled_output_is_float32(pooling):
    inputs, mask = jnp.zeros((2, 13), jnp.int32), mask_of_lengths([13, 5], 13)
    encoder = SequenceEncoder(ModelConfig(**SIZES, pooling=pooling, dtype="bfloat16"), SOFTMAX)
    pooled = jax.eval_shape(
        lambda: encoder.init_with_output(jax.random.key(0), inputs, mask, deterministic=True)[0]
    )
    assert pooled.dtype == jnp.float32


def test_half_precision_sums_the_gradients_of_a_token_in_float32(rngs):
    inputs, mask = jnp.ones((64, 32), jnp.int32), jnp.ones((64, 32), bool)
    full, half = (
        SequenceEncoder(ModelConfig(**SIZES, num_layers=1, dtype=dtype), SOFTMAX)
        for dtype in ("float32", "bfloat16")
    )
    variables = random_variables(next(rngs), full, inputs, mask)
    weights = jax.random.normal(next(rngs), (12,))

    def gradient_of(model):
        total = lambda variables: (apply(model, variables, inputs, mask) @ weights).sum()
        gradient = jax.jit(jax.grad(total))(variables)
        return gradient["params"]["token_embedding"]["embedding"][1]

    expected = gradient_of(full)
    assert jnp.abs(gradient_of(half) - expected).max() < 0.1 * jnp.abs(expected).max()


def test_sinusoids_equal_their_formula():
    waves = sinusoids(31, 6)
    assert waves.shape == (31, 6)
    assert_close(waves[0], jnp.array([0.0, 1.0] * 3), SAME_ARITHMETIC)
    for pair, rate in enumerate([1.0, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)]):
        assert_close(waves[5, 2 * pair], jnp.sin(5 * rate), REFERENCE)
        assert_close(waves[5, 2 * pair + 1], jnp.cos(5 * rate), REFERENCE)
    assert sinusoids(5, 3).shape == (5, 3)


def test_fixed_positions_are_sinusoids_without_parameters(rngs):
    inputs, mask = jax.random.randint(next(rngs), (2, 13), 1, 11), mask_of_lengths([13, 7], 13)
    pooled, variables = pooled_by("mean", inputs, mask, positions="sinusoidal")
    weights = variables["params"]
    assert "position_embedding" not in weights
    x = weights["token_embedding"]["embedding"][inputs] + sinusoids(13, 12)[None]
    assert_close(pooled, mean_of_encoder(weights["encoder"], x, mask), REFERENCE)


def test_mean_is_over_real_tokens():
    x = jnp.array([[[1.0], [5.0], [jnp.nan]], [[jnp.nan]] * 3])
    mask = jnp.array([[True, True, False], [False] * 3])
    assert_close(masked_mean(x, mask), jnp.array([[3.0], [0.0]]), SAME_ARITHMETIC)


def test_ends_are_the_first_and_the_last_real_token():
    """With padding at the end, in front, between tokens, and everywhere. Its content does not matter."""
    mask = jnp.array(
        [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0] * 5], bool
    )
    x = jnp.arange(50.0).reshape(5, 5, 2)
    x = jnp.where(mask[..., None], x, jnp.nan)
    first, last = first_and_last(x, mask)
    assert first.tolist() == [[0, 1], [14, 15], [22, 23], [34, 35], [0, 0]]
    assert last.tolist() == [[4, 5], [18, 19], [26, 27], [34, 35], [0, 0]]
    half = first_and_last(x.astype(jnp.bfloat16), mask)
    assert [leaf.dtype for leaf in half] == [jnp.float32, jnp.float32]


def test_ends_pooling_concatenates_both_ends_and_the_mean(rngs):
    inputs = jax.random.randint(next(rngs), (3, 13), 1, 11)
    mask = mask_of_lengths([13, 7, 0], 13)
    pooled, _ = pooled_by("ends", inputs, mask)
    assert_close(pooled[:, :12], pooled_by("first", inputs, mask)[0], REFERENCE, where=mask[:, 0])
    assert_close(pooled[:, 24:], pooled_by("mean", inputs, mask)[0], REFERENCE)
    assert (pooled[2] == 0).all()
    # Tokens after the last real one do not matter; the last real one does.
    turned = inputs.at[1, 7:].set(inputs[1, 7:] % 10 + 1)
    assert_close(pooled_by("ends", turned, mask)[0], pooled, REFERENCE)
    other = pooled_by("ends", inputs.at[1, 6].set(inputs[1, 6] % 10 + 1), mask)[0]
    assert np.abs(other - pooled)[1, 12:24].max() > 1e-3
    params = random_variables(next(rngs), small_model("softmax", {"pooling": "ends"}), inputs, mask)
    assert params["params"]["head_hidden"]["kernel"].shape == (36, 7)


def test_stem_is_between_embedding_and_positions(rngs):
    inputs = jax.random.randint(next(rngs), (2, 13), 1, 11)
    mask = mask_of_lengths([13, 7], 13)
    pooled, variables = pooled_by("mean", inputs, mask, stem=(5, 3))
    weights = variables["params"]
    kernels = [weights["stem"][f"convolution_{i}"]["kernel"].shape for i in range(2)]
    assert kernels == [(5, 12, 12), (3, 12, 12)]
    x = weights["token_embedding"]["embedding"][inputs]
    x = jax.jit(ConvStem((5, 3)).apply)({"params": weights["stem"]}, x, mask)
    x = x + weights["position_embedding"]["embedding"][None, :13]
    assert_close(pooled, mean_of_encoder(weights["encoder"], x, mask), REFERENCE)


def test_order_of_tokens_does_not_matter_without_positions(rngs):
    inputs, everywhere = jax.random.randint(next(rngs), (2, 13), 1, 11), jnp.ones((2, 13), bool)
    pooled, params = pooled_by("mean", inputs, everywhere, positions="none")
    assert "position_embedding" not in params["params"]
    turned, _ = pooled_by("mean", inputs[:, ::-1], everywhere, positions="none")
    assert_close(turned, pooled, REFERENCE)


def test_token_embeddings_may_be_initialized_with_sinusoids():
    inputs, mask = jnp.zeros((2, 13), jnp.int32), jnp.ones((2, 13), bool)

    def table(token_init):
        config = ModelConfig(**SIZES, num_layers=1, token_init=token_init)
        encoder = SequenceEncoder(config, SOFTMAX)
        init = jax.jit(functools.partial(encoder.init, deterministic=True))
        return init(jax.random.key(0), inputs, mask)["params"]["token_embedding"]["embedding"]

    assert_close(table("fourier"), sinusoids(11, 12), SAME_ARITHMETIC)
    assert np.abs(table("normal")).max() < 0.2


@pytest.mark.parametrize("name", ["lecun", "google"])
def test_embeddings_kernels_and_biases_are_initialized_as_configured(name):
    config = ModelConfig(**SIZES | {"mlp_dim": 90}, num_layers=1, initialization=name)
    encoder = SequenceEncoder(config, SOFTMAX)
    inputs, mask = jnp.ones((1, 9), jnp.int32), jnp.ones((1, 9), bool)
    init = jax.jit(functools.partial(encoder.init, deterministic=True))
    params = init(jax.random.key(0), inputs, mask)["params"]
    layer = params["encoder"]["layer_0"]["mlp"]["hidden"]
    kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
    deviation = 1.0 if name == "google" else 0.02
    assert params["token_embedding"]["embedding"].std() == pytest.approx(deviation, rel=0.2)
    if name == "google":  # uniform up to √(6 / (E + F))
        assert np.abs(kernel).max() == pytest.approx((6 / (12 + 90)) ** 0.5, rel=0.02)
        assert 0 < bias.std() < 1e-5
    else:  # deviation 1 / √E
        assert kernel.std() == pytest.approx(12**-0.5, rel=0.1)
        assert not bias.any()


@pytest.mark.parametrize("block", ["transformer", "gated_ema"])
def test_every_layer_has_the_configured_activation_and_epsilon(block):
    options = {"block": block, "activation": "relu", "layer_norm_epsilon": 0.1}
    encoder = SequenceEncoder(ModelConfig(**SIZES, **options, num_layers=1, stem=(3,)), SOFTMAX)
    activations, epsilons = {}, {}

    def spy(call, args, kwargs, context):
        module = context.module
        if isinstance(module, (ConvStem, MlpBlock)):
            activations[module.name] = module.activation
        elif isinstance(module, nn.LayerNorm):
            epsilons["/".join(module.path)] = module.epsilon
        return call(*args, **kwargs)

    inputs, mask = jnp.ones((1, 9), jnp.int32), jnp.ones((1, 9), bool)
    with nn.intercept_methods(spy):
        init = functools.partial(encoder.init, deterministic=True)
        jax.eval_shape(init, jax.random.key(0), inputs, mask)
    assert activations == {"stem": "relu", "mlp": "relu"}
    assert len(epsilons) >= 4  # of the stem, two of the block, and the last one
    assert set(epsilons.values()) == {0.1}


def test_blocks_get_the_time_scales_and_the_normalization_of_the_averages():
    config = ModelConfig(
        **SIZES, num_layers=1, block="gated_ema", ema_states=3, ema_normalization="variance"
    )
    encoder = SequenceEncoder(config, make_core("none"))
    options = set()

    def spy(call, args, kwargs, context):
        if isinstance(module := context.module, MultiScaleEma):
            options.add((module.num_states, module.max_time_scale, module.normalization))
        return call(*args, **kwargs)

    inputs, mask = jnp.ones((1, 9), jnp.int32), jnp.ones((1, 9), bool)
    with nn.intercept_methods(spy):
        init = functools.partial(encoder.init, deterministic=True)
        jax.eval_shape(init, jax.random.key(0), inputs, mask)
    assert options == {(3, 64, "variance")}


@pytest.mark.slow_except("Classifier-softmax-sizes1", "DualEncoder-softmax-sizes3")
@pytest.mark.parametrize(
    ("kind", "attention", "sizes"),
    [
        (Classifier, "nystrom", {}),
        (Classifier, "softmax", {}),
        (Classifier, "nystrom", {"stem": (5, 3), "pooling": "ends"}),
        (DualEncoder, "softmax", {}),
        (DualEncoder, "nystrom", {}),
    ],
)
def test_logits_and_gradients_ignore_padding(rngs, kind, attention, sizes):
    """Tokens in the padding, and the length of the padding, change nothing."""
    options = {"num_landmarks": 5, "conv_kernel_size": 3} if attention == "nystrom" else {}
    model = small_model(attention, sizes, kind=kind, **options)
    texts, padded = [], []
    for lengths in ([23, 9], [17, 23])[: len(kind.batch_keys) // 2]:
        inputs = jax.random.randint(next(rngs), (2, 23), 1, 11)
        mask = mask_of_lengths(lengths, 23)
        texts += [inputs, mask]
        padded += [
            np.pad(jnp.where(mask, inputs, 7), ((0, 0), (0, 14)), constant_values=5),
            np.pad(mask, ((0, 0), (0, 14))),
        ]
    params = random_variables(next(rngs), model, *texts)

    @jax.jit
    def run(params, *texts):
        def total(params):
            logits = model.apply(params, *texts, deterministic=True)
            return (logits * jnp.arange(3.0)[None]).sum(), logits

        return jax.value_and_grad(total, has_aux=True)(params)

    (_, logits), gradients = run(params, *padded)
    (_, expected), expected_gradients = run(params, *texts)
    assert_close(logits, expected, REFERENCE)
    assert_close(gradients, expected_gradients, REFERENCE)


def test_order_of_tokens_matters(rngs):
    inputs, mask = jnp.arange(1, 9)[None], jnp.ones((1, 8), bool)
    forwards, _ = pooled_by("mean", inputs, mask)
    backwards, _ = pooled_by("mean", inputs[:, ::-1], mask)
    assert np.abs(forwards - backwards).max() > 1e-5


@pytest.mark.slow(minutes=0.1)
def test_dropout_applies_to_the_embeddings(rngs):
    model = small_model(num_landmarks=5)
    inputs, mask = jnp.ones((1, 23), jnp.int32), jnp.ones((1, 23), bool)
    params = model.init(next(rngs), inputs, mask, deterministic=True)
    _, state = model.apply(
        params,
        inputs,
        mask,
        deterministic=False,
        rngs={"dropout": next(rngs)},
        capture_intermediates=lambda module, _: type(module).__name__ == "Dropout",
    )
    embedded = state["intermediates"]["sequence_encoder"]["Dropout_0"]["__call__"][0]
    assert 0.02 < float((embedded == 0).mean()) < 0.3  # a tenth


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"num_heads": 0}, r"model\.num_heads"),
        ({"dropout_rate": 1.0}, r"model\.dropout_rate"),
        ({"layer_norm_epsilon": 0.0}, r"model\.layer_norm_epsilon"),
        ({"num_layers": 1001}, r"model\.num_layers"),
        ({"mlp_dim": 1, "pair_features": "concatenation"}, r"model\.mlp_dim"),  # halved in the head
        ({"stem": (4,)}, r"model\.stem: .* odd"),
        ({"stem": (3, 0)}, r"model\.stem: .* odd"),
        ({"stem": (3, 3), "stem_dilations": (1,)}, r"model\.stem_dilations"),
        ({"stem": (3,), "stem_dilations": (0,)}, r"model\.stem_dilations"),
    ],
)
def test_invalid_values_are_errors(options, word):
    with pytest.raises(ValueError, match=word):
        ModelConfig(vocab_size=11, max_len=64, **options)
    ModelConfig(vocab_size=11, max_len=64, mlp_dim=1)
