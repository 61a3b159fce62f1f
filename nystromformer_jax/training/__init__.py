"""What every trainer needs, and the one loop; needs more than the attention does (extra `lra`)."""

# isort: off

# Config sections: strings stop at the door
from nystromformer_jax.training.checkpoint import CheckpointConfig
from nystromformer_jax.training.config import EvalConfig, FitConfig, LogConfig, TrainConfig
from nystromformer_jax.training.settings import from_mapping, read_sections

# Where a run lies, and what it leaves there
from nystromformer_jax.durable import read_json, write_json
from nystromformer_jax.training.checkpoint import load_params
from nystromformer_jax.training.environment import describe_environment
from nystromformer_jax.training.integrity import CheckpointDamaged
from nystromformer_jax.training.workdir import (
    ConfigDiffers,
    DataGone,
    NotFinished,
    Workdir,
    WorkdirBusy,
    config_sha256,
)
from nystromformer_jax.training.writing import CannotWrite, writing_to
from nystromformer_jax.training.exit_codes import exit_code_of

# Devices, and the processes that have them
from nystromformer_jax.training.compilation_cache import enable_compilation_cache
from nystromformer_jax.training.hosts import (
    HostsConfig,
    ProcessLost,
    RefusedElsewhere,
    agreed,
    is_first,
    join,
    leave,
    naming_the_lost,
)
from nystromformer_jax.training.mesh import (
    MeshConfig,
    batch_sharding,
    check_length,
    host_share,
    make_mesh,
    on_mesh,
    place,
    replicated,
    sequence_axis,
    state_sharding,
)

# Data, optimizer, metrics
from nystromformer_jax.training.metrics import means, weighted
from nystromformer_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from nystromformer_jax.training.pipeline import Examples, evaluation_batches, training_batches
from nystromformer_jax.training.speed import peak_bytes

# The two compiled steps, and the loop
from nystromformer_jax.training.job import Job
from nystromformer_jax.training.loop import LossNotFinite, Outcome, fit
from nystromformer_jax.training.scoring import score
from nystromformer_jax.training.stop import Interrupted, Stopping, StopSignals
from nystromformer_jax.training.train_step import (
    EvalStep,
    TrainState,
    apply_model,
    evaluate,
    make_eval_step,
    make_train_step,
    step_shapes,
)

# isort: on

__all__ = [
    "CannotWrite",
    "CheckpointConfig",
    "CheckpointDamaged",
    "ConfigDiffers",
    "DataGone",
    "EvalConfig",
    "EvalStep",
    "Examples",
    "FitConfig",
    "HostsConfig",
    "Interrupted",
    "Job",
    "LogConfig",
    "LossNotFinite",
    "MeshConfig",
    "NotFinished",
    "OptimizerConfig",
    "Outcome",
    "ProcessLost",
    "RefusedElsewhere",
    "StopSignals",
    "Stopping",
    "TrainConfig",
    "TrainState",
    "Workdir",
    "WorkdirBusy",
    "agreed",
    "apply_model",
    "batch_sharding",
    "check_length",
    "config_sha256",
    "describe_environment",
    "enable_compilation_cache",
    "evaluate",
    "evaluation_batches",
    "exit_code_of",
    "fit",
    "from_mapping",
    "host_share",
    "is_first",
    "join",
    "leave",
    "load_params",
    "make_eval_step",
    "make_mesh",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "means",
    "naming_the_lost",
    "on_mesh",
    "peak_bytes",
    "place",
    "read_json",
    "read_sections",
    "replicated",
    "score",
    "sequence_axis",
    "state_sharding",
    "step_shapes",
    "training_batches",
    "weighted",
    "write_json",
    "writing_to",
]
