"""Memory of this machine, and the cache of compiled programs, which is optional."""

import jax

from nystromformer_jax.training import environment


def test_memory_is_in_bytes():
    assert 50e6 < environment.peak_bytes() < environment.machine_bytes() < 1e15


def test_a_cache_that_cannot_be_created_is_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    before = jax.config.jax_compilation_cache_dir
    environment.enable_compilation_cache(tmp_path / "file" / "xla")
    assert jax.config.jax_compilation_cache_dir == before
    (message,) = caplog.messages
    assert f"{tmp_path}/file/xla" in message
