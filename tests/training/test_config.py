"""Every kind of invalid config names its key and what the key needs."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest

from nystromformer_jax.training import SECTIONS, from_mapping, read_sections


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
    """Annotations of other packages."""

    dtype: Any = None
    scale: float = None
    sizes: Sequence[int] = (1, 2)
    names: Sequence = ()
    others: typing.Sequence = ()
    precision: Annotated[Any, Literal["float32", "bfloat16"]] = "float32"
    pairs: Sequence[tuple[int, int]] = ()


def test_values_have_the_annotated_types():
    values = {"learning_rate": 3, "sizes": [1, 2], "pair": (5, 6), "clip": 1, "events": False}
    values |= {"items": [1, "a"], "warmup_steps": 2**32}
    section = from_mapping(Section, values, "optimizer")
    expected = {"learning_rate": 3.0, "sizes": (1, 2), "pair": (5, 6.0), "clip": 1.0}
    assert section == Section(**values | expected | {"items": (1, "a")})
    assert [type(section.learning_rate), type(section.pair[1]), type(section.clip)] == [float] * 3


def test_loose_annotations_accept_their_defaults():
    values = {"dtype": None, "scale": None, "sizes": [1, 2]}
    assert from_mapping(Loose, values, "attention") == Loose()
    values = {"dtype": [1, "a"], "scale": 1, "sizes": (3,), "names": ["b"]}
    expected = Loose(dtype=(1, "a"), scale=1.0, sizes=(3,), names=("b",))
    assert from_mapping(Loose, values, "attention") == expected


@pytest.mark.parametrize(
    ("cls", "key", "value", "words"),
    [
        (Section, "learning_rat", 1.0, "did you mean x.learning_rate"),
        (Section, "qqq", 1, "known: clip, events"),
        (Section, "learning_rate", "1", "a float, got '1'"),
        (Section, "learning_rate", float("nan"), "finite"),
        (Section, "warmup_steps", 1.0, "an int"),
        (Section, "warmup_steps", False, "an int"),
        (Section, "warmup_steps", 2**32 + 1, "2**32"),
        (Section, "events", 1, "a bool"),
        (Section, "name", 1, "a str"),
        (Section, "schedule", "linaer", "did you mean linear"),
        (Section, "schedule", "zz", "known: linear, one_cycle"),
        (Section, "sizes", 3, "a tuple, each item an int"),
        (Section, "sizes", (1, 2.5), "sizes[1]: needs an int"),
        (Section, "pair", (1,), "a tuple (an int, a float)"),
        (Section, "clip", "1", "a float"),
        (Loose, "names", 3, "a tuple"),
        (Loose, "others", 3, "a tuple"),
        (Loose, "precision", 3, "'float32', 'bfloat16'"),
        (Loose, "pairs", 3, "a tuple, each item a tuple (an int, an int)"),
    ],
)
def test_an_invalid_value_names_its_key_and_what_it_needs(cls, key, value, words):
    required = {"learning_rate": 1.0} if cls is Section else {}
    with pytest.raises(ValueError, match=rf"^x\.{key}") as refused:
        from_mapping(cls, {**required, key: value}, "x")
    assert words in str(refused.value)


def test_rejects_a_missing_key_and_an_annotation_that_does_not_exist_at_run_time():
    with pytest.raises(ValueError, match=r"^x\.learning_rate: missing"):
        from_mapping(Section, {}, "x")
    cls = dataclasses.make_dataclass("Lazy", [("size", "Missing", 3)])
    with pytest.raises(ValueError, match="'Missing'"):
        from_mapping(cls, {"size": 3}, "attention")


def test_each_section_becomes_its_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Size:
        width: int

    values, kinds = {"size": {"width": 3}}, {"size": Size}
    assert read_sections({**values, "free": {}}, kinds, plain=["free"]) == {"size": Size(3)}
    for command in ("python run_lra.py", {"config": "configs/listops.py"}):  # as in version 0.2.0
        assert read_sections({**values, "command": command}, kinds) == {"size": Size(3)}
    with pytest.raises(ValueError, match=r"^sise: .* did you mean size"):
        read_sections({"sise": {"width": 3}}, kinds)
    with pytest.raises(ValueError, match=r"^free: .* missing"):
        read_sections(values, kinds, plain=["free"])


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *((name, 1) for name in ("train.total_steps", "train.batch_size", "eval.every_steps")),
        *((f"train.{key}", 0) for key in ("seed", "accumulation", "budget_steps")),
        *((f"eval.{key}", 0) for key in ("max_examples", "batch_size")),
        *((f"{section}.every_steps", 1) for section in ("checkpoint", "log")),
    ],
)
def test_numbers_have_a_lower_limit(name, least):
    section, key = name.split(".")
    required = {"total_steps": 3, "batch_size": 3} if section == "train" else {}
    assert getattr(SECTIONS[section](**{**required, key: least}), key) == least
    with pytest.raises(ValueError, match=rf"{section}\.{key}: needs {least} or more"):
        SECTIONS[section](**{**required, key: least - 1})
