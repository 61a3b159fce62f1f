"""Compiles and times one self-attention module, for `benchmarks.efficiency`."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError

from benchmarks import stored
from benchmarks.compiled import Compiled, compile_ahead
from benchmarks.efficiency import averages
from benchmarks.timing import added_bytes, available_bytes, in_blocks
from configs.common import core_arguments
from nystromformer_jax import SelfAttention, make_core
from nystromformer_jax.plugins import is_plugin
from nystromformer_jax.spelling import nearest
from nystromformer_jax.training.errors import is_out_of_memory
from nystromformer_jax.training.topology import topology_devices

# Core and options of each attention of the tables; nystrom-M and module:Class,option=value are valid, too.
ATTENTIONS: Mapping[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "nystrom-64": {"name": "nystrom", "num_landmarks": 64},
    "nystrom-32": {"name": "nystrom", "num_landmarks": 32},
    "reformer": {"name": "reformer", "num_hashes": 2, "chunk_len": 64},
    "linformer": {"name": "linformer", "projection_size": 256},
    "performer": {"name": "performer", "num_features": 256},
    "longformer": {"name": "longformer", "window": 257, "num_global": 1},
    "linear": {"name": "linear"},
}
MEMORY_RUNS = 3  # the maximum counts
PASSES = ("forward", "forward + gradient")


def core_options(attention: str) -> dict[str, Any]:
    """Returns the arguments of `make_core` for an attention of the tables; empty for `averages.NAMES`.

    Raises:
      ValueError: The attention is unknown.
    """
    if landmarks := re.fullmatch(r"nystrom-([1-9]\d*)", attention):
        return {"name": "nystrom", "num_landmarks": int(landmarks[1])}
    if is_plugin(attention):
        return core_arguments(attention)
    if attention in averages.NAMES:
        return {}
    if attention not in ATTENTIONS:
        raise ValueError(f"Unknown attention {attention!r}{nearest(attention, ATTENTIONS)}")
    return ATTENTIONS[attention]


class Bench:
    """Compiles and times attentions on this machine's device, or compiles for a TPU elsewhere.

    Attributes:
      settings: Values that all rows of a table share.
      name: Name of the device, for file names.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        dtype: str,
        repeats: int,
        memory_limit: float | None,
        topology: str | None,
    ) -> None:
        """Finds the device.

        Args:
          heads: Number of heads, H.
          head_dim: Width of a head, D; the module has width H · D.
          dtype: Dtype of the activations; parameters are float32.
          repeats: Number of timed rounds; each runs a block of every attention.
          memory_limit: Limit in GiB; programs that need more are not run. None: the memory reserved on the
            device, or three quarters of the machine's free memory.
          topology: Compiles for this TPU topology and runs nothing.

        Raises:
          ValueError: The topology is unknown.
        """
        self.heads, self.embed_dim, self.dtype = heads, heads * head_dim, jnp.dtype(dtype)
        self.repeats, self.runs = repeats, topology is None
        self.device = topology_devices(topology)[0] if topology else jax.devices()[0]
        self.name = topology.replace(":", "-") if topology else self.device.platform
        self.settings: dict[str, Any] = {
            "device": self.device.device_kind,
            "heads": heads,
            "head_dim": head_dim,
            "dtype": dtype,
            "topology": topology,
        }
        if self.runs:
            self.settings |= stored.this_machine("nystromformer-jax")
            self.settings |= {"repeats": repeats, "memory_limit_gib": memory_limit}
            self.settings["timed"] = "rounds of blocks of calls"
            own = (self.device.memory_stats() or {}).get("bytes_limit")
            free = own or available_bytes() * 3 // 4
            self.limit_bytes = int(memory_limit * 2**30) if memory_limit else free
        else:
            self.settings["versions"] = stored.versions("nystromformer-jax", *stored.COMPILERS)

    def shapes(self, attention: str, length: int, batch: int = 1) -> tuple[Any, Any]:
        """Returns the shapes of the parameters and of the input.

        Raises:
          ValueError: The attention is unknown or does not support the length.
        """
        x = jax.ShapeDtypeStruct((batch, length, self.embed_dim), self.dtype)
        init = functools.partial(self._module(attention).init, deterministic=True)
        return jax.eval_shape(init, jax.random.key(0), x), x

    def measure(
        self, attentions: Sequence[str], length: int, batch: int, kind: str
    ) -> list[dict[str, Any]]:
        """Compiles one pass of each attention, times those that fit, and returns a row for each."""
        programs = {
            attention: self._compile(attention, length, batch, kind) for attention in attentions
        }
        rows = {
            attention: {
                "attention": attention,
                "core": core_options(attention),
                "length": length,
                "batch": batch,
                "pass": kind,
                **program.figures,
                "measured_bytes": None,
                "seconds": None,
            }
            for attention, program in programs.items()
        }
        if self.runs:
            self._time(rows, programs)
        return list(rows.values())

    def _module(self, attention: str) -> nn.Module:
        if attention in averages.NAMES:
            return averages.module(attention, self.heads, self.embed_dim, self.dtype)
        return SelfAttention(self.heads, make_core(**core_options(attention)), dtype=self.dtype)

    def _compile(self, attention: str, length: int, batch: int, kind: str) -> Compiled:
        module = self._module(attention)
        params, x = self.shapes(attention, length, batch)

        def forward(params: Any, x: jax.Array) -> Any:
            return module.apply(params, x, deterministic=True)

        def weighted_sum(params: Any, x: jax.Array, cotangent: jax.Array) -> jax.Array:
            return jnp.sum(forward(params, x) * cotangent, dtype=jnp.float32)

        if kind == "forward":
            return compile_ahead(forward, (params, x), self.device)
        gradient = jax.value_and_grad(weighted_sum, argnums=(0, 1))
        return compile_ahead(gradient, (params, x, x), self.device)

    def _time(self, rows: dict[str, dict[str, Any]], programs: Mapping[str, Compiled]) -> None:
        """Writes the seconds, or the reason why they are missing, into `rows`."""
        cases, inputs = {}, None
        for attention, row in rows.items():
            run = programs[attention].run
            if run is None:
                continue
            if row["peak_bytes"] > self.limit_bytes:
                row["fits"] = False
                row["reason"] = (
                    f"needs {row['peak_bytes'] / 2**30:.3g} GiB,"
                    f" more than the limit of {self.limit_bytes / 2**30:.3g} GiB"
                )
                continue
            try:
                inputs = inputs or self._inputs(row["length"], row["batch"], row["pass"])
                case = functools.partial(run, self._params(attention, row["length"]), *inputs)
                jax.block_until_ready(case())
                # On a CPU, the process's memory is measured.
                if self.device.memory_stats() is None:
                    added = [added_bytes(case) for _ in range(MEMORY_RUNS)]
                    row["measured_bytes"] = _sum(row["argument_bytes"], added)
            except JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                # The compiler's figure was too small.
                row |= {"fits": False, "reason": str(error).splitlines()[0], "peak_bytes": None}
            else:
                cases[attention] = case
        for attention, seconds in in_blocks(cases, rounds=self.repeats).items():
            rows[attention]["seconds"] = seconds

    def _inputs(self, length: int, batch: int, kind: str) -> list[jax.Array]:
        """Returns the input, and for a gradient the cotangent."""
        random = np.random.default_rng(0)
        shape = (batch, length, self.embed_dim)
        return [
            jnp.asarray(random.standard_normal(shape, np.float32), self.dtype)
            for _ in range(1 + (kind != "forward"))
        ]

    def _params(self, attention: str, length: int) -> Any:
        """Returns random parameters; `init` would need a compilation, and times do not depend on values."""
        shapes, _ = self.shapes(attention, length)
        random = np.random.default_rng(1)

        def sample(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            values = random.standard_normal(leaf.shape, np.float32)
            return jnp.asarray(values / (leaf.shape or (1,))[0] ** 0.5, leaf.dtype)

        return jax.tree.map(sample, shapes)


def _sum(argument_bytes: int, added: Sequence[int | None]) -> int | None:
    known = [count for count in added if count is not None]
    return argument_bytes + max(known) if known else None
