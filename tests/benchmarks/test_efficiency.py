import json
import sys

import pytest
from jax.errors import JaxRuntimeError

from benchmarks.efficiency import __main__ as efficiency
from benchmarks.efficiency import averages, plot, tables
from benchmarks.efficiency.bench import ATTENTIONS, PASSES, Bench, core_options
from nystromformer_jax.cores import make_core
from nystromformer_jax.training.errors import is_out_of_memory

TINY = ["--heads", "2", "--head_dim", "4", "--batch", "1", "--repeats", "3"]


def made_row(attention, length, *, kind="forward", batch=1, mebibytes=1.0, ms=1.0, fits=True):
    return {
        "attention": attention,
        "length": length,
        "batch": batch,
        "pass": kind,
        "flops": None,
        "bytes_accessed": None,
        "peak_bytes": mebibytes * 2**20,
        "measured_bytes": None,
        "optimal_seconds": None,
        "fits": fits,
        "reason": None if fits else "needs too much",
        "seconds": {"median": 1e-3 * ms, "min": 0, "max": 1, "runs": 3} if fits else None,
    }


def made_results(rows):
    settings = {
        "device": "cpu",
        "device_count": 1,
        "heads": 2,
        "head_dim": 4,
        "dtype": "float32",
        "topology": None,
        "processor": "Abacus",
        "cpu_threads": 3,
        "huge_pages": False,
        "repeats": 5,
        "memory_limit_gib": None,
        "versions": {"jax": "1.2.3"},
    }
    return {"settings": settings, "commands": ["python -m benchmarks.efficiency"], "rows": rows}


@pytest.fixture
def measured(monkeypatch):
    """The cases that were measured, with measurements replaced by fixed rows."""
    calls = []

    def measure(self, attentions, length, batch, kind):
        calls.extend((attention, length, kind) for attention in attentions)
        return [made_row(name, length, kind=kind, batch=batch) for name in attentions]

    monkeypatch.setattr(Bench, "measure", measure)
    monkeypatch.setattr(efficiency, "plot", lambda results, path: None)
    return calls


def run(tmp_path, *arguments):
    return efficiency.main([*TINY, "--out", str(tmp_path / "out" / "cpu"), *arguments])


@pytest.mark.slow(minutes=0.2)
def test_every_case_has_a_row_and_only_softmax_is_quadratic(tmp_path, capsys):
    arguments = ["--attentions", "softmax", "nystrom-4", "--lengths", "64", "32"]
    assert run(tmp_path, *arguments) == 0
    results = json.loads((tmp_path / "out" / "cpu.json").read_text())
    assert [(row["length"], row["pass"], row["attention"]) for row in results["rows"]] == [
        (length, kind, attention)
        for length in (32, 64)
        for kind in PASSES
        for attention in ("softmax", "nystrom-4")
    ]
    for row in results["rows"]:
        sizes = (row["argument_bytes"], row["output_bytes"], row["temp_bytes"])
        assert row["peak_bytes"] == sum(sizes)
        assert row["argument_bytes"] >= 4 * 8 * row["length"]
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert row["seconds"]["runs"] >= 3
        assert row["measured_bytes"] is None or row["measured_bytes"] >= row["argument_bytes"]
        assert row["fits"]
        assert row["compile_seconds"] > 0
    for grown in tables.slopes(results["rows"]):
        linear = grown["attention"] == "nystrom-4"
        for figure in ("flops", "bytes_accessed"):
            last = grown[figure]["doublings"][-1]
            assert last <= 1.02 if linear else last > 1.2, (grown["attention"], figure)
    assert (tmp_path / "out" / "cpu.md").read_text() == capsys.readouterr().out
    assert (tmp_path / "out" / "cpu.png").read_bytes()[:4] == b"\x89PNG"


def test_the_gradient_costs_more_than_the_forward_pass_alone():
    bench = Bench(heads=2, head_dim=4, dtype="float32", repeats=3, memory_limit=1e-9, topology=None)
    forward, gradient = (bench.measure(["softmax"], 64, 3, kind)[0] for kind in PASSES)
    assert gradient["flops"] > 2 * forward["flops"]
    params = 4 * 4 * (8 * 8 + 8)
    x = 4 * 3 * 64 * 8
    assert forward["argument_bytes"] == params + x
    assert gradient["argument_bytes"] == params + 2 * x  # and the cotangent
    assert gradient["output_bytes"] >= params + x


