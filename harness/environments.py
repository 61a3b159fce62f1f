"""What runs ran on and by, in words, from their `environment.json` or `result.json`."""

from collections.abc import Iterable, Mapping
from typing import Any


def device_words(environment: Mapping[str, Any]) -> str:
    """Such as "1 × cpu, 2 threads"; empty where it is not known."""
    device, threads = environment.get("device") or {}, environment.get("cpu_threads")
    if not {"count", "kind"} <= set(device):
        return ""
    cpu = f", {threads} threads" if device["kind"] == "cpu" and threads else ""
    return f"{device['count']} × {device['kind']}{cpu}"


def version_sentences(runs: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Which runs had which versions, the most common first; given are names and versions by package."""
    found: dict[str, list[str]] = {}
    for run, versions in runs:
        words = ", ".join(f"{package} {version}" for package, version in versions.items())
        found.setdefault(words or "versions not known", []).append(run)
    most, *rare = sorted(found, key=lambda words: -len(found[words]))
    return [
        f"{'All others' if rare else 'All runs'}: {most}.",
        *(f"{', '.join(found[words])}: {words}." for words in rare),
    ]
