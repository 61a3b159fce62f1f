"""Embeddings of a folder of sentence-transformers beside those of transformers' model."""

import numpy as np
import pytest

from nystromformer_jax.pretrained import load
from tests.helpers import SAME_ARITHMETIC, assert_close

pytest.importorskip("tokenizers", reason="needs the extra `language`")
from tests.pretrained.test_sentence import write_settings
from tests.pretrained.tiny import write_tokenizer

tiny = pytest.importorskip(
    "tests.peers.tiny", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
torch = tiny.torch
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 121))]


@pytest.mark.parametrize(
    "pooling", ["mean_tokens", "cls_token", "max_tokens", "mean_sqrt_len_tokens"]
)
def test_embeddings_equal_those_of_transformers(tmp_path, pooling):
    theirs = tiny.make("Bert", "Model", max_position_embeddings=tiny.LENGTH)
    theirs.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, WORDS)
    write_settings(tmp_path, f"pooling_mode_{pooling}")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[5:], count)) for count in range(1, tiny.LENGTH - 1)]
    batch = load(tmp_path).tokenizer(texts, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    with torch.no_grad():
        hidden = theirs(**batch).last_hidden_state
    total, count = (hidden * mask).sum(1), mask.sum(1)
    expected = {
        "mean_tokens": total / count,
        "cls_token": hidden[:, 0],
        "max_tokens": hidden.masked_fill(mask == 0, -1e9).max(1).values,
        "mean_sqrt_len_tokens": total / count.sqrt(),
    }[pooling]
    expected = torch.nn.functional.normalize(expected, dim=1).numpy()
    assert_close(load(tmp_path).embed(texts), expected, SAME_ARITHMETIC)
