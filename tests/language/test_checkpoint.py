"""The initial model of a run: errors name the keys of its config, and the seed draws missing heads."""

import json

import numpy as np
import pytest

from language.checkpoint import model_config, read_params
from language.config import InitConfig
from nystromformer_jax import NystromformerForSequenceClassification
from tests.helpers import SAME_ARITHMETIC, assert_close
from tests.language.finetune import fakes
from tests.pretrained import tiny


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "nystrm"}, r"attention\.name: .* did you mean nystrom"),
        ({"name": ["nystrom"]}, r"attention\.name"),
        ({"num_landmarks": "many"}, r"attention\.num_landmarks: needs an int"),
        ({"landmarks": 3}, r"attention\.landmarks: .* did you mean attention\.num_landm"),
        ({"embed_dim": 8}, r"attention\.embed_dim: .*known"),
    ],
)
@pytest.mark.parametrize("checkpoint", ["", "anywhere"])
def test_errors_name_keys_of_the_section_attention(values, words, checkpoint):
    attention = {"name": "nystrom", **values}
    with pytest.raises(ValueError, match=words):
        model_config({"model": {}, "attention": attention}, InitConfig(checkpoint=checkpoint))


@pytest.mark.parametrize("attention", [{}, {"name": "nystrom"}])
def test_a_config_without_sizes_needs_a_checkpoint(attention):
    """The model would otherwise have the sizes of BERT-base."""
    config = {"model": {"dropout_rate": 0.1}, "attention": attention}
    with pytest.raises(ValueError, match=r"init\.checkpoint: .*model\.num_layers"):
        model_config(config, InitConfig())


def test_the_dropout_of_a_run_replaces_that_of_the_checkpoints_classifier(tmp_path):
    raw = tiny.config_of("bert", "ForSequenceClassification", classifier_dropout=0.25)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    sections = {"model": {"dropout_rate": 0.2}, "attention": {}}
    config = model_config(sections, InitConfig(checkpoint=str(tmp_path)))
    assert (config.dropout_rate, config.classifier_dropout_rate) == (0.2, None)


def test_a_head_that_the_checkpoint_lacks_is_drawn_from_the_seed(tmp_path):
    init = InitConfig(checkpoint=str(fakes.checkpoint(tmp_path)))
    config = model_config({"model": {}, "attention": {}}, init)
    one, other = (
        read_params(init, config, NystromformerForSequenceClassification, seed) for seed in (3, 5)
    )
    assert_close(one["nystromformer"], other["nystromformer"], SAME_ARITHMETIC)
    for name in ("dense", "output"):
        assert np.abs(one[name]["kernel"] - other[name]["kernel"]).max() > 1e-3
