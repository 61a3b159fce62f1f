"""Strict settings: eight CPU devices, no silent rank promotion, shapes checked against annotations."""

import importlib.metadata
import logging
import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"
flags = ["--xla_force_host_platform_device_count=8"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Compiles in half the time what runs a little slower; later versions have one kind of emitters.
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
# XLA sizes its CPU thread pool by NPROC; with fewer threads than devices a collective can wait forever.
os.environ.setdefault("NPROC", "32")
# Tests compile thousands of small programs and run each once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from jaxtyping import install_import_hook

install_import_hook(["nystromformer_jax", "lra.models", "language.masking"], "beartype.beartype")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def rngs(request):
    """An endless iterator of random keys, derived from the test's name, so that every run has the same."""
    seed = sum(ord(letter) for letter in request.node.name)
    return (jax.random.fold_in(jax.random.key(seed), i) for i in range(1_000_000))


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch, tmp_path):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def log_handlers():
    """A command that a test calls sets up logging for its own process; the next test has another."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Runs in the clone's folder, as the programs do, without restarting the process."""
    monkeypatch.chdir(pathlib.Path(__file__).parents[1])
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    # Whoever names a folder keeps it: jax goes on with what it had.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "xla"))


@pytest.fixture
def results():
    """The recorded results, which a clone has and an sdist lacks."""
    folder = pathlib.Path(__file__).parents[1] / "results"
    if not folder.is_dir():
        pytest.skip("needs results/, which only a clone has")
    return folder


@pytest.fixture
def no_annotations():
    """Disables shape checks, so that wrong shapes reach our own errors as they do for users."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def pytest_collection_modifyitems(items):
    """Starts the longest tests first, so that no process is left with a long one at the end."""

    def minutes(item):
        marker = item.get_closest_marker("slow")
        return marker.kwargs["minutes"] if marker else 0

    items.sort(key=minutes, reverse=True)
