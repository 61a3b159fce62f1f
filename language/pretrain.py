"""Pretraining as BERT's: masked words and the order of two sentences, on a corpus of one's own."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from harness import cache
from language.corpus import Corpus, CorpusConfig, Pairs
from language.initial import (
    InitConfig,
    check_tokenizer,
    model_config,
    read_params,
    require_packages,
)
from language.masking import ObjectiveConfig, Vocabulary, ask
from language.tokenizer import Tokenizer
from nystromformer_jax import NystromformerConfig, NystromformerForPreTraining
from nystromformer_jax.pretrained import save_pretrained
from nystromformer_jax.training import (
    CheckpointConfig,
    EvalConfig,
    Examples,
    FitConfig,
    Job,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    Workdir,
    agreed,
    apply_model,
    check_length,
    fit,
    is_first,
    load_params,
    make_eval_step,
    make_mesh,
    read_sections,
    score,
    sequence_axis,
    weighted,
    writing_to,
)
from nystromformer_jax.typing import Array

SECTIONS: dict[str, type] = {
    "data": CorpusConfig,
    "objective": ObjectiveConfig,
    "init": InitConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "mesh": MeshConfig,
    "checkpoint": CheckpointConfig,
    "log": LogConfig,
}
PATHS = ("data.dir", "data.tokenizer", "data.workers")
EVALUATION_SEED = 0  # of what an evaluation asks: the same words at every step and in every run


@dataclasses.dataclass(frozen=True)
class Run:
    """A config whose every value was checked, and the mesh it runs on."""

    config: Mapping[str, Any]  # as it came: plain sections, for `config.json`
    data: CorpusConfig
    objective: ObjectiveConfig
    init: InitConfig
    fit: FitConfig
    mesh: Mesh


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Checks a config before anything is prepared, written or compiled.

    Args:
      config: Sections of plain values.
      devices: What to lay the mesh out on; None: all there are.

    Raises:
      ValueError: One sentence that names the section and key, what came and what is known.
      FileNotFoundError: There is no checkpoint where `init.checkpoint` says.
      ImportError: A package of the extra `language` is not installed.
    """
    require_packages()
    sections = read_sections(config, SECTIONS, plain=["model", "attention"])
    data, init = sections["data"], sections["init"]
    if init.checkpoint and not data.tokenizer:
        data = dataclasses.replace(data, tokenizer=init.checkpoint)
    mesh = make_mesh(sections["mesh"], devices)
    fit_config = FitConfig.of(sections)
    fit_config.check_batches(mesh)
    check_length(mesh, data.max_len, "data.max_len")
    run = Run(config, data, sections["objective"], init, fit_config, mesh)
    # For its errors, and those of the model; a tokenizer that is read has a size of its own.
    model = NystromformerForPreTraining(_model_config(run, data.vocab_size))
    jax.eval_shape(_make_params(run, model))
    return run


def is_partial(run: Run, corpus: Corpus) -> bool:
    """Whether a run trains on fewer pairs than its corpus gives, or fewer steps than its config's."""
    fewer_pairs = len(corpus.splits["train"]) < corpus.statistics["train"].pairs
    return fewer_pairs or run.fit.train.total_steps < run.fit.train.budget_steps


