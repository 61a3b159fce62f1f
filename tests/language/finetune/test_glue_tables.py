"""Tables are read as in GLUE's release; errors name file and line."""

import itertools
import re

import pytest

from language.finetune import glue as data
from language.finetune.glue_tasks import TASKS
from tests.language.finetune.glue_fakes import COUNTS, write_task


def read(name, folder):
    task = TASKS[name]
    return data.read(task, data.find(task, folder))[0]


def texts(splits):
    """Texts and labels, without the places of the rows."""
    return {name: [(row.texts, row.label) for row in rows] for name, rows in splits.items()}


def encode(task, splits):
    """Returns the labels of all examples as numbers."""
    rows = itertools.chain(*splits.values())
    return [task.number(row.label, row.where) for row in rows if row.label is not None]


def test_quotation_marks_are_text_and_other_marks_are_not(tmp_path):
    file = write_task(tmp_path, "sst2") / "train.tsv"
    file.write_bytes(b'\xef\xbb\xbfsentence\tlabel\r\n "a film \t1\r\na\x0bb\xc2\x85c"\t0\r\n')
    examples = read("sst2", tmp_path)["train"]
    assert [example.texts[0] for example in examples] == ['"a film', 'a\x0bb\x85c"']
    assert [example.label for example in examples] == ["1", "0"]


def test_last_line_needs_no_newline(tmp_path):
    file = write_task(tmp_path, "cola") / "dev.tsv"
    file.write_bytes(b"a\t1\t\tHe went.\nb\t0\t*\tHe goed.")
    assert [row.label for row in read("cola", tmp_path)["valid"]] == ["1", "0"]


def test_ids_are_those_of_the_test_file(tmp_path):
    file = write_task(tmp_path, "qqp") / "test.tsv"
    file.write_text("id\tquestion1\tquestion2\n17\tWhy?\tWhy not?\n5\tWho?\tWho else?\n")
    assert [row.id for row in read("qqp", tmp_path)["test"]] == ["17", "5"]


def test_the_diagnostic_set_may_be_missing(tmp_path):
    folder = write_task(tmp_path, "mnli")
    (tmp_path / "diagnostic" / "diagnostic.tsv").unlink()
    assert list(read("mnli", folder)) == [
        "train",
        "valid",
        "valid_mismatched",
        "test",
        "test_mismatched",
    ]


def write_msr(folder):
    """Rewrites MRPC's tables as Microsoft's files and the list of pairs for validation."""
    header, *train = (folder / "train.tsv").read_text().splitlines()
    _, *valid = (folder / "dev.tsv").read_text().splitlines()
    _, *test = (folder / "test.tsv").read_text().splitlines()
    train, valid, test = (
        [
            f"{line.split(chr(9))[0]}\t{start + i}\t{i}\t" + "\t".join(line.split("\t")[3:])
            for i, line in enumerate(lines)
        ]
        for start, lines in ((100, train), (200, valid), (300, test))
    )
    mixed = [*train[:3], *valid[:2], *train[3:], *valid[2:]]
    (folder / "msr_paraphrase_train.txt").write_text("\n".join(["\ufeff" + header, *mixed]) + "\n")
    (folder / "msr_paraphrase_test.txt").write_text(
        "\n".join([header, *("1" + line[1:] for line in test)]) + "\n"
    )
    ids = ["\t".join(line.split("\t")[1:3]) for line in reversed(valid)]
    (folder / "dev_ids.tsv").write_text("\n".join(ids) + "\n")
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        (folder / name).unlink()


def test_mrpc_is_the_same_from_microsofts_files(tmp_path):
    folder = write_task(tmp_path, "mrpc")
    before = texts(read("mrpc", tmp_path))
    write_msr(folder)
    assert texts(read("mrpc", tmp_path)) == before
    with (folder / "dev_ids.tsv").open("a") as file:
        file.write("7\t7\n")
    with pytest.raises(
        ValueError, match=r"names 1 pairs that are not in .*from different releases"
    ):
        read("mrpc", tmp_path)


