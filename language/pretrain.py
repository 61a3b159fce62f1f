"""BERT-style pretraining on a local corpus with masked tokens and sentence order."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dataprep import cache
from language.checkpoint import (
    check_same_vocabulary,
    check_tokenizer,
    make_params,
    model_config,
    read_params,
    record_weights,
    require_packages,
    save_model,
)
from language.config import InitConfig, ObjectiveConfig
from language.corpus import Corpus, CorpusConfig, Pairs, describe
from language.masking import Vocabulary, mask_pairs
from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax import NystromformerConfig, NystromformerForPreTraining, training
from nystromformer_jax.typing import Array

EVALUATION_SEED = 0  # evaluation masks are the same at every step and in every run


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """A validated config with the mesh."""

    config: Mapping[str, Any]  # plain sections, for `config.json`
    data: CorpusConfig
    objective: ObjectiveConfig
    init: InitConfig
    fit: training.FitConfig
    mesh: Mesh
    sizes: NystromformerConfig  # its vocab_size is the checkpoint's, or else data.vocab_size

    def model(self, vocab_size: int) -> NystromformerForPreTraining:
        """Returns the model for a tokenizer with `vocab_size` tokens, or for that of the checkpoint."""
        sizes = self.sizes
        if not self.init.checkpoint:
            sizes = dataclasses.replace(sizes, vocab_size=vocab_size)
        return NystromformerForPreTraining(sizes)

    def make_params(self, model: NystromformerForPreTraining) -> Callable[[], Any]:
        """Returns a function that initializes the parameters with the seed of the run."""
        return make_params(model, self.data.max_len, self.fit.train.seed)


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Pretraining:
    """Validates a config and returns the run; nothing is prepared, written or compiled.

    `config` has sections of plain values. If `devices` is None, the mesh uses all devices.

    Raises:
      ValueError: A value is invalid; the message names the section and the key.
      FileNotFoundError: `init.checkpoint` does not exist.
      ImportError: A package of the extra `language` is not installed.
    """
    require_packages()
    own = {"data": CorpusConfig, "objective": ObjectiveConfig, "init": InitConfig}
    sections = training.read_sections(config, own | training.SECTIONS, plain=["model", "attention"])
    data, init = sections["data"], sections["init"]
    if init.checkpoint and not data.tokenizer:
        data = dataclasses.replace(data, tokenizer=init.checkpoint)
    mesh = training.make_mesh(sections["mesh"], devices)
    training.check_length(mesh, data.max_len, "data.max_len")
    sizes = model_config(
        config,
        init,
        vocab_size=data.vocab_size,
        max_len=data.max_len,
        remat=sections["train"].remat,
    )
    config, sections = training.choose_accumulation(
        config, sections, mesh, core=sizes.make_core()(), sizes=sizes, length=data.max_len
    )
    fit_config = training.FitConfig.from_sections(sections)
    fit_config.check_batches(mesh)
    run = Pretraining(config, data, sections["objective"], init, fit_config, mesh, sizes)
    # Validate the model; the size of an existing tokenizer is not known yet.
    jax.eval_shape(run.make_params(run.model(data.vocab_size)))
    return run


def open_tokenizer(run: Pretraining) -> Tokenizer | None:
    """Opens the tokenizer of a run; returns None if the run trains a tokenizer.

    Raises:
      FileNotFoundError: The tokenizer does not exist.
      ValueError: The tokenizer does not match the checkpoint.
    """
    if not run.data.tokenizer:
        return None
    tokenizer = load_tokenizer(run.data.tokenizer, lowercase=run.data.lowercase)
    check_tokenizer(tokenizer, run.model(tokenizer.vocab_size).config)
    check_same_vocabulary(tokenizer, run.init)
    tokenizer.word_starts()  # an error if it does not mark words
    return tokenizer


def is_partial(run: Pretraining, corpus: Corpus) -> bool:
    """Returns True if a run uses only a part of the corpus or of the step budget."""
    fewer_pairs = len(corpus.splits["train"]) < corpus.statistics["train"].pairs
    return fewer_pairs or run.fit.train.total_steps < run.fit.train.budget_steps


def train(run: Pretraining, corpus: Corpus, workdir: training.Workdir) -> dict[str, Any]:
    """Trains or resumes a run; exports the checkpoint with the lowest loss on the held-out documents.

    Returns:
      The content of `result.json`. A finished run is not trained again.
    """
    model = run.model(corpus.tokenizer.vocab_size)
    config = model.config
    init_sha256 = record_weights(run.init, workdir)

    def report(fit_result: training.FitResult, params: Any) -> dict[str, Any]:
        # Pairs of pretraining have one separator, whatever the tokenizer.
        tokenizer = dataclasses.replace(corpus.tokenizer, pair_separators=1)
        save_model(workdir, model, params, tokenizer, config.max_len)
        return {
            "attention": config.attention,
            "init": run.init.checkpoint,
            "init_sha256": init_sha256,
            "valid": _with_perplexity(fit_result.best_metrics),
            "valid_examples": fit_result.best_examples,
            "baselines": baselines(corpus),
            "partial": is_partial(run, corpus),
        }

    return training.train_to_result(
        workdir,
        make_spec(run, vocabulary_of(corpus.tokenizer)),
        training=examples(corpus.splits["train"], run.data.max_len),
        validation=examples(corpus.splits["valid"], run.data.max_len),
        data_sha256=corpus.sha256,
        check_data=lambda: cache.require_unchanged(corpus.folder, corpus.sha256),
        report=report,
        make_start_params=lambda: read_params(
            run.init, config, NystromformerForPreTraining, run.fit.train.seed
        ),
    )


def make_spec(run: Pretraining, vocabulary: Vocabulary | None = None) -> training.TrainSpec:
    """Returns the `TrainSpec` of a run. To plan without data, omit `vocabulary` for a placeholder."""
    if vocabulary is None:
        starts = np.ones(run.model(run.data.vocab_size).config.vocab_size, bool)
        vocabulary = Vocabulary(mask_id=0, special_ids=(0,), word_starts=starts)
    model = run.model(len(vocabulary.word_starts))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return training.TrainSpec(
        config=run.fit,
        mesh=run.mesh,
        make_params=run.make_params(model),
        loss_fn=make_loss(model, vocabulary, run.objective),
        row={
            "inputs": jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32),
            **dict.fromkeys(("first_len", "second_len", "example"), number),
        },
        select="loss",
    )


def make_loss(
    model: NystromformerForPreTraining, vocabulary: Vocabulary, objective: ObjectiveConfig
) -> Any:
    """Returns the `LossFn`: cross-entropy of masked tokens plus sentence order.

        (Σ token losses + order_weight · Σ num_targets · order loss) / Σ num_targets

    The sums are over masked tokens and pairs of the batch; `num_targets` is the number of tokens to mask in a
    pair. The order loss is therefore a mean weighted by length. The token loss is slightly less than a mean,
    because `num_targets` includes the few per cent of tokens that whole-word masking leaves out. Gradient
    accumulation sums both exactly, but masks different tokens than the undivided batch, because the random
    numbers differ.
    """

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        root = jax.random.key(EVALUATION_SEED) if dropout_rng is None else dropout_rng
        masked = mask_pairs(
            jax.random.fold_in(root, 1),
            batch["inputs"],
            batch["first_len"],
            batch["second_len"],
            batch["example"],
            vocabulary=vocabulary,
            config=objective,
        )
        # As in RoBERTa, both sentences have type 0.
        types = None if model.config.num_types == 1 else masked.types
        inputs = (masked.inputs, masked.mask, types, masked.positions)
        token_logits, order_logits = training.apply_model(model, params, dropout_rng, *inputs)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        weights = masked.weights * batch["weights"][:, None]
        token_losses = cross_entropy(token_logits, masked.targets)
        order_losses = cross_entropy(order_logits, masked.order)
        mlm_loss = training.weighted(token_losses.ravel(), weights.ravel())
        right = token_logits.argmax(axis=-1) == masked.targets
        sums = {
            "mlm_loss": mlm_loss,
            "mlm_accuracy": training.weighted(right.ravel(), weights.ravel()),
        }
        loss_sum = mlm_loss[0]
        num_targets = batch["weights"] * masked.num_targets.astype(jnp.float32)
        if objective.order_weight > 0:
            order_loss = training.weighted(order_losses, batch["weights"])
            guessed = order_logits.argmax(axis=-1) == masked.order
            sums["order_loss"] = order_loss
            sums["order_accuracy"] = training.weighted(guessed, batch["weights"])
            loss_sum = loss_sum + objective.order_weight * (num_targets * order_losses).sum()
        sums["loss"] = (loss_sum, num_targets.sum())
        return loss_sum, sums

    return loss_fn


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Returns the `Vocabulary` of a tokenizer, which masking needs."""
    return Vocabulary(
        mask_id=tokenizer.mask_id,
        special_ids=tuple(tokenizer.special_ids),
        word_starts=tokenizer.word_starts(),
    )


