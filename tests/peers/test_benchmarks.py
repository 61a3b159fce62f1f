"""Calls of other implementations in the benchmarks."""

import pytest

peers = pytest.importorskip(
    "benchmarks.peers", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers


def test_module_of_hugging_face_runs_in_mixed_precision():
    # With up to 64 tokens, the module would not compute a pseudoinverse.
    peers.call_of("Hugging Face", "gradient", 1, 128, conv=33, half=True)()
