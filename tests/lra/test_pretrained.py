"""The authors' LRA checkpoints: the logits of the same modules in PyTorch."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra import train
from lra.pretrained import load_authors_checkpoint
from tests.helpers import OTHER_FRAMEWORK, assert_close, mask_of_lengths

authors = pytest.importorskip(
    "tests.pretrained.authors", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
torch = authors.torch
nn = torch.nn

VOCAB, DIM, HEADS, HEAD_DIM, MLP, LAYERS = 32, 12, 2, 5, 7, 2
LENGTH, LANDMARKS, WIDTH, PROJECTED = 40, 8, 3, 6
ARGUMENTS = {
    "softmax": "softmax,quirks=mlpen",
    "nystrom": f"nystrom,num_landmarks={LANDMARKS},conv_kernel_size={WIDTH},quirks=mlpen",
    "linformer": f"linformer,projection_size={PROJECTED},quirks=mlpen",
}


class Block(nn.Module):
    def __init__(self, **attention):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mha = authors.Attention(DIM, HEADS, HEAD_DIM, **attention)
        self.mlpblock = nn.Sequential(
            nn.Linear(DIM, MLP), nn.GELU(), nn.Dropout(), nn.Linear(MLP, DIM), nn.Dropout()
        )

    def forward(self, x, mask):
        x = x + self.mha(self.norm1(x), mask)
        return x + self.mlpblock(self.norm2(x))


class Lra(nn.Module):
    """A model of one sequence or of a pair; with `tied` all layers share parameters."""

    def __init__(self, attention, classes, pair=False, tied=False):
        super().__init__()
        options = {
            "softmax": {},
            "nystrom": {"landmarks": LANDMARKS, "width": WIDTH},
            "linformer": {"projection": nn.Parameter(torch.zeros(HEADS, PROJECTED, LENGTH))},
        }[attention]
        self.model, self.seq_classifer = nn.Module(), nn.Module()
        self.model.embeddings = nn.Module()
        self.model.embeddings.word_embeddings = nn.Embedding(VOCAB, DIM)
        self.model.embeddings.position_embeddings = nn.Embedding(LENGTH, DIM)
        blocks = [Block(**options) for _ in range(1 if tied else LAYERS)]
        self.order = blocks * LAYERS if tied else blocks
        for i, block in enumerate(blocks):
            setattr(self.model, "transformer" if tied else f"transformer_{i}", block)
        self.model.norm = nn.LayerNorm(DIM)
        features = 4 * DIM if pair else DIM
        self.seq_classifer.mlpblock = nn.Sequential(
            nn.Linear(features, MLP), nn.ReLU(), nn.Linear(MLP, classes)
        )
        authors.randomize(self)

    def pooled(self, inputs, mask):
        x = self.model.embeddings.word_embeddings(inputs)
        x = x + self.model.embeddings.position_embeddings.weight
        for block in self.order:
            x = block(x, mask)
        return (self.model.norm(x) * mask[..., None]).mean(1)

    def forward(self, *texts):
        if len(texts) == 2:
            return self.seq_classifer.mlpblock(self.pooled(*texts))
        # In one batch, as in our model: the start of the pseudoinverse is the maximum over a batch. The
        # authors encode one text after the other, which changes logits by up to 1e-3.
        x, y = self.pooled(*(torch.cat(pair) for pair in (texts[::2], texts[1::2]))).chunk(2)
        return self.seq_classifer.mlpblock(torch.cat([x, y, x * y, x - y], -1))


def config_of(attention, task="listops"):
    config = importlib.import_module(f"configs.{task}").get_config(ARGUMENTS[attention])
    config.data.update(max_len=LENGTH, padded_len=0)
    config.model.update(
        vocab_size=VOCAB if task == "listops" else 512,
        max_len=LENGTH,
        embed_dim=DIM,
        head_dim=HEAD_DIM,
        mlp_dim=MLP,
        num_layers=LAYERS,
    )
    return config.to_dict()


def save(model, path, *, wrapped=False):
    prefix = "module." if wrapped else ""
    tensors = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"model_state_dict": tensors}, path)
    return path


def compare(rngs, theirs, params, config, lengths):
    """Compares the logits of one padded batch."""
    model = train.prepare(config).model
    texts = []
    for row in lengths:
        mask = mask_of_lengths(row, LENGTH)
        inputs = jax.random.randint(next(rngs), mask.shape, 1, VOCAB)
        texts += [jnp.where(mask, inputs, 0), mask]
    as_torch = [
        torch.tensor(np.asarray(x), dtype=torch.float32 if i % 2 else torch.long)
        for i, x in enumerate(texts)
    ]
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    expected = jnp.asarray(theirs(*as_torch).detach().numpy())
    assert_close(apply({"params": params}, *texts), expected, OTHER_FRAMEWORK)


@pytest.mark.slow_except("nystrom")
@pytest.mark.parametrize("attention", ARGUMENTS)
def test_one_sequence(rngs, tmp_path, attention):
    theirs = Lra(attention, classes=10)
    config = config_of(attention)
    path = save(theirs, tmp_path / "listops.model", wrapped=attention == "softmax")
    params = load_authors_checkpoint(path, config)
    compare(rngs, theirs, params, config, [[LENGTH, 23, 9]])


def test_tied_layers_and_later_positions(rngs, tmp_path):
    theirs, config = Lra("softmax", classes=10, tied=True), config_of("softmax")
    path = save(theirs, tmp_path / "tied.model")
    params = load_authors_checkpoint(path, config)
    compare(rngs, theirs, params, config, [[LENGTH, 23, 9]])
    config["data"]["max_len"] = config["model"]["max_len"] = 24  # later positions are dropped
    table = load_authors_checkpoint(path, config)["sequence_encoder"]["position_embedding"]
    expected = theirs.model.embeddings.position_embeddings.weight[:24].detach().numpy()
    assert (np.asarray(table["embedding"]) == expected).all()


def test_a_pair(rngs, tmp_path):
    config = config_of("nystrom", "retrieval")
    theirs = Lra("nystrom", classes=2, pair=True)
    theirs.model.embeddings.word_embeddings = authors.randomize(nn.Embedding(512, DIM))
    params = load_authors_checkpoint(save(theirs, tmp_path / "pair.model"), config)
    compare(rngs, theirs, params, config, [[LENGTH, 23, 9], [11, LENGTH, 3]])


@pytest.mark.parametrize(
    ("theirs", "classes", "ours", "words"),
    [
        ("nystrom", 10, "softmax", "unknown: .*conv.weight"),
        ("softmax", 10, "nystrom", "conv.weight is missing"),
        ("softmax", 3, "softmax", r"mlpblock.2.bias is \[3\] here, needs \[10\]"),
    ],
)
def test_checkpoint_of_another_model(tmp_path, theirs, classes, ours, words):
    path = save(Lra(theirs, classes=classes), tmp_path / "a.model")
    with pytest.raises(ValueError, match=words):
        load_authors_checkpoint(path, config_of(ours))


def test_unsupported_attention_and_missing_file(tmp_path):
    config = importlib.import_module("configs.listops").get_config("performer")
    with pytest.raises(ValueError, match="performer"):
        load_authors_checkpoint(tmp_path / "a.model", config.to_dict())
    with pytest.raises(FileNotFoundError):
        load_authors_checkpoint(tmp_path / "a.model", config_of("softmax"))
