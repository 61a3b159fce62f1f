from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import attention_maps, nystrom_factors
from nystromformer_jax.pretrained import from_pretrained
from tests.examples.scripts import load
from tests.pretrained import tiny

pytest.importorskip("safetensors", reason="needs the extra `language`")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `language`")
script = load("fill_masks")

WORDS = ["[PAD]", "[UNK]", "[MASK]", "a", "cat", "dog", "sat", "on", "the", "mat", "."]
TEXT = "the [MASK] sat on the mat . the [MASK] sat"


def write_tokenizer(folder, words=WORDS):
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return jnp.array(tokenizer.encode(TEXT).ids)


def words_of(line):
    return [part.split()[0] for part in line.partition(": ")[2].split(", ")]


def best(weights, words):
    return [words[i] for i in np.argsort(-np.asarray(weights))[: script.TOP]]


@pytest.mark.parametrize("layer", [0, 1])
def test_fills_masks_and_prints_a_row_of_the_selected_layers_map(tmp_path, capsys, layer):
    tiny.published(tmp_path)
    ids = write_tokenizer(tmp_path)
    script.main([str(tmp_path), "--text", TEXT, f"--layer={layer}"])
    first, second, row = capsys.readouterr().out.splitlines()
    model, variables = from_pretrained(tmp_path, attention="nystrom")
    logits = jax.jit(partial(model.apply, deterministic=True))(variables, ids[None])[0]
    assert words_of(first) == best(logits[1], WORDS)
    assert words_of(second) == best(logits[8], WORDS)
    maps = attention_maps(model, variables, ids[None], deterministic=True)
    query, key = maps[layer].inputs[:2]
    kernel_1, inverse, kernel_3 = nystrom_factors(query, key, num_landmarks=tiny.LANDMARKS)
    weights = np.asarray((kernel_1 @ inverse @ kernel_3)[0, :, 1].mean(axis=0))
    assert row.startswith("mask 1 attends to: ")
    assert row.partition(": ")[2].split(", ") == [
        f"{WORDS[ids[i]]} ({i}) {weights[i]:.3f}" for i in np.argsort(-weights)[: script.TOP]
    ]


@pytest.mark.slow_except("Nystromformer")
@pytest.mark.peers
@pytest.mark.parametrize("kind", ["Bert", "Nystromformer"])
def test_words_and_exact_rows_equal_those_of_transformers(kind, tmp_path, capsys):
    torch = pytest.importorskip("torch", reason="needs the extra `peers`")
    transformers = pytest.importorskip("transformers", reason="needs the extra `peers`")
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    landmarks = {"num_landmarks": 64, "segment_means_seq_len": 64} if kind != "Bert" else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(WORDS), intermediate_size=7, **sizes, **landmarks
    )
    config._attn_implementation = "eager"
    theirs = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.6)
    theirs.save_pretrained(tmp_path)
    ids = write_tokenizer(tmp_path)
    script.main([str(tmp_path), "--text", TEXT])
    first, second, row = capsys.readouterr().out.splitlines()
    with torch.no_grad():
        found = theirs(torch.tensor(ids.tolist())[None], output_attentions=True)
    assert words_of(first) == best(found.logits[0, 1], WORDS)
    assert words_of(second) == best(found.logits[0, 8], WORDS)
    if kind == "Bert":
        expected = best(found.attentions[-1][0, :, 1].mean(axis=0), [WORDS[i] for i in ids])
        assert words_of(row) == expected


def test_rejects_unsupported_models_texts_and_layers(tmp_path):
    def refuses(word, *arguments, folder=tmp_path):
        with pytest.raises(SystemExit, match=word):
            script.main([str(folder), *arguments])

    refuses("does not exist", folder=tmp_path / "none")
    write_tokenizer(tmp_path)
    tiny.folder_of(tmp_path, "bert", "ForTokenClassification")
    refuses("NystromformerForMaskedLM")
    tiny.published(tmp_path)
    refuses(r"\[MASK\]", "--text", "the cat sat")
    refuses("--layer=99", "--text", TEXT, "--layer", "99")
    refuses("tokens", "--text", "[MASK] " * 1000)
