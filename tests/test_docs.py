"""Checks beyond the site's build: code runs, commands parse, generated pages are up to date."""

import argparse
import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import nystromformer_jax
import run_sweep
from cli import configs
from lra import train
from nystromformer_jax import nnx, pretrained, training

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LRA = DOCS / "lra.md"
README = ROOT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIGS = sorted((ROOT / "configs").glob("*.py"))

# A block of Python, and its output if a block of text follows.
PYTHON = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
BASH = re.compile(r"```bash\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`((?:run_\w+\.py|python -m) [^`]*)`")
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
NUMBER = re.compile(r"\d+\.?\d*")

# Placeholders in commands, and values to parse instead.
PLACEHOLDERS = {":ATTENTION": ":nystrom", "TASK": "listops", "HOST:PORT": "localhost:1", "…": ""}
# Files that a reader of docs/extend.md writes.
INVENTED = {"tests/lra/data/test_majority.py", "tests/cores/test_cosformer.py"}
# Programs and modules of others, whose arguments are not checked.
OTHERS = {".", "cd", "export", "git", "my_program.py", "python3", "pre-commit", "pytest", "sphinx"}
OTHERS |= {"taskset"}


def relative(page):
    return str(page.relative_to(ROOT))


def pages_with(pattern, pages):
    return pytest.mark.parametrize(
        "page", [page for page in pages if pattern.search(page.read_text())], ids=relative
    )


@pytest.mark.slow_except("README.md", "docs/scaling.md", "docs/index.md")
@pages_with(PYTHON, [README, *PAGES])
def test_python_blocks_of_a_page_run_and_print_the_shown_output(page, capsys):
    names = {}
    for code, printed in PYTHON.findall(page.read_text()):
        capsys.readouterr()
        exec(compile(code, page.name, "exec"), names)
        if printed:
            said = capsys.readouterr().out
            assert NUMBER.sub("#", said) == NUMBER.sub("#", printed)
            # The last digit depends on the machine.
            assert numbers_of(said) == pytest.approx(numbers_of(printed), rel=0.02, abs=2e-3)


def numbers_of(text):
    return [float(number) for number in NUMBER.findall(text)]


def commands_of(page):
    """Yields every command of a page, or of the docstring of a config, as a list of words."""
    text = page.read_text().replace("\\\n", " ")
    if page.suffix == ".py":
        lines = re.findall(r"^    python .*$", ast.get_docstring(ast.parse(text)), re.MULTILINE)
    else:
        lines = [*"\n".join(BASH.findall(text)).split("\n"), *INLINE.findall(text)]
    for line in lines:
        for placeholder, value in PLACEHOLDERS.items():
            line = line.replace(placeholder, value)
        line = re.sub(r"\[(--[^]]*)\]", r"\1", line)  # optional flags
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # environment variables
                del words[0]
            if words:
                yield words


