"""Nyström attention in Pallas, for TPUs: each pass reads tokens once, and keeps nothing of their number."""

from nystromformer_jax.kernels.attention import kernel_attention
from nystromformer_jax.kernels.choice import chosen, interpreted, on_each_device, say_once, wanted

__all__ = ["chosen", "interpreted", "kernel_attention", "on_each_device", "say_once", "wanted"]
