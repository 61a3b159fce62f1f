import numpy as np

from lra.data import Padding
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
