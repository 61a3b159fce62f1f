"""Small tasks in GLUE's official layout, IMDb's folders, and a tokenizer without a vocabulary file."""

import dataclasses
import tarfile
import zlib

from language.finetune.glue_tasks import TASKS

NLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse"
    "\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"
)
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
ENTAILMENT = "index\tsentence1\tsentence2"
# The first lines of the release's files; CoLA's two have none, and these are what their columns are.
HEADERS = {
    "sst2": {"train": "sentence\tlabel", "valid": "sentence\tlabel", "test": "index\tsentence"},
    "mrpc": {
        "train": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "valid": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    },
    "qnli": {
        "train": "index\tquestion\tsentence\tlabel",
        "valid": "index\tquestion\tsentence\tlabel",
        "test": "index\tquestion\tsentence",
    },
    "qqp": {
        "train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "valid": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "test": "id\tquestion1\tquestion2",
    },
    "mnli": {
        "train": f"{NLI}\tlabel1\tgold_label",
        "valid": f"{NLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
        "valid_mismatched": f"{NLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
        "test": NLI,
        "test_mismatched": NLI,
        "test_diagnostic": ENTAILMENT,
    },
    "cola": {
        "train": "source\tlabel\tmark\tsentence",
        "valid": "source\tlabel\tmark\tsentence",
        "test": "index\tsentence",
    },
    "rte": {
        "train": f"{ENTAILMENT}\tlabel",
        "valid": f"{ENTAILMENT}\tlabel",
        "test": ENTAILMENT,
    },
    "stsb": {"train": f"{STSB}\tscore", "valid": f"{STSB}\tscore", "test": STSB},
    "wnli": {
        "train": f"{ENTAILMENT}\tlabel",
        "valid": f"{ENTAILMENT}\tlabel",
        "test": ENTAILMENT,
    },
}
COUNTS = {"train": 31, "valid": 7}  # and 5 a test split


@dataclasses.dataclass(frozen=True)
class Words:
    """Every word is a token, and every token an id from 5 on; upper and lower case differ."""

    vocab_size: int = 101
    pad_id: int = 0
    cls_id: int = 2
    sep_id: int = 3
    pair_separators: int = 1
    truncation_side: str = "right"
    has_types: bool = True
    sha256: str = "words"

    def encode(self, texts):
        return [[self.id_of(word) for word in text.split()] for text in texts]

    def id_of(self, word):
        return 5 + zlib.crc32(word.encode()) % (self.vocab_size - 5)


def text(split, row, part=0):
    """A text of 1 to 13 words with an unbalanced quotation mark, unique for each row and part."""
    words = [f'"{split}', str(row), "ab"[part], *("film" * (1 + row % 3) for _ in range(10))]
    return " ".join(words[: 3 + (row * 7 + part * 4) % 11])


def label(task, row):
    """A label as written in the file."""
    if task.is_regression:
        return f"{row % 5}.{row % 4}00"
    return task.labels[row % len(task.labels)]


def write_task(folder, name):
    """Writes a task in `folder`/TITLE; returns that folder."""
    task = TASKS[name]
    for split, header in HEADERS[name].items():
        rows = (
            [header.split("\t")]
            if (name, split) not in (("cola", "train"), ("cola", "valid"))
            else []
        )
        for row in range(COUNTS.get(split.split("_")[0], 5)):
            cells = dict.fromkeys(header.split("\t"), "x")
            cells |= {task.index: str(row)} if task.index in cells else {}
            cells |= {column: text(split, row, part) for part, column in enumerate(task.texts)}
            if task.label in cells:
                cells[task.label] = label(task, row)
            rows.append(list(cells.values()))
        file = folder / task.title / task.files[split]
        (folder / task.title).mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return folder / task.title


def write_reviews(folder, per_class=20):
    """Writes aclImdb; returns it."""
    for split in ("train", "test"):
        for name, rating in (("neg", 2), ("pos", 9)):
            place = folder / "aclImdb" / split / name
            place.mkdir(parents=True)
            for row in range(per_class):
                file = place / f"{row}_{rating}.txt"
                file.write_text(f"{text(split + name, row)} <br /> é\n", encoding="utf-8")
    (folder / "aclImdb" / "train" / "urls_pos.txt").write_text("not a review")
    return folder / "aclImdb"


def archive(folder, file):
    """Packs aclImdb as in the download."""
    with tarfile.open(file, "w:gz") as packed:
        packed.add(folder, "aclImdb")
    return file
