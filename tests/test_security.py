"""Files from elsewhere are only read, never executed; see docs/reliability.md."""

import ast
from pathlib import Path

from lra.data.__main__ import main as prepare
from tests.training import tiny

ROOT = Path(__file__).parent.parent
FOLDERS = ["nystromformer_jax", "dataprep", "reporting", "lra", "language", "configs", "launch"]
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
SOURCES += sorted(ROOT.glob("run_*.py"))

# Calls that execute what they read, write to paths in an archive, or download.
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "os.system",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "marshal.loads",
    "shutil.unpack_archive",
    "yaml.load",
}
FORBIDDEN_METHODS = {"extractall", "urlopen", "urlretrieve"}
FORBIDDEN_IMPORTS = {"urllib.request", "requests", "http.client", "shelve", "dill", "joblib"}
REQUIRED = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


def forbidden_lines(tree):
    """Returns the lines of forbidden calls and imports, and of calls without their safe arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        else:
            names = set()
        if names & FORBIDDEN_IMPORTS:
            yield node.lineno
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {word.arg: word.value for word in node.keywords}
        if called in FORBIDDEN_CALLS or called.rpartition(".")[2] in FORBIDDEN_METHODS:
            yield node.lineno
        if "shell" in given:
            yield node.lineno
        if called in REQUIRED:
            name, value = REQUIRED[called]
            if name not in given or ast.literal_eval(given[name]) is not value:
                yield node.lineno


def test_files_are_never_executed():
    found = {path: list(forbidden_lines(ast.parse(path.read_text("utf-8")))) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}
    for line in (  # each is detected
        "eval(text)",
        "pickle.loads(data)",
        "archive.extractall(folder)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path, weights_only=False)",
        "subprocess.run(words, shell=True)",
        "import urllib.request",
        "from urllib import request",
    ):
        assert list(forbidden_lines(ast.parse(line))) == [1], line


def test_a_run_writes_no_environment_variables(tmp_path, monkeypatch):
    secret = "correct-horse-battery-staple"
    monkeypatch.setenv("SOME_TOKEN", secret)
    tiny.train(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.json", "metrics.jsonl"} <= {path.name for path in files}
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_missing_data_are_an_error_and_never_downloaded(capsys):
    assert prepare(["text"]) == 2
    assert "--data_dir" in capsys.readouterr().err
