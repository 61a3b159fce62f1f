"""Scores a whole split outside of the loop: the test set at the end, or a finished run again."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

from jax.sharding import Mesh

from nystromformer_jax.training import metrics
from nystromformer_jax.training.config import FitConfig
from nystromformer_jax.training.mesh import host_share
from nystromformer_jax.training.pipeline import Examples, evaluation_batches
from nystromformer_jax.training.stop import Interrupted, Stopping, StopSignals
from nystromformer_jax.training.train_step import EvalStep, evaluate

__all__ = ["score"]


def score(
    eval_step: EvalStep,
    params: Any,
    examples: Examples,
    config: FitConfig,
    mesh: Mesh,
    summarize: Callable[[list[Any]], Any] = metrics.total_means,
) -> Any:
    """Scores `examples`, as many as `eval.max_examples` says; a signal ends it.

    Raises:
        Interrupted: SIGTERM or Ctrl-C; the same command does it again.
    """
    host, hosts = host_share(mesh)
    batches = evaluation_batches(
        examples,
        batch_size=config.eval_batch_size,
        limit=config.eval.max_examples,
        host=host,
        hosts=hosts,
    )
    with StopSignals() as stop, closing(batches):
        try:
            return evaluate(eval_step, params, stop.watch(batches), mesh, summarize)
        except Stopping:
            total_steps = config.train.total_steps
            raise Interrupted(stop.received or 0, total_steps, total_steps) from None
