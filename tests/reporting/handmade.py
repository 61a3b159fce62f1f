"""Writes the files of a run, without any training."""

import json


def write(folder, sections, result=None, lines=(), *, config=None):
    """Writes a run; `config` has sections over `sections`, and None takes a key out of the `result`."""
    folder.mkdir(parents=True)
    for name, changes in (config or {}).items():
        sections[name] = sections.get(name, {}) | changes
    (folder / "config.json").write_text(json.dumps(sections))
    write_lines(folder / "metrics.jsonl", lines)
    if result is not None:
        known = {key: value for key, value in result.items() if value is not None}
        (folder / "result.json").write_text(json.dumps(known))
    return folder


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
