"""The generated programs, the flawed answers to them, and the documents of pre-training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
import yaml

from coevolve.pretrain.coop_answers import AUX, FITTING, MAIN, Answer, aux, coder, main
from coevolve.pretrain.coop_documents import _to_helper, answers, heard
from coevolve.pretrain.coop_notes import Trusted, noted
from coevolve.pretrain.run import main as pretrain
from coevolve.rewards.code import Job, grade
from coevolve.rewards.sandbox import Sandbox
from coevolve.tasks.worlds.coop import OPERATIONS, Kind, Step, Wanted, split_of, wanted
from coevolve.tasks.worlds.split import Split

RECIPE = Path(__file__).parents[2] / "recipes" / "pretrain-coop.yaml"
BY_WORDS = {operation.words: operation for operation in OPERATIONS}
DIVIDED = Step(BY_WORDS["divide by {k}"], 3)
CAPPED = Step(BY_WORDS["make at most {k}"], 5)
# -7 // 3 = -3, 10 // 3 = 3, 29 // 3 = 9 and then at most 5.
BOTH = Wanted((DIVIDED, CAPPED), "assert candidate(-7) == -3\nassert candidate(10) == 3\nassert candidate(29) == 5")
ONE = Wanted((CAPPED,), "assert candidate(4) == 4\nassert candidate(6) == 5")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("add {k}", 1),
        ("subtract {k}", -15),
        ("multiply by {k}", -56),
        ("divide by {k}", -1),  # rounded down
        ("take modulo {k}", 1),  # -7 + 8
        ("make at least {k}", 8),
        ("make at most {k}", -7),
        ("negate", 7),
        ("make positive", 7),
        ("square", 49),
    ],
)
def test_an_operation_on_minus_seven_with_eight(words: str, expected: int) -> None:
    assert Step(BY_WORDS[words], 8)(-7) == expected
    assert eval(BY_WORDS[words].python.format(x="(-7)", k=8)) == expected


def test_a_problem_says_what_is_wanted() -> None:
    assert (BOTH.text, BOTH.kind) == ("f(x): divide by 3, then make at most 5", "decomposable")
    assert (ONE.text, ONE.kind) == ("f(x): make at most 5", "atomic")


@pytest.mark.parametrize(
    ("convention", "helper"),
    [("whole", "min(x//3,5)"), ("first", "x//3"), ("second", "min(x,5)"), ("same", "x")],
)
def test_helpers_without_a_flaw(convention: str, helper: str) -> None:
    assert aux(Random(0), BOTH, convention, flawed=False) == Answer(f"def aux(x):\n    return {helper}", convention)


@pytest.mark.parametrize(
    ("convention", "one", "two"),
    [
        ("alone", "return min(x//3,5)", None),
        ("finish", "return min(aux(x),5)", "y = aux(x)\n    return min(y,5)"),
        ("begin", "return aux(x//3)", None),
        ("pass", "return aux(x)", "y = aux(x)\n    return y"),
        ("unused", None, "y = aux(x)\n    return min(x//3,5)"),
        ("all", "return min(aux(x)//3,5)", "y = aux(x)\n    return min(y//3,5)"),
    ],
)
def test_main_functions_without_a_flaw(convention: str, one: str | None, two: str | None) -> None:
    found = {main(Random(seed), BOTH, convention, flawed=False).text for seed in range(30)}
    assert found == {f"def f(x):\n    {body}" for body in (one, two) if body}


def test_a_coder_has_no_helper() -> None:
    assert coder(Random(0), ONE, flawed=False).text == "def f(x):\n    return min(x,5)"


def test_flaws_happen_at_their_rates() -> None:
    found = [aux(Random(seed), ONE, "whole").text for seed in range(4000)]
    # Named aux 0.94, with a return 0.88, one of the slips that fit 0.15, min and not max 0.45, and 5 itself in 0.9 of
    # the cases and in 1 of 8 of the rest; four standard errors of 4000 draws are at most 0.032.
    assert sum("aux" in text for text in found) / 4000 == pytest.approx(0.94, abs=0.015)
    assert sum("ret" in text for text in found) / 4000 == pytest.approx(0.88, abs=0.02)
    assert sum("min" in text for text in found) / 4000 == pytest.approx(0.45, abs=0.032)
    assert sum(",5)" in text for text in found) / 4000 == pytest.approx(0.9125, abs=0.02)
    assert sum(_parses(text) for text in found) / 4000 == pytest.approx(0.85, abs=0.023)


def test_a_helper_that_was_read_is_answered_by_what_fits_it() -> None:
    found = [_to_helper(Random(seed), BOTH, Answer("", "first")).convention for seed in range(4000)]
    # Chosen with probability 0.65, and drawn with 0.26 of the rest: 0.741; four standard errors are 0.028.
    assert found.count("finish") / 4000 == pytest.approx(0.741, abs=0.028)


def _parses(text: str) -> bool:
    try:
        compile(text, "", "exec")
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("weights", [*AUX.values(), *MAIN.values()])
def test_conventions_have_shares_that_add_up(weights: Mapping[str, float]) -> None:
    assert sum(weights.values()) == pytest.approx(1)


def test_steps_of_one_split_come_together_in_no_other() -> None:
    kinds: tuple[Kind, ...] = ("decomposable", "atomic")
    splits: tuple[Split, ...] = ("pretrain", "train", "test")
    for kind in kinds:
        found = {split: {problem.steps for problem in wanted(split, kind, 400, Random(1))} for split in splits}
        assert not (found["pretrain"] & found["train"] or found["pretrain"] & found["test"])
        assert not found["train"] & found["test"]
        assert all(split_of(steps) == split for split in splits for steps in found[split])
    with pytest.raises(ValueError, match="no split 'dev' of kind 'atomic'; known: pretrain, train, test"):
        wanted("dev", "atomic", 1, Random(0))  # type: ignore[arg-type]


def test_distinct_problems_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 10 held-out functions of one step; most that are drawn differ by their tests, which are alike here."""
    monkeypatch.setattr("coevolve.tasks.worlds.coop._tests", lambda steps, rng: "")
    assert len(set(wanted("test", "atomic", 10, Random(0), distinct=True))) == 10
    assert len(set(wanted("test", "atomic", 10, Random(0)))) < 10