def examples(pairs: Pairs, max_len: int) -> training.Examples:
    """Returns the pairs of a split as `Examples` for the input pipeline."""
    return training.Examples(len(pairs), lambda indices: pairs.batch(indices, max_len))


def baselines(corpus: Corpus) -> dict[str, float]:
    """Returns the metrics of context-free baselines, from token counts of the training split.

    The accuracy is for predicting the most frequent token, the loss for unigram probabilities with add-one
    smoothing, and the order accuracy for a constant prediction.
    """
    special = list(corpus.tokenizer.special_ids)
    train, valid = (corpus.splits[name].token_counts() for name in ("train", "valid"))
    train[special] = valid[special] = 0
    probability = (train + 1) / (train + 1).sum()
    count = max(int(valid.sum()), 1)
    return {
        "mlm_accuracy": float(valid[np.argmax(train)] / count),
        "mlm_loss": float(-(valid * np.log(probability)).sum() / count),
        "order_accuracy": 0.5,
    }


def describe_data(run: Pretraining, corpus: Corpus) -> str:
    """Returns a table of the splits and the first training pairs."""
    return describe.describe_data(corpus)


def evaluate_checkpoint(
    run: Pretraining, corpus: Corpus, workdir: training.Workdir
) -> dict[str, Any]:
    """Returns metrics of the best checkpoint of a finished run on held-out documents; writes nothing.

    Raises:
      NotFinished: The run has no result yet.
      LossNotFinite: The run diverged.
    """
    result = workdir.require_result()
    workdir.require_data(corpus.sha256)
    spec = make_spec(run, vocabulary_of(corpus.tokenizer))
    params = training.load_best_params(workdir, spec)
    pairs = examples(corpus.splits["valid"], run.data.max_len)
    valid = _with_perplexity(training.evaluate_split(spec, params, pairs))
    evaluated = run.fit.eval.num_evaluated(len(corpus.splits["valid"]))
    return {**result, "valid": valid, "valid_examples": evaluated}


def describe_result(result: Mapping[str, Any]) -> str:
    """Returns a sentence that describes a result."""
    valid, baselines = result["valid"], result["baselines"]
    order = ""
    if "order_accuracy" in valid:
        order = f", the order of {100 * valid['order_accuracy']:.2f} % of the pairs"
    return (
        f"Predicted {100 * valid['mlm_accuracy']:.2f} % of the masked tokens correctly (the most frequent"
        f" one alone: {100 * baselines['mlm_accuracy']:.2f} %){order}; perplexity {valid['perplexity']:.1f},"
        f" on {result['valid_examples']:,} held-out pairs, at step {result['best_step']:,}."
    )


def _with_perplexity(valid: Mapping[str, float]) -> dict[str, float]:
    return {**valid, "perplexity": math.exp(min(valid["mlm_loss"], 700.0))}  # exp overflows above
