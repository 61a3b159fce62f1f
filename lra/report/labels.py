"""What to call a setting: its attention, and in words what sets it apart from others.

A setting is a config by dotted keys without what cannot change its numbers: seed, paths, processes,
devices, checkpoints and logs. What goes without saying is not said: the values of `USUAL`, which are those
of `configs/common.py`.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

Setting = Mapping[str, Hashable]

NO_PART = {"data.dir", "data.source", "data.workers", "eval.batch_size", "train.seed"}
NO_PART_SECTIONS = {"mesh", "checkpoint", "log"}

# The option that stands behind the attention's name: nystrom-64.
SIZES: Mapping[str, str] = {
    "nystrom": "num_landmarks",
    "reformer": "num_hashes",
    "linformer": "projection_size",
    "performer": "num_features",
    "longformer": "window",
}
USUAL_OPTIONS: Mapping[str, Mapping[str, Hashable]] = {
    "nystrom": {
        "num_landmarks": 64,
        "conv_kernel_size": 35,
        "pinv_iters": 6,
        "pinv_start": "exact",
        "landmark_layout": "real",
    },
    "softmax": {"conv_kernel_size": 0, "dropout_rate": 0.1},
    "reformer": {"num_hashes": 2, "chunk_len": 64, "num_buckets": None, "redraw": True},
    "linformer": {"projection_size": 256},
    "performer": {"num_features": 256, "kernel": "softmax", "orthogonal": True, "redraw": False},
    "longformer": {"window": 257, "num_global": 1},
    "linear": {},
}
# A run that was written before a key was there has the key's value, too.
USUAL: dict[str, Hashable] = {
    "data.examples": 0,
    "data.padded_len": 0,
    "data.seed": 0,
    "data.zero_is_padding": False,
    "eval.max_examples": 0,
    "model.num_layers": 2,
    "model.embed_dim": 64,
    "model.num_heads": 2,
    "model.head_dim": 32,
    "model.mlp_dim": 128,
    "model.dropout_rate": 0.1,
    "model.positions": "learned",
    "model.pooling": "mean",
    "model.pair_features": "products",
    "model.activation": "gelu",
    "model.layer_norm_epsilon": 1e-5,
    "model.attention_bias": True,
    "model.initialization": "lecun",
    "model.dtype": "float32",
    "optimizer.schedule": "one_cycle",
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.eps": 1e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.cycle_beta1": False,
    "train.budget_steps": 0,
}
# By which `quirks=…` is known.
QUIRKS: Mapping[str, Mapping[str, Hashable]] = {
    "mlpen": {
        "attention.landmark_layout": "mlpen",
        "attention.pinv_start": "batch_max",
        "data.zero_is_padding": True,
        "model.pooling": "padded_mean",
        "optimizer.cycle_beta1": True,
    },
    "google": {
        "model.initialization": "google",
        "model.activation": "gelu_tanh",
        "model.layer_norm_epsilon": 1e-6,
        "model.attention_bias": False,
        "optimizer.beta2": 0.98,
        "optimizer.eps": 1e-9,
    },
}
# Texts have their own, and it is no choice: said only where it differs within a task.
OF_THE_TASK = {"data.padded_len"}
# These follow the budget, and are said where nothing else tells two settings apart.
SECONDARY = {
    "optimizer.warmup_steps",
    "eval.every_steps",
    "train.accumulation",
    "train.budget_steps",
}

NOUNS: Mapping[str, str] = {
    "attention.pinv_iters": "iterations",
    "attention.pinv_start": "start",
    "attention.landmark_layout": "layout",
    "attention.conv_kernel_size": "convolution",
    "attention.dropout_rate": "attention dropout",
    "data.seed": "data seed",
    "data.sha256": "data",
    "model.num_layers": "layers",
    "model.num_heads": "heads",
    "model.dropout_rate": "dropout",
    "model.dtype": "",
    "optimizer.learning_rate": "rate",
    "optimizer.warmup_steps": "warm-up",
    "train.total_steps": "steps",
    "train.batch_size": "batch",
    "eval.every_steps": "evaluation every",
}
COUNTED = {"attention.pinv_iters", "model.num_layers", "model.num_heads", "train.total_steps"}

_UNSET = object()


def setting_of(config: Mapping[str, Any], task: str, data_sha256: str = "") -> dict[str, Hashable]:
    """The setting of a config; equal for runs that differ by their seed or by where they ran."""
    setting: dict[str, Hashable] = {**USUAL}
    for section, values in config.items():
        for key, value in values.items():
            name = f"{section}.{key}"
            if section not in NO_PART_SECTIONS and name not in NO_PART:
                setting[name] = _hashable(value)
    return {**setting, "data.task": task, "data.sha256": data_sha256}


def label_settings(
    settings: Sequence[Setting], weights: Sequence[int], budgets: Sequence[int]
) -> list[tuple[str, str]]:
    """Labels for each of several different settings.

    Args:
      settings: all that are shown together.
      weights: how many runs each has. What most runs have in common is not said either.
      budgets: the steps of a whole run of each.

    Returns:
      What names the attention, and what names the setting: no two of a task are alike.
    """
    words = [_attention_words(setting, settings, weights) for setting in settings]
    attentions = [", ".join(said) for said in words]
    alike: dict[tuple[Hashable, ...], list[int]] = {}
    for number, setting in enumerate(settings):
        alike.setdefault((setting["data.task"], attentions[number]), []).append(number)
    for members in alike.values():
        said: set[str] = set()
        keys = {key for number in members for key in settings[number]}
        differing = sorted(
            key for key in keys if len({settings[i].get(key, _UNSET) for i in members}) > 1
        )
        for key in sorted(differing, key=lambda key: key in SECONDARY):
            unique = {tuple(settings[i].get(name, _UNSET) for name in said) for i in members}
            if key in SECONDARY and len(unique) == len(members):
                break
            said.add(key)
            values = [settings[number].get(key, _UNSET) for number in members]
            usual = _most(values, [weights[number] for number in members])
            for number, value in zip(members, values, strict=True):
                plain = budgets[number] if key == "train.total_steps" else usual
                if value != plain:
                    words[number].append(_word(key, value))
    return list(zip(attentions, (", ".join(said) for said in words), strict=True))


def size_of(setting: Setting) -> str:
    """The dotted key of the option that stands behind the attention's name; empty without one."""
    option = SIZES.get(str(setting["attention.name"]), "")
    return f"attention.{option}" if f"attention.{option}" in setting else ""


