"""Uses a language model on texts: embeddings, masked tokens, classes, scores, tags and answers.

    language_model = load("FOLDER")
    embeddings = language_model.embed(["a text", "another text"])

Texts are padded to a few lengths, so that few programs are compiled.
"""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
    hidden_states,
)
from nystromformer_jax.pretrained.config_json import MAX_TEXT_LEN
from nystromformer_jax.pretrained.folder import from_pretrained
from nystromformer_jax.pretrained.hub import HUB_NAME, download
from nystromformer_jax.pretrained.sentence import Pooling, SentenceSettings, read_settings
from nystromformer_jax.support.predictions import (
    BASE_LEN,
    Window,
    best_answers,
    padded_len,
    probabilities,
    word_tags,
)
from nystromformer_jax.support.tokenizer import MASK_TOKENS, load_tokenizer
from nystromformer_jax.support.values import check_choice, check_size
from nystromformer_jax.typing import Array, Bool, Float, Int

Row = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]  # ids and types of the real tokens
Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.int32]]
TOKEN_NAMES = ("input_ids", "attention_mask", "token_type_ids")


class TruncationWarning(UserWarning):
    """Texts have more tokens than the language model reads, and are truncated."""


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model, its variables and its tokenizer.

    `embed`, `classify` and `regress` take texts, or a tokenizer's output by name:
    `embed(**tokenizer(texts))`. Results are in the order of the input.

    Each batch has `batch_size` rows. Its length is `base_len` times a power of two, or `max_len`, and one
    program is compiled per length. Longer texts, and those of more than `sentence.max_len` tokens, are
    truncated, with one `TruncationWarning`. A result does not depend on its batch or on the padding, with
    three exceptions. With quirks="hf", as in Hugging Face's code, landmarks include padding, lengths are
    multiples of M, and one maximum over the batch scales the pseudoinverse (also with
    `pinv_start="batch_max"` alone). With `mask_conv=False`, the convolution reads padding. Reformer has more
    buckets for a longer batch.

    A name such as "[SEP]" in a text becomes that special token, as in transformers.

    Args:
      model: A `Nystromformer`, or a model of `nystromformer_jax.models`.
      variables: {"params": …}.
      tokenizer: A tokenizer of transformers, or one that `load` returns.
      batch_size: Rows of each batch; the last batch is filled with padding.
      base_len: Smallest padded length.
      sentence: How `embed` makes embeddings by default, as a folder of sentence-transformers says.
    """

    model: Any
    variables: Mapping[str, Any]
    tokenizer: Any
    batch_size: int = 8
    base_len: int = BASE_LEN
    sentence: SentenceSettings = dataclasses.field(default_factory=SentenceSettings)

    def __post_init__(self) -> None:
        check_size("batch_size", self.batch_size)
        check_size("base_len", self.base_len)
        if not self._model_len:
            config = self.model.config
            raise ValueError(
                f"landmark_layout={config.landmark_layout!r} needs lengths that are multiples of"
                f" num_landmarks={config.num_landmarks}, but the model reads at most {config.max_len}"
                " tokens: pass fewer landmarks."
            )

    def embed(
        self,
        texts: Sequence[str] | None = None,
        *,
        pooling: Pooling | None = None,
        layer: int = -1,
        prompt: str | None = None,
        **tokens: Any,
    ) -> npt.NDArray[np.float32]:
        """Returns one embedding per text, [N, E]; that of a text without tokens is zero.

        A folder of sentence-transformers sets pooling, normalization, the largest number of tokens and the
        prompts.

        Args:
          texts: The texts; None if `tokens` are passed.
          pooling: "mean" averages the hidden states of real tokens, "first" returns the first one, "max" the
            largest values, and "mean_sqrt_len" their sum divided by the root of their number. None: that of
            the folder, or "mean"; an error if the folder has unsupported modules or an unsupported pooling.
          layer: Index of the hidden states: 0 are the embeddings, 1 the output of the first layer, -1 that
            of the last.
          prompt: Name of the prompt in front of every text; None: the default of the folder, if it has one.
          **tokens: `input_ids`, `attention_mask` (1 at real tokens) and `token_type_ids`.
        """
        settings = self.sentence
        pooling = settings.pooling if pooling is None else pooling
        if pooling is None:
            raise ValueError(
                f'{settings.unsupported}; pass pooling="mean" or another pooling to use it instead.'
            )
        check_choice("pooling", pooling, Pooling)
        if prompt is not None and texts is None:
            raise ValueError("prompt needs texts; a tokenizer's output must already contain it.")
        config = self.model.config
        if not -config.num_layers - 1 <= layer <= config.num_layers:
            raise ValueError(
                f"layer must be from {-config.num_layers - 1} to {config.num_layers} in this model,"
                f" got {layer}."
            )
        function = functools.partial(
            pooled_states, pooling=pooling, layer=layer, normalize=settings.normalize
        )
        if texts is not None and not isinstance(texts, str):
            texts = settings.prepare(texts, prompt)
        return self._run(function, self._rows(texts, tokens), config.embed_dim)

    def classify(
        self, texts: Sequence[str] | None = None, **tokens: Any
    ) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Returns the names of the classes and their probabilities, [N, C].

        Names are those of id2label in config.json. With problem_type "multi_label_classification" the
        probabilities are independent and need not sum to one. Arguments are as in `embed`.
        """
        self._require_head("classify", NystromformerForSequenceClassification)
        config = self.model.config
        kind = config.metadata.get("problem_type")
        if kind == "regression" or config.num_labels == 1:
            raise ValueError(
                "classify needs classes; this model predicts numbers (regression): use regress."
            )
        logits = self._run(_apply, self._rows(texts, tokens), config.num_labels)
        found = probabilities(logits, is_multi_label=kind == "multi_label_classification")
        return self._label_names(), found.astype(np.float32)

    def regress(self, texts: Sequence[str] | None = None, **tokens: Any) -> npt.NDArray[np.float32]:
        """Returns the number that a regression model predicts for each text, [N].

        Arguments are as in `embed`.
        """
        self._require_head("regress", NystromformerForSequenceClassification)
        if self.model.config.num_labels != 1:
            raise ValueError("regress needs a model with one output; this one has classes.")
        return self._run(_apply, self._rows(texts, tokens), 1)[:, 0]

    def tag(self, texts: Sequence[Sequence[str]]) -> list[list[str]]:
        """Returns the tag of each word of each text; a text is a list of words.

        The tag of a word is that of its first token. A word without tokens has the tag O, or the first tag
        of the model if it has no O. The names of the tags are id2label of config.json.
        """
        self._require_head("tag", NystromformerForTokenClassification)
        if isinstance(texts, str) or any(isinstance(words, str) for words in texts):
            raise ValueError("tag takes lists of words, such as [text.split()].")
        backend, names = self._backend(), self._label_names()
        # Byte-level tokenizers mark a word by the space before it.
        found = [
            backend.encode([f" {word}" for word in words], is_pretokenized=True) for words in texts
        ]
        longest, max_len = max((len(own.ids) for own in found), default=0), self._model_len
        if longest > max_len:
            raise ValueError(
                f"A text has {longest} tokens, but this model reads at most {max_len}: split it between"
                " words."
            )
        outside = "O" if "O" in names else names[0]
        tags = [[outside] * len(words) for words in texts]  # for words without tokens
        for i, logits in self._outputs(self._rows_of(found)):
            places = reversed(list(enumerate(found[i].word_ids)))
            firsts = {word: place for place, word in places if word is not None}
            own = word_tags(logits.argmax(axis=-1), list(firsts.values()), names)
            for word, tag in zip(firsts, own, strict=True):
                tags[i][word] = tag
        return tags

    def answer(self, question: str, context: str) -> tuple[str, float]:
        """Returns the best span of the context and its score, the sum of two logits.

        A context with too many tokens is read in windows of the model's length, which overlap by a quarter.
        If some training questions had no answer (has_unanswerable in config.json), the span may be empty. It
        is also empty if the context has no tokens.
        """
        self._require_head("answer", NystromformerForQuestionAnswering)
        _require_text("answer", "question", question)
        _require_text("answer", "context", context)
        backend, max_len = self._backend(), self._max_len
        room = max_len - len(backend.encode(question, "").ids)
        if room < 4:
            raise ValueError(
                f"The question has too many tokens for this model, which reads at most {max_len}."
            )
        backend.enable_truncation(max_len, stride=room // 4, strategy="only_second")
        first = backend.encode(question, context)
        backend.no_truncation()
        parts = [first, *first.overflowing]
        windows = []
        for i, (start, end) in self._outputs(self._rows_of(parts)):
            places = [k for k, sequence in enumerate(parts[i].sequence_ids) if sequence == 1]
            spans = np.array(parts[i].offsets)[places]
            windows.append(Window(0, start, end, places[0] if places else 0, spans))
        has_unanswerable = bool(self.model.config.metadata.get("has_unanswerable"))
        return best_answers(windows, [context], has_unanswerable=has_unanswerable)[0]

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
        """Returns the `top_k` most probable tokens and their probabilities for each mask of a text.

        Masks are written [MASK], or as the tokenizer's own mask token.
        """
        self._require_head("fill_mask", NystromformerForMaskedLM, NystromformerForPreTraining)
        _require_text("fill_mask", "text", text)
        check_size("top_k", top_k)
        if self.tokenizer.mask_token is None:
            raise ValueError("fill_mask needs a tokenizer with [MASK] or <mask>; this has neither.")
        text = text.replace(MASK_TOKENS[0], self.tokenizer.mask_token)
        (row,) = self._rows([text], {})
        found = np.flatnonzero(row[0] == self.tokenizer.mask_token_id)
        if not found.size:
            is_cut = self.tokenizer.mask_token in text
            where = "is after the tokens that this model reads" if is_cut else "is missing"
            raise ValueError(f"fill_mask needs a text with [MASK]; it {where} in {text!r:.80}.")
        # Padded to a power of two, so that few programs are compiled.
        positions = np.zeros((1, 2 ** (found.size - 1).bit_length()), np.int32)
        positions[0, : found.size] = found
        batch = _pad([row], 1, self._padded_len(row), self._pad_id)
        top_k = min(top_k, self.model.config.vocab_size)
        top, ids = _fill(self.model, self.variables, *batch, positions, top_k=top_k)
        # A vocabulary may have fewer tokens than the model has rows.
        tokens = [
            [token or "" for token in self.tokenizer.convert_ids_to_tokens(row)]
            for row in ids[: found.size].tolist()
        ]
        return [
            list(zip(*filled, strict=True)) for filled in zip(tokens, top.tolist(), strict=False)
        ]

    def _rows(self, texts: Sequence[str] | None, tokens: Mapping[str, Any]) -> list[Row]:
        """Returns the real tokens of each row, given texts or a tokenizer's output."""
        if (texts is None) != bool(tokens) or isinstance(texts, str):
            raise ValueError("Pass a list of texts or **tokenizer(texts), and not both.")
        for name in tokens.keys() - set(TOKEN_NAMES):
            raise ValueError(f"{name} is not used; pass only {', '.join(TOKEN_NAMES)}.")
        if tokens and "input_ids" not in tokens:
            raise ValueError("input_ids is missing; pass **tokenizer(texts).")
        config = self.model.config
        rows = _read_tokens(**(tokens if texts is None else self._tokenize(list(texts))))
        if config.num_types == 1:  # as in RoBERTa, both texts of a pair have type 0
            rows = [(ids, np.zeros_like(ids)) for ids, _ in rows]
        for ids, types in rows:
            if len(ids) > self._model_len:
                raise ValueError(
                    f"{len(ids)} tokens are more than the {self._model_len} that this model reads:"
                    " shorten the text, or pass truncation=True,"
                    f" max_length={self._model_len} to the tokenizer."
                )
            for values, size in ((ids, config.vocab_size), (types, config.num_types)):
                if values.size and not 0 <= values.min() <= values.max() < size:
                    raise ValueError(
                        f"Token ids or types must be from 0 to {size - 1} in this model, got"
                        f" {values.min()} to {values.max()}: use the model's own tokenizer, or"
                        " resize_token_embeddings after adding tokens to it."
                    )
        return rows

    def _tokenize(self, texts: list[str]) -> dict[str, Any]:
        """Returns ids and types of texts; truncates long texts, with one warning."""
        if not texts:
            return {"input_ids": []}
        for i, text in enumerate(texts):
            if not isinstance(text, str):  # such as NaN, a missing value in a table
                raise ValueError(f"Texts must be strings; number {i} is {text!r:.50}.")
        max_len = self._max_len
        tokens = self.tokenizer(texts, verbose=False)
        columns = {name: list(tokens[name]) for name in TOKEN_NAMES if name in tokens}
        long = [i for i, ids in enumerate(columns["input_ids"]) if len(ids) > max_len]
        if long:
            limit, more = "which is all that this model reads", "a larger max_len"
            if max_len < self._model_len:
                limit = "the limit of its folder (max_seq_length, or max_text_len of config.json)"
                more = f"max_len={self._model_len}"
            warnings.warn(
                f"{len(long)} of {len(texts)} texts are truncated to {max_len} tokens, {limit}; load it with"
                f" {more} to read more.",
                TruncationWarning,
                stacklevel=4,
            )
            cut = self.tokenizer([texts[i] for i in long], truncation=True, max_length=max_len)
            for name, column in columns.items():
                for i, values in zip(long, cut[name], strict=True):
                    column[i] = values
        return columns

    def _rows_of(self, encodings: Sequence[Any]) -> list[Row]:
        """Returns the rows of encodings of the library `tokenizers`."""
        columns = {"input_ids": [own.ids for own in encodings]}
        if "token_type_ids" in self.tokenizer.model_input_names:
            columns["token_type_ids"] = [own.type_ids for own in encodings]
        return self._rows(None, columns)

    def _padded_len(self, row: Row) -> int:
        """Returns the length to which a row is padded."""
        length = padded_len(len(row[0]), self._model_len, self.base_len)
        return length + -length % self._multiple

    @property
    def _max_len(self) -> int:
        """Largest number of tokens of a text, to which it is truncated."""
        return min(self._model_len, self.sentence.max_len or self._model_len)

    @property
    def _model_len(self) -> int:
        """Largest padded length."""
        max_len: int = self.model.config.max_len
        return max_len - max_len % self._multiple

    @property
    def _pad_id(self) -> int:
        """The token id of padding, which models with the quirks of other codes read."""
        pad_id = getattr(self.tokenizer, "pad_token_id", None)
        return pad_id if pad_id is not None and pad_id < self.model.config.vocab_size else 0

    @property
    def _multiple(self) -> int:
        """M, which divides padded lengths, for landmark layouts other than "real"; otherwise 1."""
        config = self.model.config
        divides = config.attention == "nystrom" and config.landmark_layout != "real"
        return config.num_landmarks if divides else 1

    def _backend(self) -> Any:
        """Returns the `tokenizers.Tokenizer` of the tokenizer, without truncation and padding."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("tag and answer need a tokenizer with a tokenizer.json (a fast one).")
        backend.no_truncation()
        backend.no_padding()
        return backend

    def _label_names(self) -> list[str]:
        """Returns the names of the outputs from id2label."""
        config = self.model.config
        labels = {int(i): str(name) for i, name in (config.metadata.get("id2label") or {}).items()}
        if len(labels) != config.num_labels:  # the labels of another head
            labels = {}
        return [labels.get(i, f"LABEL_{i}") for i in range(config.num_labels)]

    def _run(
        self, function: Callable[..., Array], rows: list[Row], width: int
    ) -> npt.NDArray[np.float32]:
        """Returns the outputs [N, width] of a function of model, variables, inputs, mask and types."""
        outputs = np.zeros((len(rows), width), np.float32)
        for i, output in self._outputs(rows, function):
            outputs[i] = output
        return outputs

    def _outputs(
        self, rows: list[Row], function: Callable[..., Any] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yields the index and the outputs of a function, by default `_apply`, for each row.

        Rows of similar length share a batch.
        """
        groups: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(self._padded_len(row), []).append(i)
        for length, group in groups.items():
            for start in range(0, len(group), self.batch_size):
                chunk = group[start : start + self.batch_size]
                batch = _pad([rows[i] for i in chunk], self.batch_size, length, self._pad_id)
                outputs = (function or _apply)(self.model, self.variables, *batch)
                outputs = jax.tree.map(np.asarray, outputs)
                for place, i in enumerate(chunk):
                    yield i, jax.tree.map(lambda x, place=place: x[place], outputs)

    def _require_head(self, method: str, *needed: type[nn.Module]) -> None:
        if not isinstance(self.model, needed):
            raise ValueError(
                f"{method} needs a {needed[0].__name__}, and this is a {type(self.model).__name__}: load"
                " a checkpoint with that head."
            )


def load(
    folder: str | os.PathLike[str], *, batch_size: int = 8, base_len: int = BASE_LEN, **options: Any
) -> LanguageModel:
    """Loads a model and its tokenizer from a folder in Hugging Face's layout.

    The tokenizer is read by the package transformers. If no folder has the name OWNER/MODEL, the model is
    downloaded from the Hugging Face Hub by the package huggingface_hub. `embed` follows the modules.json of a
    folder of sentence-transformers. Texts are truncated to its max_seq_length, or to data.max_len of the run
    that trained the model (max_text_len in config.json), unless `options` has a `max_len`.

    Args:
      folder: A folder, or the name of a model on the Hub.
      batch_size: See `LanguageModel`.
      base_len: See `LanguageModel`.
      **options: Arguments of `from_pretrained`, such as attention="nystrom" and max_len.

    Raises:
      FileNotFoundError: The folder or a file is missing, or the download failed.
      ValueError: A file is corrupt, or the model is unsupported.
      ImportError: A required package is not installed.
    """
    path = Path(folder)
    if not path.exists() and HUB_NAME.fullmatch(os.fspath(folder)):
        path = download(os.fspath(folder))
    path, sentence = read_settings(path)
    model, variables = from_pretrained(path, **options)
    max_len = sentence.max_len or model.config.metadata.get(MAX_TEXT_LEN)
    sentence = dataclasses.replace(sentence, max_len=None if "max_len" in options else max_len)
    return LanguageModel(model, variables, load_tokenizer(path), batch_size, base_len, sentence)


def _require_text(method: str, name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{method} takes one {name}, a str, got {type(text).__name__}.")


def _read_tokens(
    *, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
) -> list[Row]:
    """Returns the real tokens of each row of a tokenizer's output."""
    rows = []
    for i, row in enumerate(input_ids):
        ids = np.asarray(row, np.int32)
        types = np.zeros_like(ids) if token_type_ids is None else np.asarray(token_type_ids[i])
        mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask[i])
        if ids.ndim != 1 or not ids.shape == types.shape == mask.shape:
            raise ValueError(
                "input_ids, attention_mask and token_type_ids must be rows of equal length; row"
                f" {i} has shapes {ids.shape}, {mask.shape} and {types.shape}."
            )
        if not np.isin(mask, (0, 1)).all():
            raise ValueError("attention_mask must be 1 at real tokens and 0 at padding.")
        rows.append((ids[mask == 1], types[mask == 1].astype(np.int32)))
    return rows


def _pad(rows: list[Row], batch_size: int, length: int, pad_id: int) -> Batch:
    """Returns inputs, mask and types [batch_size, length] of rows, padded at the end."""
    inputs = np.full((batch_size, length), pad_id, np.int32)
    types = np.zeros((batch_size, length), np.int32)
    mask = np.zeros((batch_size, length), np.bool_)
    for i, (ids, kinds) in enumerate(rows):
        inputs[i, : len(ids)], types[i, : len(ids)], mask[i, : len(ids)] = ids, kinds, True
    return inputs, mask, types


@functools.partial(jax.jit, static_argnames=("model", "pooling", "layer", "normalize"))
def pooled_states(
    model: Any,
    variables: Any,
    inputs: Array,
    mask: Array,
    types: Array,
    *,
    pooling: Pooling,
    layer: int,
    normalize: bool,
) -> Float[Array, "B E"]:
    """Returns one embedding per row, from the hidden states of a layer."""
    hidden = hidden_states(model, variables, inputs, mask, types)[layer].astype(jnp.float32)
    count = jnp.maximum(mask.sum(axis=1, dtype=jnp.float32), 1)[:, None]
    real = mask[..., None]
    if pooling == "first":
        pooled = jnp.where(real[:, 0], hidden[:, 0], 0)
    elif pooling == "max":
        largest = jnp.where(real, hidden, -jnp.inf).max(axis=1)
        pooled = jnp.where(real.any(axis=1), largest, 0)
    else:
        total = jnp.where(real, hidden, 0).sum(axis=1)
        pooled = total / (count if pooling == "mean" else jnp.sqrt(count))
    if normalize:
        length = jnp.linalg.norm(pooled, axis=1, keepdims=True)
        pooled = pooled / jnp.maximum(length, 1e-12)
    return pooled


@functools.partial(jax.jit, static_argnames="model")
def _apply(model: Any, variables: Any, inputs: Array, mask: Array, types: Array) -> Any:
    """Returns the outputs of a model."""
    return model.apply(variables, inputs, mask, types, deterministic=True)


@functools.partial(jax.jit, static_argnames=("model", "top_k"))
def _fill(
    model: Any,
    variables: Any,
    inputs: Int[Array, "1 L"],
    mask: Bool[Array, "1 L"],
    types: Int[Array, "1 L"],
    positions: Int[Array, "1 P"],
    *,
    top_k: int,
) -> tuple[Float[Array, "P K"], Int[Array, "P K"]]:
    """Returns the largest probabilities and their token ids at each position."""
    logits = model.apply(variables, inputs, mask, types, positions, deterministic=True)
    logits = logits[0] if isinstance(model, NystromformerForPreTraining) else logits
    top, ids = jax.lax.top_k(jax.nn.softmax(logits[0]), top_k)
    return top, ids