def train(run: Run, corpus: Corpus, workdir: Workdir) -> dict[str, Any]:
    """Trains, or goes on; then scores the best checkpoint on the held-out documents, and exports it.

    Returns:
      What `result.json` holds. A finished run's is returned as it is, and nothing is trained.
    """
    workdir.require_data(corpus.sha256)
    if workdir.result is not None:
        return workdir.result
    config = _model_config(run, corpus.tokenizer.vocab_size)
    check_tokenizer(corpus.tokenizer, config)
    model = NystromformerForPreTraining(config)
    make_params = _make_params(run, model)

    start_params = None
    if run.init.reads_weights and not workdir.has_checkpoints:
        start_params = read_params(
            run.init, config, NystromformerForPreTraining, run.fit.train.seed
        )
    loss_fn = make_loss(model, vocabulary_of(corpus.tokenizer), run.objective)
    eval_step = make_eval_step(loss_fn, run.mesh)
    outcome = fit(
        workdir,
        run.fit,
        mesh=run.mesh,
        make_params=make_params,
        start_params=start_params,
        loss_fn=loss_fn,
        eval_step=eval_step,
        training=examples(corpus.splits["train"], run.data.max_len),
        validation=examples(corpus.splits["valid"], run.data.max_len),
        select="loss",
    )
    params = load_params(workdir.checkpoints, outcome.best_step, make_params, run.mesh)
    workdir.require_unchanged(lambda: cache.require_unchanged(corpus.folder, corpus.sha256))
    with agreed(), writing_to(workdir.path):
        if is_first():
            save_model(workdir.path / "model", model, params, corpus)
    train_config = run.fit.train
    result = {
        "kind": "pretrain",
        "attention": config.attention,
        "init": run.init.checkpoint,
        "seed": train_config.seed,
        "valid": _with_perplexity(outcome.best_metrics),
        "valid_examples": _scored(run, corpus),
        "baselines": baselines(corpus),
        "best_step": outcome.best_step,
        "total_steps": train_config.total_steps,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **outcome.cost,
        **workdir.environment,
        "config_sha256": workdir.config_sha256,
        "data_sha256": corpus.sha256,
        "partial": is_partial(run, corpus),
    }
    workdir.write_result(result)
    return result


def job(run: Run, vocabulary: Vocabulary | None = None) -> Job:
    """The training step of a run.

    Args:
      run: The run.
      vocabulary: Of the corpus; None: as many tokens as the config says, which costs the same.
    """
    if vocabulary is None:
        size = run.data.vocab_size
        if run.init.checkpoint:
            size = _model_config(run, size).vocab_size
        starts = np.ones(size, bool)
        vocabulary = Vocabulary.of(mask_id=0, special_ids=(0,), word_starts=starts)
    else:
        size = len(vocabulary.word_starts)
    model = NystromformerForPreTraining(_model_config(run, size))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return Job(
        config=run.fit,
        mesh=run.mesh,
        make_params=_make_params(run, model),
        loss_fn=make_loss(model, vocabulary, run.objective),
        row={
            "inputs": jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32),
            **dict.fromkeys(("first_len", "second_len", "example"), number),
        },
    )


def make_loss(
    model: NystromformerForPreTraining, vocabulary: Vocabulary, objective: ObjectiveConfig
) -> Any:
    """The loop's loss: cross-entropy of the asked tokens, and of the order.

        (Σ token losses + order_weight · Σ wanted · order loss) / Σ wanted

    with the sums over a batch's tokens and pairs, and `wanted` the tokens that a pair's share comes to. So
    the order's loss is a mean that weighs pairs by their length, the tokens' is one but for the few per
    cent that whole words leave out, and both add up exactly over the parts of a batch. (Accumulated parts
    ask for other words than the undivided batch, as their dropout is another.)
    """

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        root = jax.random.key(EVALUATION_SEED) if dropout_rng is None else dropout_rng
        asked = ask(
            jax.random.fold_in(root, 1),
            batch["inputs"],
            batch["first_len"],
            batch["second_len"],
            batch["example"],
            vocabulary=vocabulary,
            config=objective,
        )
        inputs = (asked.inputs, asked.mask, asked.types, asked.positions)
        token_logits, order_logits = apply_model(model, params, dropout_rng, *inputs)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        weights = asked.weights * batch["weights"][:, None]
        token_losses = cross_entropy(token_logits, asked.targets)
        order_losses = cross_entropy(order_logits, asked.order)
        mlm_loss = weighted(token_losses.ravel(), weights.ravel())
        right = token_logits.argmax(axis=-1) == asked.targets
        sums = {"mlm_loss": mlm_loss, "mlm_accuracy": weighted(right.ravel(), weights.ravel())}
        loss_sum = mlm_loss[0]
        wanted = batch["weights"] * asked.wanted
        if objective.order_weight > 0:
            order_loss = weighted(order_losses, batch["weights"])
            guessed = order_logits.argmax(axis=-1) == asked.order
            sums["order_loss"] = order_loss
            sums["order_accuracy"] = weighted(guessed, batch["weights"])
            loss_sum = loss_sum + objective.order_weight * (wanted * order_losses).sum()
        sums["loss"] = (loss_sum, wanted.sum())
        return loss_sum, sums

    return loss_fn


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """What masking needs of a tokenizer."""
    return Vocabulary.of(
        mask_id=tokenizer.mask_id,
        special_ids=tuple(tokenizer.special_ids),
        word_starts=tokenizer.word_starts(),
    )


