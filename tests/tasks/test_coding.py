"""The coding tasks: who is told what in each play, what a team is paid, and that nothing is run twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from coding_cases import ALONE, AUX, MAIN, SQUARES, WRONG, said, serve, squares, turn

from coevolve.engines.scripted import ScriptedEngine
from coevolve.plays import best_of, chain, discussion, rounds, tree
from coevolve.recipe.components import component
from coevolve.rewards.sandbox import Program, Verdict
from coevolve.rewards.sandbox.split import Plan
from coevolve.rewards.sandbox.worker import Worker
from coevolve.rollout import Stage, rollout
from coevolve.tasks import TASKS
from coevolve.tasks.coding import Coding
from coevolve.tasks.humaneval import HumanEval
from coevolve.types import Case, Episode, Instruction, Play, Problem, Sampling

TEXT = 'from typing import List\n\n\ndef squares(n: int) -> List[int]:\n    """The first n squares."""'


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> HumanEval:
    return squares(monkeypatch)


def play(
    task: Coding, interaction: Play, roles: Sequence[str], says: Mapping[tuple[str, int], str]
) -> tuple[list[str], Episode]:
    """What the engine was asked, in order: the words of each prompt, after "role: "; and the episode."""
    engine = ScriptedEngine(lambda role, problem, member, round: says[role, round])
    stage = Stage(dict.fromkeys(roles, "llm"), task, engine, Sampling(8))
    [episode] = rollout(interaction, task.train[:1], stage)
    asked = [say for call in engine.calls for say in call["llm"]]
    return [f"{say.role}: {engine.read(say.prompt_ids)}" for say in asked], episode


def words(text: str) -> str:
    return " ".join(text.split())


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_first_prompts_have_the_problem_and_the_form_of_the_answer(task: HumanEval) -> None:
    aux, main, coder = (task.prompt(task.train[0], role, ()) for role in ("aux", "main", "coder"))
    for prompt in (aux, main, coder):
        assert type(prompt) is Instruction
        assert TEXT in prompt
        assert "Answer with Python code only: no explanation, no markdown, no tests. In this form:" in prompt
    assert str(aux).endswith("In this form:\n\ndef aux(n):\n    # your code\n    return result\n\nCode:")
    assert str(main).endswith(
        "In this form:\n\ndef squares(n):\n    # your code, with a call of aux\n    return result\n\nCode:"
    )
    assert str(coder).endswith("In this form:\n\ndef squares(n):\n    # your code\n    return result\n\nCode:")
    assert "The other one writes squares. You write only its helper, aux" in aux
    assert "The other one writes a helper, aux(n)" in main
    assert "aux" not in coder


def test_parallel_agents_see_nothing_of_each_other(task: HumanEval) -> None:
    asked, _ = play(task, rounds(1), ("aux", "main"), {("aux", 0): AUX, ("main", 0): MAIN})
    aux, main = (task.prompt(task.train[0], role, ()) for role in ("aux", "main"))
    assert asked == [f"aux: {words(str(aux))}", f"main: {words(str(main))}"]


def test_pipeline_main_reads_the_code_of_aux(task: HumanEval) -> None:
    problem = task.train[0]
    answer = f"Here it is:\n```python\n{AUX}\n```\nIt squares."
    prompt = task.prompt(problem, "main", [turn("aux", answer)])
    assert str(prompt).endswith(
        "    # your code, with a call of aux\n    return result\n\naux has been written:\n\n"
        + AUX
        + "\n\nCall it as it "
        "is.\n\nCode:"
    )
    asked, episode = play(task, chain(), ("aux", "main"), {("aux", 0): AUX, ("main", 0): MAIN})
    assert words(AUX) in asked[1]
    assert episode.joints[0].rewards == (4.0, 4.0)


def test_an_answer_without_code_is_shown_as_none(task: HumanEval) -> None:
    prompt = task.prompt(task.train[0], "main", [turn("aux", "")])
    assert "aux has been written:\n\n(no code)\n\nCall it as it is." in prompt


def test_discussion_each_revises_having_read_the_other(task: HumanEval) -> None:
    script = {("aux", 0): AUX, ("main", 0): WRONG, ("aux", 1): AUX, ("main", 1): MAIN}
    asked, episode = play(task, discussion(1), ("aux", "main"), script)
    # A second turn continues the exact tokens of the first prompt and action.
    assert asked[2] == (
        f"{asked[0]} {words(AUX)} squares has been written: {words(WRONG)} Write the aux that it needs. "
        "Write it again, better. Code:"
    )
    assert asked[3] == (
        f"{asked[1]} {words(WRONG)} aux has been written: {words(AUX)} Call it as it is. Write it again, better. Code:"
    )
    assert episode.joints[0].rewards == (4.0, 4.0)


def test_rounds_continue_with_the_own_note(task: HumanEval) -> None:
    script = {("aux", 0): AUX, ("main", 0): WRONG, ("aux", 1): AUX, ("main", 1): MAIN}
    asked, episode = play(task, rounds(2, feedback=True), ("aux", "main"), script)
    assert asked[2].startswith(f"{asked[0]} {words(AUX)} 0 of 4 tests pass.")
    assert asked[3].startswith(f"{asked[1]} {words(WRONG)} 0 of 4 tests pass.")
    assert all(prompt.endswith(" Code:") for prompt in asked)
    assert [joint.rewards[0] for joint in episode.joints] == [1.5, 4.0]


def test_rounds_without_feedback_ask_for_a_revision(task: HumanEval) -> None:
    script = {(role, n): f"def {role}{n}(): pass" for role in ("aux", "main") for n in range(3)}
    asked, _ = play(task, rounds(3), ("aux", "main"), script)
    assert asked[2] == f"{asked[0]} def aux0(): pass Write it again, better. Code:"
    assert asked[4] == f"{asked[2]} def aux1(): pass Write it again, better. Code:"


@pytest.mark.parametrize("interaction", [tree(2, 2, feedback=True), best_of(2, 2, feedback=True)])
def test_trees_and_best_of(interaction: Play, task: HumanEval) -> None:
    script = {("aux", n): AUX for n in range(6)} | {("main", n): MAIN if n % 2 else WRONG for n in range(6)}
    asked, episode = play(task, interaction, ("aux", "main"), script)
    paid = [joint.rewards for joint in episode.joints]
    assert paid[:2] == [(1.5, 1.5), (4.0, 4.0)]
    assert all(rewards in ((1.5, 1.5), (4.0, 4.0)) for rewards in paid)
    assert any(f"{words(MAIN)} All 4 tests pass." in prompt for prompt in asked[4:])


def test_a_single_agent_is_paid_without_cooperation(task: HumanEval) -> None:
    asked, episode = play(task, rounds(2, feedback=True), ("coder",), {("coder", 0): WRONG, ("coder", 1): ALONE})
    assert len(asked) == 2
    assert asked[1] == (
        f"{asked[0]} {words(WRONG)} 0 of 4 tests pass. assert squares(0) == [] fails: NameError: name 'aux' is not "
        "defined. assert squares(1) == [0] fails: NameError: name 'aux' is not defined. Code:"
    )
    # Defined (0.6), parses (0.5), and all of the tests (1.0).
    assert [joint.rewards for joint in episode.joints] == [(1.1,), (2.1,)]


def test_unknown_roles(task: HumanEval) -> None:
    with pytest.raises(ValueError, match=r"no role 'mian'; did you mean 'main'\?; known: aux, main, coder"):
        task.prompt(task.train[0], "mian", ())


# --- rewards ---------------------------------------------------------------------------------------------------------


def test_both_turns_earn_the_total(task: HumanEval) -> None:
    problem = task.train[0]
    cases = [
        said(problem, aux=AUX, main=MAIN),
        said(problem, main=MAIN, aux=AUX),  # whoever spoke first
        said(problem, aux=AUX, main=WRONG),
        said(problem, aux="", main=""),
        said(problem, coder=ALONE),
    ]
    # 0.4 + 0.6, 0.5, 4 of 4 tests, 0.5 + 1.0; the third passes no test, so that it earns nothing above the syntax.
    assert task.reward(cases) == [[4.0, 4.0], [4.0, 4.0], [1.5, 1.5], [0.0, 0.0], [2.1]]
    assert task.reward([]) == []


def test_a_case_is_of_one_team(task: HumanEval) -> None:
    problem = task.train[0]
    wanted = "want one turn of aux and one of main, or one of coder; were given "
    for turns, given in [
        ((turn("aux", "x"),), "aux"),
        ((turn("main", "x"), turn("main", "y"), turn("aux", "z")), "main, main, aux"),
        ((turn("coder", "x"), turn("aux", "y")), "coder, aux"),
        ((), "none"),
    ]:
        with pytest.raises(ValueError, match=f"{wanted}{given}$"):
            task.reward([Case(problem, turns)])


def test_parts_have_the_columns_of_the_papers_table(task: HumanEval) -> None:
    problem = task.train[0]
    good, bad = task.parts([said(problem, aux=AUX, main=MAIN), said(problem, aux=AUX, main=WRONG)])
    for name, (of_good, of_bad) in {
        "structure": (1.0, 1.0),
        "syntax": (1.0, 1.0),
        "tests": (1.0, 0.0),
        "cooperation": (1.0, 0.0),
        "return": (1.0, 1.5 / 4),
        "solved": (1.0, 0.0),
    }.items():
        assert (good[name], bad[name]) == (of_good, of_bad), name
    assert set(good) == set(bad)
    [alone] = task.parts([said(problem, coder=ALONE)])
    assert (alone["return"], alone["solved"]) == (1.0, 1.0)


def test_what_a_prompt_defines_is_there_when_the_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    row = SQUARES | {
        "prompt": "import math\n\ndef twice(x):\n    return 2 * x\n\ndef root(x):\n    '''sqrt(2x)'''\n",
        "entry_point": "root",
        "test": "def check(candidate):\n    assert candidate(twice(4)) == math.sqrt(16)\n",
    }
    serve(monkeypatch, row)
    task = HumanEval(train=(0, 1), test=(0, 1))
    case = said(task.train[0], coder="def root(x):\n    return math.sqrt(twice(x))")
    assert task.reward([case]) == [[2.1]]


def test_one_policy_alone_is_not_evaluated() -> None:
    assert HumanEval.solo is False


def test_no_program_is_run_twice(task: HumanEval, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = Worker.run

    def counted(worker: Worker, program: Program, tests: tuple[str, ...]) -> tuple[Verdict, ...]:
        ran.append(program.code)
        return run(worker, program, tests)

    monkeypatch.setattr(Worker, "run", counted)
    wrong = "def aux(n):\n    return 3"  # in no other test: what they ran is remembered
    says = {("aux", 0): wrong, ("main", 0): MAIN, ("aux", 1): wrong, ("main", 1): WRONG}
    engine = ScriptedEngine(lambda role, problem, member, round: says[role, round])
    stage = Stage({"aux": "llm", "main": "llm"}, task, engine, Sampling(8))
    episodes = rollout(rounds(2, feedback=True), task.train, stage, members=3)
    joints = [joint for episode in episodes for joint in episode.joints]
    assert len(joints) == 6
    task.parts([Case(task.train[0], joint.turns) for joint in joints])
    # Rewards of three members, two rounds each, their feedback and their parts: two programs.
    assert len(ran) == 2


def test_what_a_turn_was_stopped_for_is_found_once(task: HumanEval, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reward, notes and parts are of one run; the same text, said again, gets another."""
    ran: list[str] = []

    def late(worker: Worker, program: Program, plan: Plan) -> tuple[Verdict, ...]:
        ran.append(program.code)
        return tuple(Verdict("timeout", source) for source in plan.sources)

    monkeypatch.setattr(Worker, "run", late)
    slow = "def squares(n):\n    return [slow * slow for slow in range(n)]"  # in no other test
    first, again = (said(task.train[0], coder=slow) for _ in range(2))
    assert task.reward([first]) == [[1.1]]
    task.advice(first.problem, first.turns)
    assert task.parts([first])[0]["stopped"] == 1.0
    assert len(ran) == 1
    assert task.reward([again]) == [[1.1]]
    assert len(ran) == 2
    # The same turns, to another problem.
    other = dataclasses.replace(first, problem=dataclasses.replace(first.problem, id="other"))
    assert task.grades([first, other])[0] is not task.grades([other])[0]
    assert len(ran) == 3


