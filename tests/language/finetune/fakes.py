"""Small files of every kind of task, and a tiny checkpoint that reads their words."""

import csv
import functools
import json

import jax
import jax.numpy as jnp

from nystromformer_jax import NystromformerConfig, NystromformerForMaskedLM
from nystromformer_jax.pretrained import save_pretrained
from tests.language import runs, texts

WORDS = ["good", "bad", "film", "plot", "the", "very", "old", "long", "anna", "bo", "rome", "who"]
PIECES = ["in", "##s", "##ly", "."]
LABELS = {"bad": "sad", "good": "fun", "old": "odd"}
COUNT = 24


def checkpoint(folder, max_len=29):
    """Writes a tiny model and a WordPiece vocabulary; returns the folder."""
    config = NystromformerConfig(
        vocab_size=len([*texts.SPECIAL, *WORDS, *PIECES]),
        max_len=max_len,
        embed_dim=16,
        num_layers=1,
        num_heads=2,
        mlp_dim=12,
        num_landmarks=5,
        conv_kernel_size=3,
    )
    model = NystromformerForMaskedLM(config)
    init = jax.jit(functools.partial(model.init, deterministic=True))
    variables = init(jax.random.key(0), jnp.ones((1, 5), jnp.int32))
    save_pretrained(folder, model, variables, more={"pad_token_id": 0})
    return texts.write_vocabulary(folder, *WORDS, *PIECES).parent


def text(row, part=0):
    """A text of 2 to 8 words, different for each row and part."""
    words = [WORDS[(row * 5 + part + i * i) % len(WORDS)] for i in range(2 + (row + part) % 7)]
    return " ".join([*words, WORDS[row // len(WORDS) % len(WORDS)] + "s" * (row % 2)])


def label(kind, text):
    """A label that depends on which of three words the text has."""
    found = [name for word, name in LABELS.items() if word in text.split()]
    if kind == "classification":
        return "pos" if "fun" in found else "neg"
    return len(found) / 2 if kind == "regression" else found


def write_rows(path, kind, *, pair=False, count=COUNT, labels=True):
    """Writes a .tsv, .csv or .jsonl file; several labels in a cell are separated by "|"."""
    rows = []
    for i in range(count):
        row = {"id": i, "text": text(i)}
        row |= {"second": text(i, 1)} if pair else {}
        row |= {"label": label(kind, text(i))} if labels else {}
        rows.append(row)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        separator = "\t" if path.suffix == ".tsv" else ","
        writer = csv.DictWriter(file, rows[0], delimiter=separator)
        writer.writeheader()
        for row in rows:
            several = isinstance(row.get("label"), list)
            writer.writerow(row | ({"label": "|".join(row["label"])} if several else {}))
    return path


def write_conll(path, count=COUNT):
    """Writes sentences; "anna" and "bo" are persons, "rome" is a place."""
    lines = ["-DOCSTART- -X- O\n"]
    for i in range(count):
        tags = {"anna": "B-PER", "rome": "B-LOC"}
        before = ""
        for word in [*text(i).split(), "anna", "bo", "films", "rome"]:
            tag = "I-PER" if (before, word) == ("anna", "bo") else tags.get(word, "O")
            lines.append(f"{word} X {tag}\n")
            before = word
        lines.append("\n")
    path.write_text("".join(lines))
    return path


def write_squad(path, count=COUNT // 2, *, unanswerable=False):
    """Writes questions on contexts that are longer than the tiny model's rows."""
    paragraphs = []
    for i in range(count):
        context = f"{text(i)} {text(i + 1)} {text(i + 2)} in rome. {text(i + 3)} {text(i + 4)}"
        begin = context.index("rome")
        qas = [{"id": f"q{i}", "question": f"who in {WORDS[i]}"}]
        qas[0]["answers"] = [{"text": "rome", "answer_start": begin}]
        if unanswerable:
            qas[0]["is_impossible"] = False
            qas.append({"id": f"n{i}", "question": "who", "answers": [], "is_impossible": True})
        paragraphs.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    return path


def write(folder, kind, name="train", **options):
    """Writes the file of a kind; returns its path."""
    if kind == "token_classification":
        return write_conll(folder / f"{name}.conll", **options)
    if kind == "question_answering":
        return write_squad(folder / f"{name}.json", **options)
    suffix = {"classification": ".csv", "regression": ".tsv", "multi_label": ".jsonl"}[kind]
    return write_rows(folder / f"{name}{suffix}", kind, **options)


def sections(kind, train_file, model, argument="", **changes):
    """A tiny fine-tuning config on own files."""
    from configs import finetune as config

    given = {
        "data": {"train_file": str(train_file), "max_len": 19, "valid_share": 0.3, "overlap": 0},
        "init": {"checkpoint": str(model)},
        "model": {"dropout_rate": 0.0},
        "optimizer": {"learning_rate": 1e-2},
        "train": {"epochs": 2.0, "batch_size": 8},
        "log": {"every_steps": 2, "events": False},
    }
    return runs.changed(config.get_config(f"{kind}{argument}"), runs.merged(given, changes))
