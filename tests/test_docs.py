"""What the documents say is so: their examples run, their paths exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{document.stem}-{number}")
    for document in DOCUMENTS
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text("utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_an_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_readmes_example_leaves_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(SNIPPETS[0].values[0], {"__name__": "example"})
    assert (tmp_path / "runs" / "readme" / "reward-kl.png").is_file()
    assert SNIPPETS[0].values[0].count("\n") <= 14


def tree():
    """The paths of README's tree, folders with a final slash."""
    block = re.search(r"## The tree\n+```\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
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


def test_every_recipe_is_described():
    text = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert [p.stem for p in (ROOT / "recipes").glob("*.yaml") if f"`{p.stem}`" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []
