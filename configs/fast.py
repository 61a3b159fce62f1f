"""`recipe=fast`: a smaller budget per task, for a CPU and any attention.

With Nyström attention, a run on one core of an AMD EPYC takes about 0.7 hours on Text, 0.8 on ListOps, 1.5 on
Retrieval, 1.8 on Image and 2.8 on Pathfinder. Path-X has not been timed.

Differences from the paper's recipe, on all tasks unless the config of the task says otherwise:

- Model: two dense convolutions of width 5 over the tokens before the first block (`model.stem`); 32, not 64
  landmarks. If the attention has a value convolution, it has one kernel per channel, not per head.
- Optimizer: Muon for kernels and AdamW for other parameters, not AdamW for all; peak learning rate 2e-3, not
  1e-4, with warm-up over 5 % of the steps and linear decay to zero; β₂ 0.98, weight decay 0.01, gradients
  clipped to norm 1.
- Budget: fewer tokens, smaller batches, ten evaluations; examples of similar length are batched together
  on ListOps, Text and Retrieval.

The config file of each task lists further differences. The test sets, the test protocol and the
one-dimensional input follow the benchmark. The validation sets are those of the paper's recipe. The
benchmark's rules do not allow two parts: the generated, easier examples of ListOps and Pathfinder, and
Pathfinder's dilated convolutions, which read columns of the image.
"""

from typing import Any

EVALUATIONS = 10

SHARED: dict[str, Any] = {
    "attention.conv_groups": "channel",
    "attention.num_landmarks": 32,
    "attention.dropout_rate": 0.0,  # ignored if the attention has no dropout
    "model.stem": (5, 5),
    "optimizer.method": "muon",
    "optimizer.learning_rate": 2e-3,
    "optimizer.schedule": "linear",
    "optimizer.beta2": 0.98,
    "optimizer.weight_decay": 0.01,
    "optimizer.clip_norm": 1.0,
}

TEXTS: dict[str, Any] = {
    "data.pad_to_multiple_of": 512,
    "attention.conv_kernel_size": 7,
    "train.batch_size": 16,
    "train.total_steps": 4000,
}

IMAGES: dict[str, Any] = {
    "model.token_init": "fourier",
    "model.dropout_rate": 0.0,
}

PATHFINDERS = {f"pathfinder{resolution}": resolution for resolution in (32, 64, 128, 256)}

TASKS: dict[str, dict[str, Any]] = {
    "listops": {
        "data.pad_to_multiple_of": 256,
        "attention.conv_kernel_size": 35,
        "model.pooling": "ends",
        "model.dropout_rate": 0.0,
        "data.curriculum": 128_000,
        "train.batch_size": 16,
        "train.total_steps": 12_000,
    },
    "text": TEXTS,
    "retrieval": TEXTS | {"train.total_steps": 2000},
    "image": IMAGES
    | {
        "attention.conv_kernel_size": 67,  # covers the pixels above and below
        "optimizer.weight_decay": 0.05,
        "train.batch_size": 64,
        "train.total_steps": 4500,
    },
    **{
        name: IMAGES
        | {
            # covers the pixels above and below
            "attention.conv_kernel_size": 2 * resolution + 3,
            "model.stem": (3,) * 14,
            # along rows and columns in turn, first to neighbors, then to pixels at distances of 2 and 4
            "model.stem_dilations": tuple(
                distance * step for distance in (1, 1, 2, 2, 4, 4, 4) for step in (1, resolution)
            ),
            "data.curriculum": 96_000,
            "train.batch_size": 32,
            "train.total_steps": 6000,
        }
        for name, resolution in PATHFINDERS.items()
    },
}


def values(task: str) -> dict[str, Any]:
    """Returns the values that `recipe=fast` sets for a task, by dotted key.

    Raises:
      ValueError: The recipe has no values for the task.
    """
    return complete(recipe(task, "fast"))


def recipe(task: str, name: str) -> dict[str, Any]:
    """Returns the values of `recipe=fast`, without those that `complete` adds.

    `name` is the recipe that the error message names.

    Raises:
      ValueError: The recipe has no values for the task.
    """
    family = task.partition("-")[0]
    if family not in TASKS:
        raise ValueError(f"recipe={name} has no values for the task {task!r}: leave it out.")
    return SHARED | TASKS[family]


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Adds the values that follow from batch size and number of steps."""
    return values | {
        "eval.every_steps": values["train.total_steps"] // EVALUATIONS,
        "optimizer.warmup_steps": values["train.total_steps"] // 20,
        "train.budget_steps": values["train.total_steps"],
    }
