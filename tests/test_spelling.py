"""An unknown name gives the nearest known names, or all of them."""

from nystromformer_jax.spelling import nearest


def test_suggests_the_nearest_names_or_all_or_none():
    assert nearest("listop", ["text", "listops"]) == "; did you mean listops?"
    assert nearest("zebra", ["text", "image"]) == "; known: image, text."
    assert nearest("zebra", {}) == "; there are none."
