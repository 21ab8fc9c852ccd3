"""Every rule there is has its literal test, its row in the oracle and a task that it learns; and is small.

Read from the registries, so that a new rule that lacks one is named here.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest
from cases import ENTRIES, PROTOCOLS
from test_batches import RULES as BATCHES

from coevolve.algorithms import ALGORITHMS
from coevolve.algorithms.baselines import BASELINES, SCALES
from coevolve.credit import CREDITS
from coevolve.plays import PLAYS

TESTS = Path(__file__).parents[1]
LITERAL = ("algorithms", "credit", "maths", "plays")
ELSEWHERE = {
    "hindsight": "test_bare_prompt.py",
    "hinted": "test_bare_prompt.py",
    "madpo": "test_preferences.py",
    "iac": "test_critics.py",
    "maac": "test_critics.py",
    "misheard": "test_same_episodes.py",
    "tools": "test_same_episodes.py",
    "refereed": "test_same_episodes.py",
}
"""Rules that the table cannot hold, and where they are held against enumeration."""
MOST = 80


def words(*files):
    return set(re.findall(r"\w+", "\n".join(file.read_text("utf-8") for file in files)))


@pytest.mark.parametrize("rules", [ALGORITHMS, CREDITS], ids=["algorithms", "credits"])
def test_every_rule_has_a_literal_test_and_a_task_that_it_learns(rules):
    literal = words(*(file for folder in LITERAL for file in (TESTS / folder).glob("test_*.py")))
    learning = set(re.findall(r"\w+", learnt((TESTS / "test_trainer.py").read_text("utf-8"))))
    assert [name for name in rules if name not in literal] == []
    assert [name for name in rules if name not in learning] == []


def learnt(text):
    """The tests that compare late rewards with early ones, and the tables of what they are run with."""
    found, lines = [], text.splitlines()
    for part in ast.parse(text).body:
        first = min([part.lineno, *(one.lineno for one in getattr(part, "decorator_list", []))])
        said = "\n".join(lines[first - 1 : part.end_lineno])
        if isinstance(part, ast.Assign) or "learns(" in said or "> 3 * sum" in said:
            found.append(said)
    return "\n".join(found)


def test_every_algorithm_baseline_and_scale_has_its_row():
    named = {entry.name.partition(",")[0] for entry in ENTRIES}
    assert [name for name in ALGORITHMS if name not in named | ELSEWHERE.keys()] == []
    settings = [entry.made("team").settings for entry in ENTRIES] + [rule.settings for rule in BATCHES.values()]
    assert BASELINES.keys() == {one["baseline"] for one in settings if "baseline" in one}
    assert SCALES.keys() == {one["std"] for one in settings if "std" in one}


def test_every_play_is_enumerated():
    named = {protocol.name.partition("(")[0] for protocol in PROTOCOLS}
    assert [name for name in PLAYS if name not in named | ELSEWHERE.keys()] == []
    assert all(name in words(TESTS / "oracle" / file) for name, file in ELSEWHERE.items())


def test_every_credit_has_its_row():
    text = (TESTS.parent / "docs" / "oracle-tables.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+)", text[text.index("### Credits: ") :], re.MULTILINE)
    assert [name for name in CREDITS if name not in rows] == []


@pytest.mark.parametrize("name", [*ALGORITHMS, *CREDITS])
def test_a_rule_is_small(name):
    """Code of the rule and of what it is made of in its own file, apart from imports and docstrings."""
    made = inspect.unwrap({**ALGORITHMS, **CREDITS}[name])
    text = Path(inspect.getsourcefile(made)).read_text("utf-8")
    parts = {part.name: part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef | ast.ClassDef)}
    todo, seen = [made.__name__], set()
    while todo:
        if (part := todo.pop()) in parts and part not in seen:
            seen.add(part)
            todo += [node.id for node in ast.walk(parts[part]) if isinstance(node, ast.Name)]
    assert 0 < sum(size(parts[part], text.splitlines()) for part in seen) <= MOST


def size(part, lines):
    """How many lines it has, docstrings, comments and empty ones apart."""
    told = set()
    for node in ast.walk(part):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            told |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    own = (number for number in range(part.lineno, part.end_lineno + 1) if number not in told)
    return sum(1 for number in own if lines[number - 1].strip() and not lines[number - 1].lstrip().startswith("#"))
