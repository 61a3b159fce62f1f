"""A language model on texts, beside direct calls of the model."""

import dataclasses
import functools
import sys
import types
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import hidden_states
from nystromformer_jax.pretrained import (
    LanguageModel,
    TruncationWarning,
    load,
    resize_token_embeddings,
    save_pretrained,
)
from nystromformer_jax.pretrained.names import MODELS
from tests.helpers import REFERENCE, assert_close
from tests.pretrained import tiny

pytest.importorskip("safetensors", reason="needs the extra `language`")
pytest.importorskip("tokenizers", reason="needs the extra `language`")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sat", "on", "mat"]
TEXTS = ["a cat", "", "a dog sat on a mat on a mat", "dog", "sat on a mat", "mat " * 8]
MAX_LEN = 13
# Exact attention without a convolution compiles in a fraction of the time.
SMALL = {"num_layers": 1, "attention": "softmax", "conv_kernel_size": 0}


@pytest.fixture
def make(tmp_path):
    """Returns a language model of one layer, in batches of 3 padded to 8 or 13 tokens."""

    def make(name="NystromformerForMaskedLM", base_len=8, **changes):
        model = MODELS[name](dataclasses.replace(tiny.CONFIG, **SMALL | changes))
        save_pretrained(tmp_path, model, tiny.random_variables(model))
        tiny.write_tokenizer(tmp_path, WORDS)
        return load(tmp_path, batch_size=3, base_len=base_len)

    return make


def padded(texts):
    """Inputs, mask and types of all texts, padded to the longest possible text."""
    ids = [[2, *(WORDS.index(word) for word in text.split()), 3] for text in texts]
    lengths = np.array([len(row) for row in ids])
    inputs = np.array([row + [0] * (MAX_LEN - len(row)) for row in ids])
    mask = np.arange(MAX_LEN) < lengths[:, None]
    return jnp.asarray(inputs), jnp.asarray(mask), jnp.asarray(np.zeros_like(inputs))


def last_hidden_states(language_model, batch):
    params = language_model.variables["params"]
    params = params.get("nystromformer", params)
    backbone = Nystromformer(language_model.model.config)
    return jax.jit(functools.partial(backbone.apply, deterministic=True))(
        {"params": params}, *batch
    )


def logits_of(language_model, batch):
    apply = functools.partial(language_model.model.apply, deterministic=True)
    return np.asarray(jax.jit(apply)(language_model.variables, *batch))


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.slow_except("mean")
def test_embeddings_equal_those_of_texts_padded_to_the_longest(make, pooling):
    language_model = make(attention="nystrom")
    batch = padded(TEXTS)
    hidden = np.asarray(last_hidden_states(language_model, batch))
    mean = hidden.mean(axis=1, where=np.asarray(batch[1])[..., None])
    found = language_model.embed(TEXTS, pooling=pooling)
    assert found.dtype == np.float32
    assert_close(found, mean if pooling == "mean" else hidden[:, 0], REFERENCE)


def test_random_features_of_hidden_states_are_those_of_the_model(make):
    language_model = make(attention="performer")
    model, variables = language_model.model, language_model.variables
    batch = padded(TEXTS)
    apply = functools.partial(
        model.apply,
        deterministic=True,
        mutable=["intermediates"],
        capture_intermediates=lambda module, _: isinstance(module, Nystromformer),
    )
    _, state = jax.jit(apply)(variables, *batch)
    (expected,) = state["intermediates"]["nystromformer"]["__call__"]
    states = jax.jit(functools.partial(hidden_states, model))(variables, *batch)
    assert_close(states[-1], expected, REFERENCE)


def test_more_landmarks_than_tokens_are_an_error_where_they_must_divide_the_length(make):
    language_model = make(attention="nystrom", num_landmarks=16)
    config = dataclasses.replace(language_model.model.config, landmark_layout="hf")
    with pytest.raises(ValueError, match=f"num_landmarks=16, .* at most {MAX_LEN} tokens"):
        dataclasses.replace(language_model, model=type(language_model.model)(config))


