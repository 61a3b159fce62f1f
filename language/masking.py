"""What pretraining asks of a pair of sentences: masked words, and which sentence came first.

Both are drawn anew at every step, on the device, from one key an example: a batch is a pure function of
its rows and the key. Evaluation passes the same key every time, so that it always asks the same.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nystromformer_jax.typing import Array, Bool, Float, Int

__all__ = ["Asked", "ObjectiveConfig", "Vocabulary", "ask"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is asked, and how it is weighed.

    Args:
      mask_rate: share of an example's tokens that are to be guessed.
      mask_share: of these, how many are replaced by the mask token …
      random_share: … and how many by any ordinary token; the rest stay as they are.
      whole_words: whether all pieces of a word are asked for, or none.
      order_weight: of the order's loss against the tokens'; 0 leaves the sentences in order and the
        order head untrained, as in the authors' main code.
    """

    mask_rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = True
    order_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1:
            raise ValueError(
                f"objective.mask_rate: needs a number between 0 and 1, got {self.mask_rate}."
            )
        shares = (self.mask_share, self.random_share)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(
                "objective.mask_share, objective.random_share: need to be at least 0 and to add up to"
                f" at most 1, got {shares[0]} and {shares[1]}."
            )
        if not self.order_weight >= 0:
            raise ValueError(f"objective.order_weight: needs 0 or more, got {self.order_weight}.")

    def predictions(self, max_len: int) -> int:
        """K, the most tokens that are asked for in `max_len` of them."""
        return max(1, round(self.mask_rate * max_len))


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """What masking needs to know of a tokenizer.

    Attributes:
      mask_id: The mask token.
      word_starts: [V], whether a token begins a word.
      ordinary_ids: The tokens that are not special: those that are asked for, and drawn at random.
    """

    mask_id: int
    word_starts: npt.NDArray[np.bool_]
    ordinary_ids: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, *, mask_id: int, special_ids: tuple[int, ...], word_starts: npt.NDArray[np.bool_]
    ) -> "Vocabulary":
        """Everything but `special_ids` is ordinary."""
        ordinary = np.ones(len(word_starts), bool)
        ordinary[list(special_ids)] = False
        return cls(mask_id, word_starts, np.flatnonzero(ordinary).astype(np.int32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Asked:
    """A batch as the model sees it, and the answers.

    Attributes:
      inputs: [B L] token ids, some replaced.
      mask: [B L], True at real tokens.
      types: [B L], 0 up to the first separator, then 1.
      positions: [B K], where tokens are asked for.
      targets: [B K], the tokens that were there.
      weights: [B K], 1 where a position is asked for, 0 where it only fills up.
      wanted: [B], how many tokens the share comes to; with whole words a few less are asked for.
      order: [B], 1 where the sentence that came second stands first.
    """

    inputs: Array
    mask: Array
    types: Array
    positions: Array
    targets: Array
    weights: Array
    wanted: Array
    order: Array


def ask(
    rng: Array,
    inputs: Int[Array, "B L"],
    first_len: Int[Array, " B"],
    second_len: Int[Array, " B"],
    example: Int[Array, " B"],
    *,
    vocabulary: Vocabulary,
    config: ObjectiveConfig,
) -> Asked:
    """Swaps half of the pairs and masks words in all of them.

    Args:
      rng: Of the step; each row's own is folded from it with `example`.
      inputs: `[CLS] first [SEP] second [SEP]` and padding.
      first_len: Tokens of the first sentence, without special ones.
      second_len: Of the second.
      example: Each row's number in the data.
      vocabulary: The tokenizer's.
      config: What to ask.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1 (15 %; 80, 10, 10) and their later whole-word
    masking; Lan et al. 2020, arXiv:1909.11942, section 3.1 (sentence order).
    Differs: words are taken in random order as long as they fit whole into the share, so that a little
    less than the share is asked for.
    """

    def row(example: Array, tokens: Array, first: Array, second: Array) -> Asked:
        swap_rng, mask_rng = jax.random.split(jax.random.fold_in(rng, example))
        order = jnp.zeros((), jnp.int32)
        if config.order_weight > 0:
            order = jax.random.bernoulli(swap_rng).astype(jnp.int32)
        tokens, mask, types = arrange(tokens, first, second, order)
        wanted = jnp.maximum(1, jnp.round(config.mask_rate * mask.sum())).astype(jnp.int32)
        positions, weights = choose(mask_rng, tokens, mask, wanted, vocabulary, config)
        targets = tokens[positions]
        replaced = replace(mask_rng, targets, vocabulary, config)
        replaced = jnp.where(weights > 0, replaced, targets)
        tokens = tokens.at[positions].set(replaced, unique_indices=True)
        return Asked(tokens, mask, types, positions, targets, weights, wanted, order)

    return jax.vmap(row)(example, inputs, first_len, second_len)


def arrange(
    tokens: Int[Array, " L"], first: Int[Array, ""], second: Int[Array, ""], order: Int[Array, ""]
) -> tuple[Int[Array, " L"], Bool[Array, " L"], Int[Array, " L"]]:
    """Puts the second sentence first where `order` is 1; gives tokens, mask and types."""
    place = jnp.arange(tokens.shape[0])
    front = jnp.where(order == 1, second, first)  # tokens between [CLS] and the first [SEP]
    in_front = (place > 0) & (place <= front)
    behind = (place > front + 1) & (place <= first + second + 1)
    source = jnp.where(in_front, place + first + 1, place)
    source = jnp.where(behind, place - front - 1, source)
    source = jnp.where(place == front + 1, first + 1, source)
    mask = place < first + second + 3
    types = ((place > front + 1) & mask).astype(jnp.int32)
    return tokens[jnp.where(order == 1, source, place)], mask, types


def choose(
    rng: Array,
    tokens: Int[Array, " L"],
    mask: Bool[Array, " L"],
    wanted: Int[Array, ""],
    vocabulary: Vocabulary,
    config: ObjectiveConfig,
) -> tuple[Int[Array, " K"], Float[Array, " K"]]:
    """The positions of at most `wanted` tokens, words in random order, and 1 at those that count."""
    length = tokens.shape[0]
    is_ordinary = np.zeros(len(vocabulary.word_starts), bool)
    is_ordinary[vocabulary.ordinary_ids] = True
    candidates = jnp.asarray(is_ordinary)[tokens] & mask
    # A word begins at a token that says so, and after anything that is not to be asked for.
    after_other = jnp.concatenate([jnp.ones(1, bool), ~candidates[:-1]])
    starts = candidates & (jnp.asarray(vocabulary.word_starts)[tokens] | after_other)
    if not config.whole_words:
        starts = candidates
    word = jnp.cumsum(starts) - 1
    lot = jax.random.uniform(jax.random.fold_in(rng, 0), (length,))[word]
    by_lot = jnp.argsort(jnp.where(candidates, lot, jnp.inf), stable=True)
    # A word's last token in this order tells whether all of it fits.
    rank = jnp.where(candidates[by_lot], jnp.arange(length), 0)
    last = jnp.zeros(length, jnp.int32).at[word[by_lot]].max(rank)
    fits = candidates & (last[word] < jnp.minimum(wanted, config.predictions(length)))
    positions = by_lot[: config.predictions(length)]
    return positions, fits[positions].astype(jnp.float32)


def replace(
    rng: Array, targets: Int[Array, " K"], vocabulary: Vocabulary, config: ObjectiveConfig
) -> Int[Array, " K"]:
    """What stands in place of each asked token: the mask, any ordinary token, or itself."""
    share = jax.random.uniform(jax.random.fold_in(rng, 1), targets.shape)
    ordinary = jnp.asarray(vocabulary.ordinary_ids)
    drawn = jax.random.randint(jax.random.fold_in(rng, 2), targets.shape, 0, len(ordinary))
    either = jnp.where(share < config.mask_share + config.random_share, ordinary[drawn], targets)
    return jnp.where(share < config.mask_share, vocabulary.mask_id, either)