def test_a_test_that_was_not_run_says_nothing_of_being_stopped(
    task: HumanEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stop_at_failure, as a share of the tests that ran."""
    for number, (kinds, stopped) in enumerate([(["crashed", "skipped"], 1.0), (["passed", "failed", "skipped"], 0.0)]):
        verdicts = tuple(Verdict(kind, f"assert {place}") for place, kind in enumerate(kinds))
        monkeypatch.setattr(Worker, "run", lambda *asked, verdicts=verdicts: verdicts)
        case = said(task.train[0], coder=f"def squares(n):\n    return [{number}, n]")  # in no other test
        assert task.parts([case])[0]["stopped"] == stopped


def test_a_batch_that_does_nothing_but_harm(task: HumanEval) -> None:
    problem = task.train[0]
    harm = ["    import os\n    os._exit(0)", "    while True:\n        pass", "    return squares(n) * 10**9"]
    cases = [said(problem, coder=f"def squares(n):\n{body}\n    return []") for body in harm]
    assert task.reward(cases) == [[1.1], [1.1], [1.1]]
    *stopped, recursion = [parts["stopped"] for parts in task.parts(cases)]
    assert stopped == [1.0, 1.0]
    assert recursion == 0.0  # an exception like any other
    assert task.parts([said(problem, coder=ALONE)])[0]["stopped"] == 0.0


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sandbox": {"isolaton": "plain"}}, "task.sandbox: unknown key isolaton; did you mean 'isolation'"),
        ({"sandbox": {"isolation": "docker"}}, "sandbox isolation is 'docker'; known: "),
        ({"sandbox": {"timeout": "soon"}}, "task.sandbox: timeout: "),
        ({"feedback": "raport"}, r"task.feedback: unknown mode 'raport'; did you mean 'report'\?; known: report, "),
        ({"feedback": {"expret": {}}}, "task.feedback: want a mode, or {expert: settings}; found {'expret': {}}"),
        ({"feedback": "expert"}, "task.feedback: unknown mode 'expert'.*; known: .*{expert: settings}"),
        ({"feedback": "nowhere.py:note"}, "feedback: no file .*nowhere.py"),
        ({"train": [0]}, "train"),
        ({"trian": [0, 1]}, "task: unknown key trian; did you mean 'train'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, SQUARES)
    with pytest.raises(ValueError, match=message):
        component({"name": "humaneval", "train": [0, 1], "test": [0, 1], **settings}, TASKS, "task")


def test_a_recipe_chooses_the_sandbox_and_the_feedback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, SQUARES)
    (tmp_path / "mine.py").write_text("def note(texts, *, entry, **columns):\n    return f'Mind {entry}.'\n")
    recipe = {
        "name": "humaneval",
        "train": [0, None],
        "test": [0, 1],
        "sandbox": {"isolation": "plain", "timeout": 2.0},
        "feedback": f"{tmp_path}/mine.py:note",
    }
    task = component(recipe, TASKS, "task")
    assert task.box.isolation.startswith("plain")
    case = said(task.train[0], aux=AUX, main=MAIN)
    assert task.feedback(case.problem, case.turns) == ["Mind squares.", "Mind squares."]


# --- answers that are no good ----------------------------------------------------------------------------------------

BAD = {
    "nothing": "",
    "white space": " \n\t\n",
    "talk": "I am sorry, but I cannot write code today.",
    "an open fence": "```python\n",
    "null bytes": "def squares(n):\n    return '\0'\n",
    "not UTF-8": "def squares(n):\n    return '\udcff\ud800'\n",
    "100k characters": f"def squares(n):\n    return '{'x' * 100_000}'\n",
    "100k of noise": "((((" * 25_000,
    "deep": "def squares(n):\n    return " + "(" * 5_000 + ")" * 5_000 + "\n",
    "it exits": "def squares(n):\n    import os\n    os._exit(0)\n",
    "it exits at once": "raise SystemExit\ndef squares(n):\n    return []\n",
    "template": "def squares(n):\n    return '{text} {told} {0} {' \n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_bad_answers_are_scored_and_reported(text: str, task: HumanEval) -> None:
    problem = task.train[0]
    cases = [said(problem, aux=text, main=MAIN), said(problem, aux=AUX, main=text), said(problem, coder=text)]
    paid = task.reward(cases)
    for case, rewards, limit in zip(cases, paid, (4.0, 1.5, 1.1), strict=True):
        assert len(set(rewards)) == 1
        assert 0 <= rewards[0] <= limit  # none passes a test that the main function should pass
        notes = task.feedback(problem, case.turns)
        assert all(0 < len(note) <= 1000 for note in notes)
        for turn_ in case.turns:
            own, told = task.prompt(problem, turn_.role, [*case.turns, *notes])
            assert own is turn_ and all(note in told for note in notes)
    assert [parts["solved"] for parts in task.parts(cases)] == [0.0, 0.0, 0.0]


def test_two_functions_of_one_name_the_last_one_counts(task: HumanEval) -> None:
    problem = task.train[0]
    first, last = ALONE, "def squares(n):\n    return n"
    cases = [said(problem, coder=f"{last}\n\n{first}"), said(problem, coder=f"{first}\n\n{last}")]
    assert task.reward(cases) == [[2.1], [1.1]]


def test_windows_line_ends_in_an_answer(task: HumanEval) -> None:
    assert task.reward([said(task.train[0], aux=AUX.replace("\n", "\r\n"), main=MAIN.replace("\n", "\r\n"))]) == [
        [4.0, 4.0]
    ]


def test_a_problem_of_ones_own_needs_only_text_entry_and_tests() -> None:
    problem = Problem("p", {"text": "Add.", "entry": "add", "tests": "assert add(1, 2) == 3"})
    task = Coding(train=[problem], test=[problem], voices={})
    assert task.reward([said(problem, coder="def add(a, b):\n    return a + b")]) == [[2.1]]
    with pytest.raises(ValueError, match=r"no role 'coder'; known: ; this task"):
        task.prompt(problem, "coder", ())
