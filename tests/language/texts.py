"""Small corpora in every supported format."""

import collections
import gzip
import json
import random

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the of and a in to cat dog café river mountain sat over"


def sentence(rng):
    words = rng.choices(WORDS.split(), k=rng.randint(3, 13))
    return f"{' '.join(words).capitalize()}."


def documents(count, seed=0, most_lines=3):
    """Documents as the readers yield them: lines of a few sentences each."""
    rng = random.Random(seed)
    return [
        "\n".join(
            " ".join(sentence(rng) for _ in range(rng.randint(1, 4)))
            for _ in range(rng.randint(1, most_lines))
        )
        for _ in range(count)
    ]


def trained_tokenizer(docs, vocab_size, lowercase=True):
    """A tokenizer that was trained on all words of some documents."""
    from language.tokenizer import bert_words, train_tokenizer

    counts = collections.Counter(word for doc in docs for word in doc.split())
    return train_tokenizer(bert_words(counts, lowercase), vocab_size, lowercase)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def write_vocabulary(folder, *words):
    """Writes BERT's vocabulary file with the special tokens and some words; returns its path."""
    return write(folder / "vocab.txt", "".join(f"{token}\n" for token in (*SPECIAL, *words)))


def in_form(form, docs, folder):
    """Writes documents; returns the path to read them from."""
    if form == "file":
        for i, doc in enumerate(docs):
            write(folder / "many" / f"{i // 7:03d}" / f"{i:05d}.txt", doc)
        return folder / "many"
    text = {
        "blank_line": "\n" + "\n\n \n".join(docs),
        "heading": "\n".join(
            f" = Title {i} = \n \n{doc}\n = = Part = = \n== Other ==" for i, doc in enumerate(docs)
        ),
        "close_heading": "\n".join(
            f"= Title {i} =\n{doc}\n== Part ==" for i, doc in enumerate(docs)
        ),
        "line": "\n".join(doc.replace("\n", " ") for doc in docs),
        "jsonl": "\n".join(json.dumps({"id": 1, "text": f"\n{doc}\n\n"}) for doc in docs),
    }
    name = {"jsonl": "all.jsonl", "jsonl.gz": "all.jsonl.gz", "blank_line.gz": "all.txt.gz"}
    return write(folder / form / name.get(form, "all.txt"), text[form.removesuffix(".gz")])
