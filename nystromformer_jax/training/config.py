"""Config sections shared by all trainers: schema, defaults and validation. Does not import jax."""

import dataclasses
import logging
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

from nystromformer_jax.support.durable import RECORDS
from nystromformer_jax.support.spelling import nearest

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Batch size, steps and seed."""

    total_steps: int  # number of updates of the parameters
    batch_size: int  # global batch size: examples per update on all devices
    seed: int = 0  # seed of initial parameters, order of the data and dropout
    # Gradient accumulation in parts. 0: the programs replace it (`choose_accumulation`), and `fit` uses 1.
    accumulation: int = 0
    remat: bool = False  # rematerialization: recompute activations in the backward pass
    budget_steps: int = 0  # a run of fewer steps is partial; 0: the default of the task

    def __post_init__(self) -> None:
        _at_least("train", self, total_steps=1, batch_size=1, seed=0, accumulation=0)
        _at_least("train", self, budget_steps=0)
        if self.seed >= 2**32:  # jax.random.key would truncate it
            raise ValueError(f"train.seed: needs a number below 2**32, got {self.seed}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (decoupled weight decay) with optional clipping by global gradient norm.

    With `method="muon"`, Muon updates the kernels of dense layers and dense convolutions. Its updates are
    scaled to the root mean square of AdamW's, so that one learning rate serves both. AdamW with Nesterov
    momentum updates the rest. Source of Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """

    method: Literal["adamw", "muon"] = "adamw"  # Muon updates dense kernels, AdamW the rest
    learning_rate: float  # peak of the schedule
    warmup_steps: int  # steps in which the rate rises linearly to the peak
    # After the warm-up, the rate falls to zero by the last step, except for "rsqrt", peak · √(warmup / step),
    # and "constant". "one_cycle" goes from a 25th to a 250,000th of the peak, as PyTorch's OneCycleLR.
    schedule: Literal["one_cycle", "linear", "cosine", "rsqrt", "constant"] = "one_cycle"
    beta1: float = 0.9  # β₁ of AdamW, decay of the mean of gradients
    beta2: float = 0.999  # β₂ of AdamW, decay of the mean of squared gradients
    eps: float = 1e-6  # ε of AdamW, added to the root of that mean
    weight_decay: float = 0.0  # decoupled, of all parameters; times the learning rate
    clip_norm: float = 0.0  # largest global norm of the gradient; 0: no clipping
    cycle_beta1: bool = False  # one_cycle: β₁ goes 0.95 → 0.85 → 0.95 and `beta1` is unused

    def __post_init__(self) -> None:
        for name, needed in (("method", "adamw"), ("schedule", "one_cycle")):
            if self.cycle_beta1 and (found := getattr(self, name)) != needed:
                raise ValueError(
                    f"optimizer.cycle_beta1: needs optimizer.{name}={needed!r}, got {found!r}."
                )
        for name in ("learning_rate", "eps"):  # eps=0: a gradient of zero would be divided by zero
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"optimizer.{name}: needs a positive number, got {getattr(self, name)}."
                )
        _at_least("optimizer", self, warmup_steps=0, weight_decay=0, clip_norm=0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"optimizer.{name}: needs a number in [0, 1), got {getattr(self, name)}."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation interval and size. The last step is always evaluated."""

    every_steps: int = 500  # steps between evaluations on the validation set
    max_examples: int = 0  # examples per evaluated split; 0: all
    # Examples per evaluation batch; 0: four accumulation parts, at most a training batch.
    batch_size: int = 0
    patience: int = 0  # evaluations in a row without a better one that end training; 0: never

    def __post_init__(self) -> None:
        _at_least("eval", self, every_steps=1, max_examples=0, batch_size=0, patience=0)

    def num_evaluated(self, count: int) -> int:
        """Returns how many of `count` examples are evaluated."""
        return min(count, self.max_examples) if self.max_examples else count


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Number of devices along each mesh axis; -1 uses all remaining devices.

    Args:
      data: Number of devices for data parallelism (batch axis).
      sequence: Number of devices for sequence parallelism (length axis).
      shard_params: Split parameters and optimizer state over all devices and gather them for each step.
        By default every device holds a full copy.
    """

    data: int = -1
    sequence: int = 1
    shard_params: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "sequence"):
            size = getattr(self, name)
            if size < 1 and size != -1:
                raise ValueError(f"mesh.{name}: needs a positive number or -1, got {size}.")
        if self.data == self.sequence == -1:
            raise ValueError(
                "mesh.data and mesh.sequence are both -1: set one of them to a positive number."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoint interval. Every evaluation and the last step are also saved."""

    every_steps: int = 500  # steps between checkpoints

    def __post_init__(self) -> None:
        _at_least("checkpoint", self, every_steps=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Logging interval and format. The last step is logged, too, unless `eval.patience` ends the run."""

    every_steps: int = 50  # steps between lines of metrics.jsonl
    events: bool = True  # TensorBoard events besides metrics.jsonl
    wandb: bool = False  # Weights & Biases besides metrics.jsonl; needs the package wandb

    def __post_init__(self) -> None:
        _at_least("log", self, every_steps=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """The config sections that the training loop reads (`SECTIONS`)."""

    optimizer: OptimizerConfig
    train: TrainConfig
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> "FitConfig":
        """Selects these sections from `sections`; warns if the warm-up is longer than the run."""
        config = cls(**{field.name: sections[field.name] for field in dataclasses.fields(cls)})
        warmup_steps, total_steps = config.optimizer.warmup_steps, config.train.total_steps
        if warmup_steps > total_steps:
            logging.getLogger(__name__).warning(
                "optimizer.warmup_steps=%d is more than train.total_steps=%d: the learning rate rises"
                " until the end and never reaches optimizer.learning_rate.",
                warmup_steps,
                total_steps,
            )
        return config

    def eval_batch_size(self, num_shards: int) -> int:
        """Returns the rows of an evaluation batch. By default four parts, which fit without gradients."""
        rows = self.train.batch_size
        parts = num_parts(self.train.accumulation, rows, num_shards)
        return self.eval.batch_size or min(rows, 4 * rows // parts)

    def check_batches(self, mesh: Any) -> None:
        """Raises ValueError unless the batch sizes are divisible by the data axis of `mesh` and the parts."""
        train, shards = self.train, mesh.shape["data"]
        for name, rows in (("train", train.batch_size), ("eval", self.eval.batch_size)):
            if rows % shards:
                raise ValueError(
                    f"{name}.batch_size={rows} is not divisible by mesh.data={shards}: pass a multiple"
                    f" of {shards}."
                )
        if train.batch_size % (train.accumulation or 1):
            raise ValueError(
                f"train.batch_size={train.batch_size} is not divisible by {train.accumulation} parts"
                f" (train.accumulation): pass a multiple of {train.accumulation}, or"
                " train.accumulation=0 to leave the number to the program."
            )


def num_parts(accumulation: int, batch_size: int, num_shards: int) -> int:
    """Returns the number of sequential parts of a batch that is split over `num_shards` devices.

    It is the largest divisor of `accumulation` (0: 1) with which all devices have equally many examples of a
    part. A device processes at most as many examples at once as a single device would.
    """
    return math.gcd(accumulation or 1, batch_size // num_shards)


SECTIONS: dict[str, type] = typing.get_type_hints(FitConfig)
# Keys in configs of older runs, without effect now.
REMOVED = {("train", "cpu_accumulation"), ("eval", "tune_threshold")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostsConfig:
    """Multi-process settings from the command-line flags.

    Args:
      distributed: Detect the processes from the cluster (a TPU pod, SLURM, Open MPI, Kubernetes).
      coordinator: `host:port` of the first process; empty: no manual setup.
      num_processes: Number of processes; needs `coordinator`.
      process_id: Index of this process, from 0; needs `coordinator`.
    """

    distributed: bool = False
    coordinator: str = ""
    num_processes: int | None = None
    process_id: int | None = None

    def __post_init__(self) -> None:
        count, number = self.num_processes, self.process_id
        named = (bool(self.coordinator), count is not None, number is not None)
        if any(named) and not all(named):
            raise ValueError(
                "--coordinator=HOST:PORT, --num_processes and --process_id go together: pass all"
                " three to each process, or pass --distributed if the cluster provides them."
            )
        if self.coordinator and self.distributed:
            raise ValueError(
                "--distributed reads the address from the cluster, --coordinator sets it: pass one of them."
            )
        host, _, port = self.coordinator.rpartition(":")
        if self.coordinator and not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(
                "--coordinator needs a host and a port from 1 to 65535, such as 10.0.0.2:8476; got"
                f" {self.coordinator!r}."
            )
        if count is not None and count < 1:
            raise ValueError(f"--num_processes needs a positive number, got {count}.")
        if count is not None and number is not None and not 0 <= number < count:
            raise ValueError(
                f"--process_id must be between 0 and {count - 1} with --num_processes={count}, got {number}."
            )


def _at_least(section: str, config: Any, **bounds: int) -> None:
    for name, bound in bounds.items():
        if not (value := getattr(config, name)) >= bound:
            raise ValueError(f"{section}.{name}: needs {bound} or more, got {value}.")


def from_mapping(cls: type[Section], values: Mapping[str, Any], section: str) -> Section:
    """Builds the dataclass `cls` from `values`; error messages include the name of the `section`.

    An int is accepted for a float and a list for a tuple. A bool is not accepted for a number.

    Raises:
      ValueError: A key is unknown or missing, or a value has the wrong type.
    """
    dataclass: Any = cls  # mypy cannot bound a type variable by dataclasses
    known = dataclasses.fields(dataclass)
    fields = {field.name: field for field in known if field.init}
    for key in values:
        if key not in fields:
            raise ValueError(f"{section}.{key}: no such key{nearest(key, fields, f'{section}.')}")
    try:
        annotations = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:  # imported under TYPE_CHECKING only
        raise ValueError(
            f"{section}: an annotation of {cls.__name__} cannot be read ({error}). Import its"
            " type at run time."
        ) from None
    for name, field in fields.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and name not in values:
            raise ValueError(f"{section}.{name}: missing; it needs {_describe(annotations[name])}.")
    return cls(
        **{
            key: None  # also for `scale: float = None`
            if value is None and fields[key].default is None
            else _convert(value, annotations[key], f"{section}.{key}")
            for key, value in values.items()
        }
    )


def read_sections(
    config: Mapping[str, Any], kinds: Mapping[str, type], plain: Iterable[str] = ()
) -> dict[str, Any]:
    """Converts every config section to its dataclass in `kinds` with `from_mapping`.

    The sections `plain` are required as well, but are not converted.

    Raises:
      ValueError: A section is unknown, missing or invalid.
    """
    known = [*kinds, *plain]
    config = {
        name: {key: value for key, value in section.items() if (name, key) not in REMOVED}
        if isinstance(section, Mapping)
        else section
        for name, section in config.items()
    }
    for name, section in config.items():
        # Texts say how the run was started; version 0.2.0 recorded its command as a section.
        is_record = name in (*RECORDS, "command") or isinstance(section, str)
        if name not in known and not is_record:
            raise ValueError(f"{name}: no such section{nearest(name, known)}")
    for name in known:
        if name not in config:
            raise ValueError(f"{name}: this section is missing from the config.")
    return {name: from_mapping(kind, config[name], name) for name, kind in kinds.items()}


def _convert(value: Any, annotation: Any, where: str) -> Any:
    """Returns `value` converted to `annotation`, or raises ValueError."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, object):
        return _as_tuple(value)
    if origin is Annotated:  # the second argument is the type in config files
        return _convert(value, arguments[1], where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) == 1:
            return _convert(value, inner[0], where)
        for argument in inner:
            try:
                return _convert(value, argument, where)
            except ValueError:
                continue
    elif origin is Literal:
        # 1 == True == 1.0, so the types are compared as well.
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
        if isinstance(value, str):
            hint = nearest(value, [choice for choice in arguments if isinstance(choice, str)])
            raise ValueError(f"{where}: {value!r} is not a choice{hint}")
    elif _is_any_tuple(annotation) and isinstance(value, (tuple, list)):
        return _as_tuple(value)
    elif origin in (tuple, Sequence) and isinstance(value, (tuple, list)):
        if origin is Sequence or arguments[1:] == (Ellipsis,):
            arguments = (arguments[0],) * len(value)
        if len(arguments) == len(value):
            pairs = enumerate(zip(value, arguments, strict=True))
            return tuple(_convert(item, kind, f"{where}[{i}]") for i, (item, kind) in pairs)
    elif annotation is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError(f"{where}: needs a finite number, got {value!r}.")
            return float(value)
    elif annotation is int:
        if isinstance(value, int) and not isinstance(value, bool):
            if not -(2**32) <= value <= 2**32:  # arrays cannot hold larger integers
                raise ValueError(f"{where}: needs a number within ±2**32, got {value}.")
            return value
    elif annotation in (bool, str) and isinstance(value, annotation):
        return value
    raise ValueError(
        f"{where}: needs {_describe(annotation)}, got {value!r} ({type(value).__name__})."
    )


def _as_tuple(value: Any) -> Any:
    """Converts lists to tuples, at any depth."""
    return tuple(map(_as_tuple, value)) if isinstance(value, (tuple, list)) else value


def _describe(annotation: Any) -> str:
    """Returns a description of a type annotation for messages, such as "an int"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is Annotated:
        return _describe(arguments[1])
    if _is_any_tuple(annotation):
        return "a tuple"
    if origin is Sequence or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return f"a tuple, each item {_describe(arguments[0])}"
    if origin is tuple:
        return f"a tuple ({', '.join(map(_describe, arguments))})"
    names = {int: "an int", float: "a float", bool: "a bool", str: "a str", type(None): "None"}
    return names.get(annotation, str(annotation))


def _is_any_tuple(annotation: Any) -> bool:
    """Returns True for an annotation of a tuple or a sequence without the types of its items."""
    origin = typing.get_origin(annotation) or annotation
    return origin in (tuple, Sequence) and not typing.get_args(annotation)
