"""Times of attention, forward and with gradient, by length, with and without convolution and mask.

Two comparisons: functions of query, key and value (ours and exact attention of JAX and of PyTorch),
and modules with their projections (ours, Hugging Face's and lucidrains').
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks import peers
from benchmarks.forms import DIM, HEADS, LANDMARKS, form_of, our_module, with_gradient
from benchmarks.timing import in_blocks

BATCH, CONV = 1, 33
FORMS = ("ours", "ours, k-means", "exact (JAX)")
EMBED = HEADS * DIM


def rows(lengths: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Yields a row of times for each comparison, length and variant."""
    for length in lengths:
        for conv in (0, CONV):
            for masked in (False, True):
                for name, cases in (
                    ("functions", _functions(length, conv, masked)),
                    ("modules", _modules(length, conv, masked)),
                ):
                    row = {"comparison": name, "length": length, "conv": conv, "masked": masked}
                    for kind in ("forward", "gradient"):
                        row[kind] = in_blocks(cases[kind], rounds=rounds)
                    print(_line(row), flush=True)
                    yield row


def _line(row: dict[str, Any]) -> str:
    texts = []
    for kind in ("forward", "gradient"):
        ours = row[kind]["ours"]["median"]
        others = ", ".join(
            f"{name} {times['median'] / ours:.2f}×"
            for name, times in row[kind].items()
            if name != "ours"
        )
        texts.append(f"{kind} {1e3 * ours:.1f} ms ({others})")
    return (
        f"{row['comparison']:9} n={row['length']:5} conv={row['conv']:2}"
        f" mask={row['masked']:d}: {'; '.join(texts)}"
    )


def _mask(length: int, masked: bool) -> np.ndarray | None:
    return (np.arange(length) < 0.8 * length)[None] if masked else None


def _functions(length: int, conv: int, masked: bool) -> dict[str, dict[str, Callable[[], Any]]]:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(BATCH, length, HEADS, DIM)).astype(np.float32) for _ in range(4)]
    *inputs, cotangent = map(jnp.asarray, arrays)
    kernel = jnp.asarray(random.normal(size=(HEADS, conv)), jnp.float32) if conv else None
    mask = _mask(length, masked)
    jax_mask = None if mask is None else jnp.asarray(mask)

    query, key, value = torch_inputs = [
        torch.tensor(array.swapaxes(1, 2).copy(), requires_grad=True) for array in arrays[:3]
    ]
    torch_cotangent = torch.tensor(arrays[3].swapaxes(1, 2).copy())
    torch_mask = None if mask is None else torch.tensor(mask)[:, None, None]

    def sdpa() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, torch_mask)

    forward = {
        **{form: _jitted(form_of(form), *inputs, kernel, jax_mask) for form in FORMS},
        "exact (PyTorch)": _without_gradient(sdpa),
    }
    gradient = {
        **{
            form: _jitted(form_of(form, "gradient"), *inputs, kernel, jax_mask, cotangent)
            for form in FORMS
        },
        "exact (PyTorch)": lambda: torch.autograd.grad(sdpa(), torch_inputs, torch_cotangent),
    }
    return {"forward": forward, "gradient": gradient}


def _modules(length: int, conv: int, masked: bool) -> dict[str, dict[str, Callable[[], Any]]]:
    random = np.random.default_rng(0)
    x, cotangent = random.normal(size=(2, BATCH, length, EMBED)).astype(np.float32)
    mask = _mask(length, masked)
    jax_mask = None if mask is None else jnp.asarray(mask)
    module = our_module(conv)
    params = module.init(jax.random.key(0), jnp.asarray(x), deterministic=True)

    def ours(mask: Any, params: Any, x: Any) -> Any:
        return module.apply(params, x, mask, deterministic=True)

    torch_x, torch_cotangent = torch.tensor(x, requires_grad=True), torch.tensor(cotangent)
    huggingface = peers.huggingface(EMBED, HEADS, length, LANDMARKS, conv).eval()
    lucidrains = peers.lucidrains(EMBED, HEADS, LANDMARKS, conv).eval()
    additive = None if mask is None else peers.additive(mask)
    torch_mask = None if mask is None else torch.tensor(mask)
    calls = {
        "Hugging Face": (huggingface, lambda: huggingface(torch_x, additive)),
        "lucidrains": (lucidrains, lambda: lucidrains(torch_x, mask=torch_mask)),
    }
    forward = {"ours": _jitted(ours, jax_mask, params, jnp.asarray(x))}
    inputs = params, jnp.asarray(x), jnp.asarray(cotangent)
    gradient = {"ours": _jitted(_masked_gradient(ours), jax_mask, *inputs)}
    for name, (torch_module, call) in calls.items():
        forward[name] = _without_gradient(call)
        gradient[name] = _torch_gradient(
            call, [torch_x, *torch_module.parameters()], torch_cotangent
        )
    return {"forward": forward, "gradient": gradient}


def _masked_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `with_gradient` of a function whose first argument, the mask, has no gradient."""
    return lambda mask, *arguments: with_gradient(functools.partial(function, mask))(*arguments)


def _jitted(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    compiled = jax.jit(function)
    return lambda: compiled(*arguments)


def _without_gradient(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad():
            call()

    return run


def _torch_gradient(
    call: Callable[[], Any], inputs: list[Any], cotangent: Any
) -> Callable[[], Any]:
    def run() -> None:
        torch.autograd.grad(call(), inputs, cotangent, allow_unused=True)

    return run
