"""Random command lines of the programs, valid and invalid."""

from hypothesis import strategies as st

from configs import common, finetune, glue, listops, pretrain

# Small enough to trace quickly. The random flags follow and override these.
SMALL = {
    "listops": {
        "data.max_len": 64,
        "model.num_layers": 1,
        "model.embed_dim": 8,
        "model.head_dim": 4,
        "model.mlp_dim": 8,
        "train.batch_size": 8,
    },
    "pretrain": {
        "data.dir": "text",
        "data.vocab_size": 60,
        "data.max_len": 29,
        "model.num_layers": 1,
        "model.embed_dim": 8,
        "model.num_heads": 2,
        "model.mlp_dim": 12,
        "train.batch_size": 8,
    },
    "glue": {"data.max_len": 19, "train.batch_size": 8},
    "finetune": {"data.max_len": 19, "data.overlap": 0, "train.batch_size": 8},
}
CONFIGS = {"listops": listops, "pretrain": pretrain, "glue": glue, "finetune": finetune}
ARGUMENTS = {
    "listops": "nystrom,num_landmarks=4",
    "pretrain": "demo",
    "glue": "sst2",
    "finetune": "multi_label",
}
WILD = (
    *("", "0", "-1", "1", "2", "3", "64", "1000000000", "99999999999999999999999", "1e9", "1e400"),
    *("-0.0", "0.5", "nan", "inf", "-inf", "true", "False", "None", "[1,2]", "(1,)", "{}", "()"),
    *(
        "schön",
        "試し",
        "\u202e",
        "a\nb",
        "'",
        '"',
        "\\",
        "../..",
        "/",
        "~",
        "--",
        "=",
        ",",
        ":",
        " ",
    ),
    *("x" * 5000, "softmax", "nystrom", "linear", "reformer", "float16", "bfloat16", "1e-400"),
)
# Values that a flag of that type accepts and the config or the model must validate.
OF_TYPE = {
    int: ("0", "-1", "1", "2", "3", "5", "64", "99", "1000000000", "99999999999999999999999"),
    float: ("0", "-1", "1", "0.5", "-0.0", "nan", "inf", "-inf", "1e30", "1e-30", "1e400"),
    bool: ("true", "false"),
    str: (
        "",
        "nystrom",
        "relu",
        "gelu",
        "bfloat16",
        "float16",
        "mean",
        "cosine",
        "schön",
        "/",
        "~",
    ),
}
NAMES = tuple(common.ATTENTIONS)
OPTIONS = (
    *("num_landmarks", "conv_kernel_size", "pinv_iters", "pinv_start", "landmark_layout", "quirks"),
    *("dropout_rate", "num_hashes", "chunk_len", "num_buckets", "redraw", "projection_size"),
    *("num_features", "kernel", "orthogonal", "window", "num_global", "attention", "max_len"),
    *("conv_groups", "recipe"),
)


def keys_of(config):
    """All `section.key` of a config, with the type of each value."""
    return {f"{name}.{key}": type(x) for name, part in config.items() for key, x in part.items()}


@st.composite
def behind_the_colon(draw, config):
    """A valid argument, or a random combination of names, options and values."""
    if draw(st.integers(0, 3)):
        return ARGUMENTS[config]
    heads = {
        "listops": NAMES,
        "pretrain": ("demo", "small"),
        "glue": ("sst2", "stsb", "imdb"),
        "finetune": ("regression", "question_answering"),
    }
    parts = [draw(st.sampled_from((*heads[config], "nystrm", *WILD)))]
    for _ in range(draw(st.integers(0, 2))):
        option = draw(st.sampled_from((*OPTIONS, "landmarks", "", "é")))
        equals = draw(st.sampled_from(("=", "=", "=", "", "==")))
        parts.append(option + equals + draw(st.sampled_from((*WILD, *NAMES))))
    return ",".join(parts)


@st.composite
def flag(draw, keys):
    """One flag: most often a valid key with a value of its type."""
    key, value = draw(st.sampled_from(sorted(keys))), draw(st.sampled_from(WILD))
    if draw(st.integers(0, 3)):
        return f"--config.{key}={draw(st.sampled_from(OF_TYPE.get(keys[key], WILD)))}"
    cut = draw(st.integers(0, len(key) - 1))
    return draw(
        st.sampled_from(
            (
                *(f"--config.{key}={value}",) * 4,
                f"-config.{key}={value}",
                f"--config.{key}",
                f"--noconfig.{key}",
                f"--config.{key[:cut]}{key[cut + 1 :]}={value}",
                f"--config.{key}.more={value}",
                f"--config.{key.partition('.')[0]}={value}",
                f"--config.{value}=1",
                f"--{key}={value}",
                f"--seeds={value}",
                f"--workdir={value}",
                f"--mode={value}",
                f"--search={value}",
                f"--batch_sizes={value}",
                f"--learning_rates={value}",
                f"--topology={value}",
                f"--price={value}",
                f"--examples={value}",
                f"--num_processes={value}",
                f"--coordinator={value}",
                f"--flagfile={value}",
                value,
            )
        )
    )


@st.composite
def command_lines(draw, config, first=(), last=()):
    """A config file, small values, up to three random flags (possibly repeated), and `last`."""
    keys = keys_of(CONFIGS[config].get_config(ARGUMENTS[config]))
    start = f"--config=configs/{config}.py:{draw(behind_the_colon(config))}"
    small = [f"--config.{key}={value}" for key, value in SMALL[config].items()]
    drawn = draw(st.lists(flag(keys), min_size=1, max_size=3))
    if not draw(st.integers(0, 3)):
        drawn.append(drawn[0])
    return [start, *small, *first, *drawn, *last]
