"""The swap of attention in a model: cosines by hand, exactness and training."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import swap
from nystromformer_jax.models import NystromformerForMaskedLM
from nystromformer_jax.pretrained import save_pretrained
from tests.pretrained import tiny

pytest.importorskip("safetensors", reason="needs the extra `language`")
pytest.importorskip("tokenizers", reason="needs the extra `language`")
from tests.pretrained.test_language_model import SMALL, WORDS


def test_cosines_and_neighbors_by_hand():
    expected = swap.unit(np.array([[1, 0], [1, 0.1], [0, 1]], np.float32))
    found = swap.unit(np.array([[1, 0], [0.1, 1], [0, 1]], np.float32))
    row = swap.compare(found, expected)
    cosine = (0.1 + 0.1) / 1.01
    assert row["lowest"] == pytest.approx(cosine)
    assert row["cosine"] == pytest.approx((2 + cosine) / 3)
    assert row["same_nearest"] == pytest.approx(2 / 3)  # the second is now nearest to the third


@pytest.mark.slow(minutes=0.2)
def test_few_tokens_are_exact_and_training_brings_more_tokens_closer(tmp_path, monkeypatch, capsys):
    model = NystromformerForMaskedLM(dataclasses.replace(tiny.CONFIG, **SMALL))
    folder = tmp_path / "model"
    save_pretrained(folder, model, tiny.random_variables(model))
    tiny.write_tokenizer(folder, WORDS)
    texts = [" ".join(WORDS[5 + (i * k) % 6] for k in range(8)) for i in range(1, 6)]
    (tmp_path / "texts").write_text("\n".join(texts))
    arguments = ["--model", str(folder), "--texts", str(tmp_path / "texts"), "--tokens", "4", "8"]
    arguments += ["--landmarks", "4", "--count", "3", "--out", str(tmp_path / "swap")]
    monkeypatch.setattr(swap, "SELECTIONS", ("segments",))
    monkeypatch.setattr(swap, "PINVS", ("iterative",))
    monkeypatch.setattr(swap, "BATCH_SIZE", 2)
    assert swap.main([*arguments, "--steps", "5"]) == 0
    rows = json.loads((tmp_path / "swap.json").read_text())["rows"]
    assert len(rows) == 2 + 2 * 2
    cosines = {(row["landmarks"], row["steps"], row["tokens"]): row["cosine"] for row in rows}
    assert cosines[4, 0, 4] == pytest.approx(1, abs=1e-5)
    assert cosines[4, 0, 8] < cosines[4, 5, 8] < 1 - 1e-6
    assert "| 4 tokens |" in capsys.readouterr().out
    assert swap.main([*arguments, "--count", "9"]) == 2


def test_the_texts_of_training_are_not_measured():
    class Words:
        def tokenizer(self, texts, truncation=False, max_length=None):
            return {"input_ids": [text.split()[:max_length] for text in texts]}

    texts = ["a b", "c d e", "f", "g h i", "j k", "l m n"]
    measured, others = swap.tokens_of(Words(), texts, [2, 3], 2)
    assert measured == {2: [["a", "b"], ["c", "d"]], 3: [["c", "d", "e"], ["g", "h", "i"]]}
    assert others == {2: [["j", "k"], ["l", "m"]], 3: [["l", "m", "n"]]}