def test_programs_above_the_memory_limit_are_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "_params", lambda *_: pytest.fail("was run"))
    arguments = ["--attentions", "softmax", "--lengths", "32", "--memory_limit", "1e-6"]
    assert run(tmp_path, *arguments) == 0
    for row in json.loads((tmp_path / "out" / "cpu.json").read_text())["rows"]:
        assert not row["fits"]
        assert row["seconds"] is None
        assert "more than the limit of 9.99e-07 GiB" in row["reason"]
        assert row["flops"] > 0
    assert "MiB, does not fit |" in (tmp_path / "out" / "cpu.md").read_text()


def test_running_out_of_memory_makes_the_memory_unknown(monkeypatch):
    def fail(self, *_):
        raise JaxRuntimeError("INTERNAL: YNNPACK operation failed: error")

    monkeypatch.setattr(Bench, "_params", fail)
    bench = Bench(heads=2, head_dim=4, dtype="float32", repeats=3, memory_limit=1, topology=None)
    (row,) = bench.measure(["softmax"], 32, 1, "forward")
    assert not row["fits"]
    assert row["temp_bytes"] is not None
    assert tables.figure_of(row, "peak_bytes") is None


def test_plot_does_not_use_pyplot(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    rows = [made_row(name, length) for name in ("softmax", "new") for length in (512, 1024)]
    plot.plot(made_results(rows), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_slope_of_a_power_of_the_length_is_its_exponent():
    rows = [
        made_row("softmax", length, mebibytes=3 * length**2, ms=0.1 * length**0.5)
        for length in (1024, 512, 4096)
    ]
    rows.append(made_row("linear", 512))
    quadratic, alone = tables.slopes(rows)
    assert quadratic["peak_bytes"]["slope"] == pytest.approx(2)
    assert quadratic["peak_bytes"]["lengths"] == [512, 1024, 4096]
    assert quadratic["time"]["doublings"] == pytest.approx([0.5, 0.5])
    assert quadratic["flops"] is None
    assert alone["peak_bytes"] is None


def test_slope_is_by_least_squares_and_doublings_are_between_lengths():
    rows = [made_row("softmax", n, mebibytes=m) for n, m in ((1, 1), (2, 2), (4, 8), (8, 32))]
    (grown,) = tables.slopes(rows)
    assert grown["peak_bytes"]["doublings"] == pytest.approx([1, 2, 2])
    assert grown["peak_bytes"]["slope"] == pytest.approx(1.7)  # (−3·0 − 1·1 + 1·3 + 3·5) / 10


def made_table():
    return made_results(
        [
            made_row("softmax", 512, mebibytes=30, ms=8),
            made_row("nystrom-64", 512, mebibytes=20, ms=10),
            made_row("softmax", 8192, mebibytes=8000, fits=False),
            made_row("nystrom-64", 8192, mebibytes=400, ms=123.4),
            made_row("softmax", 512, kind="forward + gradient", mebibytes=60, ms=24),
            made_row("linear", 512, kind="forward + gradient", mebibytes=15, ms=0.5),
        ]
    )


def test_ratios_are_softmax_over_each_attention_with_rows_of_the_paper():
    lines = tables.markdown(made_table()).splitlines()
    assert "| softmax | 30.0 MiB, 8.00 ms | 8,000 MiB, does not fit |" in lines
    assert "| nystrom-64 | 20.0 MiB (1.50×), 10.0 ms (0.80×) | 400 MiB (20.0×), 123 ms |" in lines
    assert "| nystrom-64, the paper | (1.5×), (1.1×) | (22.8×), (12.7×) |" in lines
    assert "| linear | 15.0 MiB (4.00×), 0.500 ms (48.0×) |" in lines
    assert "Abacus, 3 threads; jax 1.2.3." in lines[0]


def test_ratios_of_the_paper_appear_only_for_inference_of_one_sequence():
    results = made_table()
    for row in results["rows"]:
        row["batch"] = 8
    assert "the paper" not in tables.markdown(results)


def test_the_headline_is_time_then_memory_of_the_gradient():
    assert tables.headline(made_table()).splitlines()[2:] == ["| linear | 48.0×, 4.00× |"]
    forward_only = made_results(made_table()["rows"][:4])
    with pytest.raises(ValueError, match=r"run benchmarks\.efficiency with --batch 1"):
        tables.headline(forward_only)


def test_a_table_without_softmax_has_no_ratios():
    text = tables.markdown(made_results([made_row("nystrom-64", 640, mebibytes=20, ms=10)]))
    assert "| nystrom-64 | 20.0 MiB, 10.0 ms |" in text


def test_second_run_measures_only_missing_cases(tmp_path, measured):
    assert run(tmp_path, "--attentions", "softmax", "--lengths", "32") == 0
    assert measured == [("softmax", 32, kind) for kind in PASSES]
    measured.clear()
    both = ["--attentions", "softmax", "nystrom-8", "--lengths", "32", "64"]
    assert run(tmp_path, *both) == 0
    assert measured == [("nystrom-8", 32, kind) for kind in PASSES] + [
        (attention, 64, kind) for kind in PASSES for attention in ("softmax", "nystrom-8")
    ]
    measured.clear()
    assert run(tmp_path, *both) == 0
    assert measured == []
    results = json.loads((tmp_path / "out" / "cpu.json").read_text())
    assert len(results["rows"]) == 8
    assert len(results["commands"]) == 2
    assert run(tmp_path, *both, "--fresh") == 0
    assert len(measured) == 8
    measured.clear()
    assert run(tmp_path, "--attentions", "softmax", "--lengths", "64", "--fresh") == 0
    assert measured == [("softmax", 64, kind) for kind in PASSES]
    assert len(json.loads((tmp_path / "out" / "cpu.json").read_text())["rows"]) == 8


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
    ],
)
def test_stopped_run_prints_one_line_and_keeps_finished_lengths(
    tmp_path, measured, monkeypatch, capsys, error, code, words
):
    measure = Bench.measure

    def stopped(self, attentions, length, batch, kind):
        if (length, kind) == (64, PASSES[1]):
            raise error
        return measure(self, attentions, length, batch, kind)

    arguments = ["--attentions", "softmax", "--lengths", "32", "64"]
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "measure", stopped)
        assert run(tmp_path, *arguments) == code
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("benchmarks.efficiency: ")
    assert words in last
    measured.clear()
    assert run(tmp_path, *arguments) == 0
    assert measured == [("softmax", 64, kind) for kind in PASSES]


