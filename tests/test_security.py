"""Files from elsewhere are only read, never executed; see docs/reliability.md."""

import ast
from pathlib import Path

from tests.programs import call
from tests.training import tiny

ROOT = Path(__file__).parent.parent
FOLDERS = ["nystromformer_jax", "dataprep", "reporting", "lra", "language", "configs", "launch"]
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
SOURCES += sorted(ROOT.glob("run_*.py"))

REQUIRED = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False"}


def test_numbers_are_loaded_without_pickles():
    """Ruff forbids other ways to execute a file."""
    found = []
    for path in [path for path in SOURCES if ".load(" in path.read_text("utf-8")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in REQUIRED:
                found.append(name)
                assert REQUIRED[name] in map(ast.unparse, node.keywords), (path, node.lineno)
    assert set(found) == REQUIRED.keys()


def test_a_run_writes_no_environment_variables(tmp_path, monkeypatch):
    secret = "correct-horse-battery-staple"
    monkeypatch.setenv("SOME_TOKEN", secret)
    tiny.train(tmp_path, tiny.config(5))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.json", "metrics.jsonl"} <= {path.name for path in files}
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_missing_data_are_an_error_and_never_downloaded(in_repository):
    answer = call("run_lra", "--config=configs/text.py", "--mode=data")
    assert answer.code == 2
    assert "--config.data.dir" in answer.errors
