"""Lists of a command line; an unknown name gives the nearest known names, or all of them."""

from nystromformer_jax.support.spelling import nearest, split_commas


def test_splits_at_commas_outside_brackets_at_any_depth():
    assert split_commas("a=((1,2),(3,4)),b=[5,(6,)],c") == ["a=((1,2),(3,4))", "b=[5,(6,)]", "c"]
    assert split_commas("(3,5") == ["(3,5"]
    assert split_commas("") == [""]


def test_suggests_the_nearest_names_or_all_or_none():
    assert nearest("listop", ["text", "listops"]) == "; did you mean listops?"
    assert nearest("zebra", ["text", "image"]) == "; known: image, text."
    assert nearest("zebra", {}) == "; there are none."


def test_suggests_keys_with_the_same_last_part_or_of_the_same_section():
    known = ["data", "data.dir", "optimizer", "optimizer.eps", "optimizer.learning_rate"]
    assert nearest("optimizer.lr", known) == "; known: optimizer.eps, optimizer.learning_rate."
    assert nearest("optimizer.learn_rate", known) == "; did you mean optimizer.learning_rate?"
    assert nearest("data.learning_rate", known) == "; did you mean optimizer.learning_rate?"
    assert nearest("optimiser.eps", known) == "; did you mean optimizer.eps?"
    assert nearest("train.step", ["train.total_steps"]) == "; did you mean train.total_steps?"


def test_paths_have_no_sections():
    known = ["configs/image.py", "configs/listops.py"]
    assert nearest("configs/listop.py", known).startswith("; did you mean configs/listops.py")
    assert nearest("configs/listops.yaml", known).startswith("; did you mean configs/listops.py")
