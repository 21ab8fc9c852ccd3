"""What the page says of git: claims that it lists were in the file, as they are now, at the commits of their runs."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from coevolve.study import page
from coevolve.study.claims import read
from coevolve.study.run import kept
from coevolve.study.verdicts import judge

ROOT = Path(__file__).parents[2]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


@cache
def claims_at(commit):
    """The claims file at a commit; None if the history does not hold it."""
    found = git("show", f"{commit}:study/claims.yaml")
    return yaml.load(found.stdout, LOADER) if found.returncode == 0 else None


def compared(tree, id):
    """The comparisons of a claim as they are decided: the recipes and overrides of both sides, and the rest as written.
    The seed of an evaluation became a key when the runs' own seeds replaced the one for all."""
    found = []
    for one in tree["claims"].get(id, {}).get("comparisons", ()):
        sides = [one[side] if isinstance(one[side], list) else [one[side]] for side in ("arm", "than") if side in one]
        arms = [
            [{k: v for k, v in tree["arms"][arm].items() if k != "evaluation_seed"} for arm in side] for side in sides
        ]
        found.append({**one, "arm": arms[0], "than": arms[1:], "margin": str(one["margin"])})
    return found


def commits_of(found, results):
    """The commits of all runs of a comparison's pairs."""
    runs = [
        results[found.made_on[seed]][arm][seed]
        for seed in found.pairs
        for side in found.comparison.sides
        for arm in side
    ]
    return {commit for run in runs for commit in re.findall("[0-9a-f]{40}", run.commit)}


def test_a_claim_that_git_is_said_to_show_was_there_before_its_runs():
    book = read(ROOT / "study" / "claims.yaml")
    if git("cat-file", "-e", book.study.written.partition(",")[0]).returncode:
        pytest.skip("no history here")
    results = kept(book)
    now = yaml.load(book.file.read_text("utf-8"), LOADER)
    claims = [one for one in judge(book.study, results, {}) if one.verdict != "open"]
    listed = set(re.findall(r"\[(\w+)\]", page._predating(book, claims)))
    assert len(listed) > 20
    wrong = [
        (one.id, commit[:8], found.comparison.measure)
        for one in claims
        if one.id in listed
        for found, wanted in zip(one.found, compared(now, one.id), strict=True)
        for commit in commits_of(found, results)
        if claims_at(commit) is None or wanted not in compared(claims_at(commit), one.id)
    ]
    assert wrong == []


def test_a_claim_that_had_other_runs_before_git_shows_it_is_named():
    """Those of whose comparisons one had both arms' results when the history began."""
    book = read(ROOT / "study" / "claims.yaml")
    first = git("log", "--reverse", "--format=%H", "--", "study/results").stdout.split()[:1]
    if not first:
        pytest.skip("no history here")
    files = git("ls-tree", "-r", "--name-only", first[0], "study/results").stdout.split()
    made = {file.split("/")[2] for file in files}
    assert "sums-ppo-2x" in made
    claims = [one for one in judge(book.study, kept(book), {}) if one.verdict != "open"]
    had = {one.id for one in claims for c in one.claim.comparisons if {arm for side in c.sides for arm in side} <= made}
    listed = set(re.findall(r"\[(\w+)\]", page._predating(book, claims)))
    assert had & listed <= set(book.study.replaced)


def test_a_comparison_that_is_changed_or_new_is_found():
    tree = {
        "arms": {"a": {"recipe": "x"}, "b": {"recipe": "y", "evaluation_seed": 0}},
        "claims": {"K": {"comparisons": [{"arm": "a", "than": "b", "measure": "end reward", "margin": 0.1}]}},
    }
    before = compared(tree, "K")
    del tree["arms"]["b"]["evaluation_seed"]
    assert compared(tree, "K") == before
    tree["arms"]["b"]["overrides"] = ["seed=1"]
    assert compared(tree, "K") != before
    assert compared(tree, "L") == []


def test_the_first_commit_of_the_claims_is_the_one_that_the_page_names():
    commit = read(ROOT / "study" / "claims.yaml").study.written.partition(",")[0]
    if git("cat-file", "-e", commit).returncode:
        pytest.skip("no history here")
    assert git("log", "--diff-filter=A", "--format=%H", "--", "study/claims.yaml").stdout.split() == [commit]
