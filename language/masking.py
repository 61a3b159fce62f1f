"""Pretraining objectives on pairs of texts: masked words and sentence order.

Masks and swaps are sampled on the device at every step, with one RNG per example. A masked batch is a pure
function of the rows and the RNG. Evaluation always uses the same RNG, so evaluation masks never change.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from language.config import ObjectiveConfig
from nystromformer_jax.typing import Array, Bool, Float, Int

# Longer "words" are sentences in scripts without spaces, such as Chinese, or identifiers.
LONGEST_WORD = 10


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary:
    """Properties of a tokenizer that masking needs."""

    mask_id: int
    special_ids: tuple[int, ...]
    word_starts: npt.NDArray[np.bool_]  # [V], True for tokens that begin a word

    @property
    def is_ordinary(self) -> npt.NDArray[np.bool_]:
        """[V], False for special tokens. The others can be predicted, and are random replacements."""
        return ~np.isin(np.arange(len(self.word_starts)), self.special_ids)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MaskedPairs:
    """A batch of inputs and targets for pretraining."""

    inputs: Array  # [B L], token ids, some replaced
    mask: Array  # [B L], True at real tokens
    types: Array  # [B L], 0 up to the first separator, then 1
    positions: Array  # [B K], positions of predicted tokens
    targets: Array  # [B K], original tokens at `positions`
    weights: Array  # [B K], 1 at predicted tokens, 0 at unused positions
    num_targets: Array  # [B], `mask_rate` of the tokens; with whole words fewer may be predicted
    order: Array  # [B], 1 if the sentences are swapped


def mask_pairs(
    rng: Array,
    inputs: Int[Array, "B L"],
    first_len: Int[Array, " B"],
    second_len: Int[Array, " B"],
    example: Int[Array, " B"],
    *,
    vocabulary: Vocabulary,
    config: ObjectiveConfig,
) -> MaskedPairs:
    """Swaps the sentences of each pair with probability ½, and masks words in all pairs.

    `inputs` are `[CLS] first [SEP] second [SEP]` and padding; `first_len` and `second_len` exclude
    special tokens. The RNG of a row is `fold_in(rng, example)`, where `example` is the index in the data.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1 (15 %; 80, 10, 10) and BERT's later whole-word
    masking; Lan et al. 2020, arXiv:1909.11942, section 3.1 (sentence order).
    Differs: words are masked in random order until a word does not fit completely, so slightly fewer tokens
    than `mask_rate` may be predicted. Long words are masked token by token; see `ObjectiveConfig`.
    """

    def row(example: Array, tokens: Array, first_len: Array, second_len: Array) -> MaskedPairs:
        swap_rng, mask_rng = jax.random.split(jax.random.fold_in(rng, example))
        order = jnp.zeros((), jnp.int32)
        if config.order_weight > 0:
            order = jax.random.bernoulli(swap_rng).astype(jnp.int32)
        tokens, mask, types = swap_sentences(tokens, first_len, second_len, order)
        share = config.mask_rate * mask.sum(dtype=jnp.float32)
        num_targets = jnp.maximum(1, jnp.round(share)).astype(jnp.int32)
        positions, weights = choose_positions(
            mask_rng, tokens, mask, num_targets, vocabulary, config
        )
        targets = tokens[positions]
        replaced = replace_tokens(mask_rng, targets, vocabulary, config)
        replaced = jnp.where(weights > 0, replaced, targets)
        tokens = tokens.at[positions].set(replaced, unique_indices=True)
        return MaskedPairs(tokens, mask, types, positions, targets, weights, num_targets, order)

    return jax.vmap(row)(example, inputs, first_len, second_len)


def swap_sentences(
    tokens: Int[Array, " L"],
    first_len: Int[Array, ""],
    second_len: Int[Array, ""],
    order: Int[Array, ""],
) -> tuple[Int[Array, " L"], Bool[Array, " L"], Int[Array, " L"]]:
    """Swaps the sentences if `order` is 1; returns tokens, mask and types."""
    position = jnp.arange(tokens.shape[0])
    front = jnp.where(order == 1, second_len, first_len)  # tokens between [CLS] and the first [SEP]
    in_front = (position > 0) & (position <= front)
    behind = (position > front + 1) & (position <= first_len + second_len + 1)
    source = jnp.where(in_front, position + first_len + 1, position)
    source = jnp.where(behind, position - front - 1, source)
    source = jnp.where(position == front + 1, first_len + 1, source)
    mask = position < first_len + second_len + 3
    types = ((position > front + 1) & mask).astype(jnp.int32)
    return tokens[jnp.where(order == 1, source, position)], mask, types


def choose_positions(
    rng: Array,
    tokens: Int[Array, " L"],
    mask: Bool[Array, " L"],
    num_targets: Int[Array, ""],
    vocabulary: Vocabulary,
    config: ObjectiveConfig,
) -> tuple[Int[Array, " K"], Float[Array, " K"]]:
    """Returns token positions, with the words in random order, and weights: 1 to predict, else 0.

    At most `num_targets` weights are 1.
    """
    length = tokens.shape[0]
    candidates = jnp.asarray(vocabulary.is_ordinary)[tokens] & mask
    starts = candidates
    if config.whole_words:
        # A word begins at each token of `word_starts`, and after each token that cannot be predicted.
        after_other = jnp.concatenate([jnp.ones(1, bool), ~candidates[:-1]])
        starts = candidates & (jnp.asarray(vocabulary.word_starts)[tokens] | after_other)
        word = jnp.cumsum(starts) - 1
        word_len = jnp.zeros(length, jnp.int32).at[word].add(candidates.astype(jnp.int32))
        starts |= candidates & (word_len[word] > LONGEST_WORD)
    word = jnp.cumsum(starts) - 1
    priority = jax.random.uniform(jax.random.fold_in(rng, 0), (length,))[word]
    by_priority = jnp.argsort(jnp.where(candidates, priority, jnp.inf), stable=True)
    # A word fits if the last token of the word in this order fits.
    rank = jnp.where(candidates[by_priority], jnp.arange(length), 0)
    last = jnp.zeros(length, jnp.int32).at[word[by_priority]].max(rank)
    fits = candidates & (last[word] < jnp.minimum(num_targets, config.predictions(length)))
    positions = by_priority[: config.predictions(length)]
    return positions, fits[positions].astype(jnp.float32)


def replace_tokens(
    rng: Array, targets: Int[Array, " K"], vocabulary: Vocabulary, config: ObjectiveConfig
) -> Int[Array, " K"]:
    """Returns the input for each target: the mask token, a random ordinary token, or the target."""
    share = jax.random.uniform(jax.random.fold_in(rng, 1), targets.shape)
    ordinary = jnp.asarray(np.flatnonzero(vocabulary.is_ordinary).astype(np.int32))
    drawn = jax.random.randint(jax.random.fold_in(rng, 2), targets.shape, 0, len(ordinary))
    either = jnp.where(share < config.mask_share + config.random_share, ordinary[drawn], targets)
    return jnp.where(share < config.mask_share, vocabulary.mask_id, either)