def examples(pairs: Pairs, max_len: int) -> Examples:
    """A split as the pipeline sees it."""
    return Examples(len(pairs), lambda indices: pairs.batch(indices, max_len))


def save_model(
    folder: Path, model: NystromformerForPreTraining, params: Any, corpus: Corpus
) -> None:
    """Writes the model in Hugging Face's layout, its tokenizer beside it."""
    tokenizer = corpus.tokenizer
    save_pretrained(folder, model, {"params": params}, more=tokenizer.token_ids)
    tokenizer.save(folder, model.config.max_len)


def baselines(corpus: Corpus) -> dict[str, float]:
    """What can be scored without reading: the most frequent token of training, and a constant order."""
    special = list(corpus.tokenizer.special_ids)
    train, valid = (corpus.splits[name].token_counts().copy() for name in ("train", "valid"))
    train[special] = valid[special] = 0
    most_frequent = int(np.argmax(train))
    return {
        "mlm_accuracy": float(valid[most_frequent] / max(valid.sum(), 1)),
        "mlm_loss": _unigram_loss(train, valid),
        "order_accuracy": 0.5,
    }


def _unigram_loss(train: np.ndarray, valid: np.ndarray) -> float:
    """Cross-entropy of `valid` under the frequencies of `train`, each token counted once more."""
    probability = (train + 1) / (train + 1).sum()
    return float(-(valid * np.log(probability)).sum() / max(valid.sum(), 1))


def score_again(run: Run, corpus: Corpus, workdir: Workdir) -> dict[str, Any]:
    """Scores a finished run's best checkpoint on the held-out documents; writes nothing.

    Raises:
      NotFinished: The run's best checkpoint is not known yet.
    """
    result = workdir.require_result()
    workdir.require_data(corpus.sha256)
    model = NystromformerForPreTraining(_model_config(run, corpus.tokenizer.vocab_size))
    params = load_params(
        workdir.checkpoints, result["best_step"], _make_params(run, model), run.mesh
    )
    eval_step = make_eval_step(
        make_loss(model, vocabulary_of(corpus.tokenizer), run.objective), run.mesh
    )
    pairs = examples(corpus.splits["valid"], run.data.max_len)
    valid = _with_perplexity(score(eval_step, params, pairs, run.fit, run.mesh))
    return {**result, "valid": valid, "valid_examples": _scored(run, corpus)}


def sentence(result: Mapping[str, Any]) -> str:
    """What a run has come to, in one sentence."""
    valid, least = result["valid"], result["baselines"]
    order = ""
    if "order_accuracy" in valid:
        order = f", the order of {100 * valid['order_accuracy']:.2f} % of the pairs"
    return (
        f"Guessed {100 * valid['mlm_accuracy']:.2f} % of the masked tokens (the most frequent one is"
        f" {100 * least['mlm_accuracy']:.2f} %){order}; perplexity {valid['perplexity']:.1f}, on"
        f" {result['valid_examples']:,} held-out pairs, at step {result['best_step']:,}."
    )


def _model_config(run: Run, vocab_size: int) -> NystromformerConfig:
    sizes = {"vocab_size": vocab_size, "max_len": run.data.max_len}
    config = model_config(run.config["model"], run.config["attention"], run.init, **sizes)
    axis = sequence_axis(run.mesh)
    return dataclasses.replace(config, sequence_axis=axis, remat=run.fit.train.remat)


def _make_params(run: Run, model: NystromformerForPreTraining) -> Callable[[], Any]:
    """Makes the initial parameters of a run, from its seed."""
    tokens = jnp.zeros((1, run.data.max_len), jnp.int32)
    seed = run.fit.train.seed
    return lambda: model.init(jax.random.key(seed), tokens, deterministic=True)["params"]


def _scored(run: Run, corpus: Corpus) -> int:
    """How many pairs of the held-out documents are scored."""
    return run.fit.eval.scored(len(corpus.splits["valid"]))


def _with_perplexity(valid: Mapping[str, float]) -> dict[str, float]:
    return {**valid, "perplexity": math.exp(min(valid["mlm_loss"], 700.0))}  # beyond is infinite
