"""Every rule there is has its literal test, its row in the oracle and a task that it learns; and is small.

Read from the registries, so that a new rule that lacks one is named here.
"""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
from cases import ENTRIES, PROTOCOLS
from test_batches import RULES as BATCHES

from coevolve.algorithms import ALGORITHMS
from coevolve.algorithms.baselines import BASELINES, SCALES
from coevolve.algorithms.ppo import _RESCALES
from coevolve.credit import CREDITS
from coevolve.maths.kl import ESTIMATORS
from coevolve.maths.loss_aggregation import LOSS_AGGREGATIONS
from coevolve.maths.losses import RATIOS
from coevolve.maths.mismatch import BOUNDS
from coevolve.plays import PLAYS

TESTS = Path(__file__).parents[1]
RULES = {"algorithms": ALGORITHMS, "credits": CREDITS, "plays": PLAYS}
SETTINGS = {
    "baseline": BASELINES,
    "std": SCALES,
    "ratio": RATIOS,
    "mismatch": BOUNDS,
    "estimator": ESTIMATORS,
    "rescale": _RESCALES,
    "loss_aggregation": LOSS_AGGREGATIONS,
}
LITERAL = ("algorithms", "credit", "maths", "plays")
LEARNT_ELSEWHERE = {"tools": "plays/test_tools.py", "refereed": "tasks/test_pettingzoo.py"}
"""Plays that need a task or a model of their own, and whose example learns."""
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


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_has_a_literal_test_and_a_task_that_it_learns(kind):
    assert [name for name in RULES[kind] if name not in literal()] == []
    assert [name for name in RULES[kind] if name not in learning() | LEARNT_ELSEWHERE.keys()] == []
    assert all("test_the_example_learns" in words(TESTS / file) for file in LEARNT_ELSEWHERE.values())


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_value_of_a_setting_has_a_literal_test_and_a_task_that_is_learnt_with_it(setting):
    names = {value: getattr(rule, "__name__", "") for value, rule in SETTINGS[setting].items()}
    assert [value for value, name in names.items() if not literal() & {(setting, value), name}] == []
    assert [value for value in names if (setting, value) not in learning()] == []


@cache
def literal():
    """What is named by tests that compare with a number that is written there."""
    files = [file for folder in LITERAL for file in sorted((TESTS / folder).glob("test_*.py"))]
    tests = [part for file in files for part in every_test(ast.parse(file.read_text("utf-8")))]
    return told(part for part in tests if any(map(has_number, [*asserts(part), *part.decorator_list])))


@cache
def learning():
    """What is named by the tests that compare late rewards with early ones, and by the tables of what they are run
    with."""
    tree = ast.parse((TESTS / "test_trainer.py").read_text("utf-8"))
    tests = [part for part in every_test(tree) if re.search(r"\n    learns\(|> 3 \* sum", ast.unparse(part))]
    said = told(tests)
    tables = [part for part in tree.body if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) in said]
    return told([*tests, *tables])


def every_test(tree):
    return [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name.startswith("test_")]


def asserts(test):
    return [node for node in ast.walk(test) if isinstance(node, ast.Assert)]


def has_number(node):
    """An index is none."""
    if isinstance(node, ast.Subscript):
        return has_number(node.value)
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return any(map(has_number, ast.iter_child_nodes(node)))


def told(parts):
    """Names and texts, and pairs of a setting and its value, those that algorithms have by themselves among them."""
    found = set()
    for node in (node for part in parts for node in ast.walk(part)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.add(name)
            case ast.keyword(arg=str(setting), value=ast.Constant(value=value)):
                found.add((setting, value))
    for name in found & ALGORITHMS.keys():
        found |= {(one.name, one.default) for one in inspect.signature(ALGORITHMS[name]).parameters.values()}
    return found


def test_every_algorithm_baseline_scale_and_estimator_has_its_row():
    named = {entry.name.partition(",")[0] for entry in ENTRIES}
    assert [name for name in ALGORITHMS if name not in named | ELSEWHERE.keys()] == []
    settings = [entry.made("team").settings for entry in ENTRIES] + [rule.settings for rule in BATCHES.values()]
    assert BASELINES.keys() == {one["baseline"] for one in settings if "baseline" in one}
    assert SCALES.keys() == {one["std"] for one in settings if "std" in one}
    assert ESTIMATORS.keys() <= {one["estimator"] for one in settings if one.get("beta")}


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
