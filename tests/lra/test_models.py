import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra.models import (
    INITIALIZATIONS,
    Classifier,
    DualEncoder,
    ModelConfig,
    SequenceEncoder,
    Tagger,
    pool,
    sinusoids,
)
from nystromformer_jax import Encoder, make_core
from nystromformer_jax.layers.encoder import MlpBlock
from nystromformer_jax.layers.gated_ema import MultiScaleEma
from nystromformer_jax.layers.stem import ConvStem
from nystromformer_jax.training import MeshConfig, make_mesh, shard_batch
from nystromformer_jax.training.mesh import replicated
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    dropped_shapes,
    mask_of_lengths,
    random_variables,
)

SOFTMAX = make_core("softmax")
SIZES = {"vocab_size": 11, "max_len": 64, "embed_dim": 12, "head_dim": 5, "mlp_dim": 7}
EVERYWHERE = jnp.ones((2, 13), bool)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, variables, *inputs):
    return model.apply(variables, *inputs, deterministic=True)


def encoder_of(**changes):
    return SequenceEncoder(ModelConfig(**SIZES | {"num_layers": 1} | changes), SOFTMAX)


def small_model(kind, attention="softmax", sizes=(), **options):
    return kind(ModelConfig(**SIZES | dict(sizes)), make_core(attention, **options), num_classes=3)


def encoded(inputs, mask, **changes):
    """Returns the output of one random layer and its parameters."""
    encoder = encoder_of(**changes)
    variables = random_variables(jax.random.key(0), encoder, inputs, mask)
    return np.asarray(apply(encoder, variables, inputs, mask)), variables["params"]


@functools.partial(jax.jit, static_argnums=0)
def embedded(encoder, variables, inputs, mask):
    """Returns the input of the first layer; the layers are not computed."""

    def skip(call, args, kwargs, context):
        is_layers = isinstance(context.module, Encoder) and context.method_name == "__call__"
        return args[0] if is_layers else call(*args, **kwargs)

    with nn.intercept_methods(skip):
        return apply(encoder.clone(pools=False), variables, inputs, mask)


def modules_of(encoder):
    """Returns the modules that an encoder calls, in order."""
    modules = []

    def spy(call, args, kwargs, context):
        modules.append(context.module)
        return call(*args, **kwargs)

    inputs, mask = jnp.ones((1, 9), jnp.int32), jnp.ones((1, 9), bool)
    with nn.intercept_methods(spy):
        init = functools.partial(encoder.init, deterministic=True)
        jax.eval_shape(init, jax.random.key(0), inputs, mask)
    return modules


@pytest.fixture
def inputs(rngs):
    return jax.random.randint(next(rngs), (2, 13), 1, 11)


# --- Pooling


def test_a_tagger_classifies_the_tokens_at_the_positions(rngs):
    inputs = jax.random.randint(next(rngs), (2, 20), 1, 11)
    mask = mask_of_lengths([20, 9], 20)
    model = Tagger(ModelConfig(**SIZES, num_layers=1), SOFTMAX, num_classes=3)
    positions = np.array([[4, 0, 19], [8, 8, 1]])
    variables = random_variables(next(rngs), model, inputs, mask, positions)
    logits = apply(model, variables, inputs, mask, positions)
    everywhere = apply(model, variables, inputs, mask, np.tile(np.arange(20), (2, 1)))
    expected = np.take_along_axis(np.asarray(everywhere), positions[..., None], axis=1)
    assert_close(logits, expected, SAME_ARITHMETIC)


# With padding at the end, in front, between tokens, and everywhere. Its content does not matter.
MASK = jnp.array(
    [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0] * 5], bool
)
FIRST = [[0, 1], [14, 15], [22, 23], [34, 35], [0, 0]]
LAST = [[4, 5], [18, 19], [26, 27], [34, 35], [0, 0]]
MEAN = [[2, 3], [16, 17], [24, 25], [34, 35], [0, 0]]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", MEAN),
        ("padded_mean", np.multiply(MEAN, [[0.6], [0.6], [0.4], [0.2], [0]])),
        ("ends", np.concatenate([FIRST, LAST, MEAN], axis=1)),
    ],
)
def test_pooling_ignores_the_content_of_padding(pooling, expected):
    x = jnp.where(MASK[..., None], jnp.arange(50.0).reshape(5, 5, 2), jnp.nan)
    assert_close(pool(x, MASK, pooling), np.asarray(expected), SAME_ARITHMETIC)
    assert pool(x.astype(jnp.bfloat16), MASK, pooling).dtype == jnp.float32


def test_pooling_of_all_positions_and_of_the_first():
    x = jnp.arange(50.0, dtype=jnp.bfloat16).reshape(5, 5, 2)
    for pooling, expected in (("all_mean", x.mean(axis=1)), ("first", x[:, 0]), ("cls", x[:, 0])):
        pooled = pool(x, MASK, pooling)
        assert pooled.dtype == jnp.float32
        assert_close(pooled, expected, SAME_ARITHMETIC)


