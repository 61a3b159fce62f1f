"""The public names, each written once: `__init__.py` imports them from here on first use."""

from .accumulation import (
    choose_accumulation as choose_accumulation,
)
from .checkpoint import load_params as load_params
from .config import (
    SECTIONS as SECTIONS,
    CheckpointConfig as CheckpointConfig,
    EvalConfig as EvalConfig,
    FitConfig as FitConfig,
    HostsConfig as HostsConfig,
    LogConfig as LogConfig,
    MeshConfig as MeshConfig,
    OptimizerConfig as OptimizerConfig,
    TrainConfig as TrainConfig,
    from_mapping as from_mapping,
    read_sections as read_sections,
)
from .environment import (
    describe_environment as describe_environment,
    enable_compilation_cache as enable_compilation_cache,
    peak_bytes as peak_bytes,
)
from .errors import (
    CannotWrite as CannotWrite,
    CheckpointDamaged as CheckpointDamaged,
    ConfigDiffers as ConfigDiffers,
    DataGone as DataGone,
    Interrupted as Interrupted,
    LossNotFinite as LossNotFinite,
    NotFinished as NotFinished,
    ProcessLost as ProcessLost,
    RemoteError as RemoteError,
    WorkdirBusy as WorkdirBusy,
    exit_code_of as exit_code_of,
    writing_to as writing_to,
)
from .hosts import (
    StopSignals as StopSignals,
    detect_lost_process as detect_lost_process,
    initialize as initialize,
    is_primary as is_primary,
    shutdown as shutdown,
    sync_errors as sync_errors,
)
from .loop import (
    FitResult as FitResult,
    evaluate_split as evaluate_split,
    fit as fit,
    load_best_params as load_best_params,
    train_to_result as train_to_result,
)
from .mesh import (
    batch_sharding as batch_sharding,
    check_length as check_length,
    data_shard as data_shard,
    make_mesh as make_mesh,
    on_mesh as on_mesh,
    replicated as replicated,
    shard_batch as shard_batch,
    state_sharding as state_sharding,
)
from .optimizer import (
    make_optimizer as make_optimizer,
    make_schedule as make_schedule,
)
from .pipeline import (
    Examples as Examples,
    evaluation_batches as evaluation_batches,
    training_batches as training_batches,
)
from .plan import warn_if_too_large as warn_if_too_large
from .spec import TrainSpec as TrainSpec
from .topology import topology_devices as topology_devices
from .train_step import (
    EvalStep as EvalStep,
    TrainState as TrainState,
    apply_model as apply_model,
    evaluate as evaluate,
    make_eval_step as make_eval_step,
    make_train_step as make_train_step,
    means as means,
    weighted as weighted,
)
from .workdir import (
    Workdir as Workdir,
    config_sha256 as config_sha256,
)
