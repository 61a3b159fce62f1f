"""Any command line gives one sentence and exit code 2, or a valid config."""

import collections
import importlib
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.training import CHECKED
from configs import common
from tests.bad_input.fuzz import EXAMPLES, fuzz
from tests.language.finetune import fakes
from tests.programs import assert_refused, call


class Case(NamedTuple):
    """A program, its config with a valid argument and others, values of small models, and the last flag."""

    program: str
    config: str
    argument: str
    others: tuple[str, ...]
    values: str
    last: str = "--mode=check"
    examples: int = EXAMPLES


LRA = Case(
    "run_lra",
    "listops",
    "nystrom,num_landmarks=4",
    tuple(common.ATTENTIONS),
    "data.max_len=64 model.num_layers=1 model.embed_dim=8 model.head_dim=4 model.mlp_dim=8",
)
CASES = {
    "lra": LRA,
    "plan": LRA._replace(program="run_plan", last="--nolargest_batch", examples=EXAMPLES // 2),
    "pretrain": Case(
        "run_pretrain",
        "pretrain",
        "demo",
        ("demo", "small"),
        "data.dir=text data.vocab_size=60 data.max_len=29 model.num_layers=1 model.embed_dim=8"
        " model.num_heads=2 model.mlp_dim=12",
        examples=EXAMPLES // 2,
    ),
    "glue": Case("run_finetune", "glue", "sst2", ("stsb", "imdb"), "data.max_len=19"),
    "files": Case(
        "run_finetune",
        "finetune",
        "multi_label",
        ("regression", "question_answering"),
        "data.max_len=19 data.overlap=0",
    ),
}
NUMBERS = ("0", "-1", "1", "2", "3", "5", "64", "99", "1000000000", "99999999999999999999999")
FRACTIONS = (
    *("0", "-1", "1", "0.5", "-0.0", "nan", "inf", "-inf", "1e30", "1e-30", "1e400", "1e-400"),
)
WORDS = (
    *("nystrom", "softmax", "linear", "reformer", "relu", "gelu", "bfloat16", "float16", "mean"),
    *("cosine", "schön", "/", "~"),
)
WILD = (
    *(*NUMBERS, *FRACTIONS, *WORDS, "", " ", "a\nb", "x" * 5000, "1e9", "true", "False", "None"),
    *("[1,2]", "(1,)", "{}", "()", "試し", "\u202e", "'", '"', "\\", "../..", "--", "=", ",", ":"),
)
# Values that a flag of that type accepts and the config or the model must validate.
OF_TYPE = {int: NUMBERS, float: FRACTIONS, bool: ("true", "false"), str: (*WORDS, "")}
OPTIONS = (
    *("num_landmarks", "conv_kernel_size", "pinv_iters", "pinv_start", "landmark_layout", "quirks"),
    *("dropout_rate", "num_hashes", "chunk_len", "num_buckets", "redraw", "projection_size"),
    *("num_features", "kernel", "orthogonal", "window", "num_global", "attention", "max_len"),
    *("conv_groups", "recipe", "landmarks", "é", ""),
)


@st.composite
def behind_the_colon(draw, case):
    """A valid argument, or a random combination of names, options and values."""
    if draw(st.integers(0, 3)):
        return case.argument
    parts = [draw(st.sampled_from((*case.others, "nystrm", *WILD)))]
    for _ in range(draw(st.integers(0, 2))):
        option = draw(st.sampled_from(OPTIONS))
        equals = draw(st.sampled_from(("=", "=", "=", "", "==")))
        parts.append(option + equals + draw(st.sampled_from((*WILD, *common.ATTENTIONS))))
    return ",".join(parts)


@st.composite
def flag(draw, keys):
    """One flag: most often a valid key with a value of its type."""
    key, value = draw(st.sampled_from(sorted(keys))), draw(st.sampled_from(WILD))
    if draw(st.integers(0, 3)):
        return f"--config.{key}={draw(st.sampled_from(OF_TYPE.get(keys[key], WILD)))}"
    cut = draw(st.integers(0, len(key) - 1))
    names = "seeds workdir mode topology price examples num_processes coordinator flagfile"
    invalid = (
        f"-config.{key}={value}",
        f"--config.{key}",
        f"--noconfig.{key}",
        f"--config.{key[:cut]}{key[cut + 1 :]}={value}",
        f"--config.{key}.more={value}",
        f"--config.{key.partition('.')[0]}={value}",
        f"--config.{value}=1",
        f"--{key}={value}",
        value,
    )
    others = (f"--{name}={value}" for name in names.split())
    return draw(st.sampled_from((*(f"--config.{key}={value}",) * 4, *invalid, *others)))


@st.composite
def command_lines(draw, case, first):
    """A config file, small values, up to three random flags (possibly repeated), and the last one."""
    config = importlib.import_module(f"configs.{case.config}").get_config(case.argument)
    keys = {f"{name}.{key}": type(x) for name, own in config.items() for key, x in own.items()}
    start = f"--config=configs/{case.config}.py:{draw(behind_the_colon(case))}"
    small = [f"--config.{value}" for value in (*case.values.split(), "train.batch_size=8")]
    drawn = draw(st.lists(flag(keys), min_size=1, max_size=3))
    if not draw(st.integers(0, 3)):
        drawn.append(drawn[0])
    return [start, *small, *first, *drawn, case.last]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model and its tokenizer, from which fine-tuning starts."""
    return fakes.checkpoint(tmp_path_factory.mktemp("checkpoint"))


def assert_answered(program, answer, arguments):
    """Requires exit code 0 with output, 1 with a plan that does not fit, or 2 with one line."""
    said = (arguments, answer)
    assert "Traceback" not in answer.errors, said
    if program == "run_plan" and answer.code in (0, 1):
        assert "memory per device" in answer.output, said
    elif answer.code == 0:
        assert answer.output == f"{CHECKED}\n", said
    else:
        assert_refused(answer, program)
        assert len(answer.errors.split()) > 3, said


@pytest.mark.slow_except("lra")
@pytest.mark.parametrize("name", CASES)
def test_any_command_line_is_rejected_or_gives_a_valid_config(
    name, in_repository, checkpoint, no_annotations
):
    case, codes = CASES[name], collections.Counter()
    first = [f"--config.init.checkpoint={checkpoint}"] if case.program == "run_finetune" else []

    @fuzz(case.examples)
    @given(command_lines(case, first))
    def holds(arguments):
        answer = call(case.program, *arguments)
        assert_answered(case.program, answer, arguments)
        codes[answer.code] += 1

    holds()
    assert codes[2] > 0
    assert codes[0] > 0, "nothing got as far as the model"
