"""What the documents say is so: examples and commands run, paths and messages exist, the site builds alone."""

import ast
import asyncio
import io
import json
import pydoc
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import docs_code
import recipe_keys
from coevolve import Trainer, cli
from coevolve.models.names import PACKAGED
from coevolve.recipe.build import parts
from coevolve.recipe.read import load_recipe

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [README, *GUIDE]
FIVE_MINUTES = ROOT / "docs" / "five-minutes.md"
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).with_suffix("").as_posix()


def blocks(document, language):
    """The fenced blocks of this language, but not the files of ``examples`` that a page has the text of."""
    return re.findall(rf"(?<! -->\n)^```{language}\n(.*?)^```", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)


SNIPPETS = [
    pytest.param(code, id=f"{name_of(document)}-{number}")
    for document in GUIDE
    if document != FIVE_MINUTES  # its files, commands and code are one story, see below
    for number, code in enumerate(blocks(document, "python"))
]
COMMANDS = sorted(
    {
        line.split(" #")[0].strip()
        for document in DOCUMENTS
        if document != FIVE_MINUTES
        for block in blocks(document, "sh")
        for line in block.splitlines()
        if line.startswith("coevolve ")
    }
)


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_readmes_example_leaves_a_run(tmp_path, monkeypatch):
    [code] = blocks(README, "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert (tmp_path / "runs" / "readme" / "metrics.jsonl").is_file()
    assert code.count("\n") <= 14


@pytest.mark.parametrize("example", [e for e in EXAMPLES if "Trainer(" in e.read_text("utf-8")], ids=name_of)
def test_an_example_trains(example, tmp_path, monkeypatch):
    """As a program, with two small steps. Those that are a program of another kind train by their recipes
    (``test_examples``)."""
    whole = Trainer.__init__
    small = {"steps": 2, "batch_size": 4}
    monkeypatch.setattr(Trainer, "__init__", lambda self, **settings: whole(self, **settings | small))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    run = tmp_path / "runs" / example.stem.replace("_", "-")
    assert len((run / "metrics.jsonl").read_text("utf-8").splitlines()) == 2


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_has_a_page_and_fits_on_one(example):
    assert example.read_text("utf-8").count("\n") <= 60
    pages = (ROOT / "docs" / "guides").glob("*.md")
    assert any(f"examples/{example.name}" in docs_code.files(page.read_text("utf-8")) for page in pages)


@pytest.mark.parametrize("page", GUIDE, ids=name_of)
def test_a_page_has_the_code_of_its_files(page):
    """Where it is read, on GitHub too: nothing is left for the site to include."""
    text = page.read_text("utf-8")
    assert docs_code.included(text) == text, "run make docs-code"
    assert len(docs_code.files(text)) == len(re.findall(r"^<!-- \S+ -->$", text, re.MULTILINE))
    assert "--8<--" not in text


def test_the_page_of_keys_is_that_of_the_source():
    page = recipe_keys.page()
    assert recipe_keys.PAGE.read_text("utf-8") == page, "run make docs-code"
    assert "| `critic` | text | needed |" in page.partition("### maac")[2]  # where iac's may be left out
    assert "| `eta` | number from 0 | `0.3` |" in page.partition("### ppo")[2].partition("###")[0]
    for default in re.findall(r"\| `([^`]+)` \|(?: [^|]*\|)?$", page, re.MULTILINE):
        yaml.safe_load(default)
    words = set(re.findall(r"[A-Za-z_]+", " ".join(re.findall(r"^\| `\w+` \| ([^|]+) \|", page, re.MULTILINE))))
    assert not [word for word in words if word[0].isupper()]  # a name of the source that has no words


def test_a_page_follows_its_file(tmp_path):
    page = "Before\n<!-- a.py -->\n```python\nold\n```\nafter\n"
    (tmp_path / "a.py").write_text("new = r'\\1'\n")
    assert docs_code.included(page, tmp_path) == page.replace("old", r"new = r'\1'")
    assert docs_code.included(page.replace("<!-- a.py -->", ""), tmp_path) == page.replace("<!-- a.py -->", "")
    (tmp_path / "a.py").write_text('"""\n```\n"""\n')
    with pytest.raises(ValueError, match="indent that line"):
        docs_code.included(page, tmp_path)
    (tmp_path / "a.py").unlink()
    with pytest.raises(ValueError, match="is not there"):
        docs_code.included(page, tmp_path)


def test_the_five_minutes_are_run_as_they_are_written(tmp_path, monkeypatch):
    """Its files, then its commands and its code in their order, with two steps and the packaged model as one's own."""
    monkeypatch.chdir(tmp_path)
    page = FIVE_MINUTES.read_text("utf-8")
    for name, text in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
        Path(name).write_text(text.replace("steps: 40", "steps: 2"), "utf-8")
    shutil.copytree(ROOT / "src" / "coevolve" / "assets" / "coevolve-tiny", "my-model")
    monkeypatch.setattr(sys, "stdin", io.StringIO("garden\n"))
    for line in "".join(blocks(FIVE_MINUTES, "sh")).splitlines():
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0
    [code] = blocks(FIVE_MINUTES, "python")
    exec(compile(code, "five minutes", "exec"), {"__name__": "example"})
    assert len(Path("runs/reviews-0/metrics.jsonl").read_text("utf-8").splitlines()) == 2
    assert Path("runs/reviews-0/report.html").is_file()


def test_the_notebook_runs(tmp_path, monkeypatch):
    """Cell after cell in one namespace, with two steps and inside of a running event loop, as Jupyter runs them."""
    cells = ["".join(c["source"]) for c in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if c["cell_type"] == "code"]
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: names["plt"].close())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {"__name__": "__main__"}

    async def kernel():
        for cell in cells:
            exec(compile(cell.replace("steps=40", "steps=2"), "cell", "exec"), names)

    asyncio.run(kernel())
    assert len(names["rewards"]) == 2
    assert {sample["step"] for sample in names["samples"]} == {0, 2}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line, monkeypatch):
    """It parses, and where it trains, its recipe, overrides and components are right."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    args, rest = cli._parser()[0].parse_known_args(words)
    overrides = [*getattr(args, "overrides", ()), *rest]
    assert all("=" in word for word in overrides)
    if words[0] == "train":
        parts(load_recipe(args.recipe, overrides))


def test_a_reward_from_a_recipe_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", str(ROOT / "examples" / "own_reward.yaml"), "steps=2", "output_dir=run"]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()) == 2


def tree():
    """The paths of the tree of CONTRIBUTING.md, folders with a final slash."""
    block = re.search(r"## The tree\n+```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    assert block
    stack, paths = [], []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        stack[depth:] = [line.split()[0]]
        paths.append("".join(stack))
    return paths


def test_every_path_of_the_tree_exists():
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_every_module_is_in_the_tree():
    named = tree()
    whole = [path for path in named if path.endswith("/") and not any(p != path and p.startswith(path) for p in named)]
    modules = [p.relative_to(ROOT).as_posix() for p in (ROOT / "src").rglob("*.py") if p.name != "__init__.py"]
    assert [m for m in modules if m not in named and not any(m.startswith(folder) for folder in whole)] == []


def test_every_name_is_ours():
    told = "".join(page.read_text("utf-8") for page in DOCUMENTS if not page.stem.startswith(("log", "changelog")))
    named = set(re.findall(r"`(coevolve(?:\.\w+)+)", told))
    assert len(named) > 10
    assert [name for name in sorted(named) if not name.endswith(".yaml") and pydoc.locate(name) is None] == []


def test_every_packaged_model_is_named():
    assert [name for name in PACKAGED if f"`{name}`" not in README.read_text("utf-8")] == []


def test_every_recipe_is_described():
    text = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert [p.stem for p in (ROOT / "recipes").glob("*.yaml") if f"`{p.stem}`" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document):
    prose = re.sub(r"```.*?```|`[^`\n]+`", "", document.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
    assert [link for link in links if not (document.parent / link).exists()] == []


def said(node):
    """The text of a string in the source, with … for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        pieces = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return re.sub("…+", "…", "".join(pieces))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_the_messages_of_troubleshooting_are_ours():
    sources = [ast.parse(file.read_text("utf-8")) for file in (ROOT / "src").rglob("*.py")]
    ours = {said(node) for source in sources for node in ast.walk(source)}
    quoted = "".join(blocks(ROOT / "docs" / "troubleshooting.md", "text")).splitlines()
    assert len(quoted) > 40
    assert [message for message in quoted if message not in ours] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, strictly: every link and anchor of it leads somewhere."""
    for needed in ("material", "mkdocstrings_handlers.python", "latex2mathml"):
        pytest.importorskip(needed, reason="the site needs `pip install 'coevolve[dev]'`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.found += [given[key] for key in ("src", "srcset", "data", "poster") if given.get(key)]
        if tag == "link":
            self.found.append(given["href"])


@pytest.mark.slow
def test_the_site_asks_nobody(site):
    pages = {file: file.read_text("utf-8") for file in site.rglob("*.html")}
    assert len(pages) > 30
    fetched = {address for page in pages.values() for address in Fetched(page).found}
    fetched |= {a for file in site.rglob("*.css") for a in re.findall(r"url\(([^)]+)\)", file.read_text("utf-8"))}
    assert any("search" in address or "bundle" in address for address in fetched)
    assert [address for address in fetched if re.match(r"[\"']?(https?:)?//", address)] == []


@pytest.mark.slow
def test_formulas_are_drawn_by_the_browser(site):
    page = (site / "magrpo" / "index.html").read_text("utf-8")
    assert page.count("<math") > 10
    assert not any("arithmatex" in file.read_text("utf-8") for file in site.rglob("*.html"))
