"""The options of Nyström attention are the same wherever they are listed."""

import dataclasses
import inspect
import typing

import pytest

from nystromformer_jax import (
    NystromAttention,
    NystromformerConfig,
    nystrom_attention,
    nystrom_factors,
    sharded_nystrom_attention,
)
from nystromformer_jax.attention.options import (
    DEFAULTS,
    NystromOptions,
    OptionArguments,
    is_default,
    options_of,
)


def test_lists_and_defaults_of_options_agree():
    assert typing.get_type_hints(OptionArguments) == typing.get_type_hints(NystromOptions)
    signature = inspect.signature(nystrom_attention).parameters
    fields = {field.name: field.default for field in dataclasses.fields(NystromformerConfig)}
    for name, value in DEFAULTS.items():
        assert signature[name].default == value
        assert fields[name] == value


def test_a_core_and_a_config_carry_all_options():
    changed = NystromOptions(num_landmarks=7, pinv="ridge", normalize_rows=True)
    values = dataclasses.asdict(changed)
    assert options_of(NystromAttention(**values)) == changed
    more = {"conv_kernel_size": 9, "mask_conv": False, "implementation": "xla"}
    config = NystromformerConfig(vocab_size=9, **values | more)
    assert options_of(config) == dataclasses.replace(changed, mask_conv=False)
    core = config.make_core()()
    assert {name: getattr(core, name) for name in values | more} == values | more
    config = dataclasses.replace(config, attention="softmax", attention_dropout_rate=0.3)
    softmax = config.make_core()()
    assert (softmax.dropout_rate, softmax.conv_kernel_size, softmax.mask_conv) == (0.3, 9, False)


@pytest.mark.parametrize("function", [nystrom_factors, sharded_nystrom_attention])
def test_an_unknown_option_names_the_function(function, no_annotations):
    query = [[[[1.0]]]]
    arguments = {"mesh": None} if function is sharded_nystrom_attention else {}
    tokens = [query] * (3 if arguments else 2)
    words = rf"{function.__name__}\(\) .* 'num_landmark'; did you mean num_landmarks"
    with pytest.raises(TypeError, match=words):
        function(*tokens, **arguments, num_landmark=3)


def test_a_value_with_which_older_runs_began_is_the_default():
    assert is_default("attention.pinv", "iterative")
    assert is_default("attention.mask_conv", True)
    assert not is_default("attention.mask_conv", False)
    assert not is_default("attention.pinv", "ridge")
    assert not is_default("attention.num_landmarks", 64)  # absent: that of the checkpoint
    assert not is_default("model.pinv", "iterative")
    assert is_default("model.stem", ())
