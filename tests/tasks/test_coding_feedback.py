"""What the author of a helper or of a main function hears between turns, in each mode."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
from coding_cases import ALONE, AUX, MAIN, WRONG, box_of, said, squares

from coevolve.tasks.coding_feedback import MODES, Notes, cut, syntax_error
from coevolve.tasks.humaneval import HumanEval


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> HumanEval:
    return squares(monkeypatch)


def notes(task: HumanEval, **texts: str) -> list[str]:
    case = said(task.train[0], **texts)
    return task.feedback(case.problem, case.turns)


# --- report ----------------------------------------------------------------------------------------------------------


def test_all_is_well(task: HumanEval) -> None:
    assert notes(task, aux=AUX, main=MAIN) == ["All 4 tests pass.", "All 4 tests pass."]
    assert notes(task, coder=ALONE) == ["All 4 tests pass."]


def test_the_first_failing_tests_are_quoted_by_the_name_of_the_function(task: HumanEval) -> None:
    both = (
        "0 of 4 tests pass. assert squares(0) == [] fails: the result is wrong. "
        "assert squares(1) == [0] fails: the result is wrong."
    )
    assert notes(task, aux=AUX, main=WRONG) == [both, both]


def test_blanks_in_a_test_are_quoted_as_they_are(task: HumanEval) -> None:
    test = 'def check(candidate):\n    assert candidate("a   b") == [\n        1, 2]\n'
    task.train[0].data["tests"] = test
    [note] = notes(task, coder=ALONE)
    assert 'assert squares("a   b") == [ 1, 2] fails' in note


def test_an_exception_is_quoted(task: HumanEval) -> None:
    [note] = notes(task, coder="def squares(n):\n    if n:\n        raise ValueError('no\\nway')\n    return []")
    assert note == (
        "1 of 4 tests pass. assert squares(1) == [0] fails: ValueError: no way. "
        "assert squares(3) == [0, 1, 4] fails: ValueError: no way."
    )


def test_out_of_time(task: HumanEval, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "box", box_of(1.0))
    [note] = notes(task, coder="def squares(n):\n    while n:\n        pass\n    return []")
    assert note.startswith("1 of 4 tests pass. assert squares(1) == [0] fails: out of time.")


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("", "Your answer holds no code."),
        ("def helper(n):\n    return n", "Your code does not define aux."),
        ("def aux(n):\n    print(n)", "aux returns nothing."),
    ],
)
def test_what_is_wrong_with_the_helper_alone(text: str, own: str, task: HumanEval) -> None:
    aux, main = notes(task, aux=text, main=MAIN)
    # squares(0) needs no helper.
    assert aux.startswith(f"{own} 1 of 4 tests pass. assert squares(1) == [0] fails: ")
    assert main.startswith("1 of 4 tests pass. ")
    assert own not in main


def test_a_syntax_error_is_told_to_its_author_with_its_place(task: HumanEval) -> None:
    aux, main = notes(task, aux="def aux(n:\n    return n", main=MAIN)
    assert aux == "Your code does not parse: line 1: '(' was never closed."
    assert main == "Nothing was run, because of the other function."


def test_what_the_reward_takes_for_no_python_is_none_for_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "report": "Your code does not parse: line 1: 'return' outside function.",
        "levels": "Defined: no. Syntax: no. Tests passed: not run. aux called: yes.",
    }
    for mode, note in told.items():
        assert notes(squares(monkeypatch, feedback=mode), aux="return 5", main=MAIN)[0] == note


def test_no_code_has_no_syntax(monkeypatch: pytest.MonkeyPatch) -> None:
    note = notes(squares(monkeypatch, feedback="levels"), aux="I do not know.", main=MAIN)[0]
    assert note.startswith("Defined: no. Syntax: no. ")


def test_the_message_of_an_exception_is_for_the_author_of_its_line(task: HumanEval) -> None:
    raising = "import math\ndef aux(n):\n    if n >= 0:\n        raise ValueError('SECRET')\n    return n"
    aux, main = notes(task, aux=raising, main="import os\ndef squares(n):\n    return [aux(n)]")
    start = "0 of 4 tests pass. assert squares(0) == [] fails: ValueError"
    assert aux.startswith(f"{start}: SECRET. ")
    assert main.startswith(f"{start}. ")
    assert "SECRET" not in main
    raising = "def squares(n):\n    y = aux(n) + 1\n    if y:\n        raise ValueError('SECRET')\n    return y"
    aux, main = notes(task, aux="def aux(n):\n    return n", main=raising)
    assert aux.startswith(f"{start}. ")
    assert main.startswith(f"{start}: SECRET. ")
    assert "SECRET" not in aux
    aux, main = notes(task, aux=AUX, main="def squares(n): return int('SECRET')")  # in the first line of its code
    assert aux.startswith(f"{start}. ")
    assert main.startswith(f"{start}: invalid literal for int() with base 10: 'SECRET'. ")


def test_an_exception_of_the_call_itself_is_told_to_main(task: HumanEval) -> None:
    aux, main = notes(task, aux=AUX, main="def squares(n, secret):\n    return aux(n) + secret")
    start = "0 of 4 tests pass. assert squares(0) == [] fails: TypeError"
    assert aux.startswith(f"{start}. ")
    assert main.startswith(f"{start}: squares() missing 1 required positional argument: 'secret'. ")


def test_without_a_main_function_nothing_is_run(task: HumanEval) -> None:
    assert notes(task, aux=AUX, main="def cubes(n):\n    return n") == [
        "Nothing was run, because of the other function.",
        "Your code does not define squares.",
    ]


@pytest.mark.parametrize(
    ("main", "to_aux", "to_main"),
    [
        (ALONE, " aux is not called.", " squares does not call aux."),
        (
            "def squares(n):\n    return aux(n)",
            "",
            " squares only passes on what aux returns; do part of the work in it.",
        ),
        (
            "def squares(n):\n    aux(n)\n    found = [i * i for i in range(n)]\n    return found",
            "",
            " squares calls aux and does not use what it returns.",
        ),
    ],
)
def test_how_the_two_work_together(main: str, to_aux: str, to_main: str, task: HumanEval) -> None:
    assert notes(task, aux=AUX, main=main) == [f"All 4 tests pass.{to_aux}", f"All 4 tests pass.{to_main}"]


def test_a_note_is_cut(monkeypatch: pytest.MonkeyPatch, task: HumanEval) -> None:
    code = f"def squares(n):\n    if n >= 0:\n        raise ValueError('{'x' * 5_000}')\n    return n"
    [note] = notes(task, coder=code)
    quoted = "ValueError: " + "x" * 185 + "..."  # 200 characters
    assert note == (
        f"0 of 4 tests pass. assert squares(0) == [] fails: {quoted}. assert squares(1) == [0] fails: {quoted}."
    )
    task.notes = Notes(longest=20)
    assert notes(task, coder=code) == ["0 of 4 tests pass..."]


# --- the other modes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "texts", "told"),
    [
        ("levels", (AUX, MAIN), ["Defined: yes. Syntax: yes. Tests passed: 4 of 4. aux called: yes."] * 2),
        ("levels", (AUX, ALONE), ["Defined: yes. Syntax: yes. Tests passed: 4 of 4. aux called: no."] * 2),
        (
            "levels",
            ("def aux(n:", ALONE),
            [
                "Defined: no. Syntax: no. Tests passed: not run. aux called: no.",
                "Defined: yes. Syntax: yes. Tests passed: not run. aux called: no.",
            ],
        ),
        ("passed", (AUX, MAIN), ["The tests pass."] * 2),
        ("passed", (AUX, WRONG), ["The tests do not all pass."] * 2),
        ("passed", (AUX, ""), ["The tests do not all pass."] * 2),
        ("plain", (AUX, MAIN), ["Write it again, better."] * 2),
    ],
)
def test_modes(mode: str, texts: Sequence[str], told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    task = squares(monkeypatch, feedback=mode)
    assert notes(task, aux=texts[0], main=texts[1]) == told


def test_levels_of_a_single_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    task = squares(monkeypatch, feedback="levels")
    assert notes(task, coder=ALONE) == ["Defined: yes. Syntax: yes. Tests passed: 4 of 4."]


def test_the_wording_is_data(task: HumanEval) -> None:
    task.notes = Notes(some_passed="{passed}/{total} ok", failing="{test}!", shown=1, uncalled="", unused="call aux")
    assert notes(task, aux=AUX, main="def squares(n):\n    x = n\n    return [x]") == [
        "0/4 ok assert squares(0) == []!",
        "0/4 ok assert squares(0) == []! call aux",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_no_note_holds_the_partners_code(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = squares(monkeypatch, feedback=mode)
    for aux, main in [
        ("def aux(n):\n    hidden_a = n\n    return hidden_a", "def squares(n):\n    hidden_m = aux(n)\n    return 1"),
        ("def aux(n):\n    hidden_a = (\n", "def squares(n):\n    hidden_m = (\n"),
        ("hidden_a", "hidden_m"),
    ]:
        to_aux, to_main = notes(task, aux=aux, main=main)
        assert "hidden" not in to_aux + to_main


def test_notes_keep_the_order_of_the_turns(task: HumanEval) -> None:
    main, aux = notes(task, main=ALONE, aux=AUX)
    assert (main[-5:], aux[-7:]) == (" aux.", "called.")


# --- an expert -------------------------------------------------------------------------------------------------------


class Reviewer:
    """Stands in for ``tasks.expert.Expert``: gives these edits, and remembers what it was asked."""

    def __init__(self, **edits: str) -> None:
        self.given, self.saw = edits, list[Any]()
        self.asked, self.failed = 4, 1

    def edits(self, problem: str, codes: dict[str, str], reports: dict[str, str]) -> dict[str, str]:
        self.saw.append((problem, codes, reports))
        return self.given


def test_each_agent_hears_its_own_edit_only(task: HumanEval) -> None:
    task.expert = expert = Reviewer(aux="Cube it.", main="Do not append.")  # type: ignore[assignment]
    assert notes(task, main=f"```python\n{WRONG}\n```", aux=AUX) == [
        "A reviewer suggests:\nDo not append.",
        "A reviewer suggests:\nCube it.",
    ]
    [(problem, codes, reports)] = expert.saw
    assert problem == task.train[0].data["text"]
    assert codes == {"main": WRONG, "aux": AUX}
    assert reports["main"].startswith("0 of 4 tests pass. assert squares(0)")


def test_who_gets_no_edit_hears_the_report(task: HumanEval) -> None:
    task.expert = Reviewer(main="x" * 5_000)  # type: ignore[assignment]
    aux, main = notes(task, aux=AUX, main=MAIN)
    assert aux == "All 4 tests pass."
    assert (len(main), main[-4:]) == (1000, "x...")
    task.expert = Reviewer()  # type: ignore[assignment]
    assert notes(task, aux=AUX, main=MAIN) == ["All 4 tests pass."] * 2


def test_requests_that_failed_are_a_part(task: HumanEval) -> None:
    case = said(task.train[0], coder=ALONE)
    assert "expert_failed" not in task.parts([case])[0]
    task.expert = Reviewer()  # type: ignore[assignment]
    assert task.parts([case])[0]["expert_failed"] == 0.25


def test_an_expert_that_nobody_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    with socket.socket() as free:  # a port that nobody listens at
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        task = squares(monkeypatch, feedback={"expert": {"model": "judge", "base_url": url, "retries": 0}})
        case = said(task.train[0], coder=ALONE)
        assert task.parts([case])[0]["expert_failed"] == 0.0
        with pytest.warns(UserWarning, match="expert 'judge' gave no edits: .*; agents hear the report instead"):
            assert [notes(task, coder=ALONE) for _ in range(2)] == [["All 4 tests pass."]] * 2
    assert task.parts([case])[0]["expert_failed"] == 1.0


def test_settings_of_an_expert_in_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"task.feedback.expert: unknown key modle; did you mean 'model'"):
        squares(monkeypatch, feedback={"expert": {"modle": "judge"}})


# --- pieces ----------------------------------------------------------------------------------------------------------


def test_syntax_errors_have_a_place() -> None:
    assert syntax_error("x = 1\ny = = 2") == "line 2: invalid syntax"
    assert syntax_error("x = 1\nreturn 5") == "line 2: 'return' outside function"
    assert syntax_error("x = 1") is None
    assert syntax_error("x = '\0'") is not None
    assert syntax_error("x = " + "(" * 10_000 + ")" * 10_000) is not None


def test_cut() -> None:
    assert (cut("12345", 5), cut("123456", 5)) == ("12345", "12...")