def test_class_token_is_the_first_token_and_depends_on_all_real_tokens(inputs):
    """With one layer and no positions its output does not depend on the order of the tokens."""
    mask = mask_of_lengths([13, 7], 13)
    pooled, params = encoded(inputs, mask, pooling="cls", max_len=13)
    assert params["cls"].shape == (1, 1, 12)
    assert params["position_embedding"]["embedding"].shape == (14, 12)
    assert np.abs(pooled - encoded(inputs, mask, pooling="first", max_len=13)[0]).max() > 1e-3
    encoder = encoder_of(pooling="cls", max_len=13)
    params["position_embedding"]["embedding"] *= 0
    run = lambda inputs, mask: apply(encoder, {"params": params}, inputs, mask)
    assert_close(run(inputs[:, ::-1], EVERYWHERE), run(inputs, EVERYWHERE), REFERENCE)
    pooled, another = run(inputs, mask), inputs % 10 + 1  # a different token everywhere
    assert_close(run(jnp.where(mask, inputs, another), mask), pooled, SAME_ARITHMETIC)
    last = run(inputs.at[1, 6].set(another[1, 6]), mask)
    assert np.abs(last - pooled)[1].max() > 1e-3
    assert np.isfinite(run(inputs, mask_of_lengths([13, 0], 13))).all()


def test_half_precision_sums_the_gradients_of_a_token_in_float32(rngs):
    """A sum of ones in bfloat16 stops at 256."""
    inputs, mask = jnp.ones((64, 32), jnp.int32), jnp.ones((64, 32), bool)
    encoder = encoder_of(dtype="bfloat16")
    variables = random_variables(next(rngs), encoder, inputs, mask)
    total = lambda variables: embedded(encoder, variables, inputs, mask).sum(dtype=jnp.float32)
    gradient = jax.jit(jax.grad(total))(variables)["params"]["token_embedding"]["embedding"]
    assert gradient[1].tolist() == [64 * 32] * 12


# --- Embeddings


def test_sinusoids_equal_their_formula():
    waves = sinusoids(31, 6)
    assert waves.shape == (31, 6)
    assert_close(waves[0], jnp.array([0.0, 1.0] * 3), SAME_ARITHMETIC)
    for pair, rate in enumerate([1.0, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)]):
        assert_close(waves[5, 2 * pair], jnp.sin(5 * rate), REFERENCE)
        assert_close(waves[5, 2 * pair + 1], jnp.cos(5 * rate), REFERENCE)
    assert sinusoids(5, 3).shape == (5, 3)


def test_the_stem_is_between_embedding_and_positions(inputs):
    mask = mask_of_lengths([13, 7], 13)
    convolve = jax.jit(ConvStem((5, 3)).apply)
    for positions in ("learned", "sinusoidal", "none"):
        encoder = encoder_of(stem=(5, 3), positions=positions)
        variables = random_variables(jax.random.key(0), encoder, inputs, mask)
        params = variables["params"]
        kernels = [params["stem"][f"convolution_{i}"]["kernel"].shape for i in range(2)]
        assert kernels == [(5, 12, 12), (3, 12, 12)]
        x = params["token_embedding"]["embedding"][inputs]
        x = convolve({"params": params["stem"]}, x, mask)
        if positions == "learned":
            x = x + params["position_embedding"]["embedding"][None, :13]
        else:
            assert "position_embedding" not in params
        if positions == "sinusoidal":
            x = x + sinusoids(13, 12)[None]
        assert_close(embedded(encoder, variables, inputs, mask), x, REFERENCE)


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_embeddings_kernels_and_biases_are_initialized_as_configured(name):
    modules = modules_of(encoder_of(initialization=name, stem=(3,)))
    found = {(x.kernel_init, x.bias_init) for x in modules if hasattr(x, "kernel_init")}
    assert found == {INITIALIZATIONS[name][1:]}
    (embedding,) = {x.embedding_init for x in modules if x.name == "token_embedding"}
    initializers = (embedding, *INITIALIZATIONS[name][1:])
    table, kernel, bias = (np.asarray(x(jax.random.key(0), (12, 90))) for x in initializers)
    assert table.std() == pytest.approx(1.0 if name == "google" else 0.02, rel=0.1)
    if name == "google":  # uniform up to √(6 / (E + F))
        assert np.abs(kernel).max() == pytest.approx((6 / (12 + 90)) ** 0.5, rel=0.02)
        assert 0 < bias.std() < 1e-5
    else:  # deviation 1 / √E
        assert kernel.std() == pytest.approx(12**-0.5, rel=0.1)
        assert not bias.any()


def test_token_embeddings_may_be_initialized_with_sinusoids():
    modules = modules_of(encoder_of(token_init="fourier"))
    (embedding,) = {x.embedding_init for x in modules if x.name == "token_embedding"}
    assert_close(embedding(jax.random.key(0), (11, 12)), sinusoids(11, 12), SAME_ARITHMETIC)


# --- Whole models


