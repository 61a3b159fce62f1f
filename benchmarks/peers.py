"""Other implementations from PyPI, in PyTorch."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.attention import DIM, HEADS, LANDMARKS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nystrom_attention import NystromAttention as LucidrainsAttention
    from transformers import AutoModelForSequenceClassification, NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import (
        NystromformerSelfAttention,
    )


class Projected(nn.Module):
    """Hugging Face's attention with an output projection, like ours and lucidrains'."""

    def __init__(self, attention: nn.Module, embed_dim: int) -> None:
        super().__init__()
        self.attention, self.out = attention, nn.Linear(embed_dim, embed_dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attends and projects."""
        return self.out(self.attention(x, mask)[0])


def huggingface(embed_dim: int, heads: int, length: int, landmarks: int, conv: int) -> nn.Module:
    """Returns Hugging Face's attention; without its convolution if `conv` is 0."""
    module = NystromformerSelfAttention(
        NystromformerConfig(
            hidden_size=embed_dim,
            num_attention_heads=heads,
            segment_means_seq_len=length,
            num_landmarks=landmarks,
            conv_kernel_size=conv or 1,
        )
    )
    if not conv:
        module.conv_kernel_size = None
    return Projected(module, embed_dim)


def call_of(
    name: str,
    mode: str,
    batch: int,
    length: int,
    *,
    conv: int,
    masked: bool = False,
    device: str = "cpu",
    half: bool = False,
    calls: int = 1,
) -> Callable[[], None]:
    """Returns a function that makes `calls` calls of a peer on random inputs, like `attention.case`.

    `half` is mixed precision with bfloat16. Hugging Face's module raises an error if its parameters are
    bfloat16, because its pseudoinverse mixes dtypes.
    """
    width, with_gradient = HEADS * DIM, mode == "gradient"
    mask = None
    if masked:
        mask = (torch.arange(length, device=device) < 0.8 * length).expand(batch, length)
    attend: Callable[..., torch.Tensor]
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16 if half else torch.float32}
    if name == "exact (PyTorch)":
        query, key, value, cotangent = torch.randn(4, batch, HEADS, length, DIM, **options)
        inputs = variables = [x.requires_grad_(with_gradient) for x in (query, key, value)]
        keys = None if mask is None else mask[:, None, None]
        attend = functools.partial(nn.functional.scaled_dot_product_attention, attn_mask=keys)
    else:
        x, cotangent = torch.randn(2, batch, length, width, **options)
        inputs = [x.requires_grad_(with_gradient)]
        if name == "Hugging Face":
            module = huggingface(width, HEADS, length, LANDMARKS, conv)
            mask = None if mask is None else additive(mask)
        else:
            module = LucidrainsAttention(
                dim=width,
                dim_head=DIM,
                heads=HEADS,
                num_landmarks=LANDMARKS,
                residual=conv > 0,
                residual_conv_kernel=conv or 1,
            )
        module = module.eval().to(device)
        variables = [*inputs, *module.parameters()]
        attend = functools.partial(module, mask=mask)

    def run() -> None:
        for _ in range(calls):
            with (
                torch.set_grad_enabled(with_gradient),
                torch.autocast(device, torch.bfloat16, enabled=half),
            ):
                output = attend(*inputs)
            if with_gradient:
                torch.autograd.grad(output, variables, cotangent, allow_unused=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def additive(mask: torch.Tensor) -> torch.Tensor:
    """Returns a mask in Hugging Face's form, [B 1 1 L]."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, lowest)[:, None, None]


class Block(nn.Module):
    """A pre-norm block of the authors' LRA model around Hugging Face's attention."""

    def __init__(self, sizes: Any, length: int, landmarks: int, conv: int) -> None:
        super().__init__()
        width = sizes.embed_dim
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = huggingface(width, sizes.num_heads, length, landmarks, conv)
        self.dropout = nn.Dropout(sizes.dropout_rate)
        self.mlp = nn.Sequential(
            nn.Linear(width, sizes.mlp_dim),
            nn.GELU(),
            nn.Dropout(sizes.dropout_rate),
            nn.Linear(sizes.mlp_dim, width),
            nn.Dropout(sizes.dropout_rate),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Applies the block."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        return x + self.mlp(self.mlp_norm(x))


class Classifier(nn.Module):
    """The LRA model of `lra.models.Classifier`, from Hugging Face's modules."""

    def __init__(self, sizes: Any, num_classes: int, landmarks: int, conv: int) -> None:
        super().__init__()
        width = sizes.embed_dim
        self.tokens = nn.Embedding(sizes.vocab_size, width)
        self.positions = nn.Embedding(sizes.max_len, width)
        self.dropout = nn.Dropout(sizes.dropout_rate)
        self.blocks = nn.ModuleList(
            Block(sizes, sizes.max_len, landmarks, conv) for _ in range(sizes.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(width, sizes.mlp_dim), nn.ReLU(), nn.Linear(sizes.mlp_dim, num_classes)
        )

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Returns logits; `mask` is True at real tokens."""
        positions = self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        x = self.dropout(self.tokens(inputs) + positions)
        for block in self.blocks:
            x = block(x, additive(mask))
        x = self.norm(x) * mask[..., None]
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


def training_step(model: nn.Module, batch: dict[str, np.ndarray], device: str = "cpu") -> Any:
    """Returns a function without arguments that makes one AdamW update on a fixed batch."""
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.0)
    inputs, mask, labels = (
        torch.tensor(batch[name], dtype=torch.bool if name == "mask" else torch.long).to(device)
        for name in ("inputs", "mask", "labels")
    )
    model.train()

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs, mask), labels)
        loss.backward()
        optimizer.step()
        value = loss.item()
        assert math.isfinite(value)
        return value

    return step


class BertTraining:
    """Training of transformers' BERT with a head for classes of texts, by AdamW on a CPU.

    Batches are those of our input pipeline.
    """

    def __init__(
        self,
        folder: str,
        *,
        num_labels: int,
        dropout_rate: float,
        attention_dropout_rate: float,
        optimizer: Any,
        rates: Sequence[float],
        seed: int,
        threads: int,
    ) -> None:
        """Loads the weights.

        Args:
          folder: Folder of the model; without a head of this size, the head is random.
          num_labels: Number of classes.
          dropout_rate: Of hidden states and in the head.
          attention_dropout_rate: Of attention weights.
          optimizer: An `OptimizerConfig`.
          rates: Learning rate of each step; after them, the last one.
          seed: Of a random head and of dropout.
          threads: Number of threads of PyTorch.
        """
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=num_labels,
            ignore_mismatched_sizes=True,  # a head for other classes is replaced
            problem_type="single_label_classification",
            dtype="float32",
            hidden_dropout_prob=dropout_rate,
            attention_probs_dropout_prob=attention_dropout_rate,
            classifier_dropout=dropout_rate,
        )
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=1.0,  # times the rate of the schedule
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: rates[min(step, len(rates) - 1)]
        )

    def tensors(self, batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Returns the arguments of the model."""
        names = {
            "inputs": "input_ids",
            "mask": "attention_mask",
            "types": "token_type_ids",
            "labels": "labels",
        }
        return {
            theirs: torch.tensor(batch[ours], dtype=torch.long) for ours, theirs in names.items()
        }

    def step(self, tensors: Mapping[str, torch.Tensor]) -> float:
        """Makes an update; returns the loss before it."""
        self.model.train()
        self._optimizer.zero_grad()
        loss = self.model(**tensors).loss
        loss.backward()
        self._optimizer.step()
        self._schedule.step()
        value = loss.item()
        assert math.isfinite(value)
        return value

    def outputs(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the outputs for a batch of evaluation, as `TrainSpec.eval_step` does."""
        self.model.eval()
        tensors = self.tensors(batch)
        labels = tensors.pop("labels")
        with torch.no_grad():
            logits = self.model(**tensors).logits
            loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        return {
            "outputs": {"logits": logits.numpy()},
            "loss": loss.numpy(),
            "count": np.ones(len(loss)),
            "rows": batch["rows"],
            "weights": batch["weights"],
        }
