"""Any command line gives one sentence and exit code 2, or a valid config."""

import collections
import functools
import random

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.training import CHECKED
from nystromformer_jax import NystromformerConfig, NystromformerForPreTraining
from nystromformer_jax.pretrained import save_pretrained
from tests.bad_input.command_lines import command_lines
from tests.bad_input.fuzz import EXAMPLES, fuzz
from tests.programs import assert_refused, call, finish, start

CHECK = ("--mode=check",)
# Program, config and last arguments of each case: run_plan.py plans, the others check configs.
CASES = {
    "lra": ("run_lra", "listops", CHECK, 2 * EXAMPLES),
    "pretrain": ("run_pretrain", "pretrain", CHECK, 2 * EXAMPLES),
    "glue": ("run_finetune", "glue", CHECK, EXAMPLES),
    "files": ("run_finetune", "finetune", CHECK, EXAMPLES),
    "plan": ("run_plan", "listops", ("--nolargest_batch",), EXAMPLES // 4),
}
OFTEN = ("lra", "pretrain", "glue")
PROCESSES = 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model and its tokenizer, from which fine-tuning starts."""
    config = NystromformerConfig(
        vocab_size=60, max_len=29, embed_dim=8, num_layers=1, num_heads=2, mlp_dim=12
    )
    model = NystromformerForPreTraining(config)
    init = jax.jit(functools.partial(model.init, deterministic=True))
    variables = init(jax.random.key(0), jnp.ones((1, 5), jnp.int32))
    folder = tmp_path_factory.mktemp("checkpoint")
    save_pretrained(folder, model, variables, more={"pad_token_id": 0})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"word{i}" for i in range(60 - len(special)))]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    return folder


def lines_for(name, checkpoint):
    _, config, last, _ = CASES[name]
    first = [f"--config.init.checkpoint={checkpoint}"] if config in ("glue", "finetune") else []
    return command_lines(config, first, last)


def assert_answered(program, answer, arguments):
    """Requires exit code 0 with output, 1 with a plan that does not fit, or 2 with one line."""
    said = (arguments, answer)
    assert "Traceback" not in answer.errors, said
    if program == "run_plan" and answer.code in (0, 1):
        assert "memory per device" in answer.output, said
        return
    if answer.code == 0:
        assert answer.output == f"{CHECKED}\n", said
        return
    assert_refused(answer, program)
    assert len(answer.errors.split()) > 3, said


@pytest.mark.slow_except(*OFTEN)
@pytest.mark.parametrize("name", CASES)
def test_any_command_line_is_rejected_or_gives_a_valid_config(
    name, in_repository, checkpoint, no_annotations
):
    (program, *_, examples), codes = CASES[name], collections.Counter()

    @fuzz(examples)
    @given(lines_for(name, checkpoint))
    def holds(arguments):
        answer = call(program, *arguments)
        assert_answered(program, answer, arguments)
        codes[answer.code] += 1

    holds()
    assert codes[2] > 0
    assert codes[0] > 0, "nothing got as far as the model"


@pytest.mark.slow(minutes=2)
def test_processes_reject_or_accept_any_command_line(checkpoint):
    lines = []

    @fuzz(PROCESSES // 3)
    @given(st.tuples(*(lines_for(name, checkpoint) for name in OFTEN)))
    def draw(drawn):
        lines.extend(zip((CASES[name][0] for name in OFTEN), drawn, strict=True))

    draw()
    chosen = random.Random(0).sample(lines, PROCESSES)
    for program, arguments in chosen:
        print(program, arguments)  # shown if the test fails
        assert_answered(program, finish(start(f"{program}.py", *arguments)), arguments)
