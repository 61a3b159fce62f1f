"""What a model's description cannot hold is refused by the keys that a config has."""

import pytest

from language.initial import InitConfig, model_config


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "nystrm"}, r"attention\.name: 'nystrm' is unknown; did you mean nystrom\?"),
        ({"name": ["nystrom"]}, r"attention\.name: \['nystrom'\] is unknown"),
        ({"num_landmarks": "many"}, r"attention\.num_landmarks: needs an int, got 'many' \(str\)"),
        ({"landmarks": 3}, r"attention\.landmarks: no such key; did you mean attention\.num_landm"),
        ({"embed_dim": 8}, r"attention\.embed_dim: no such key; known: "),
    ],
)
@pytest.mark.parametrize("of_checkpoint", [False, True])
def test_what_is_wrong_in_attention_is_named_as_attentions(values, sentence, of_checkpoint):
    init = InitConfig(checkpoint="anywhere" if of_checkpoint else "")
    attention = {"name": "nystrom", **values}
    with pytest.raises(ValueError, match=sentence):
        model_config({"model": {}, "attention": attention}, init, vocab_size=60)
