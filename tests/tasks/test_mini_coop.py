"""Task mini-coop: what is shown, what is paid, and where the packaged model starts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from coevolve.evaluate import SEED, choose
from coevolve.measure import episode_parts
from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.models.names import resolve
from coevolve.pretrain.coop_documents import first
from coevolve.pretrain.coop_notes import noted
from coevolve.recipe.build import build
from coevolve.recipe.components import component
from coevolve.recipe.read import load_recipe
from coevolve.rollout import Stage, rollout
from coevolve.tasks import TASKS
from coevolve.tasks.mini_coop import MiniCoop
from coevolve.tasks.worlds.coop import wanted
from coevolve.types import Case, Problem, Turn

RECIPES = Path(__file__).parents[2] / "recipes"
TESTS = "assert candidate(1) == 8\nassert candidate(2) == 10\nassert candidate(-2) == 2"
PROBLEM = Problem("p", {"text": "f(x): add 3, then multiply by 2", "entry": "f", "tests": TESTS})

FIRST = "def aux(x):\n    return x+3"
FINISH = "def f(x):\n    return aux(x)*2"
ALONE = "def f(x):\n    return (x+3)*2"
UNUSED = "def f(x):\n    y = aux(x)\n    return (x+3)*2"


@pytest.fixture(scope="module")
def task() -> MiniCoop:
    made = TASKS["mini-coop"]()
    assert isinstance(made, MiniCoop)
    return made


def turn(role: str, text: str) -> Turn:
    return Turn(role, "llm", PROBLEM, 0, 0, (), (), (), text, True)


def pair(aux: str, main: str) -> Case:
    return Case(PROBLEM, (turn("aux", aux), turn("main", main)))


def test_first_turns_hear_the_problem(task: MiniCoop) -> None:
    assert task.prompt(PROBLEM, "aux", ()) == "# f(x): add 3, then multiply by 2\n# aux:\n"
    assert task.prompt(PROBLEM, "main", ()) == "# f(x): add 3, then multiply by 2\n# f:\n"
    assert task.prompt(PROBLEM, "coder", ()) == "# f(x): add 3, then multiply by 2\n# f alone:\n"


def test_a_pipeline_shows_the_helper(task: MiniCoop) -> None:
    assert task.prompt(PROBLEM, "main", (turn("aux", FIRST),)) == (
        "# aux is:\ndef aux(x):\n    return x+3\n\n# f(x): add 3, then multiply by 2\n# f:\n"
    )


def test_a_discussion_shows_the_other_one_behind_an_own_turn(task: MiniCoop) -> None:
    said = (turn("aux", FIRST), turn("main", FINISH))
    assert task.prompt(PROBLEM, "aux", said) == [
        said[0], "\n# main is:\ndef f(x):\n    return aux(x)*2\n\nonce more.\n\n# again:\n",
    ]  # fmt: skip
    assert task.prompt(PROBLEM, "main", said) == [
        said[1], "\n# aux is:\ndef aux(x):\n    return x+3\n\nonce more.\n\n# again:\n",
    ]  # fmt: skip


def test_notes_are_a_few_words(task: MiniCoop) -> None:
    good = (turn("aux", FIRST), turn("main", FINISH))
    assert task.feedback(PROBLEM, good) == ["tests 3/3.", "tests 3/3."]
    assert task.feedback(PROBLEM, (turn("aux", FIRST), turn("main", ALONE))) == [
        "tests 3/3. aux is not called.",
        "tests 3/3. f does not call aux.",
    ]
    assert task.feedback(PROBLEM, (turn("aux", FIRST), turn("main", UNUSED)))[1] == "tests 3/3. f ignores aux."
    assert task.feedback(PROBLEM, (turn("aux", "def aux(x)"), turn("main", ALONE))) == ["syntax error.", "not run."]
    assert task.prompt(PROBLEM, "aux", (good[0], "tests 3/3.")) == [good[0], "\ntests 3/3.\n\n# again:\n"]


def test_what_teams_are_paid(task: MiniCoop) -> None:
    whole = "def aux(x):\n    return (x+3)*2"
    cases = {
        "shared": pair(FIRST, FINISH),
        "passed on": pair(whole, "def f(x):\n    return aux(x)"),
        "alone": pair(FIRST, ALONE),
        "unused": pair(FIRST, UNUSED),
        "no fit": pair(whole, FINISH),
        "no return": pair("def aux(x):\n    x+3", ALONE),
        "no Python": pair("def aux(x)\n    return x+3", ALONE),
    }
    # 0.4 aux + 0.6 main + 0.5 syntax + tests + 0.5 for a call + 1.0 for no wrapper - 0.5 for a result that is ignored.
    expected = {
        "shared": 4.0, "passed on": 3.0, "alone": 2.5, "unused": 3.5, "no fit": 1.5, "no return": 2.1,
    }  # fmt: skip
    paid = {name: rewards[0] for name, rewards in zip(cases, task.reward(list(cases.values())), strict=True)}
    assert {name: paid[name] for name in expected} == pytest.approx(expected)
    assert paid["no Python"] <= 1.0
    assert [part["solved"] for part in task.parts([cases["shared"], cases["no fit"]])] == [1.0, 0.0]


def test_without_bonuses_cooperation_is_seen_and_not_paid() -> None:
    task, cases = MiniCoop(bonuses=False), [pair(FIRST, FINISH), pair(FIRST, ALONE)]
    assert task.reward(cases) == [[2.5, 2.5], [2.5, 2.5]]  # 4.0 and 2.5 with them
    assert [part["cooperation"] for part in task.parts(cases)] == [1.0, 0.0]
    assert [part["return"] for part in task.parts(cases)] == [1.0, 2.5 / 4]


def test_no_test_problem_is_a_training_problem(task: MiniCoop) -> None:
    train, test = ({str(p.data["text"]).partition(": ")[2] for p in found} for found in (task.train, task.test))
    assert not train & test
    whole = {(p.data["text"], p.data["tests"]) for p in (*task.train, *task.test)}
    assert len(whole) == len(task.train) + len(task.test)
    assert {p.data["kind"] for p in task.test[:16]} == {"decomposable", "atomic"}


def test_kinds_are_chosen_by_name() -> None:
    atomic = MiniCoop(kinds=["atomic"])
    assert {p.data["kind"] for p in (*atomic.train, *atomic.test)} == {"atomic"}
    for wrong in ([], ["atomic", "atomic"], ["atomar"]):
        with pytest.raises(ValueError, match="want one or more different ones of decomposable, atomic"):
            MiniCoop(kinds=wrong)
    with pytest.raises(ValueError, match=r"kinds\.0 is 'atomar'; want one of decomposable, atomic$"):
        component({"name": "mini-coop", "kinds": ["atomar"]}, TASKS, "task")


def test_prompts_are_those_of_pretraining(task: MiniCoop) -> None:
    for one in wanted("test", "decomposable", 5, Random(0)):
        problem = Problem(one.text, {"text": one.text, "entry": "f", "tests": one.tests})
        for role in ("aux", "main", "coder"):
            assert task.prompt(problem, role, ()) == first(one, role)


def test_the_packaged_model_is_small_and_its_prompts_are_short(task: MiniCoop) -> None:
    assert sum(file.stat().st_size for file in Path(resolve("coevolve-coop")).rglob("*.safetensors")) <= 3e6
    assert sum(p.numel() for p in load_causal_lm("coevolve-coop").parameters()) <= 1.5e6
    tokenizer = load_tokenizer("coevolve-coop")
    prompts = [str(task.prompt(p, role, ())) for p in task.test for role in ("aux", "main", "coder")]
    ids = tokenizer(prompts)["input_ids"]
    assert tokenizer.batch_decode(ids) == prompts
    assert max(map(len, ids)) <= 40
    notes = noted(Random(0), 200, "test")
    assert tokenizer.batch_decode(tokenizer(notes)["input_ids"]) == notes


@pytest.mark.parametrize("play", ["magrpo-mini-coop-tiny", "pipeline-mini-coop-tiny"])
def test_the_packaged_model_starts_low_but_not_at_nothing(play: str) -> None:
    """The sampled team of ``coevolve eval``; what else that plays is of no interest here."""
    trainer = build(load_recipe(RECIPES / f"{play}.yaml"))
    longest = trainer.sampling.at_length(trainer.sampling.length_range[1])
    stage = Stage(trainer.cast(0), trainer.task, trainer.engine, longest, SEED, "evaluate")
    parts = episode_parts(rollout(trainer.play, choose(trainer.task, None), stage), trainer.task)
    start = {name: fmean(part[name] for part in parts) for name in parts[0]}
    assert 0.15 <= start["parts/return"] <= 0.4
    assert 0.1 <= start["parts/tests"] <= 0.4
    assert 0 < start["parts/solved"] < 0.4
