"""The comparison of padded lengths on a few short texts."""

import re

import pytest

from benchmarks import embed

pytest.importorskip("tokenizers", reason="needs the extra `language`")


def test_prints_one_program_per_length_and_a_small_difference(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(embed, "BASE_LEN", 8)
    monkeypatch.setattr(embed, "SIZES", {**embed.SIZES, "num_layers": 1, "embed_dim": 12})
    for i, count in enumerate((3, 5, 12, 31)):
        (tmp_path / f"{i}.txt").write_text(" ".join(["cat"] * count))
    assert embed.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "4 documents of 3 to 31 tokens" in shown
    assert re.search(r"\| 64, 128, 256, … \| 3 \|", shown)  # 8, 16 and 31
    assert re.search(r"\| the longest \| 1 \|", shown)
    difference = re.search(r"Largest difference: (\S+) of the largest", shown)
    assert float(difference[1]) < 1e-5
    with pytest.raises(SystemExit):
        embed.main([str(tmp_path / "none")])
    assert "no text files in one of" in capsys.readouterr().err


def test_ctrl_c_ends_with_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "0.txt").write_text("cat")

    def tokenize(texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(embed, "tokenize", tokenize)
    assert embed.main([str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("benchmarks.embed: stopped by Ctrl-C")


def test_documents_are_taken_in_turn_from_folders_of_different_sizes(tmp_path, monkeypatch):
    for name in ("a/1", "a/2", "a/3", "b/1"):
        file = tmp_path / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    read = []

    class Stop(Exception):
        pass

    def tokenize(texts):
        read.extend(texts)
        raise Stop

    monkeypatch.setattr(embed, "tokenize", tokenize)
    with pytest.raises(Stop):
        embed.main([str(tmp_path / "a"), str(tmp_path / "b"), "--documents", "9"])
    assert read == ["a/1", "b/1", "a/2", "a/3"]
