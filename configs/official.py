"""`quirks=google`: model, optimizer and budget of the official benchmark, for all tasks and attentions.

Source: google-research/long-range-arena at cd31e5c, `transformer_base.py` and the base config of each task,
`models/transformer/transformer.py`, `models/layers/common_layers.py` and the `train.py` of each task.
Differs: other validation sets and intervals between evaluations; all test examples are evaluated; the cosine
schedule ends with the run, whereas the official one ends one warm-up later. Queries at padding attend to
real tokens only, whereas they attend to all positions in the official code. This matters if padding is
pooled: in the mean over all pixels, and in a class token if the first pixel is black.
"""

from typing import Any

SHARED: dict[str, Any] = {
    "data.padded_len": 0,
    "model.initialization": "google",
    "model.activation": "gelu_tanh",
    "model.layer_norm_epsilon": 1e-6,
    "model.attention_bias": False,
    "model.pooling": "cls",
    "model.dropout_rate": 0.1,
    "attention.dropout_rate": 0.1,  # ignored if the attention has no dropout
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.98,
    "optimizer.eps": 1e-9,
}

TEXTS: dict[str, Any] = {
    "model.num_layers": 4,
    "model.positions": "sinusoidal",  # the official default; only image tasks use learned positions
    "model.vocab_size": 257,
    "optimizer.schedule": "rsqrt",
    "optimizer.weight_decay": 0.1,
    "train.batch_size": 32,
}

IMAGES: dict[str, Any] = {
    "data.zero_is_padding": True,  # the official mask is `inputs > 0`
    "model.vocab_size": 256,
    "optimizer.schedule": "cosine",
    "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 0.0,
}


def _sizes(embed_dim: int, num_heads: int, qkv_dim: int, mlp_dim: int) -> dict[str, int]:
    return {
        "model.embed_dim": embed_dim,
        "model.num_heads": num_heads,
        "model.head_dim": qkv_dim // num_heads,
        "model.mlp_dim": mlp_dim,
    }


def _budget(batch_size: int, epochs: int, examples: int) -> dict[str, int]:
    """Returns the values for batch size, total steps, and a warm-up of one epoch."""
    steps = examples // batch_size
    return {
        "train.batch_size": batch_size,
        "train.total_steps": epochs * steps,
        "optimizer.warmup_steps": steps,
    }


# The learning rate is 0.05 · min(1, step / warm-up) / sqrt(max(step, warm-up)); peak 0.05 / sqrt(warm-up).
TASKS: dict[str, dict[str, Any]] = {
    "listops": TEXTS
    | _sizes(512, 8, 512, 1024)
    | {
        "data.max_len": 2000,
        "model.vocab_size": 17,
        "optimizer.learning_rate": 0.05 / 1000**0.5,
        "optimizer.warmup_steps": 1000,
        "train.total_steps": 5000,
    },
    "text": TEXTS
    | _sizes(256, 4, 256, 1024)
    | {
        "data.max_len": 1000,
        "optimizer.learning_rate": 0.05 / 8000**0.5,
        "optimizer.warmup_steps": 8000,
        "train.total_steps": 20_000,
    },
    "retrieval": TEXTS
    | _sizes(128, 4, 128, 512)
    | {
        "data.max_len": 4000,
        # With CLS pooling, the official dual encoder takes the first byte, because it adds no class token.
        "model.pooling": "first",
        "model.pair_features": "concatenation",
        "optimizer.learning_rate": 0.05 / 8000**0.5,
        "optimizer.warmup_steps": 8000,  # longer than the run, so the rate increases until the end
        "train.total_steps": 5000,
    },
    "image": IMAGES
    | _sizes(128, 8, 64, 128)
    | _budget(256, epochs=200, examples=45_000)
    | {
        "data.max_len": 1024,
        "model.num_layers": 1,
        "model.dropout_rate": 0.3,
        "attention.dropout_rate": 0.2,
        "optimizer.learning_rate": 5e-4,
    },
    "pathfinder32": IMAGES
    | _sizes(32, 4, 16, 32)
    | _budget(512, epochs=200, examples=160_000)
    | {
        "data.max_len": 32**2,
        "model.num_layers": 4,
        "model.pooling": "all_mean",
        "model.positions": "sinusoidal",
        "model.dropout_rate": 0.2,
    },
    "pathfinder64": IMAGES
    | _sizes(32, 4, 32, 32)
    | _budget(256, epochs=200, examples=160_000)
    | {"data.max_len": 64**2, "model.num_layers": 2},
    "pathfinder128": IMAGES
    | _sizes(32, 2, 16, 32)
    | _budget(64, epochs=200, examples=160_000)
    | {
        "data.max_len": 128**2,
        "model.num_layers": 1,
        "model.pooling": "all_mean",
        "optimizer.clip_norm": 1.0,
    },
    "pathfinder256": IMAGES
    | _sizes(32, 4, 32, 32)
    | _budget(32, epochs=100, examples=160_000)
    | {"data.max_len": 256**2, "model.num_layers": 2},
}


def values(task: str) -> dict[str, Any]:
    """Returns the values that `quirks=google` sets for a task, by dotted key.

    Raises:
      ValueError: The official benchmark does not have the task.
    """
    name = task.partition("-")[0] if task.startswith("pathfinder") else task
    if name not in TASKS:
        raise ValueError(
            f"quirks=google: the official benchmark has no task {task!r}; leave this option out."
        )
    found = SHARED | TASKS[name]
    return found | {
        "model.max_len": found["data.max_len"],
        "train.budget_steps": found["train.total_steps"],
    }
