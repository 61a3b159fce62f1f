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
PAIR = "#1 ID\t#2 ID\t#1 String\t#2 String"
# The first lines of the release's files with labels and of those without.
HEADERS = {
    "sst2": ("sentence\tlabel", "index\tsentence"),
    "mrpc": (f"Quality\t{PAIR}", f"index\t{PAIR}"),
    "qnli": ("index\tquestion\tsentence\tlabel", "index\tquestion\tsentence"),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "id\tquestion1\tquestion2"),
    "mnli": (f"{NLI}\tlabel1\tgold_label", NLI),
    "cola": ("source\tlabel\tmark\tsentence", "index\tsentence"),
    "rte": (f"{ENTAILMENT}\tlabel", ENTAILMENT),
    "stsb": (f"{STSB}\tscore", STSB),
    "wnli": (f"{ENTAILMENT}\tlabel", ENTAILMENT),
}
MNLI_VALID = f"{NLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label"
OTHER_HEADERS = {
    ("mnli", "valid"): MNLI_VALID,
    ("mnli", "valid_mismatched"): MNLI_VALID,
    ("mnli", "test_diagnostic"): ENTAILMENT,
}
WITHOUT_HEADER = (("cola", "train"), ("cola", "valid"))  # the headers are what their columns are
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
    for split in task.files:
        header = OTHER_HEADERS.get((name, split), HEADERS[name][split.startswith("test")])
        rows = [] if (name, split) in WITHOUT_HEADER else [header.split("\t")]
        for row in range(COUNTS.get(split.split("_")[0], 5)):
            cells = dict.fromkeys(header.split("\t"), "x")
            cells |= {task.index: str(row)} if task.index in cells else {}
            cells |= {column: text(split, row, part) for part, column in enumerate(task.texts)}
            if task.label in cells:
                cells[task.label] = label(task, row)
            rows.append(list(cells.values()))
        file = folder / task.title / task.files[split]
        file.parent.mkdir(parents=True, exist_ok=True)
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