@pytest.mark.filterwarnings(
    r"ignore:the load_module\(\) method:DeprecationWarning"
)  # ml-collections
@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *PAGES, *CONFIGS], ids=relative)
def test_programs_configs_and_flags_of_commands_exist(page, my_project, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in commands_of(page):
        words = [word.replace("/path/to/my_project", str(my_project)) for word in words]
        check_command(words, monkeypatch)


def check_command(words, monkeypatch):
    program, *arguments = words
    if program == "python" and arguments[0] == "-m":
        check_module(arguments[1], arguments[2:], monkeypatch)
    elif program == "python":
        check_command(arguments, monkeypatch)
    elif program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = re.search(r"\[([\w,]+)\]", arguments[-1])
        asked = extras[1].split(",") if extras else []
        assert set(asked) <= known["optional-dependencies"].keys(), arguments
    elif program == "run_sweep.py":
        run_sweep.parse(arguments)
    elif program.startswith("run_"):
        parse_flags(program, arguments, monkeypatch)
    else:
        assert program in OTHERS or Path(program).is_file(), words


class Parsed(BaseException):
    """Ends a program after it has parsed its arguments."""


def check_module(name, arguments, monkeypatch):
    if name in OTHERS:
        return
    folder = ROOT / name.replace(".", "/")
    name = f"{name}.__main__" if folder.is_dir() else name
    source = (folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text()
    if not arguments or "parse_args" not in source:
        return  # shown without arguments, or takes none

    parse = argparse.ArgumentParser.parse_known_args

    def only_parse(parser, given=None, namespace=None):
        _, unknown = parse(parser, given, namespace)
        assert not unknown
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", only_parse)
        patch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(Parsed):
            importlib.import_module(name).main()


def parse_flags(program, arguments, monkeypatch):
    """Parses a runner's flags and its config with the values of the command."""
    parse = configs.parse

    def parse_only(*given, **options):
        parse(*given, **options)
        raise Parsed

    monkeypatch.setattr(configs, "parse", parse_only)
    with pytest.raises(Parsed):
        importlib.import_module(Path(program).stem).main(arguments)
    monkeypatch.setattr(configs, "parse", parse)


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("api", nystromformer_jax),
        ("api-nnx", nnx),
        ("api-training", training),
        ("api-pretrained", pretrained),
    ],
)
def test_reference_has_every_public_name_once_in_the_groups_of_the_package(page, module):
    text = (DOCS / f"{page}.md").read_text()
    shown = re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", text, re.MULTILINE)
    names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    assert sorted(shown) == sorted(f"{module.__name__}.{name}" for name in names)
    if page == "api":
        source = (ROOT / "nystromformer_jax" / "__init__.pyi").read_text()
        groups = re.findall(r"^ *# ([A-Z].*)$", source, re.MULTILINE)
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == groups


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    "page", [README, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("*/README.md"))], ids=relative
)
def test_targets_of_links_outside_the_site_exist(page):
    for link in LINK.findall(page.read_text()):
        if not link.startswith(("http://", "https://", "#")):
            name, _, anchor = link.partition("#")
            assert (page.parent / name).exists(), link
            assert not anchor or anchor in anchors_of(page.parent / name), link


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_site_has_all_links_and_lines_of_a_page(page):
    """It cannot resolve an anchor in a file that it has not built.

    A line that starts with "%", such as a wrapped "46.93 %", is a comment of MyST.
    """
    text = page.read_text()
    assert not [link for link in LINK.findall(text) if link.startswith("../") and "#" in link]
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"^\s*%.*$", text, re.MULTILINE)


def anchors_of(page):
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=relative)
def test_tests_named_by_a_page_exist(page):
    for path, name in TEST.findall(page.read_text()):
        if path not in INVENTED:
            source = (ROOT / path).read_text()
            assert not name or re.search(rf"^ *def {name}\(", source, re.MULTILINE), (path, name)


def test_files_named_by_the_tour_exist():
    tour = (ROOT / "CONTRIBUTING.md").read_text().partition("<!-- tour")[2]
    listed = re.findall(r"`([\w/]+\.py)`", tour.partition("<!-- end of the tour -->")[0])
    training = ROOT / "nystromformer_jax" / "training"
    missing = [x for x in listed if not ((ROOT / x).is_file() or (training / x).is_file())]
    assert len(listed) > 30
    assert not missing


def test_task_table_agrees_with_the_configs():
    rows = re.findall(
        r"^\| [\w-]+ \| `configs/(\w+)\.py` \| (.*) \|$", LRA.read_text(), re.MULTILINE
    )
    assert len(rows) == 6
    for name, cells in rows:
        config = importlib.import_module(f"configs.{name}").get_config()
        run = train.prepare(config.to_dict())
        length = f"{run.data.padding.padded_len:,}"
        shapes = jax.eval_shape(train.make_params(run))
        assert cells.split(" | ") == [
            f"2 × {length}" if name == "retrieval" else length,
            f"{run.model.num_classes:,}",
            f"{run.fit.train.batch_size:,}",
            f"{run.fit.train.total_steps:,}",
            f"{sum(leaf.size for leaf in jax.tree.leaves(shapes)):,}",
        ], name


def test_fast_recipe_agrees_with_the_configs():
    section = LRA.read_text().partition("### The fast recipe")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| (\d+) \| ([\d,]+) \| (\d+) \|", section, re.MULTILINE)
    assert len(rows) == 6
    for name, *cells in rows:
        module = importlib.import_module(f"configs.{name.lower().replace('-', '')}")
        config = module.get_config("nystrom,recipe=fast")
        train, width = config.train, config.attention.conv_kernel_size
        assert cells == [f"{train.batch_size}", f"{train.total_steps:,}", f"{width}"], name


@pytest.fixture
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of ml-collections
def test_every_key_of_a_config_is_documented(generate):
    """To update: python docs/generate.py."""
    assert (DOCS / "config.md").read_text() == generate.config_page()
