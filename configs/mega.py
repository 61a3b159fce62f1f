"""`recipe=mega` and `recipe=mega_small`: moving averages and gated attention, beyond the paper's model.

Both recipes use the block of MEGA (Ma et al. 2022, arXiv:2209.10655) around any attention: queries, keys and
gates are computed from moving averages in both directions with 16 time scales per channel
(`model.block="gated_ema"`). Models have no position embeddings. Optimizer, stem, convolution and pooling are
as in `configs/fast.py`.

Moving averages are normalized to means, except on ListOps, where they have the variance of white noise
(`model.ema_normalization`). In short runs on ListOps, the two differ little. On Text, the model learns much
more slowly with the latter (the ablation in docs/results.md).

- `mega_small`: sizes, steps and curriculum of `recipe=fast`, so that a difference between the two recipes is
  due to the block. Only on ListOps, steps and curriculum are twice as long, about two hours on a CPU core.
- `mega`: sizes of MEGA's models, for an accelerator: layers, width and MLP from its repository
  (facebookresearch/mega, `fairseq/models/lra/model.py` at aeaa4b4), and 128 landmarks. Steps, batch
  size, warm-up and evaluations are those of the paper's recipe. A curriculum takes at most half of the steps.
  Differs from MEGA: layer norm on all tasks, two heads of 64 for queries, keys and values, Muon instead of
  Adam.

The test sets, the test protocol and the one-dimensional input follow the benchmark. The validation sets are
those of the paper's recipe. The benchmark's rules do not allow the curricula and Pathfinder's dilated
convolutions, as in `configs/fast.py`.
"""

from typing import Any, NamedTuple

from configs import fast

AVERAGES: dict[str, Any] = {"model.block": "gated_ema", "model.positions": "none"}
NORMALIZATIONS = {"listops": "variance"}  # "mean" on the other tasks

# Examples of the curriculum of `recipe=mega`: 2,500 of 5,000 steps on ListOps, 3,000 of 62,400 on Pathfinder.
# Larger images have as many examples as in `recipe=fast`.
CURRICULA = {"listops": 80_000, "pathfinder32": 768_000}

# `data.pad_to_multiple_of` of `recipe=mega`: half of the longest length.
PADDING = {"listops": 1024, "text": 2048, "retrieval": 2048}


class Sizes(NamedTuple):
    """Sizes of a MEGA model."""

    num_layers: int
    embed_dim: int
    mlp_dim: int


SIZES: dict[str, Sizes] = {
    "listops": Sizes(6, 80, 160),
    "text": Sizes(4, 128, 256),
    "retrieval": Sizes(6, 128, 256),
    "image": Sizes(8, 160, 320),
    **dict.fromkeys(fast.PATHFINDERS, Sizes(6, 128, 256)),  # MEGA has models for 32 and 128 pixels
    "pathfinder128": Sizes(4, 64, 128),
}


def small(task: str) -> dict[str, Any]:
    """Returns the values that `recipe=mega_small` sets for a task, by dotted key.

    Raises:
      ValueError: The recipe has no values for the task.
    """
    values = fast.recipe(task, "mega_small") | _averages(task)
    if task.partition("-")[0] == "listops":
        values |= {key: 2 * values[key] for key in ("train.total_steps", "data.curriculum")}
    return fast.complete(values)


def values(task: str) -> dict[str, Any]:
    """Returns the values that `recipe=mega` sets for a task, by dotted key.

    Raises:
      ValueError: The recipe has no values for the task.
    """
    budget = ("train.batch_size", "train.total_steps")
    found = fast.recipe(task, "mega")
    family = task.partition("-")[0]
    if family in CURRICULA:
        found["data.curriculum"] = CURRICULA[family]
    if task in PADDING:
        found["data.pad_to_multiple_of"] = PADDING[task]
    layers, width, mlp = SIZES[family]
    return {
        **{key: value for key, value in found.items() if key not in budget},
        **_averages(task),
        "model.num_layers": layers,
        "model.embed_dim": width,
        "model.mlp_dim": mlp,
        "model.num_heads": 2,
        "model.head_dim": 64,  # supported by the TPU kernels, whereas width // 2 can be 40 or 80
        "attention.num_landmarks": 128,
    }


def _averages(task: str) -> dict[str, Any]:
    normalization = NORMALIZATIONS.get(task.partition("-")[0], "mean")
    return AVERAGES | {"model.ema_normalization": normalization}
