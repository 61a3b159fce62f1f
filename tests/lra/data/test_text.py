import numpy as np

from lra.data import DataConfig, Padding, text
from tests.lra.data import fakes


def test_ids_are_bytes_plus_one_and_zero_is_padding(tmp_path):
    fakes.write_folder(tmp_path / "aclImdb", fakes.reviews())
    task = fakes.load("text", tmp_path)
    split = task.splits["test"]
    batch = split.batch(np.arange(3), Padding(max_len=4096, padded_len=4099))
    for ids, mask, row in zip(batch["inputs"], batch["mask"], fakes.rows(split), strict=False):
        assert ids[mask].tolist() == [byte + 1 for byte in row[0]]
        assert not ids[~mask].any()
        assert task.decode(ids) == row[0].decode()
    cut = np.frombuffer("né".encode()[:2], np.uint8).astype(np.int32) + 1
    assert task.decode(cut) == "n\N{REPLACEMENT CHARACTER}"


def test_the_first_rows_of_every_split_are_a_random_sample(tmp_path):
    fakes.write_folder(tmp_path / "aclImdb", fakes.reviews(per_class=300))
    config = DataConfig(task="text", dir=str(tmp_path), max_len=7)
    for split in text.load(config, per_class=300).splits.values():
        for count in (len(split) // 4, len(split) // 2):
            share = split.labels[:count].mean()
            assert abs(share - 0.5) < 2 / np.sqrt(count)  # four standard deviations
