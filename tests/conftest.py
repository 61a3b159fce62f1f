"""Strict settings: eight CPU devices, no silent rank promotion, shapes checked against annotations."""

import gc
import importlib.metadata
import itertools
import logging
import os
import pathlib
import re
import signal
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
# Small programs compile faster in one piece than in parts.
flags = ["--xla_force_host_platform_device_count=8", "--xla_cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Without these emitters compilation takes half the time. Later versions do not have the flag.
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
# XLA sizes its CPU thread pool by NPROC; with fewer threads than devices a collective can wait forever.
os.environ.setdefault("NPROC", "32")
# Tests compile thousands of small programs and run each once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# The processes of a test session share what they have compiled.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = tempfile.TemporaryDirectory(prefix="programs-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# A program that a script starts in the background ignores Ctrl-C, and so would the programs of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

from jaxtyping import install_import_hook

install_import_hook(["nystromformer_jax", "lra.models", "language.masking"], "beartype.beartype")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

NUMBERS = itertools.count()  # of the tests of this process

# Not errors under `-W error`, which contributors and CI pass.
ALLOWED_WARNINGS = [
    # Most models of the tests have landmarks, about which save_pretrained warns.
    pytest.mark.filterwarnings("ignore:transformers reads .*, but does not:UserWarning"),
    # Another process is writing the entry; JAX then compiles the program itself.
    pytest.mark.filterwarnings(
        "ignore:Error reading persistent compilation cache entry:UserWarning"
    ),
]


def pytest_addoption(parser):
    parser.addoption(
        "--core",
        default="",
        help="module:Class[,option=value …]: only the contract of attentions, on this class",
    )


def pytest_configure(config):
    if config.getoption("core"):
        config.option.markexpr = ""  # the slow clauses, too
        jax.config.update("jax_numpy_rank_promotion", "allow")  # a rule of this repository


@pytest.fixture
def rngs():
    """An endless iterator of random keys, the same for every test."""
    return (jax.random.fold_in(jax.random.key(0), i) for i in range(1_000_000))


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch, tmp_path_factory):
    """A cache folder per test, so that no test reads or writes the user's cache. Most never create it."""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(NUMBERS))
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(folder))


@pytest.fixture(autouse=True)
def process_state():
    """Restores the handlers of logs, SIGTERM and ignored exceptions, which commands set for their process."""
    handlers, level = logging.root.handlers[:], logging.root.level
    terminate, unraisable = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    yield
    signal.signal(signal.SIGTERM, terminate or signal.SIG_DFL)
    sys.unraisablehook = unraisable
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def in_repository(monkeypatch, tmp_path):
    """Changes to the repository's folder and prevents restarts of the process."""
    monkeypatch.chdir(pathlib.Path(__file__).parents[1])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    # The programs keep a folder that is set, so the configuration of jax does not change.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "xla"))


@pytest.fixture(scope="session")
def results():
    """The recorded results, which a clone has and an sdist lacks."""
    folder = pathlib.Path(__file__).parents[1] / "results"
    if not folder.is_dir():
        pytest.skip("needs results/, which only a clone has")
    return folder


@pytest.fixture
def short_blocks(monkeypatch):
    """Blocks of TPU kernels so short that sums, halos and the end of the sequence are in different blocks."""
    from nystromformer_jax.kernels import collect, distribute, segments

    for module in (collect, distribute):
        for name in ("FORWARD_BLOCK", "BACKWARD_BLOCK"):
            monkeypatch.setattr(module, name, 128)
    monkeypatch.setattr(segments, "BLOCK", 128)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def my_project(monkeypatch, tmp_path):
    """A folder with the files of docs/extend.md, on the import path."""
    page = pathlib.Path(__file__).parents[1] / "docs" / "extend.md"
    folder = tmp_path / "my_project"
    for name, code in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page.read_text(), re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.fixture
def no_annotations():
    """Disables shape checks, so that wrong shapes reach our own errors as they do for users."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def pytest_collection_finish():
    """Keeps Python's collector from scanning the imported modules again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks the cases that `slow_except` does not name as slow, and sorts the longest tests to the front.

    With `--core`, only the tests of the contract are kept.
    """
    for item in items:
        for mark in ALLOWED_WARNINGS:
            item.add_marker(mark)
    if config.getoption("core"):
        items[:] = [item for item in items if "core_name" in item.fixturenames]
        return
    kept = {}
    for item in items:
        if marker := item.get_closest_marker("slow_except"):
            keep = item.callspec.id in marker.args
            function = item.nodeid.partition("[")[0]
            kept[function] = kept.get(function, False) or keep
            if not keep:
                item.add_marker(pytest.mark.slow(minutes=0.1))
    forgotten = [function for function, any_kept in kept.items() if not any_kept]
    if forgotten and not any("[" in argument for argument in config.args):
        raise pytest.UsageError(f"slow_except names no case of {', '.join(forgotten)}.")

    def minutes(item):
        marker = item.get_closest_marker("slow")
        return marker.kwargs["minutes"] if marker else 0

    items.sort(key=minutes, reverse=True)
