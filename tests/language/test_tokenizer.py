import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax.support.tokenizer import load_tokenizer as load_of_folder
from tests import programs
from tests.language import texts

BERT = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *"abcét[].", "##b", "##c", "##cb", "a##"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "the", "Ġ", "t", "h", "e", "Ġt", "Ġthe", "th", "<mask>"]
MERGES = "#version: 0.2\nt h\nth e\nĠ the\n"


def write_bert(folder, name="vocab.txt"):
    return texts.write(folder / name, "\n".join(BERT) + "\n")


def write_roberta(folder, prefix=""):
    vocabulary = {token: i for i, token in enumerate([*ROBERTA, "model"])}
    texts.write(folder / f"{prefix}vocab.json", json.dumps(vocabulary))
    return texts.write(folder / f"{prefix}merges.txt", MERGES)


def metaspace():
    """A Unigram model with "[MASK]" as a word, as in ALBERT."""
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    scores = [
        *((token, 0.0) for token in special),
        ("▁the", -1.0),
        ("▁", -9.0),
        *((c, -5.0) for c in "the[MASK]"),
    ]
    backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=1))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(special)
    return backend


def tokens(tokenizer, text):
    [ids] = tokenizer.encode([text])
    return [tokenizer.backend.id_to_token(id) for id in ids]


def starts(tokenizer):
    marked = np.flatnonzero(tokenizer.word_starts())
    return {tokenizer.backend.id_to_token(int(id)) for id in marked}


@pytest.fixture(scope="module")
def trained():
    return texts.trained_tokenizer(texts.documents(97), 211)


# --- Files


def test_reads_a_bert_vocabulary(tmp_path):
    tokenizer = load_tokenizer(write_bert(tmp_path))
    assert tokenizer.vocab_size == len(BERT)
    assert (tokenizer.pad_id, tokenizer.unk_id) == (0, 1)
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (2, 3, 4)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokens(tokenizer, "Abcb ÉT.x") == ["a", "##b", "##cb", "[UNK]", ".", "[UNK]"]
    assert tokenizer.decode([5, 13, 6]) == "ab b"


def test_bert_vocabulary_keeps_capitals_if_configured(tmp_path):
    path = write_bert(tmp_path)
    assert tokens(load_tokenizer(path, lowercase=False), "A a") == ["[UNK]", "a"]
    texts.write(tmp_path / "tokenizer_config.json", '{"do_lower_case": false}')
    assert tokens(load_tokenizer(path), "A a") == ["[UNK]", "a"]


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "", "x.vocab.json", "x.merges.txt"])
def test_reads_a_byte_level_vocabulary(tmp_path, name):
    write_roberta(tmp_path, "x." if name.startswith("x.") else "")
    tokenizer = load_tokenizer(tmp_path / name)
    assert tokenizer.vocab_size == len(ROBERTA) + 1
    assert tokenizer.special_ids == (0, 1, 2, 3, 12)
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id) == (0, 2, 1)
    assert tokens(tokenizer, "the the") == ["the", "Ġthe"]
    assert tokenizer.decode([4, 10]) == "the the"


def test_tokenizer_json_is_read_without_truncation_and_padding(tmp_path):
    backend = metaspace()
    backend.save(str(tmp_path / "plain.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=7, pad_token="<pad>")
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert [len(ids) for ids in tokenizer.encode(["the the the", ""])] == [3, 0]
    plain = load_tokenizer(tmp_path / "plain.json")
    assert tokenizer.encode(["the the a"]) == plain.encode(["the the a"])
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)


def test_vocab_size_is_the_largest_id_plus_one():
    backend = metaspace()
    backend.add_tokens(["added"])
    tokenizer = Tokenizer.from_backend(backend, "x")
    assert tokenizer.vocab_size == max(backend.get_vocab().values()) + 1
    assert tokenizer.word_starts().shape == (tokenizer.vocab_size,)


@pytest.mark.parametrize(("kind", "num_types"), [("roberta", 1), ("metaspace", 2)])
def test_written_tokenizer_adds_the_special_tokens_of_training(tmp_path, kind, num_types):
    if kind == "roberta":
        tokenizer = load_tokenizer(write_roberta(tmp_path))
    else:
        tokenizer = Tokenizer.from_backend(metaspace(), "x")
    tokenizer.save(tmp_path / "model", 29, num_types)
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "model/tokenizer.json"))
    [ids] = tokenizer.encode(["the"])
    before, after = [tokenizer.cls_id, *ids, tokenizer.sep_id], [*ids, tokenizer.sep_id]
    assert written.encode("the").ids == before
    pair = written.encode("the", "the")
    before += [tokenizer.sep_id] * (kind == "roberta")
    assert pair.ids == before + after
    loaded = load_tokenizer(tmp_path / "model")
    assert loaded.pair_separators == tokenizer.pair_separators == 1 + (kind == "roberta")
    assert pair.type_ids == [0] * len(before) + [num_types - 1] * len(after)


