import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import attention_maps, nystrom_factors
from nystromformer_jax.pretrained import from_pretrained
from tests.examples.scripts import load
from tests.pretrained import tiny

pytest.importorskip("safetensors", reason="needs the extra `language`")
pytest.importorskip("tokenizers", reason="needs the extra `language`")
script = load("fill_masks")

WORDS = ["[PAD]", "[UNK]", "[MASK]", "a", "cat", "dog", "sat", "on", "the", "mat", "."]
TEXT = "the [MASK] sat on the mat . the [MASK] sat"
IDS = jnp.array([WORDS.index(word) for word in TEXT.split()])


def words_of(line):
    return [part.split()[0] for part in line.partition(": ")[2].split(", ")]


def best(weights, words):
    return [words[i] for i in np.argsort(-weights)[: script.TOP]]


@pytest.mark.slow_except("0")
@pytest.mark.parametrize("layer", [0, 1])
def test_fills_masks_and_prints_a_row_of_the_selected_layers_map(tmp_path, capsys, layer):
    tiny.published(tmp_path)
    tiny.write_tokenizer(tmp_path, WORDS)
    script.main([str(tmp_path), "--text", TEXT, f"--layer={layer}"])
    first, second, row = capsys.readouterr().out.splitlines()
    model, variables = from_pretrained(tmp_path, attention="nystrom")

    @jax.jit
    def logits_and_map(variables):
        maps = attention_maps(model, variables, IDS[None], deterministic=True)
        query, key = maps[layer].inputs[:2]
        kernel_1, inverse, kernel_3 = nystrom_factors(query, key, num_landmarks=tiny.LANDMARKS)
        logits = model.apply(variables, IDS[None], deterministic=True)
        return logits[0], (kernel_1 @ inverse @ kernel_3)[0, :, 1].mean(axis=0)

    logits, weights = map(np.asarray, logits_and_map(variables))
    assert words_of(first) == best(logits[1], WORDS)
    assert words_of(second) == best(logits[8], WORDS)
    assert row.startswith("mask 1 attends to: ")
    assert row.partition(": ")[2].split(", ") == [
        f"{WORDS[IDS[i]]} ({i}) {weights[i]:.3f}" for i in np.argsort(-weights)[: script.TOP]
    ]


def test_rejects_unsupported_models_texts_and_layers(tmp_path):
    def refuses(word, *arguments, folder=tmp_path):
        with pytest.raises(SystemExit, match=word):
            script.main([str(folder), *arguments])

    refuses("does not exist", folder=tmp_path / "none")
    tiny.write_tokenizer(tmp_path, WORDS)
    tiny.folder_of(tmp_path, "bert", "ForTokenClassification")
    refuses("NystromformerForMaskedLM")
    tiny.published(tmp_path)
    refuses(r"\[MASK\]", "--text", "the cat sat")
    refuses("--layer=99", "--text", TEXT, "--layer", "99")
    refuses("tokens", "--text", "[MASK] " * 1000)
