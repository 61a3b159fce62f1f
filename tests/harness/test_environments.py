"""Devices and versions are told as far as they are known."""

from harness.environments import device_words, version_sentences


def test_a_cpu_has_threads_and_another_device_has_none():
    cpu = {"device": {"kind": "cpu", "count": 1}, "cpu_threads": 2}
    assert device_words(cpu) == "1 × cpu, 2 threads"
    assert device_words({**cpu, "cpu_threads": None}) == "1 × cpu"
    assert device_words({**cpu, "device": {"kind": "TPU v5e", "count": 4}}) == "4 × TPU v5e"
    assert device_words({"device": None}) == device_words({"device": {"kind": "cpu"}}) == ""


def test_the_most_common_versions_stand_first_and_once():
    new = {"python": "3.12", "jax": "0.11"}
    assert version_sentences([("a", new), ("b", new)]) == ["All runs: python 3.12, jax 0.11."]
    assert version_sentences([("a", {"jax": "0.10"}), ("b", new), ("c", {}), ("d", new)]) == [
        "All others: python 3.12, jax 0.11.",
        "a: jax 0.10.",
        "c: versions not known.",
    ]