# --- What it knows


def test_word_starts(tmp_path):
    bert = load_tokenizer(write_bert(tmp_path / "bert"))
    assert starts(bert) == {token for token in BERT if not token.startswith("##")}
    roberta = load_tokenizer(write_roberta(tmp_path / "roberta"))
    assert starts(roberta) == {"Ġ", "Ġt", "Ġthe", "<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    metaspace().save(str(tmp_path / "tokenizer.json"))
    assert starts(load_tokenizer(tmp_path)) >= {"▁the", "▁", "<pad>", "[MASK]"}
    assert not starts(load_tokenizer(tmp_path)) & set("the")


@pytest.mark.parametrize("kind", ["bert", "roberta", "metaspace", "trained"])
def test_no_text_encodes_to_special_tokens(tmp_path, kind, trained):
    metaspace().save(str(tmp_path / "tokenizer.json"))
    path = {"bert": write_bert, "roberta": write_roberta}.get(kind, lambda folder: folder)(tmp_path)
    tokenizer = trained if kind == "trained" else load_tokenizer(path)
    written = ["a [MASK] b", "[CLS]the[SEP]", "<s> <mask></s><pad>", "[PAD]", "the the"]
    encoded = tokenizer.encode(written)
    special = {*tokenizer.special_ids} - {tokenizer.unk_id}
    assert special.isdisjoint(id for ids in encoded for id in ids)
    assert encoded[1]
    with_spans = tokenizer.encode_with_spans(written)
    assert [ids for ids, _ in with_spans] == encoded
    assert with_spans[-1][1][-1][1] == len("the the")


def test_special_tokens_that_a_user_added_remain_tokens(tmp_path):
    """Markers of entities are tokens in training, as they are for `load` and transformers."""
    backend = load_tokenizer(write_bert(tmp_path)).backend
    backend.add_special_tokens(["<e1>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokens(tokenizer, "a<e1>b[MASK]") == ["a", "<e1>", "b", "[", "[UNK]", "]"]
    assert len(BERT) in tokenizer.special_ids  # it is not masked in pretraining
    tokenizer.save(tmp_path)
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert saved.get_added_tokens_decoder()[len(BERT)].special
    assert saved.encode("a<e1>").tokens == ["[CLS]", "a", "<e1>", "[SEP]"]
    assert load_tokenizer(tmp_path).sha256 != load_tokenizer(tmp_path / "vocab.txt").sha256


def test_other_tokenizers_have_other_hashes(tmp_path, trained):
    """Also those that differ in which added tokens are special, and so are not masked in pretraining."""
    path = write_bert(tmp_path)
    hashes = [trained.sha256]
    hashes += [load_tokenizer(path, lowercase=lowercase).sha256 for lowercase in (True, False)]
    for kind in ("add_tokens", "add_special_tokens"):
        backend = load_tokenizer(path).backend
        getattr(backend, kind)([tokenizers.AddedToken("<e1>", normalized=False)])
        backend.save(str(tmp_path / "tokenizer.json"))
        hashes.append(load_tokenizer(tmp_path / "tokenizer.json").sha256)
    assert len(set(hashes)) == 5
    assert load_tokenizer(path).sha256 == hashes[1]


# --- Training


def test_the_same_texts_give_the_same_bytes_in_every_process(tmp_path, trained):
    script = (
        "import sys, pathlib\n"
        "from tests.language import texts\n"
        "tokenizer = texts.trained_tokenizer(texts.documents(97), 211)\n"
        "tokenizer.save(pathlib.Path(sys.argv[1]))\n"
    )
    trained.save(tmp_path / "here")
    for seed in ("1", "2"):
        process = programs.start("-c", script, tmp_path / seed, PYTHONHASHSEED=seed)
        assert programs.finish(process).code == 0
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / seed / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_a_trained_tokenizer_knows_its_words(trained):
    assert trained.special_ids == (0, 1, 2, 3, 4)
    assert trained.vocab_size <= 211
    assert tokens(trained, "Cat mountain CAFÉ.") == ["cat", "mountain", "cafe", "."]
    assert trained.decode(trained.encode(["the cat sat."])[0]) == "the cat sat."
    assert not any(trained.unk_id in ids for ids in trained.encode(texts.documents(97)))
    cased = texts.trained_tokenizer(texts.documents(97), 211, lowercase=False)
    assert tokens(cased, "The café") == ["The", "café"]


# --- The settings of published tokenizers, compared with transformers

SENTENCES = [
    "Rome is a city.",
    "ROME, é and É; naïve café",
    "Ein <e1>Haus</e1> in 中文 und 東京",
    "emoji 🙂 and\ttabs\n",
    "[unused] tokens <e1> <e2>rome<e2>",
    "",
]
PIECES = ["rome", "Rome", "is", "a", "city", "é", "É", "in", "##n", "中", "文", "中文", "und", "."]
MORE = ["<e1>", "<e2>", "</e1>"]


def published(folder, kind, **config):
    """Writes a folder as on the Hub, with the settings `config`."""
    vocabulary = {token: i for i, token in enumerate([*BERT[:5], *PIECES, *",;<>/e12[]unsdtkc"])}
    model = models.WordPiece(vocabulary, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    if kind == "vocab.txt":
        texts.write(folder / "vocab.txt", "".join(f"{token}\n" for token in vocabulary))
    elif kind == "vocab.json":
        write_roberta(folder)
    else:
        if kind == "tokenizer.json":
            backend.add_special_tokens(BERT[:5])
            backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        backend.save(str(folder / "tokenizer.json"))
    names = {"vocab.json": "RobertaTokenizer"}
    config = {"tokenizer_class": names.get(kind, "BertTokenizer"), **config}
    texts.write(folder / "tokenizer_config.json", json.dumps(config))
    return folder


ADDED = {
    str(90 + i): {"content": token, "special": i != 1, "normalized": False, "lstrip": False,
                  "rstrip": False, "single_word": False}
    for i, token in enumerate(MORE)
}  # fmt: skip
SETTINGS = {
    "cased": {"do_lower_case": False},
    "accents": {"do_lower_case": True, "strip_accents": False},
    "accents by case": {"strip_accents": None},
    "chinese": {"tokenize_chinese_chars": False, "do_lower_case": False},
    "decoder": {"added_tokens_decoder": ADDED},
    "additional": {"additional_special_tokens": MORE[:2]},
    "extra": {"extra_special_tokens": MORE[:2]},
    "names": {"model_input_names": ["input_ids", "attention_mask"]},
    "left": {"truncation_side": "left"},
}


def assert_encodes_as_transformers(folder, sentences=SENTENCES):
    """Returns their tokenizer and ours."""
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    for text in sentences:
        assert ours.encode([text]) == [theirs.encode(text, add_special_tokens=False)]
    return theirs, ours


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.txt", "without post-processor"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_are_those_of_transformers(tmp_path, kind, setting):
    theirs, ours = assert_encodes_as_transformers(published(tmp_path, kind, **SETTINGS[setting]))
    ours.save(tmp_path / "saved")
    saved, again = assert_encodes_as_transformers(tmp_path / "saved")
    assert again.encode(SENTENCES) == ours.encode(SENTENCES)
    assert (again.truncation_side, again.has_types) == (ours.truncation_side, ours.has_types)
    assert saved(SENTENCES) == theirs(SENTENCES)


def test_the_space_before_the_first_word_is_that_of_transformers(tmp_path):
    for add_prefix_space in (False, True):
        folder = published(tmp_path, "vocab.json", add_prefix_space=add_prefix_space)
        assert_encodes_as_transformers(folder, ["the the", " the", "the"])


def test_added_tokens_json_beside_a_vocabulary(tmp_path):
    folder = published(tmp_path, "vocab.txt")
    texts.write(folder / "added_tokens.json", json.dumps({"<e1>": 40, "<e2>": 41}))
    assert_encodes_as_transformers(folder)


# --- Faults


def test_a_class_without_types_of_its_own_gives_those_of_the_file(tmp_path, trained):
    """Models such as the published ones were trained with types; `model_input_names` can turn them off."""
    trained.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    options = {**json.loads(file.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    del options["model_input_names"]
    texts.write(file, json.dumps(options))
    texts.write(tmp_path / "config.json", '{"model_type": "albert"}')
    assert load_tokenizer(tmp_path).has_types
    assert load_of_folder(tmp_path)("a", "b")["token_type_ids"][-1] == 1
    texts.write(file, json.dumps({**options, "model_input_names": ["input_ids", "attention_mask"]}))
    without = load_tokenizer(tmp_path)
    assert not without.has_types
    assert without.sha256 != trained.sha256
    without.save(tmp_path / "saved")
    assert not any(load_of_folder(tmp_path / "saved").backend_tokenizer.encode("a", "b").type_ids)


@pytest.mark.parametrize(
    "kind",
    ["XLMRobertaTokenizer", "PreTrainedTokenizerFast", "BertTokenizer", "BertTokenizerFast", None],
)
@pytest.mark.parametrize(
    ("model", "has_types"), [("bert", False), ("nystromformer", False), ("xlm-roberta", True)]
)
def test_a_bert_with_the_tokenizer_of_xlm_roberta_has_no_types(tmp_path, model, has_types, kind):
    """As multilingual E5, with any class. In an XLM-RoBERTa, which has one type, they change nothing."""
    vocabulary = [
        (token, -i)
        for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁a", "▁bc", "<mask>"])
    ]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    options = {"unk_token": "<unk>", **({"tokenizer_class": kind} if kind else {})}
    texts.write(tmp_path / "tokenizer_config.json", json.dumps(options))
    texts.write(tmp_path / "config.json", json.dumps({"model_type": model}))
    found = load_tokenizer(tmp_path)
    assert (found.has_types, found.pad_id, found.pair_separators) == (has_types, 1, 2)
    assert tokens(found, "a bc") == ["▁a", "▁bc"]


def test_a_folder_never_executes_code_of_its_own(tmp_path, trained):
    trained.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    options = json.loads(file.read_text())
    options |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    texts.write(file, json.dumps(options))
    texts.write(tmp_path / "own.py", "raise SystemExit('executed')")
    with pytest.raises(ValueError, match="custom code"):
        load_tokenizer(tmp_path)


def test_a_model_of_ours_with_the_vocabulary_of_bert_has_its_tokenizer(tmp_path):
    """transformers has only ALBERT's tokenizer for this type of model, which needs SentencePiece."""
    write_bert(tmp_path)
    texts.write(tmp_path / "tokenizer_config.json", '{"tokenizer_class": "BertTokenizer"}')
    texts.write(tmp_path / "config.json", '{"model_type": "nystromformer"}')
    assert tokens(load_tokenizer(tmp_path), "Abcb ét.") == ["a", "##b", "##cb", "[UNK]", "."]


def test_rejects_a_missing_tokenizer(tmp_path):
    for path, word in ((tmp_path / "x", "/x does not exist"), (tmp_path, "no tokenizer")):
        with pytest.raises(FileNotFoundError, match=word):
            load_tokenizer(path)
    texts.write(tmp_path / "vocab.json", "{}")
    with pytest.raises(FileNotFoundError, match="merges"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b'{"model": {"type": "none"}}'),
        ("vocab.txt", b"One text\nand another\n"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\na\n"),
        ("vocab.txt", b"[PAD]\n<unk>\n[CLS]\n[SEP]\n[MASK]\n"),
        ("vocab.txt", b"[UNK]\n\xff\n"),
        ("vocab.txt", b"[PAD]\r[UNK]\r[CLS]\r[SEP]\r[MASK]\rthe\r"),
        ("vocab.txt", b"\xef\xbb\xbf[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n"),
        ("vocab.txt", b""),
    ],
)
def test_rejects_files_that_are_not_tokenizers(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"/{name} is not a tokenizer"):
        load_tokenizer(tmp_path / name)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ("[]", "JSON object"),
        ('{"do_lower_case": false,', "JSON"),
        ('{"do_lower_case": "false"}', "do_lower_case"),
        ('{"tokenize_chinese_chars": null}', "tokenize_chinese_chars"),
    ],
)
def test_invalid_options_of_a_bert_vocabulary_are_an_error(tmp_path, config, word):
    write_bert(tmp_path)
    texts.write(tmp_path / "tokenizer_config.json", config)
    with pytest.raises(ValueError, match=word):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2}, "[UNK]"), r"\[SEP\] or </s>"),
        (models.BPE({token: i for i, token in enumerate(BERT)}, []), "where words begin"),
    ],
)
def test_rejects_a_tokenizer_of_another_kind_of_model(model, words):
    """Only pretraining needs to know where words begin."""
    with pytest.raises(ValueError, match=words):
        Tokenizer.from_backend(tokenizers.Tokenizer(model), "x").word_starts()