@pytest.mark.parametrize("block", ["transformer", "gated_ema"])
def test_every_layer_has_its_configured_options(block):
    options = {"block": block, "activation": "relu", "layer_norm_epsilon": 0.1, "stem": (3,)}
    modules = modules_of(encoder_of(**options, ema_states=3, ema_normalization="variance"))
    activations = {x.name: x.activation for x in modules if isinstance(x, (ConvStem, MlpBlock))}
    assert activations == {"stem": "relu", "mlp": "relu"}
    epsilons = {"/".join(x.path): x.epsilon for x in modules if isinstance(x, nn.LayerNorm)}
    assert len(epsilons) >= 4  # of the stem, two of the block, and the last one
    assert set(epsilons.values()) == {0.1}
    averages = [x for x in modules if isinstance(x, MultiScaleEma)]
    found = {(x.num_states, x.max_time_scale, x.normalization) for x in averages}
    assert found == ({(3, 64, "variance")} if block == "gated_ema" else set())


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
    model = small_model(kind, attention, {"num_layers": 1} | sizes, **options)
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


# --- Pairs

NYSTROM = {"attention": "nystrom", "num_landmarks": 5, "conv_kernel_size": 3}
every_core = pytest.mark.parametrize(
    "options", [{"attention": "softmax"}, NYSTROM], ids=["softmax", "nystrom"]
)


def pairs(rngs, batch, length):
    """inputs1, mask1, inputs2 and mask2; every text is of another length."""
    texts = []
    for start in (0, batch):
        lengths = [length - i for i in range(start, start + batch)]
        inputs = jax.random.randint(next(rngs), (batch, length), 1, SIZES["vocab_size"])
        texts += [inputs, mask_of_lengths(lengths, length)]
    return texts


def dense(params, name, features):
    return features @ params[name]["kernel"] + params[name]["bias"][None]


@pytest.mark.slow_except("softmax-sizes0")
@pytest.mark.parametrize(
    "sizes",
    [{}, {"pair_features": "concatenation", "pooling": "first"}],
    ids=["sizes0", "sizes1"],
)
@every_core
def test_logits_are_the_head_of_two_texts_and_a_pair_ignores_its_batch_mates(rngs, options, sizes):
    texts = pairs(rngs, 5, 23)
    model = small_model(DualEncoder, sizes=sizes, **options)
    variables = random_variables(next(rngs), model, *texts)
    params = variables["params"]
    encoder = SequenceEncoder(model.config, model.make_core)
    x, y = (
        apply(encoder, {"params": params["sequence_encoder"]}, *text)
        for text in (texts[:2], texts[2:])
    )
    assert float(jnp.abs(x - y).max()) > 0.1
    if sizes:
        features = jax.nn.relu(dense(params, "head_pair", jnp.concatenate([x, y], axis=-1)))
        assert params["head_hidden"]["kernel"].shape == (7, 3)
    else:
        features = jnp.concatenate([x, y, x * y, x - y], axis=-1)
    hidden = jax.nn.relu(dense(params, "head_hidden", features))
    logits = apply(model, variables, *texts)
    assert_close(logits, dense(params, "head_output", hidden), REFERENCE)
    for row in range(5):  # with four copies of itself
        alone = (np.repeat(text[row : row + 1], 5, axis=0) for text in texts)
        assert_close(apply(model, variables, *alone)[0], logits[row], REFERENCE)


@pytest.mark.slow_except("softmax")
@every_core
def test_eight_devices_equal_one_and_exchange_gradients_only(rngs, options):
    """Forward they exchange one bit per layer, whether any text is short."""
    texts, mesh = pairs(rngs, 16, 37), make_mesh(MeshConfig(), jax.devices())
    model = small_model(DualEncoder, sizes={"num_layers": 1}, **options)
    params = random_variables(next(rngs), model, *texts)
    batch = dict(zip(DualEncoder.batch_keys, map(np.asarray, texts), strict=True))
    arguments = jax.device_put(params, replicated(mesh)), *shard_batch(batch, mesh).values()
    run = functools.partial(apply, model)
    loss = lambda params, *texts: (run(params, *texts) ** 2).sum()
    forward, backward = (
        jax.jit(function).lower(*arguments).compile() for function in (run, jax.grad(loss))
    )
    logits = forward(*arguments)
    assert len(logits.sharding.device_set) == 8
    assert_close(logits, run(params, *texts), REFERENCE)
    for program in (forward, backward):
        moved = "all-gather|all-to-all|collective-permute|reduce-scatter"
        assert not re.search(moved, program.as_text())
    reduced = re.findall(r"= (.*) all-reduce\(", forward.as_text())
    assert set(re.findall(r"\w+\[[\d,]*\]", " ".join(reduced))) <= {"pred[]"}
    assert "all-reduce" in backward.as_text()


# --- Dropout and errors


def test_dropout_applies_to_the_embeddings_and_the_head_gets_all_pooled_features(rngs, inputs):
    model = small_model(Classifier, sizes={"pooling": "ends"})
    variables = random_variables(next(rngs), model, inputs, EVERYWHERE)
    assert dropped_shapes(model, variables, inputs, EVERYWHERE)[0] == (2, 13, 12)
    assert variables["params"]["head_hidden"]["kernel"].shape == (36, 7)


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