def test_rejects_results_of_other_settings(tmp_path, measured, capsys):
    arguments = ["--attentions", "softmax", "--lengths", "32"]
    assert run(tmp_path, *arguments) == 0
    file = tmp_path / "out" / "cpu.json"
    before = file.read_text()
    assert run(tmp_path, *arguments, "--dtype", "bfloat16") == 2
    assert (
        "different settings (dtype 'float32' in the file, 'bfloat16' now)"
        in capsys.readouterr().err
    )
    assert file.read_text() == before
    results = json.loads(before)
    results["settings"]["versions"]["jax"] = "0.0.1"
    file.write_text(json.dumps(results))
    assert run(tmp_path, *arguments) == 2
    assert "(jax '0.0.1' in the file, " in capsys.readouterr().err
    file.write_text("{}")
    assert run(tmp_path, *arguments) == 2
    assert (
        "cpu.json contains another table, without settings, commands, rows: pass"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--attentions", "nystorm-64"], "Unknown attention 'nystorm-64'; did you mean nystrom-64"),
        (["--attentions", "softmax", "--lengths", "0"], "--lengths must be positive, got 0."),
        (["--attentions", "softmax", "--memory_limit", "-1"], "--memory_limit must be positive"),
        (["--attentions", "softmax", "--topology", "v5e"], "such as v5e:1x1 or h200:1; got 'v5e'"),
    ],
)
def test_invalid_arguments_print_one_line_and_write_nothing(tmp_path, capsys, arguments, sentence):
    assert run(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_make_core_knows_every_attention_of_the_table():
    for attention in ATTENTIONS:
        make_core(**core_options(attention))
    assert core_options("nystrom-13") == {"name": "nystrom", "num_landmarks": 13}


def test_moving_averages_and_blocks_are_rows_of_the_table():
    bench = Bench(heads=2, head_dim=4, dtype="float32", repeats=3, memory_limit=1, topology=None)
    names = {name: bench.shapes(name, 32)[0]["params"] for name in averages.NAMES}
    assert names["ema"] == names["ema-fft"]
    assert names["block-ema"].keys() - names["block"].keys() == {"ema"}


def test_memory_is_the_larger_of_compiled_and_measured():
    less, more = (made_row("linear", 512, mebibytes=8) for _ in range(2))
    less["measured_bytes"], more["measured_bytes"] = 7 * 2**20, 9 * 2**20
    assert tables.figure_of(less, "peak_bytes") == 8 * 2**20
    assert tables.figure_of(more, "peak_bytes") == 9 * 2**20


def test_failed_fused_operation_counts_as_out_of_memory():
    assert is_out_of_memory(JaxRuntimeError("INTERNAL: YNNPACK operation failed: error"))
    assert not is_out_of_memory(JaxRuntimeError("INTERNAL: something else"))