def unusual(setting: Setting) -> dict[str, Hashable]:
    """What a setting has that neither its config file nor its quirks have, as far as it is known here."""
    options = USUAL_OPTIONS.get(str(setting["attention.name"]), {})
    quirks = quirks_of(setting)
    quiet = {"attention.name", *OF_THE_TASK, *SECONDARY, *QUIRKS.get(quirks, {})}
    if quirks == "google":  # sizes, rates and budgets are the task's
        quiet |= {"attention.dropout_rate", *(key for key in setting if not _is_option(key))}
    usual = USUAL | {f"attention.{option}": value for option, value in options.items()}
    return {
        key: value
        for key, value in sorted(setting.items())
        if key not in quiet
        and (_is_option(key) or key in USUAL)
        and value != usual.get(key, _UNSET)
    }


def _attention_words(
    setting: Setting, settings: Sequence[Setting], weights: Sequence[int]
) -> list[str]:
    """The attention, its unusual options, and what is unusual besides."""
    name, size, quirks = str(setting["attention.name"]), size_of(setting), quirks_of(setting)
    peers = [number for number, s in enumerate(settings) if s["attention.name"] == name]
    words = [f"{name}-{setting[size]}" if size else name]
    for key, value in unusual(setting).items():
        known = not _is_option(key) or key.partition(".")[2] in USUAL_OPTIONS.get(name, {})
        values = [settings[number].get(key, _UNSET) for number in peers]
        if key != size and (known or value != _most(values, [weights[number] for number in peers])):
            words.append(_word(key, value))
    return [*words, f"quirks={quirks}"] if quirks else words


def _is_option(key: str) -> bool:
    return key.startswith("attention.")


def quirks_of(setting: Setting) -> str:
    """The name of the quirks that a setting has all of, as far as its attention knows them."""
    for name, values in QUIRKS.items():
        known = {key: value for key, value in values.items() if key in setting}
        if all(setting[key] == value for key, value in known.items()):
            return name
    return ""


def _most(values: Sequence[object], weights: Sequence[int]) -> object:
    """The value that more runs have than any other; nothing where two have as many."""
    counts: Counter[object] = Counter()
    for value, weight in zip(values, weights, strict=True):
        counts[value] += weight
    first, *others = counts.most_common(2)
    return object() if others and others[0][1] == first[1] else first[0]


def _word(key: str, value: object) -> str:
    noun = NOUNS.get(key, key.rpartition(".")[2].replace("_", " "))
    if value is _UNSET or value is None or value == "":
        return f"{noun} unset"
    if value is True:
        return noun
    if value is False or value == 0:
        return f"no {noun}"
    if key in COUNTED:
        return f"{value:,} {noun}"
    return f"{noun} {str(value)[:8] if key == 'data.sha256' else value}".strip()


def _hashable(value: Any) -> Hashable:
    """Lists and objects of a config as tuples."""
    if isinstance(value, dict):
        return tuple((key, _hashable(value[key])) for key in sorted(value))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
