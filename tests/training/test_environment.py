"""The cache of compiled programs is optional."""

import jax

from nystromformer_jax.training import environment


def test_a_cache_that_cannot_be_created_is_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    before = jax.config.jax_compilation_cache_dir
    environment.enable_compilation_cache(tmp_path / "file" / "xla")
    assert jax.config.jax_compilation_cache_dir == before
    (message,) = caplog.messages
    assert message.startswith(
        f"Compiled programs are not cached: {tmp_path}/file/xla cannot be created"
    )
