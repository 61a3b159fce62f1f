"""Every kind of invalid config gives one exact message."""

import dataclasses
import re
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest

from nystromformer_jax.training import OptimizerConfig, TrainConfig, from_mapping, read_sections


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    learning_rate: float
    warmup_steps: int = 3
    schedule: Literal["one_cycle", "linear"] = "linear"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    clip: float | None = None
    events: bool = True
    name: str = ""
    items: tuple = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loose:
    dtype: Any = None
    scale: float = None
    sizes: Sequence[int] = (1, 2)
    names: Sequence = ()
    others: typing.Sequence = ()
    precision: Annotated[Any, Literal["float32", "bfloat16"]] = "float32"
    pairs: Sequence[tuple[int, int]] = ()


def test_loose_annotations_of_other_packages_accept_their_defaults():
    values = {"dtype": None, "scale": None, "sizes": [1, 2]}
    assert from_mapping(Loose, values, "attention") == Loose()
    values = {"dtype": [1, "a"], "scale": 1, "sizes": (3,), "names": ["b"]}
    expected = Loose(dtype=(1, "a"), scale=1.0, sizes=(3,), names=("b",))
    assert from_mapping(Loose, values, "attention") == expected
    for name, needed in (
        ("sizes", "a tuple, each item an int"),
        ("names", "a tuple"),
        ("others", "a tuple"),
        ("precision", "one of 'float32', 'bfloat16'"),
        ("pairs", "a tuple, each item a tuple (an int, an int)"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"attention.{name}: needs {needed}, got 3")):
            from_mapping(Loose, {name: 3}, "attention")


def test_rejects_an_annotation_that_does_not_exist_at_run_time():
    cls = dataclasses.make_dataclass("Lazy", [("size", "Missing", 3)])
    with pytest.raises(ValueError, match=r"an annotation of Lazy cannot be read \(name 'Missing'"):
        from_mapping(cls, {"size": 3}, "attention")


def test_values_have_the_annotated_types():
    values = {"learning_rate": 3, "sizes": [1, 2], "pair": (5, 6), "clip": 1, "events": False}
    values["items"] = [1, "a"]
    section = from_mapping(Section, values, "optimizer")
    assert section == Section(
        learning_rate=3.0, sizes=(1, 2), pair=(5, 6.0), clip=1.0, events=False, items=(1, "a")
    )
    assert [type(section.learning_rate), type(section.pair[1]), type(section.clip)] == [float] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1.0}, "x.learning_rat: no such key; did you mean x.learning_rate?"),
        (
            {"qqq": 1},
            "x.qqq: no such key; known: clip, events, items, learning_rate, name, pair, schedule, sizes,"
            " warmup_steps.",
        ),
        ({}, "x.learning_rate: missing; it needs a float."),
        ({"learning_rate": "1"}, "x.learning_rate: needs a float, got '1' (str)."),
        ({"learning_rate": True}, "x.learning_rate: needs a float, got True (bool)."),
        ({"learning_rate": float("nan")}, "x.learning_rate: needs a finite number, got nan."),
        ({"warmup_steps": 1.0}, "x.warmup_steps: needs an int, got 1.0 (float)."),
        ({"warmup_steps": False}, "x.warmup_steps: needs an int, got False (bool)."),
        ({"events": 1}, "x.events: needs a bool, got 1 (int)."),
        ({"name": 1}, "x.name: needs a str, got 1 (int)."),
        ({"schedule": "linaer"}, "x.schedule: 'linaer' is not a choice; did you mean linear?"),
        ({"schedule": "zz"}, "x.schedule: 'zz' is not a choice; known: linear, one_cycle."),
        ({"schedule": 1}, "x.schedule: needs one of 'one_cycle', 'linear', got 1 (int)."),
        ({"sizes": 3}, "x.sizes: needs a tuple, each item an int, got 3 (int)."),
        ({"sizes": (1, 2.5)}, "x.sizes[1]: needs an int, got 2.5 (float)."),
        ({"pair": (1,)}, "x.pair: needs a tuple (an int, a float), got (1,) (tuple)."),
        ({"clip": "1"}, "x.clip: needs a float, got '1' (str)."),
        ({"items": 1}, "x.items: needs a tuple, got 1 (int)."),
    ],
)
def test_errors_are_exact(values, message):
    if "learning_rat" not in str(values) and values:
        values = {"learning_rate": 1.0, **values}
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        from_mapping(Section, values, "x")
    assert str(refused.value) == message


def test_each_section_becomes_its_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Size:
        width: int

    sections = read_sections({"size": {"width": 3}, "free": {}}, {"size": Size}, plain=["free"])
    assert sections == {"size": Size(3)}
    for command in ("python run_lra.py", {"config": "configs/listops.py"}):  # as in version 0.2.0
        assert read_sections({"size": {"width": 3}, "command": command}, {"size": Size}) == sections
    with pytest.raises(ValueError, match=r"^sise: no such section; did you mean size\?$"):
        read_sections({"sise": {"width": 3}}, {"size": Size})
    with pytest.raises(ValueError, match=r"^free: this section is missing from the config\.$"):
        read_sections({"size": {"width": 3}}, {"size": Size}, plain=["free"])


def test_rejects_an_eps_of_zero():
    """AdamW would divide by zero where the gradient was always zero, as in rows of unused tokens."""
    with pytest.raises(ValueError, match=r"^optimizer\.eps: needs a positive number, got 0\.0\.$"):
        OptimizerConfig(learning_rate=1e-3, warmup_steps=0, eps=0.0)


@pytest.mark.parametrize("value", [10**23, -(10**23)])
def test_rejects_numbers_too_large_for_arrays(value):
    with pytest.raises(ValueError, match=r"train.total_steps: needs a number within ±2\*\*32"):
        from_mapping(TrainConfig, {"total_steps": value, "batch_size": 1}, "train")
