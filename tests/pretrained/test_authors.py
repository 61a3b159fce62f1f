"""Checkpoints of the authors' BERT codes: the logits of the same modules in PyTorch."""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained import ExactAttentionWarning, from_pretrained
from tests.helpers import OTHER_FRAMEWORK, assert_close

pytest.importorskip("safetensors", reason="needs the extra `language`")
authors = pytest.importorskip(
    "tests.pretrained.authors", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
torch = authors.torch
nn = torch.nn

VOCAB, DIM, HEADS, MLP, LENGTH, LANDMARKS, WIDTH, CLASSES = 11, 12, 3, 7, 20, 5, 3, 4
CODE = {
    "max_seq_len": LENGTH,
    "num_layers": 2,
    "dropout_prob": 0.1,
    "num_head": HEADS,
    "head_dim": DIM // HEADS,
    "attn_type": "softmax",
}
# As in nystrom-512/config.json, where landmarks and length are swapped.
NYSTROM = {
    "attn_type": "nystrom",
    "num_landmarks": LENGTH,
    "seq_len": LANDMARKS,
    "conv_kernel_size": WIDTH,
}
REORGANIZED = {**CODE, "model_type": "efficient_attention", "shared_weight": False}


class Block(nn.Module):
    def __init__(self, code, **attention):
        super().__init__()
        self.mha = authors.Attention(DIM, HEADS, DIM // HEADS, **attention)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        if code:
            self.ff1, self.ff2 = nn.Linear(DIM, MLP), nn.Linear(MLP, DIM)
        else:
            self.ff = nn.Sequential(nn.Linear(DIM, MLP), nn.GELU(), nn.Linear(MLP, DIM))

    def forward(self, x):
        x = self.norm1(x + self.mha(x, torch.ones(x.shape[:2])))
        if hasattr(self, "ff"):
            return self.norm2(x + self.ff(x))
        return self.norm2(x + self.ff2(nn.functional.gelu(self.ff1(x), approximate="tanh")))


class Bert(nn.Module):
    """The model of code/ or reorganized_code/BERT with all heads; tests drop unused heads."""

    def __init__(self, code, shared=False, **attention):
        super().__init__()
        self.front = 2 if code else 0
        self.activation = functools.partial(
            nn.functional.gelu, approximate="tanh" if code else "none"
        )
        blocks = [Block(code, **attention) for _ in range(1 if shared else 2)]
        self.order = blocks * 2 if shared else blocks
        self.model = nn.Module()
        self.model.embeddings = nn.Module()
        self.model.embeddings.word_embeddings = nn.Embedding(VOCAB, DIM)
        self.model.embeddings.position_embeddings = nn.Embedding(LENGTH + self.front, DIM)
        self.model.embeddings.token_type_embeddings = nn.Embedding(2, DIM)
        self.model.embeddings.norm = nn.LayerNorm(DIM)
        if code:
            for i, block in enumerate(blocks):
                setattr(self.model, f"transformer_{i}", block)
        else:
            self.model.backbone = nn.Module()
            self.model.backbone.backbone = nn.Module()
            name, inner = ("encoder", blocks[0]) if shared else ("encoders", nn.ModuleList(blocks))
            setattr(self.model.backbone.backbone, name, inner)
        self.mlm = nn.Module()
        self.mlm.dense, self.mlm.norm = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.mlm.mlm_class = nn.Linear(DIM, VOCAB)
        self.mlm.mlm_class.weight = self.model.embeddings.word_embeddings.weight
        self.sen_classifer = nn.Module()
        self.sen_classifer.dense = nn.Linear(DIM, DIM)
        self.sen_classifer.classifer = nn.Linear(DIM, CLASSES)
        self.model.pooler, self.sen_class = nn.Linear(DIM, DIM), nn.Linear(DIM, CLASSES)
        authors.randomize(self)

    def forward(self, inputs, types):
        embeddings = self.model.embeddings
        x = embeddings.word_embeddings(inputs) + embeddings.token_type_embeddings(types)
        positions = torch.arange(inputs.shape[1]) + self.front
        x = embeddings.norm(x + embeddings.position_embeddings(positions))
        for block in self.order:
            x = block(x)
        return x

    def token_logits(self, x):
        return self.mlm.mlm_class(self.mlm.norm(self.activation(self.mlm.dense(x))))


def save(model, path, config, *, without=(), wrapped=False):
    """Saves like their training: some heads, an optional DataParallel prefix, config.json one folder up."""
    tensors = {
        ("module." if wrapped else "") + name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(without)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model_state_dict": tensors, "epoch": 3, "optimizer_state_dict": {}}, path)
    (path.parent.parent / "config.json").write_text(json.dumps({"model": config}))


def batch(rngs):
    inputs = jax.random.randint(next(rngs), (3, LENGTH), 0, VOCAB)
    types = jax.random.randint(next(rngs), (3, LENGTH), 0, 2)
    as_torch = [torch.tensor(np.asarray(x), dtype=torch.long) for x in (inputs, types)]
    return inputs, types, as_torch


def run(model, variables, inputs, types):
    return jax.jit(functools.partial(model.apply, deterministic=True))(
        variables, inputs, None, types
    )


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def test_reads_a_masked_model_with_landmarks(rngs, tmp_path):
    theirs = Bert(code=True, landmarks=LANDMARKS, width=WIDTH)
    heads = ("sen_", "model.pooler")
    path = tmp_path / "model" / "cp-0099.model"
    save(theirs, path, {**CODE, **NYSTROM}, without=heads, wrapped=True)
    # The start of the pseudoinverse is our default unless it is given.
    ours, variables = from_pretrained(path, pinv_start="batch_max")
    assert isinstance(ours, NystromformerForMaskedLM)
    assert (ours.config.num_landmarks, ours.config.conv_kernel_size) == (LANDMARKS, WIDTH)
    inputs, types, as_torch = batch(rngs)
    expected = array(theirs.token_logits(theirs(*as_torch)))
    assert_close(run(ours, variables, inputs, types), expected, OTHER_FRAMEWORK)


def test_as_many_landmarks_as_positions_give_exact_attention_with_a_warning(tmp_path):
    """With as many landmarks as positions, their code runs exact attention and the convolution."""
    theirs = Bert(code=True, landmarks=LANDMARKS, width=WIDTH)
    exact = {**CODE, **NYSTROM, "num_landmarks": LENGTH, "seq_len": LENGTH}
    path = tmp_path / "model" / "cp-0099.model"
    save(theirs, path, exact, without=("sen_", "model.pooler"))
    with pytest.warns(ExactAttentionWarning, match=f"num_landmarks = seq_len = {LENGTH}"):
        ours, _ = from_pretrained(path)
    assert (ours.config.attention, ours.config.conv_kernel_size) == ("softmax", WIDTH)
    turned, _ = from_pretrained(path, attention="nystrom", num_landmarks=4)
    assert turned.config.conv_kernel_size == WIDTH


def test_reads_a_classifier(rngs, tmp_path):
    theirs = Bert(code=True)
    save(theirs, tmp_path / "model" / "cp-0099.model", CODE, without=("sen_class.",))
    ours, variables = from_pretrained(tmp_path / "model" / "cp-0099.model")
    assert isinstance(ours, NystromformerForSequenceClassification)
    inputs, types, as_torch = batch(rngs)
    head = theirs.sen_classifer
    expected = array(head.classifer(torch.tanh(head.dense(theirs(*as_torch)[:, 0]))))
    assert_close(run(ours, variables, inputs, types), expected, OTHER_FRAMEWORK)


def test_reads_a_head_for_questions(tmp_path):
    """The WikiHop head has one output, so only the backbone is read."""
    theirs, path = Bert(code=True), tmp_path / "model" / "cp-0099.model"
    for outputs, kind in ((2, NystromformerForQuestionAnswering), (1, Nystromformer)):
        theirs.qahead = nn.Linear(DIM, outputs)
        save(theirs, path, CODE, without=("sen_", "mlm.", "model.pooler"))
        model_class = kind if outputs == 1 else None
        ours, variables = from_pretrained(path, model_class=model_class)
        assert isinstance(ours, kind)
        if outputs == 2:
            kernel = variables["params"]["output"]["kernel"]
            assert (kernel == array(theirs.qahead.weight).T).all()


@pytest.mark.slow_except("True")
@pytest.mark.parametrize("shared", [False, True])
def test_reads_the_reorganized_code(rngs, tmp_path, shared):
    """The sentence-order head has extra classes for GLUE; the first two are the order."""
    theirs = Bert(code=False, shared=shared)
    save(theirs, tmp_path / "model" / "cp-0099.model", REORGANIZED, without=("sen_classifer.",))
    ours, variables = from_pretrained(tmp_path / "model" / "cp-0099.model")
    assert isinstance(ours, NystromformerForPreTraining)
    assert ours.config.max_len == LENGTH
    inputs, types, as_torch = batch(rngs)
    hidden = theirs(*as_torch)
    tokens, order = run(ours, variables, inputs, types)
    assert_close(tokens, array(theirs.token_logits(hidden)), OTHER_FRAMEWORK)
    scores = array(theirs.sen_class(torch.tanh(theirs.model.pooler(hidden[:, 0]))))
    assert_close(order, scores[:, :2], OTHER_FRAMEWORK)
    ours, variables = from_pretrained(
        tmp_path / "model" / "cp-0099.model", model_class=NystromformerForSequenceClassification
    )
    assert_close(run(ours, variables, inputs, types), scores, OTHER_FRAMEWORK)


class Harmful:
    def __reduce__(self):
        return print, ("run",)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model" / "cp-0099.model"
    save(Bert(code=True), path, CODE, without=("sen_", "model.pooler"))
    return path


def write_config(path, **changes):
    (path.parent.parent / "config.json").write_text(json.dumps({"model": {**CODE, **changes}}))


def write_tensor(path, **shapes):
    tensors = torch.load(path)["model_state_dict"]
    changed = {f"model.{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    torch.save({**tensors, **changed}, path)


def write(path, content):
    torch.save(content, path)


def cut(path, kept):
    path.write_bytes(path.read_bytes()[:kept])


# What is damaged, how, and a word of the error.
INVALID = [
    (write_config, {"attn_type": "linformer"}, "attn_type"),
    (write_config, {"max_seq_len": 7}, "needs [7, 12]"),
    (write_config, {"num_head": None}, "num_head"),
    (write_config, {"dropout_prob": None}, "dropout"),
    (write_config, {"num_layers": 3}, "encoder.layer.2"),
    (write_tensor, {"embeddings.position_embeddings": (LENGTH + 2, 6)}, "needs [20, 12]"),
    (write_tensor, {"transformer_0.mha.W_q": (15, DIM)}, "query.weight is [15, 12]"),
    (write_tensor, {"transformer_1.ff1": (8, DIM)}, "intermediate.dense.weight is [8, 12]"),
    (write, {"content": {"seq_classifer.mlpblock.0.weight": torch.ones(3)}}, "lra.pretrained.load"),
    (write, {"content": [1, 2]}, "no state dict"),
    (write, {"content": {"model_state_dict": Harmful()}}, "more than tensors"),
    *((cut, {"kept": kept}, "corrupt") for kept in (0, 100, -50)),
]


@pytest.mark.parametrize(("damage", "changes", "words"), INVALID)
def test_an_invalid_checkpoint_is_an_error(path, capsys, damage, changes, words):
    damage(path, **changes)
    with pytest.raises(ValueError, match=re.escape(words)):
        from_pretrained(path)
    assert capsys.readouterr().out == ""  # no code of a pickle was executed


def test_other_files_and_a_missing_config_are_errors(tmp_path, path):
    with pytest.raises(ValueError, match="pass the file"):
        from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="pass the folder"):
        from_pretrained(path)
    (tmp_path / "config.json").write_text('{"model": {}, "optimizer": {}}')  # of a run
    with pytest.raises(ValueError, match="pass the folder"):
        from_pretrained(path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="the one above"):
        from_pretrained(path)


def test_a_relative_name_finds_the_config_above(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    assert isinstance(from_pretrained(path.name)[0], NystromformerForMaskedLM)


def test_without_torch_the_error_names_the_package(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        from_pretrained(path)