def test_skips_and_counts_torn_rows_of_qqp(tmp_path, caplog):
    folder = write_task(tmp_path, "qqp")
    whole = texts(read("qqp", tmp_path))["train"]
    lines = (folder / "train.tsv").read_text().splitlines()
    lines.insert(3, "7\t7\t7\t Why, then")
    lines.insert(9, "7\t7\t7\tWhy?\t \t0")
    (folder / "train.tsv").write_text("\n".join(lines))
    task = TASKS["qqp"]
    splits, notes = data.read(task, data.find(task, tmp_path))
    assert texts(splits)["train"] == whole
    assert notes["left_out"] == {"train": [4, 10]}
    assert "skipped 2 rows that are empty or split" in caplog.text


def test_rejects_more_torn_rows_than_the_release_has(tmp_path):
    file = write_task(tmp_path, "qqp") / "dev.tsv"
    text = file.read_text()
    file.write_text(text + "0\t1\t2\tWhy?\t\t0\n" * 100)
    assert len(read("qqp", tmp_path)["valid"]) == COUNTS["valid"]
    for row, words in (("0\t1\t2\tWhy?\t\t0\n", "an empty text"), ("torn\n", "1 columns instead")):
        file.write_text(text + row * 101)
        with pytest.raises(ValueError, match=f"dev.tsv, line 109, has {words}"):
            read("qqp", tmp_path)


def test_test_rows_of_qqp_are_never_skipped(tmp_path):
    file = write_task(tmp_path, "qqp") / "test.tsv"
    file.write_text("id\tquestion1\tquestion2\n0\tWhy?\t\n1\tWho?\tWho else?\n")
    assert [row.texts for row in read("qqp", tmp_path)["test"]] == [
        ("Why?", ""),
        ("Who?", "Who else?"),
    ]
    file.write_text("id\tquestion1\tquestion2\n0\tWhy?\n1\tWho?\tWho else?\n")
    with pytest.raises(ValueError, match=r"test.tsv, line 2, has 2 columns instead of 3"):
        read("qqp", tmp_path)


RTE = b"index\tsentence1\tsentence2\tlabel\n"
STSB = b"sentence1\tsentence2\tscore\n"


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("rte", "train.tsv", RTE + b"0\ta\tb\n", ", line 2, has 3 columns"),
        ("rte", "dev.tsv", RTE + b"0\ta\tb\t1\n", ", line 2: the label '1'"),
        ("rte", "train.tsv", RTE + b"0\ta\t \tentailment\n", ", line 2, has an empty text"),
        ("rte", "test.tsv", RTE + b"0\ta\tb\tx\n\n", ", line 3, has 0 columns"),
        ("rte", "train.tsv", RTE + b"0\ta\t\xff\tx\n", " is not UTF-8"),
        ("rte", "train.tsv", b"a\tb\n", ", line 1: RTE needs one column 'sentence1'"),
        ("rte", "train.tsv", b"", ", line 1: RTE needs one column 'sentence1'"),
        ("rte", "train.tsv", RTE, " has no rows"),
        ("cola", "train.tsv", b"sentence\tlabel\n", ", line 1, has 2 columns"),
        (
            "stsb",
            "dev.tsv",
            STSB + b"a\tb\t5.1\n",
            ", line 2: the label must be a number from 0 to 5",
        ),
        ("stsb", "dev.tsv", STSB + b"a\tb\tnan\n", ", line 2: the label must"),
        ("stsb", "dev.tsv", STSB + b"a\tb\t0_1\n", ", line 2: the label must"),
        ("sst2", "dev.tsv", b"sentence\tlabel\tlabel\na\t1\t0\n", ", line 1: SST-2 needs one"),
    ],
)
def test_error_names_the_line_of_an_invalid_row(name, file, content, words, tmp_path):
    path, task = write_task(tmp_path, name) / file, TASKS[name]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}{words}")):
        encode(task, read(name, tmp_path))


def test_error_names_a_missing_file_and_the_folders_searched(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"train.tsv is missing in {tmp_path}/QNLI and {tmp_path}\. "
    ):
        read("qnli", tmp_path)
    folder = write_task(tmp_path, "qnli")
    (folder / "dev.tsv").unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"dev.tsv is missing in {folder}\. .*config.data.dir"
    ):
        read("qnli", tmp_path)