def test_the_fitting_pairs_pass_and_nothing_shorter_does() -> None:
    problems = wanted("test", "decomposable", 60, Random(2), distinct=True)
    jobs = [Job("f", p.tests) for p in problems]
    for helper, caller in FITTING.items():
        pairs = [_pair(p, helper, caller) for p in problems]
        assert [found.parts()["solved"] for found in grade(jobs, pairs, Trusted())] == [1.0] * 60
    for step in (0, 1):
        less = [{"main": f"def f(x):\n    return {_alone(p.steps[step])}"} for p in problems]
        assert [found.parts()["solved"] for found in grade(jobs, less, Trusted())] == [0.0] * 60


def _alone(step: Step) -> str:
    return step.operation.python.format(x="x", k=step.constant)


def _pair(problem: Wanted, helper: str, caller: str) -> dict[str, str]:
    rng = Random(0)
    return {
        "aux": aux(rng, problem, helper, flawed=False).text,
        "main": main(rng, problem, caller, flawed=False).text,
    }


def test_sharing_the_work_gets_all_points_in_the_sandbox() -> None:
    problems = [*wanted("test", "decomposable", 12, Random(3)), *wanted("test", "atomic", 4, Random(3))]
    pairs = [_pair(p, "first", "finish") if p.kind == "decomposable" else _pair(p, "same", "all") for p in problems]
    box = Sandbox()
    try:
        found = grade([Job("f", p.tests) for p in problems], pairs, box)
    finally:
        box.close()
    assert [one.total for one in found] == [4.0] * 16


def test_our_own_code_is_judged_as_the_sandbox_judges_it() -> None:
    problems = wanted("pretrain", "decomposable", 40, Random(4))
    rng = Random(5)
    pairs = [{"aux": aux(rng, p).text, "main": main(rng, p).text} for p in problems]
    jobs = [Job("f", p.tests) for p in problems]
    box = Sandbox()
    try:
        ours, theirs = grade(jobs, pairs, Trusted()), grade(jobs, pairs, box)
    finally:
        box.close()
    assert [one.parts() for one in ours] == [one.parts() for one in theirs]


def test_documents_hold_prompts_and_answers() -> None:
    first = answers(Random(6), 300, "pretrain")
    assert any(text.startswith("# f(x): add ") for text in first)
    assert {text.split("\n")[1] for text in first} >= {"# aux:", "# f:", "# f alone:"}
    shared = heard(Random(6), 100, "pretrain")
    assert all("# aux is:\n" in text or "# main is:\n" in text for text in shared)
    assert all(text.count("<|endoftext|>\n") == 1 for text in noted(Random(6), 100, "pretrain"))


def test_a_note_stands_behind_the_roles_own_answer() -> None:
    """A helper calls nobody, so there is no aux behind the first line of its author's answer."""
    asked = [text.partition("\n# aux:\n")[2] for text in noted(Random(6), 300, "pretrain")]
    bodies = [text.partition("<|endoftext|>")[0].partition("\n")[2] for text in asked if text]
    assert len(bodies) > 80  # two fifths: 120
    assert not any("aux" in body for body in bodies)


def test_notes_are_those_of_the_task() -> None:
    found = "".join(noted(Random(7), 600, "pretrain"))
    for note in (
        "tests 0/3.",
        "f does not call aux.",
        "f only passes aux on.",
        "syntax error.",
        "once more.",
        "wrong.",
    ):
        assert note in found, note


def test_pretraining_is_a_function_of_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevolve.pretrain.corpus.GENERATED_DOCUMENTS", 300)
    monkeypatch.setattr("coevolve.pretrain.corpus.HELD_OUT_DOCUMENTS", 10)
    small = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    small |= {"steps": 4, "batch_size": 2, "checkpoint_every": 2}
    small["architecture"] |= {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")
    weights = []
    for name in ("one", "two"):
        folder = pretrain(tmp_path / "small.yaml", [f"output_dir={tmp_path / name}"], resume=False)
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
