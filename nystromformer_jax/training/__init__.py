"""Training loop, configuration, data pipeline and checkpoints for trainers. Requires the extra `lra`.

Names are imported on first use: `nystromformer_jax.training.config` loads without jax.
"""

import importlib.util
from typing import TYPE_CHECKING

from nystromformer_jax import lazy_names

if _missing := [n for n in ("chex", "grain", "optax", "orbax") if not importlib.util.find_spec(n)]:
    raise ModuleNotFoundError(
        f"nystromformer_jax.training needs {', '.join(_missing)}, not installed here. Install the extra:"
        " pip install 'nystromformer-jax[lra]'.",
        name=_missing[0],
    )

if TYPE_CHECKING:
    from nystromformer_jax.support.durable import read_json, write_json
    from nystromformer_jax.training.accumulation import choose_accumulation, keep_accumulation
    from nystromformer_jax.training.checkpoint import load_params
    from nystromformer_jax.training.config import (
        SECTIONS,
        CheckpointConfig,
        EvalConfig,
        FitConfig,
        HostsConfig,
        LogConfig,
        MeshConfig,
        OptimizerConfig,
        TrainConfig,
        from_mapping,
        read_sections,
    )
    from nystromformer_jax.training.environment import (
        describe_environment,
        enable_compilation_cache,
        peak_bytes,
    )
    from nystromformer_jax.training.errors import (
        CannotWrite,
        CheckpointDamaged,
        ConfigDiffers,
        DataGone,
        Interrupted,
        LossNotFinite,
        NotFinished,
        ProcessLost,
        RemoteError,
        WorkdirBusy,
        exit_code_of,
        writing_to,
    )
    from nystromformer_jax.training.hosts import (
        StopSignals,
        detect_lost_process,
        initialize,
        is_primary,
        shutdown,
        sync_errors,
    )
    from nystromformer_jax.training.loop import (
        FitResult,
        evaluate_split,
        fit,
        load_best_params,
        train_to_result,
    )
    from nystromformer_jax.training.mesh import (
        batch_sharding,
        check_length,
        data_shard,
        make_mesh,
        on_mesh,
        replicated,
        shard_batch,
        state_sharding,
    )
    from nystromformer_jax.training.optimizer import make_optimizer, make_schedule
    from nystromformer_jax.training.pipeline import Examples, evaluation_batches, training_batches
    from nystromformer_jax.training.plan import warn_if_too_large
    from nystromformer_jax.training.spec import TrainSpec
    from nystromformer_jax.training.topology import topology_devices
    from nystromformer_jax.training.train_step import (
        EvalStep,
        TrainState,
        apply_model,
        evaluate,
        make_eval_step,
        make_train_step,
        means,
        weighted,
    )
    from nystromformer_jax.training.workdir import (
        Workdir,
        check_folder,
        config_sha256,
    )

__all__ = [
    "SECTIONS",
    "CannotWrite",
    "CheckpointConfig",
    "CheckpointDamaged",
    "ConfigDiffers",
    "DataGone",
    "EvalConfig",
    "EvalStep",
    "Examples",
    "FitConfig",
    "FitResult",
    "HostsConfig",
    "Interrupted",
    "LogConfig",
    "LossNotFinite",
    "MeshConfig",
    "NotFinished",
    "OptimizerConfig",
    "ProcessLost",
    "RemoteError",
    "StopSignals",
    "TrainConfig",
    "TrainSpec",
    "TrainState",
    "Workdir",
    "WorkdirBusy",
    "apply_model",
    "batch_sharding",
    "check_folder",
    "check_length",
    "choose_accumulation",
    "config_sha256",
    "data_shard",
    "describe_environment",
    "detect_lost_process",
    "enable_compilation_cache",
    "evaluate",
    "evaluate_split",
    "evaluation_batches",
    "exit_code_of",
    "fit",
    "from_mapping",
    "initialize",
    "is_primary",
    "keep_accumulation",
    "load_best_params",
    "load_params",
    "make_eval_step",
    "make_mesh",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "means",
    "on_mesh",
    "peak_bytes",
    "read_json",
    "read_sections",
    "replicated",
    "shard_batch",
    "shutdown",
    "state_sharding",
    "sync_errors",
    "topology_devices",
    "train_to_result",
    "training_batches",
    "warn_if_too_large",
    "weighted",
    "write_json",
    "writing_to",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        (
            "config",
            "errors",
            "checkpoint",
            "accumulation",
            "environment",
            "workdir",
            "hosts",
            "mesh",
            "optimizer",
            "pipeline",
            "spec",
            "topology",
            "train_step",
            "plan",
            "loop",
        ),
        __all__,
    )
