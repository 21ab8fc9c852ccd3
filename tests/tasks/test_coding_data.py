"""Rows of HumanEval, CoopHumanEval and MBPP as problems: what is read out of them, and what is wrong with a row."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
from coding_cases import SQUARES, serve, turn

from coevolve.tasks import data
from coevolve.tasks.coding import Bounds
from coevolve.tasks.coophumaneval import CONTRADICTORY, CoopHumanEval
from coevolve.tasks.humaneval import HumanEval
from coevolve.tasks.mbpp import Mbpp, problems
from coevolve.types import Problem

real = pytest.mark.skipif(not os.environ.get(data.FOLDER), reason="COEVOLVE_DATA is not set: no coding problems")

ASSERTS = ["assert nest(2, [1]) == 3", "assert nest(5,\r\n    [2]) == 7"]
MBPP: dict[str, Any] = {"task_id": 11, "prompt": " Add them. ", "test_list": ASSERTS, "test_imports": ["import math"]}


def humaneval(monkeypatch: pytest.MonkeyPatch, **columns: Any) -> HumanEval:
    serve(monkeypatch, {**SQUARES, **columns})
    return HumanEval(train=(0, 1), test=(0, 1))


# --- HumanEval and CoopHumanEval -------------------------------------------------------------------------------------


def test_where_problems_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, SQUARES)
    for task in (HumanEval(train=(0, 1), test=(0, 1)), CoopHumanEval(train=(0, 1), test=(0, 1))):
        assert len(task.train) == len(task.test) == 1
    assert asked == [
        ("humaneval", "openai/openai_humaneval", "test", None),
        ("coop_humaneval", "OpenMLRL/CoopHumanEval", "test", None),
    ]
    asked = serve(monkeypatch, MBPP)
    for mbpp in (Mbpp(train=(0, 1), test=(0, 1)), Mbpp(config="full", train=(0, 1), test=(0, 1))):
        assert len(mbpp.train) == len(mbpp.test) == 1
    assert asked == [
        ("mbpp_sanitized", "google-research-datasets/mbpp", "test", "sanitized"),
        ("mbpp", "google-research-datasets/mbpp", "test", "full"),
    ]


def test_bounds_are_of_ids_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, *(MBPP | {"task_id": id} for id in (14, 600, 11, 13, 12)))
    assert [problem.id for problem in Mbpp(train=(1, 4), test=(0, 1)).train] == ["12", "13", "14"]
    serve(monkeypatch, *(MBPP | {"task_id": id} for id in ("14", 600.0, "11")))
    assert [problem.id for problem in Mbpp(train=(0, 1), test=(1, 2)).test] == ["14"]
    for wrong in (None, 11.5, True, "eleven"):
        serve(monkeypatch, MBPP, MBPP | {"task_id": wrong})
        with pytest.raises(ValueError, match=f"mbpp_sanitized, row 1: task_id is {wrong!r}; want a whole number"):
            len(Mbpp(train=(0, 1), test=(0, 1)).train)


def test_a_problem_holds_its_row_and_what_was_read_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = humaneval(monkeypatch).train
    assert problem.id == "HumanEval/900"
    assert {key: problem.data[key] for key in SQUARES} == SQUARES
    assert problem.data["text"] == (
        'from typing import List\n\n\ndef squares(n: int) -> List[int]:\n    """The first n squares."""'
    )
    assert problem.data["parameters"] == "n"
    assert problem.data["entry"] == "squares"
    assert problem.data["prelude"] == "from typing import List"
    assert problem.data["tests"] == SQUARES["test"]


def test_what_a_prompt_defines_beside_its_function_is_the_prelude(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = 'import math\n\ndef poly(xs):  # a helper\n    return xs\n\ndef zero(xs, x):\n    """Where poly is 0."""\n'
    [problem] = humaneval(monkeypatch, prompt=prompt, entry_point="zero").test
    assert problem.data["prelude"] == "import math\ndef poly(xs):\n    return xs"
    assert problem.data["parameters"] == "xs, x"


def test_line_ends_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {name: SQUARES[name].replace("\n", "\r\n") for name in ("prompt", "test")}
    [problem] = humaneval(monkeypatch, **columns).train
    [plain] = humaneval(monkeypatch).train
    for name in ("text", "tests", "prelude", "parameters"):
        assert problem.data[name] == plain.data[name]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"entry_point": "cubes"}, "the prompt defines no function 'cubes', its entry_point"),
        ({"prompt": "def squares(n:\n"}, "its prompt does not parse: '\\(' was never closed"),
        ({"test": "def check(candidate):\n    assert candidate(\n"}, "its tests do not parse: '\\(' was never closed"),
        ({"test": "def check(candidate):\n    pass\n"}, "its tests have no assert, nor call a function of theirs"),
        (
            {"test": "def test():\n    assert squares(0) == []\n"},
            "its tests have an assert in line 2 that never runs: .*; mend the row or leave it out$",
        ),
        ({"test": ""}, "no text in column 'test'; it has task_id, prompt"),
        ({"prompt": None}, "no text in column 'prompt'"),
    ],
)
def test_a_bad_row_is_named(columns: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=rf"^humaneval, row 0 \(HumanEval/900\): {message}"):
        len(humaneval(monkeypatch, **columns).train)


def test_a_row_without_an_id_is_named_by_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^humaneval, row 0: no text in column 'task_id'"):
        len(humaneval(monkeypatch, task_id=None).train)


@pytest.mark.parametrize("bounds", [(0, 3), (1, 1), (2, None), (-1, 1), (1, 0)])
def test_rows_that_are_not_there(bounds: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, SQUARES, SQUARES | {"task_id": "b"})
    with pytest.raises(ValueError, match=r"task.train is \[.*\]; want \[first, end\] with 0 <= first < end <= 2"):
        len(HumanEval(train=bounds, test=(0, 1)).train)


@pytest.mark.parametrize("task", [HumanEval, CoopHumanEval, Mbpp])
def test_cooperation_may_be_left_unpaid(task: Any) -> None:
    """What is paid then is tested with ``mini-coop``, whose reward this is."""
    assert task().bonuses and not task(bonuses=False).bonuses


@real
def test_the_papers_splits() -> None:
    task, coop, mbpp = HumanEval(), CoopHumanEval(), Mbpp()
    assert [len(split) for split in (task.train, task.test)] == [130, 32]
    assert (task.train[0].id, task.train[-1].id, task.test[-1].id) == ("HumanEval/33", "HumanEval/162", "HumanEval/31")
    assert [len(split) for split in (coop.train, coop.test)] == [66, 16]
    assert (coop.train[0].id, coop.test[-1].id) == ("CoopHumanEval/16", "CoopHumanEval/15")
    assert [len(split) for split in (mbpp.train, mbpp.test)] == [50, 15]
    # The first of the test split; 11, 12, 14 and 16 are its first ids.
    assert (mbpp.test[0].id, mbpp.test[0].data["entry"]) == ("11", "remove_Occ")


@real
def test_the_five_contradictory_problems_can_be_dropped() -> None:
    coop, whole = CoopHumanEval(drop_contradictory=True), CoopHumanEval()
    assert [p.data["entry"] for p in (*whole.test, *whole.train) if p.id in CONTRADICTORY] == [
        "valid_date",
        "is_multiply_prime",
        "odd_even_sum_numbers",
        "prime_ascii_sum_words",
        "can_form_polygon",
    ]
    assert (len(coop.train), len(coop.test)) == (63, 14)
    assert not {problem.id for problem in (*coop.train, *coop.test)} & set(CONTRADICTORY)


# --- MBPP ------------------------------------------------------------------------------------------------------------


def test_an_entry_point_is_what_the_asserts_call() -> None:
    [problem] = problems([MBPP], "mbpp")
    assert problem.id == "11"
    assert problem.data["entry"] == "nest"
    assert problem.data["parameters"] == "a, b"
    assert problem.data["text"] == "Add them.\nFor example: assert nest(2, [1]) == 3"
    assert problem.data["tests"] == "assert nest(2, [1]) == 3\nassert nest(5,\n    [2]) == 7"
    assert (problem.data["prelude"], problem.data["setup"]) == ("import math", "")


@pytest.mark.parametrize(
    ("asserts", "entry", "parameters"),
    [
        (["assert set(f((1, 2))) == {1}", "assert set(f(())) == set()"], "f", "a"),
        (["assert math.isclose(g(1, 2), 3.0)"], "g", "a, b"),
        (["assert chain([Pair(1, 2), Pair(3, 4)], 2, 5) == 3"], "chain", "a, b, c"),
        (["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"], "sum", "a, b"),
        (["assert len(f()) == 2", "assert f() == f(3)"], "f", "a"),
        (["assert (h(root)) == 3"], "h", "a"),
    ],
)
def test_entry_points_in_calls(asserts: list[str], entry: str, parameters: str) -> None:
    [problem] = problems([MBPP | {"test_list": asserts}], "mbpp")
    assert (problem.data["entry"], problem.data["parameters"]) == (entry, parameters)


@pytest.mark.parametrize(
    ("asserts", "message"),
    [
        (["assert f(1)", "assert g(1)"], "no function that all tests call"),
        (["assert math.sqrt(4)"], "no function that all tests call"),
        (["assert f(1"], "its tests do not parse"),
        ([], "its tests have no assert"),
        (None, "its tests have no assert"),
    ],
)
def test_a_bad_row_of_mbpp_is_named(asserts: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^mbpp, row 0 \(11\): {message}"):
        problems([MBPP | {"test_list": asserts}], "mbpp")


def test_setup_of_the_full_version() -> None:
    row = {"task_id": 367, "text": "t", "test_list": ["assert f(root)"], "test_setup_code": "root = Node(1) \r\n"}
    [problem] = problems([row], "mbpp")
    assert problem.data["setup"] == "root = Node(1) \n"


@pytest.mark.parametrize(
    ("train", "test", "shared"),
    [
        ((1, None), (0, 1), ""),
        ((0, 2), (2, None), ""),
        ((1, None), (0, 3), "share the problems from 1 to 2;"),
        ((2, None), (1, None), "share the problems from 2 on;"),
        ((0, 4), (1, 3), "share the problems from 1 to 2;"),
    ],
)
def test_problems_to_train_on_that_are_held_out_too_are_told(train: Bounds, test: Bounds, shared: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for task in (Mbpp, HumanEval, CoopHumanEval):
            task(train=train, test=test)
    assert len(told) == (3 if shared else 0)
    assert all(shared in str(one.message) for one in told)


def test_only_the_test_split_of_a_file_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, *[MBPP | {"task_id": id} for id in (2, 10, 11, 510, 511, 974)])
    task = Mbpp(train=(1, None), test=(0, 1))
    assert ([p.id for p in task.test], [p.id for p in task.train]) == (["11"], ["510"])


@real
def test_entry_points_are_what_the_references_define() -> None:
    for name in ("mbpp", "mbpp_sanitized"):
        for problem in problems(data.read(name), name):
            assert f"def {problem.data['entry']}" in problem.data["code"].replace("\r", "")


# --- problems of an exported team ------------------------------------------------------------------------------------


def test_what_a_text_defines_is_there_when_a_teams_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, SQUARES)
    code = "def squares(n: int) -> List[int]:\n    return [i * i for i in range(n)]"
    for task in (HumanEval(train=(0, 1), test=(0, 1)), CoopHumanEval(train=(0, 1), test=(0, 1))):
        given = task.train[0].data
        asked = Problem("p", {name: given[name] for name in (*task.asks, *task.feedback_asks)})
        assert task.job(asked) == task.job(task.train[0])
        assert task.job(asked).prelude == "from typing import List"
        [note] = task.feedback(asked, [turn("coder", code, asked)])
        assert "NameError" not in note
        assert note == task.feedback(task.train[0], [turn("coder", code, task.train[0])])[0]
        task.box.close()


@pytest.mark.parametrize("text", ["Write squares, the first n squares.", "squares", "import os", "def other(): ..."])
def test_a_text_without_the_functions_head_defines_nothing(text: str) -> None:
    asked = Problem("p", {"text": text, "entry": "squares", "tests": "assert squares(0) == []"})
    assert HumanEval().job(asked).prelude == ""
    given = Problem("p", {**asked.data, "prelude": "import re"})
    assert HumanEval().job(given).prelude == "import re"


def test_the_prompt_of_a_teams_problem_has_the_first_of_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, MBPP)
    task = Mbpp(train=(0, 1), test=(0, 1))
    assert task.asks == ("text", "entry", "parameters", "tests")
    given = {name: task.train[0].data[name] for name in task.asks}
    for text, tests in ((" Add them. ", given["tests"]), ("Add them.", "import math\n" + given["tests"])):
        asked = Problem("p", {**given, "text": text, "tests": tests})
        assert str(task.prompt(asked, "main", ())) == str(task.prompt(task.train[0], "main", ()))
    loop = Problem("p", {**given, "text": "Add them.", "tests": "for i in (1, 2):\n    assert nest(i, []) == i"})
    assert "Add them.\n\nThe other one" in str(task.prompt(loop, "main", ()))
    with pytest.raises(ValueError, match="its tests have no assert"):
        task.prompt(Problem("p", {**given, "text": "Add them.", "tests": "nest(1, [])"}), "main", ())
