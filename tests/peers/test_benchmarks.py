"""Calls of other implementations in the benchmarks."""

import pytest

from benchmarks import on_device

pytest.importorskip("benchmarks.peers", reason="needs the extra `peers`", exc_type=ImportError)
pytestmark = pytest.mark.peers


@pytest.mark.parametrize("mode", ["forward", "gradient"])
def test_module_of_hugging_face_runs_in_mixed_precision(mode):
    call = on_device.huggingface_calls(1, 128, mode, device="cpu")
    call()  # with up to 64 tokens, the module would not compute a pseudoinverse