def test_hidden_states_of_a_backbone_are_those_of_a_model_around_it(make):
    model, variables = (language_model := make()).model, language_model.variables
    backbone = Nystromformer(model.config)
    own = {"params": variables["params"]["nystromformer"]}
    states = [
        jax.jit(functools.partial(hidden_states, one))(values, *padded(TEXTS))
        for one, values in ((model, variables), (backbone, own))
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_embeddings_of_an_earlier_layer(make):
    language_model = make(num_layers=2)
    states = jax.jit(functools.partial(hidden_states, language_model.model))(
        language_model.variables, *padded(["a cat"])
    )
    for layer in (0, 1, -3):
        expected = np.asarray(states[layer])[0, :4].mean(axis=0)  # two words and two special tokens
        assert_close(language_model.embed(["a cat"], layer=layer)[0], expected, REFERENCE)
    with pytest.raises(ValueError, match="from -3 to 2"):
        language_model.embed(["a cat"], layer=3)


@pytest.mark.slow_except("4-6-8")
@pytest.mark.parametrize(
    ("num_tokens", "base_len", "padded_len"), [(11, 8, 12), (12, 6, 12), (4, 6, 8), (32, 8, 12)]
)
def test_layouts_other_than_real_are_padded_with_the_tokenizers_token_to_a_multiple_of_m(
    make, tmp_path, num_tokens, base_len, padded_len
):
    make(attention="nystrom", num_landmarks=4)  # 13 positions
    language_model = load(tmp_path, batch_size=1, base_len=base_len, quirks="hf")
    language_model.tokenizer.pad_token = "mat"  # landmarks and convolution read it
    kept = min(num_tokens, 12)
    inputs, mask = np.full((1, padded_len), WORDS.index("mat")), np.arange(padded_len)[None] < kept
    inputs[0, :kept] = [2, *[WORDS.index("cat")] * (kept - 2), 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        found = language_model.embed(["cat " * (num_tokens - 2)])
    hidden = last_hidden_states(language_model, (inputs, mask, np.zeros_like(inputs)))
    assert_close(found[0], np.asarray(hidden)[0, :kept].mean(axis=0), REFERENCE)


@pytest.mark.slow(minutes=0.1)
def test_one_program_is_compiled_per_length(make):
    language_model = make(base_len=4, mlp_dim=7)  # used by no other test, whose programs are cached
    shapes = []

    def listen(call, args, kwargs, context):
        if isinstance(context.module, Nystromformer) and context.method_name == "__call__":
            shapes.append(args[0].shape)
        return call(*args, **kwargs)

    texts = [" ".join(["cat"] * count) for count in range(12)]
    with nn.intercept_methods(listen):
        language_model.embed(texts)
        language_model.embed(texts[::-1] * 2)
    assert sorted(shapes) == [(3, 4), (3, 8), (3, 13)]


def test_tokens_of_a_tokenizer_are_accepted_by_name(make):
    language_model = make("NystromformerForSequenceClassification")
    inputs, mask, kinds = padded(TEXTS)
    names = {"input_ids": inputs, "attention_mask": mask.astype(int), "token_type_ids": kinds}
    assert_close(language_model.embed(**names), language_model.embed(TEXTS), REFERENCE)
    assert_close(language_model.classify(**names)[1], language_model.classify(TEXTS)[1], REFERENCE)
    in_front = {name: np.flip(x, 1) for name, x in names.items()}
    in_front["input_ids"] = np.flip(np.where(mask, inputs, 7), 1)
    reverse = [row[::-1] for row in language_model.tokenizer(TEXTS)["input_ids"]]
    assert_close(
        language_model.embed(**in_front), language_model.embed(input_ids=reverse), REFERENCE
    )
    other = names | {"token_type_ids": np.ones_like(kinds)}
    assert abs(language_model.embed(**other) - language_model.embed(TEXTS)).max() > 0.01


def test_pairs_of_texts_are_passed_through_the_tokenizer(make):
    language_model = make("NystromformerForSequenceClassification")
    _, found = language_model.classify(**language_model.tokenizer([("a cat", "dog")]))
    ids = [[2, 5, 6, 3, 7, 3]]  # [CLS] a cat [SEP] dog [SEP]
    expected = language_model.classify(input_ids=ids, token_type_ids=[[0, 0, 0, 0, 1, 1]])[1]
    assert_close(found, expected, REFERENCE)


def test_pairs_have_one_type_in_a_model_of_one_type(make):
    """A RoBERTa model may have a tokenizer that gives the second text type 1."""
    language_model = make("NystromformerForQuestionAnswering", num_types=1)
    assert language_model.answer("a cat", "dog sat on mat")[0]
    pair = language_model.tokenizer([("a cat", "dog")])
    assert pair["token_type_ids"][0][-1] == 1
    zeros = {**pair, "token_type_ids": [[0] * 6]}
    assert_close(language_model.embed(**pair), language_model.embed(**zeros), REFERENCE)


def test_masks_are_filled_as_by_a_direct_call(make):
    language_model = make()
    text = "a [MASK] sat on a [MASK] [MASK]"
    batch = padded([text])
    logits = logits_of(language_model, batch)[0]
    filled = language_model.fill_mask(text, top_k=3)
    assert len(filled) == 3
    for position, best in zip((2, 6, 7), filled, strict=True):
        expected = np.asarray(jax.nn.softmax(logits[position]))
        order = np.argsort(-expected)[:3]
        assert [token for token, _ in best] == [WORDS[i] for i in order]
        assert_close(np.array([p for _, p in best]), expected[order], REFERENCE)
    pretraining = make("NystromformerForPreTraining")
    resized = resize_token_embeddings(pretraining.model, pretraining.variables, len(WORDS) + 2)
    more_rows = LanguageModel(*resized, pretraining.tokenizer, 3, 8)
    (best,) = more_rows.fill_mask("[MASK]", top_k=99)
    assert sorted(token for token, _ in best) == sorted([*WORDS, "", ""])


@pytest.mark.parametrize("kind", ["single_label_classification", "multi_label_classification"])
@pytest.mark.slow_except("multi_label_classification")
def test_classes_have_the_names_of_config_json(make, kind):
    labels = {str(i): f"class {i}" for i in range(tiny.LABELS)}
    metadata = {"id2label": labels, "problem_type": kind}
    language_model = make("NystromformerForSequenceClassification", metadata=metadata)
    names, probabilities = language_model.classify(TEXTS)
    assert names == list(labels.values())
    batch = padded(TEXTS)
    logits = logits_of(language_model, batch)
    activation = jax.nn.softmax if kind.startswith("single") else jax.nn.sigmoid
    assert_close(probabilities, activation(logits), REFERENCE)


def test_a_word_without_tokens_is_outside_of_entities(make):
    def tag(names, words):
        metadata = {"id2label": {str(i): name for i, name in enumerate(names)}}
        options = {"num_labels": len(names), "metadata": metadata}
        return make("NystromformerForTokenClassification", **options).tag([words])[0]

    first, empty, last = tag(["B-X", "I-X", "O"], ["a", " ", "cat"])
    assert empty == "O"
    assert [first, last] == tag(["B-X", "I-X", "O"], ["a", "cat"])
    assert tag(["X", "Y"], [" "]) == ["X"]


def test_long_texts_are_truncated_with_one_warning(make):
    language_model = make()
    long = "cat " * 50
    with pytest.warns(
        TruncationWarning, match="2 of 4 texts .* all that this model reads"
    ) as caught:
        found = language_model.embed([long, "a cat", "dog", long])
    assert len(caught) == 1
    assert_close(found, language_model.embed(["cat " * 11, "a cat", "dog", "cat " * 11]), REFERENCE)


def test_empty_lists_and_texts_without_tokens(make, tmp_path):
    language_model = make("NystromformerForSequenceClassification")
    assert language_model.embed([]).shape == (0, tiny.EMBED)
    assert language_model.classify([])[1].shape == (0, tiny.LABELS)
    tiny.write_tokenizer(tmp_path, [word for word in WORDS if word not in WORDS[2:4]])
    without_special = load(tmp_path, batch_size=3, base_len=8)
    for pooling in ("mean", "first"):
        found = without_special.embed(["", "cat"], pooling=pooling)
        assert not found[0].any()
        assert found[1].all()
    assert np.isfinite(without_special.classify([""])[1]).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_except("NystromformerForMultipleChoice")
def test_every_model_gives_embeddings(make, name):
    assert np.isfinite(make(name).embed(["a cat"])).all()


SEQUENCES, ANSWERS, TAGS = (
    f"NystromformerFor{name}"
    for name in ("SequenceClassification", "QuestionAnswering", "TokenClassification")
)
# The model and its changes, a method, its arguments, and a word of the message.
ERRORS = [
    ({}, "classify", (["a cat"],), {}, f"needs a {SEQUENCES}"),
    ({}, "answer", ("who", "a cat"), {}, f"needs a {ANSWERS}"),
    ({}, "fill_mask", ("a cat",), {}, "is missing"),
    ({}, "fill_mask", (["[MASK]"],), {}, "got list"),
    *(({}, "embed", texts, {}, "Pass a list") for texts in (("a cat",), (None,))),
    ({}, "embed", (["a"],), {"input_ids": [[1]]}, "Pass a list"),
    ({}, "embed", (["a cat", float("nan")],), {}, "number 1"),
    ({}, "embed", (), {"input_ids": [[5]], "special_tokens_mask": [[0]]}, "special_tokens_mask"),
    ({}, "embed", (), {"attention_mask": [[1]]}, "input_ids"),
    ({}, "embed", (), {"input_ids": [[5] * 14]}, "14 tokens"),
    ({}, "embed", (), {"input_ids": [[5, 11]]}, "from 0 to 10"),
    ({}, "embed", (), {"input_ids": [[5]], "attention_mask": [[-10000]]}, "1 at real"),
    ({}, "embed", (), {"input_ids": [[5, 6]], "attention_mask": [[1]]}, "row 0"),
    ({"name": ANSWERS}, "answer", ("a", ["a cat"]), {}, "one context"),
    ({"name": ANSWERS}, "answer", ("cat " * 9, "a"), {}, "too many tokens"),
    ({"name": SEQUENCES}, "fill_mask", ("[MASK]",), {}, "NystromformerForMaskedLM"),
    ({"name": SEQUENCES}, "regress", (["a"],), {}, "one output"),
    ({"name": SEQUENCES, "num_labels": 1}, "classify", (["a"],), {}, "numbers"),
    ({"name": TAGS}, "tag", (["a cat"],), {}, "lists of words"),
    ({"name": TAGS}, "tag", ([["cat"] * 12],), {}, "at most 13"),
]


def test_errors_say_what_to_do(make, tmp_path, no_annotations):
    made = functools.cache(lambda model: make(**dict(model)))
    for model, method, arguments, tokens, word in ERRORS:
        language_model = made(tuple(model.items()))
        with pytest.raises(ValueError, match=word):
            getattr(language_model, method)(*arguments, **tokens)
    with pytest.warns(TruncationWarning), pytest.raises(ValueError, match="is after the"):
        make().fill_mask(20 * "a " + "[MASK]")
    text, score = make(ANSWERS).answer("a cat", "")
    assert text == ""
    assert np.isfinite(score)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path)


def test_names_of_the_hub_are_downloaded(make, tmp_path, monkeypatch):
    make()
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, "*.safetensors" in allow_patterns))
        return str(tmp_path)

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert load("owner/model").embed(["a cat"]).shape == (1, tiny.EMBED)
    assert asked == [("owner/model", True)]
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises((ValueError, ImportError), match=r"pytorch_model\.bin"):
        load("owner/model")
    assert asked[1:] == [("owner/model", True), ("owner/model", False)]

    def offline(name, allow_patterns):
        raise OSError("no network")

    hub.snapshot_download = offline
    for module, words in ((hub, "no network"), (None, "elsewhere")):  # None: not installed
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        command = "hf download owner/model --local-dir FOLDER"
        with pytest.raises(FileNotFoundError, match=f"{command} .*{words}"):
            load("owner/model")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(tmp_path / "none")


@pytest.mark.peers
def test_tokenizers_of_transformers_give_the_same(make):
    transformers = pytest.importorskip("transformers", reason="needs the extra `peers`")
    language_model = make()
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=language_model.tokenizer.backend_tokenizer,
        mask_token="[MASK]",
        pad_token="[PAD]",
    )
    other = LanguageModel(language_model.model, language_model.variables, theirs, 3, 8)
    long = "cat " * 50
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        assert_close(other.embed([*TEXTS, long]), language_model.embed([*TEXTS, long]), REFERENCE)
    assert other.fill_mask("a [MASK]") == language_model.fill_mask("a [MASK]")
    tokens = theirs(TEXTS, padding=True, return_tensors="np")
    assert_close(other.embed(**tokens), language_model.embed(TEXTS), REFERENCE)
