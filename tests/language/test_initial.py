"""Errors in a model's config name the keys of the run's config."""

import pytest

from language.initial import InitConfig, model_config


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "chunked"}, r"attention\.name: 'chunked' is unknown"),
        ({"name": "nystrm"}, r"attention\.name: 'nystrm' is unknown; did you mean nystrom\?"),
        ({"name": ["nystrom"]}, r"attention\.name: \['nystrom'\] is unknown"),
        ({"num_landmarks": "many"}, r"attention\.num_landmarks: needs an int, got 'many' \(str\)"),
        ({"landmarks": 3}, r"attention\.landmarks: no such key; did you mean attention\.num_landm"),
        ({"embed_dim": 8}, r"attention\.embed_dim: no such key; known: "),
    ],
)
@pytest.mark.parametrize("of_checkpoint", [False, True])
def test_errors_name_keys_of_the_section_attention(values, sentence, of_checkpoint):
    init = InitConfig(checkpoint="anywhere" if of_checkpoint else "")
    attention = {"name": "nystrom", **values}
    with pytest.raises(ValueError, match=sentence):
        model_config({"model": {}, "attention": attention}, init, vocab_size=60)
