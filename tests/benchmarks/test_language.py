"""The search for the largest batch, the tables, and one real cell of a tiny model."""

import numpy as np
import pytest

from benchmarks import language

GIB = 2**30


@pytest.fixture
def compiler(monkeypatch):
    """A compiler whose memory figure is linear in the batch, and which rejects more than 20 GiB."""
    asked = []

    def make(base, slope, bump=0):
        def compiled_step(length, attention, batch_size, dtype, device):
            asked.append(batch_size)
            needed = base + slope * batch_size + bump * (batch_size > 3)
            return None, None, None if needed > 20 * GIB else needed

        monkeypatch.setattr(language, "compiled_step", compiled_step)
        monkeypatch.setattr(
            "nystromformer_jax.training.topology.topology_devices", lambda name: [None]
        )
        return asked

    return make


@pytest.mark.parametrize(
    ("base", "slope", "bump", "largest"),
    [
        (4 * GIB, GIB, 0, 12),
        (4 * GIB, GIB, GIB // 2, 11),  # a little more than two batches told
        (4 * GIB, GIB, -GIB, 13),  # a little less
        (4 * GIB, 5 * GIB, 0, 2),
        (4 * GIB, 9 * GIB, 0, 1),
        (17 * GIB, GIB, 0, 0),
        (4 * GIB, GIB // 64, 0, 768),
    ],
)
def test_the_largest_batch_fits_and_one_more_does_not(compiler, base, slope, bump, largest):
    asked = compiler(base, slope, bump)
    found = language.largest_batch(512, "nystrom", "v5e:1x1", 16 * GIB)
    assert found["largest_batch"] == largest
    assert found["fits"] == (largest > 0)
    assert largest + 1 in asked
    assert len(asked) < 8


def test_table_of_costs():
    rows = [
        {
            "length": 512,
            "attention": "nystrom",
            "fits": True,
            "step_seconds": 2.0,
            "peak_bytes": GIB,
        },
        {
            "length": 512,
            "attention": "softmax",
            "fits": True,
            "step_seconds": 3.0,
            "peak_bytes": 4 * GIB,
        },
        {
            "length": 1024,
            "attention": "nystrom",
            "fits": True,
            "step_seconds": 4.0,
            "peak_bytes": GIB,
        },
        {"length": 1024, "attention": "softmax", "fits": False},
    ]
    table = language.markdown({"settings": {"topology": ""}, "rows": rows}).splitlines()
    assert table[2] == "| 512 | 2.0 · 1.0 | 3.0 · 4.0 | 1.50×, 4.00× |"
    assert table[3] == "| 1,024 | 4.0 · 1.0 | does not fit |  |"


def test_table_of_batches():
    rows = [
        {"length": 512, "attention": "nystrom", "largest_batch": 60},
        {"length": 512, "attention": "softmax", "largest_batch": 40},
        {"length": 4096, "attention": "softmax", "largest_batch": 0},
    ]
    table = language.markdown({"settings": {"topology": "v5e:1x1"}, "rows": rows}).splitlines()
    assert table[2] == "| 512 | 60 | 40 | 1.5× |"
    assert table[3] == "| 4,096 |  | does not fit at 1 |  |"


@pytest.mark.slow(minutes=0.2)
def test_a_step_of_the_real_model_runs(monkeypatch):
    """The real loss, optimizer and batch; two layers of width 12 in place of BERT-base."""
    import jax

    from nystromformer_jax import NystromformerConfig

    tiny = {"num_layers": 2, "embed_dim": 12, "num_heads": 3, "mlp_dim": 14}
    preset = lambda name, **changes: NystromformerConfig(**{**tiny, **changes})
    monkeypatch.setattr(NystromformerConfig, "preset", preset)
    monkeypatch.setattr(language, "VOCAB_SIZE", 50)
    device = jax.devices()[0]
    step, make, needed = language.compiled_step(97, "nystrom", 2, "float32", device)
    state, totals, batch = make()
    losses = []
    for _ in range(3):
        state, totals, loss = step(state, totals, batch)
        losses.append(float(loss))
    assert needed > 0
    assert np.isfinite(losses).all()
    assert int(state.step) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topology=v9:1x1"], "no such TPU"),
        (["--memory=0"], "--memory must be a positive number of GiB, got 0.0"),
    ],
)
def test_invalid_arguments_print_one_line(monkeypatch, capsys, tmp_path, arguments, words):
    def topology_devices(name):
        raise ValueError("no such TPU")

    monkeypatch.setattr("nystromformer_jax.training.topology.topology_devices", topology_devices)
    monkeypatch.setattr("sys.argv", ["language", f"--out={tmp_path / 'cost'}", *arguments])
    with pytest.raises(SystemExit) as ended:
        language.main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
