"""TransMIL of torchmil and of the authors' layout, and ours with their weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.pretrained.transmil import read_transmil
from tests.helpers import OTHER_FRAMEWORK, assert_close

modules = pytest.importorskip(
    "tests.peers.modules", reason="needs the extra `peers`", exc_type=ImportError
)
models = pytest.importorskip("torchmil.models", reason="needs the extra `peers`")
pytestmark = pytest.mark.peers
torch = modules.torch

FEATURES, WIDTH, HEADS, LANDMARKS = 13, 30, 5, 11
# Fewer tokens than landmarks, just M (3² + the class token + a zero in front), squares and others.
LENGTHS = (1, 7, 9, 64, 107)


def torchmil(**options):
    """Their model with attention that is not nearly uniform."""
    torch.manual_seed(0)
    options = {"n_heads": HEADS, "n_landmarks": LANDMARKS, **options}
    model = models.TransMIL((FEATURES,), att_dim=WIDTH, **options).eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.att_module.qkv_nn.weight *= 4
    return model


def bag(rngs, length):
    return jax.random.normal(next(rngs), (1, length, FEATURES))


class Authors(torch.nn.Module):
    """The authors' model around lucidrains' attention: a ReLU, an output projection and a convolution."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.attn = modules.LucidrainsAttention(
                WIDTH, WIDTH // HEADS, HEADS, LANDMARKS, residual_conv_kernel=modules.WIDTH
            )

        def forward(self, x):
            return x + self.attn(self.norm(x))

    def __init__(self):
        super().__init__()
        self._fc1 = torch.nn.Sequential(torch.nn.Linear(FEATURES, WIDTH), torch.nn.ReLU())
        self.cls_token = torch.nn.Parameter(torch.randn(1, 1, WIDTH))
        self.layer1, self.layer2 = self.Layer(), self.Layer()
        self.pos_layer = models.transmil.PPEG(WIDTH)
        self.norm, self._fc2 = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self._fc1(x)
        side = int(np.ceil(np.sqrt(x.shape[1])))
        x = torch.cat([self.cls_token, x, x[:, : side**2 - x.shape[1]]], dim=1)
        x = self.layer2(self.pos_layer(self.layer1(x), side, side))
        return self._fc2(self.norm(x)[:, 0])


@pytest.mark.parametrize(
    ("length", "options"),
    [*((length, {}) for length in LENGTHS), (107, {"n_layers": 3, "use_mlp": True})],
    ids=str,
)
def test_equals_torchmil(rngs, length, options):
    theirs = torchmil(**options)
    ours = read_transmil(theirs.state_dict(), num_heads=HEADS, num_landmarks=LANDMARKS)
    x = bag(rngs, length)
    logits, row = theirs(modules.tensors(x), return_att=True)
    found, found_row = jax.jit(lambda ours, x: (ours(x)[:, 0], ours.class_map(x)))(ours, x)
    assert_close(found, modules.array(logits), OTHER_FRAMEWORK)
    assert_close(found_row, modules.array(row), OTHER_FRAMEWORK)


@pytest.mark.parametrize("length", [7, 107])
def test_equals_the_authors_layout(rngs, length):
    """Heads are read from the convolution; a checkpoint of Lightning has prefixed tensors as a value."""
    torch.manual_seed(0)
    theirs = Authors().eval()
    tensors = {f"model.{name}": tensor for name, tensor in theirs.state_dict().items()}
    ours = read_transmil({"epoch": 3, "state_dict": tensors}, num_landmarks=LANDMARKS)
    x = bag(rngs, length)
    assert_close(ours(x), modules.array(theirs(modules.tensors(x))), OTHER_FRAMEWORK)


def test_defaults_are_those_of_torchmil(rngs):
    torch.manual_seed(0)
    theirs = models.TransMIL((16,), att_dim=16).eval()
    x = jax.random.normal(next(rngs), (1, 37, 16))
    ours = read_transmil(theirs.state_dict())
    assert_close(ours(x)[:, 0], modules.array(theirs(modules.tensors(x))), OTHER_FRAMEWORK)


def test_can_be_trained(rngs):
    model = read_transmil(torchmil().state_dict(), num_heads=HEADS, num_landmarks=LANDMARKS)
    x = bag(rngs, 29)
    gradient = jax.jit(jax.grad(lambda model: model(x).sum()))(model)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert abs(gradient.weights["cls_token"]).max() > 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda tensors: tensors | {"head.weight": np.zeros(3)}, "head"),
        (lambda tensors: {}, "no tensors"),
        (lambda tensors: {k: v for k, v in tensors.items() if "layers.1" not in k}, "two or more"),
    ],
)
def test_rejects_other_state_dicts(change, word):
    with pytest.raises(ValueError, match=word):
        read_transmil(change(torchmil().state_dict()))


def test_rejects_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="num_heads"):
        read_transmil(torchmil().state_dict(), num_heads=7)
