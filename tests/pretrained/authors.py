"""The authors' modules, rewritten in PyTorch with the same tensor names."""

import math

import torch
from torch import nn


class Attention(nn.Module):
    """All heads; `landmarks` by position, or None for exact attention."""

    def __init__(self, dim, heads, head_dim, landmarks=None, width=0, projection=None):
        super().__init__()
        self.heads, self.landmarks = heads, landmarks
        self.W_q, self.W_k, self.W_v = (nn.Linear(dim, heads * head_dim) for _ in range(3))
        self.attn = nn.Module()
        if width:
            self.attn.conv = nn.Conv2d(
                heads, heads, (width, 1), padding=(width // 2, 0), bias=False, groups=heads
            )
        if projection is not None:
            self.attn.E = projection
        self.ff = nn.Linear(heads * head_dim, dim)

    def forward(self, x, mask):
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.W_q, self.W_k, self.W_v)
        )
        padding, value = 1e9 * (1 - mask[:, None, None]), value * mask[:, None, :, None]
        scale = math.sqrt(query.shape[-1])
        if hasattr(self.attn, "E"):
            key = self.attn.E @ (key * mask[:, None, :, None])
            output = (query @ key.mT / scale).softmax(-1) @ (self.attn.E @ value)
        elif self.landmarks is None:
            output = (query @ key.mT / scale - padding).softmax(-1) @ value
        else:
            query, key = (part * mask[:, None, :, None] for part in (query, key))
            q_landmarks, k_landmarks = (
                part.unflatten(2, (self.landmarks, -1)).mean(3) for part in (query, key)
            )
            kernel_1 = (query @ k_landmarks.mT / scale).softmax(-1)
            kernel_2 = (q_landmarks @ k_landmarks.mT / scale).softmax(-1)
            kernel_3 = (q_landmarks @ key.mT / scale - padding).softmax(-1)
            output = kernel_1 @ pseudoinverse(kernel_2) @ (kernel_3 @ value)
        if hasattr(self.attn, "conv"):
            output = output + self.attn.conv(value)
        return self.ff(output.transpose(1, 2).flatten(2))


def pseudoinverse(kernel):
    """Six iterations, from one maximum over the batch."""
    inverse, one = kernel.mT / kernel.sum(-2).max(), torch.eye(kernel.shape[-1])
    for _ in range(6):
        product = kernel @ inverse
        inner = 15 * one - product @ (7 * one - product)
        inverse = inverse @ (13 * one - product @ inner) / 4
    return inverse


def randomize(model):
    """Moves every parameter away from its initial value, by the same amount in every call."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, std=0.4)
    return model.eval()
