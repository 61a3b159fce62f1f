"""Folders that transformers loads, fine-tunes and saves give the same logits at every stage."""

import functools
import warnings

import jax
import numpy as np
import pytest

from nystromformer_jax.pretrained import (
    UpstreamMismatchWarning,
    from_pretrained,
    read_config,
    save_pretrained,
)
from tests.helpers import REFERENCE, assert_close

tiny = pytest.importorskip(
    "tests.peers.tiny", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
torch, transformers = tiny.torch, tiny.transformers

NYSTROMFORMER = {**tiny.NYSTROMFORMER, "max_position_embeddings": tiny.LENGTH}
ROBERTA = {"max_position_embeddings": tiny.LENGTH + 2, "pad_token_id": 1}
KINDS = {
    "bert": ("Bert", {"max_position_embeddings": tiny.LENGTH}),
    "roberta": ("Roberta", ROBERTA),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "camembert": ("Camembert", ROBERTA),
    "exact": ("Nystromformer", {**NYSTROMFORMER, "segment_means_seq_len": tiny.LANDMARKS}),
    "landmarks": ("Nystromformer", {**NYSTROMFORMER, "segment_means_seq_len": tiny.LENGTH}),
}
UNTIED = ("bert", "camembert", "exact")
KINDS |= {
    f"{kind}, untied": (KINDS[kind][0], {**KINDS[kind][1], "tie_word_embeddings": False})
    for kind in UNTIED
}


def fine_tune(model, arguments):
    """Three steps of AdamW that move every parameter, including those that start at zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    for _ in range(3):
        optimizer.zero_grad()
        tiny.loss_of(tiny.run_theirs(model, *arguments)).backward()
        optimizer.step()
    return model


def run_ours(folder, inputs, types, **options):
    model, variables = from_pretrained(folder, **options)
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    return jax.tree.leaves(apply(variables, inputs, None, types))


def assert_same(actual, model, arguments):
    expected = tiny.outputs_of(tiny.run_theirs(model.eval(), *arguments))
    for one, other in zip(actual, expected, strict=True):
        scale = np.abs(other).max()
        assert_close(one / scale, other / scale, REFERENCE)


@pytest.mark.filterwarnings("ignore::nystromformer_jax.pretrained.UpstreamMismatchWarning")
@pytest.mark.slow_except(
    "landmarks-ForMaskedLM",
    "bert-ForPreTraining",
    "bert, untied-ForMaskedLM",
    "xlm-roberta-ForSequenceClassification",
    "camembert-ForMultipleChoice",
    "exact-ForQuestionAnswering",
)
@pytest.mark.parametrize(
    ("kind", "head"),
    [
        *(
            (kind, head)
            for kind in ("bert", "roberta", "exact", "landmarks")
            for head in tiny.HEADS
        ),
        *((kind, "ForMaskedLM") for kind in ("xlm-roberta", "camembert")),
        *((f"{kind}, untied", "ForMaskedLM") for kind in UNTIED),
        ("xlm-roberta", "ForSequenceClassification"),
        ("camembert", "ForMultipleChoice"),
        ("bert", "ForPreTraining"),
    ],
)
def test_every_head_survives_fine_tuning_in_transformers(rngs, tmp_path, kind, head):
    prefix, changes = KINDS[kind]
    tiny.make(prefix, head, tmp_path / "theirs", **changes)
    attention = "nystrom" if kind == "landmarks" else "softmax"
    model, variables = from_pretrained(tmp_path / "theirs", attention=attention, quirks="hf")
    save_pretrained(tmp_path / "ours", model, variables)
    theirs = tiny.load(tmp_path / "ours")
    assert type(theirs).__name__ == f"{prefix}{head}"
    arguments = tiny.batch(rngs, head)
    assert_same(run_ours(tmp_path / "ours", *arguments), theirs, arguments)
    fine_tune(theirs, arguments).save_pretrained(tmp_path / "tuned")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = run_ours(tmp_path / "tuned", *arguments)
        assert read_config(tmp_path / "tuned") == from_pretrained(tmp_path / "tuned")[0].config
    assert_same(actual, theirs, arguments)


@pytest.mark.parametrize(
    ("head", "attention"),
    [
        ("ForSequenceClassification", {"attention": "softmax", "conv_kernel_size": 3}),
        ("ForMultipleChoice", {"attention": "softmax", "conv_kernel_size": 0}),
    ],
)
def test_our_config_section_is_ignored_with_a_warning_after_transformers_saved(
    rngs, tmp_path, head, attention
):
    """Our classifier has tanh, transformers has gelu_new and also trains the zero convolution kernel."""
    tiny.make("Nystromformer", head, tmp_path / "theirs", **KINDS["exact"][1])
    changes = {"classifier_activation": "tanh", "num_landmarks": 5, **attention}
    model, variables = from_pretrained(tmp_path / "theirs", **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UpstreamMismatchWarning)
        save_pretrained(tmp_path / "ours", model, variables)
    theirs = tiny.load(tmp_path / "ours")
    arguments = tiny.batch(rngs, head)
    fine_tune(theirs, arguments).save_pretrained(tmp_path / "tuned")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UpstreamMismatchWarning)
        with pytest.raises(UpstreamMismatchWarning, match="saved by transformers"):
            from_pretrained(tmp_path / "tuned")
        warnings.simplefilter("ignore")
        actual = run_ours(tmp_path / "tuned", *arguments)
    assert_same(actual, theirs, arguments)
