"""The study's file: read strictly, every arm a recipe, every command one that is understood, the page made of it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from made_up import STUDY

from coevolve import cli
from coevolve.recipe.build import check
from coevolve.recipe.read import load_recipe
from coevolve.study import page
from coevolve.study.claims import read
from coevolve.study.run import kept, premises

ROOT = Path(__file__).parents[2]
FILE = ROOT / "study" / "claims.yaml"
PAGE = ROOT / "docs" / "study.md"


@pytest.fixture(scope="module")
def book():
    return read(FILE)


def test_all_claims_are_there(book):
    wanted = [f"C{n}" for n in range(1, 15)] + [f"M{n}" for n in range(1, 15)] + [f"X{n}" for n in range(1, 9)]
    wanted += ["V1", "V2", "V3"] + [f"O{n}" for n in range(1, 19)]
    assert list(book.study.claims) == wanted
    assert set(book.study.arms) == {arm for id in wanted for arm in book.arms_of(id)}


def test_open_questions_leave_the_claims_alone(book):
    """Their arms came after results: they are no part of the family that verdicts are corrected for."""
    assert book.study.tests == 93
    questions = [claim for id, claim in book.study.claims.items() if id.startswith("O")]
    assert {one.direction for claim in questions for one in claim.comparisons} == {"open"}


def test_every_arm_is_a_recipe_and_no_two_are_the_same(book):
    recipes = [book.recipe(arm, 0, ROOT / "runs" / "x") for arm in book.study.arms]
    for recipe in recipes:
        check(recipe)
    settings = [str(book.settings(arm)) for arm in book.study.arms]
    assert len(set(settings)) == len(settings)


def test_comparisons_on_cory_and_ppo_are_matched_in_more_than_one_way(book):
    for id in ("C1", "C5", "C9", "C14"):
        assert {one.matched for one in book.study.claims[id].comparisons} == {"responses", "updates", "kl"}


def test_every_command_is_understood(book, monkeypatch):
    monkeypatch.chdir(ROOT)
    for claim in book.study.claims.values():
        if (other := claim.elsewhere) is None:
            continue
        assert (ROOT / other.recipe).is_file()
        for line in other.command.split(" && "):
            words = shlex.split(line)
            assert words[0] == "coevolve"
            args, rest = cli._parser()[0].parse_known_args(words[1:])
            assert all("=" in word for word in rest)
            if words[1] in ("train", "sweep"):
                overrides = [
                    word for word in (*args.overrides, *rest) if not word.startswith(("seed=", "play=", "task="))
                ]
                load_recipe(args.recipe, overrides)


def test_the_committed_page_is_what_the_results_say(book):
    for file in (PAGE, PAGE.with_suffix(".html")):
        for made, text in page.files(book, kept(book), premises(book), file).items():
            assert made.read_text("utf-8") == text, f"{made}: run `coevolve reproduce --page docs/{file.name}`"
    pictures = {file.name for file in PAGE.parent.glob("study-*.svg")}
    assert pictures == set(re.findall(r"\]\((study-[^)]+\.svg)\)", PAGE.read_text("utf-8")))


def test_the_html_says_the_same(book):
    (text,) = page.files(book, kept(book), premises(book), Path("x.html")).values()
    assert all(f'<h3 id="{id.lower()}">{id}</h3>' in text for id in book.study.claims)
    assert all(f'href="#{id.lower()}"' in text for id in book.study.claims)
    assert not re.findall(r'(?:src|href)="http', text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(arm="aa"), "no 'aa'; did you mean 'a'"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(measure="end"), "no measure 'end'"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(margin="ten"), "margin 'ten'"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].pop("than"), "compares an arm with itself"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(than="a"), "compares an arm with itself"),
        (lambda t: t["seeds"].update(quick=13), "seeds.quick is 13, more than seeds.full, 12"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(arm=["a"], than=["b"]), "for the measure hypervolume"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(than_measure="hypervolume"), "compared with itself"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(matched="kl", measure="mean reward"), "matched on kl"),
        (lambda t: t["claims"]["K1"]["comparisons"][0].update(matched="kl", than_measure="mean kl"), "matched on kl"),
        (
            lambda t: t["claims"]["K1"]["comparisons"][0].update(arm=["a", "b"], than=["b"], measure="hypervolume"),
            "different numbers of arms",
        ),
        (
            lambda t: (
                t["claims"]["K1"]["comparisons"][0].update(measure="bare reward"),
                t["arms"]["a"].update(samples=8),
            ),
            "claims.K1.comparisons: a and b need the same `samples` and `evaluation_seed`",
        ),
        (
            lambda t: (
                t["claims"]["K1"]["comparisons"][0].update(measure="bare reward"),
                t["arms"]["b"].update(evaluation_seed=0),
            ),
            "claims.K1.comparisons: a and b need the same `samples` and `evaluation_seed`",
        ),
        (lambda t: t["claims"]["K1"].pop("comparisons"), "want comparisons"),
        (lambda t: t["claims"]["K1"].update(needs_premise=True), "without a `premise`"),
        (lambda t: t["claims"]["K1"].update(premise="write"), "no 'write'"),
        (lambda t: t["claims"]["K1"].update(premise=["reads", "write"]), "no 'write'"),
        (lambda t: t["claims"]["K1"].update(premise=[], needs_premise=True), "without a `premise`"),
        (lambda t: t.update(beyond={"claims": ["K2"], "rules": {}}), "beyond.claims: no 'K2'"),
        (lambda t: t.update(beyond={"claims": [], "rules": {"P": ["c"]}}), "beyond.rules: no 'c'"),
        (
            lambda t: t.update(beyond={"claims": [], "rules": {}, "left_out": {"K2": "it"}}),
            "beyond.left_out: no 'K2'",
        ),
        (
            lambda t: t.update(beyond={"claims": ["K1"], "rules": {}, "left_out": {"K1": "it"}}),
            "beyond: K1 in `claims` and in `left_out`",
        ),
        (lambda t: t.update(beyond={"claims": ["K1"], "rules": {}}), "beyond.claims: K1 is compared with no arm"),
        (lambda t: t["claims"]["K1"].update(verdict="confirmed"), "unknown key claims.K1.verdict"),
        (lambda t: t["figures"]["F1"].update(draws="curve"), "several arms on a line are for `draws: ends`"),
        (lambda t: t["figures"]["F1"]["lines"]["both"].update(arm="c"), "figures.F1.lines: no 'c'"),
        (lambda t: t["seeds"].update(full=5), "no sign-flip test of them can pass"),
        (lambda t: t["seeds"].update(full=13), "exact up to 12"),
    ],
)
def test_a_mistake_is_named(tmp_path, change, said):
    tree = yaml.safe_load(STUDY)
    change(tree)
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ValueError) as error:
        read(tmp_path / "claims.yaml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_reading_claims_needs_no_torch():
    code = "import sys; from coevolve import cli; cli.main(['reproduce', '--list']); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"
    assert "C14" in found.stdout
