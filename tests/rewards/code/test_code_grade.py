"""The levels of the coding reward, with canned verdicts."""

import pytest
from boxes import AUX, Canned, judged

from coevolve.rewards.code import Job, grade

MAIN = "def f(x):\n    return aux(x) * 2"


@pytest.mark.parametrize(
    ("aux", "main", "passed", "total"),
    [
        (AUX, MAIN, 2, 4.0),  # 0.4 + 0.6 + 0.5 + 1.0 + 0.5 + 1.0
        (AUX, MAIN, 1, 3.5),  # half of the tests
        (AUX, MAIN, 0, 1.5),  # no test, no cooperation: 0.4 + 0.6 + 0.5
        (AUX, "def f(x):\n    return aux(x)", 2, 3.0),  # thin wrapper: -1.0
        (AUX, "def f(x):\n    y = aux(x)\n    return x * 2", 2, 3.5),  # result thrown away: -0.5
        (AUX, "def f(x):\n    return x * 2", 2, 2.5),  # no call: -1.5
        (AUX, "def f(x):\n    aux(x) * 2", 2, 0.4),  # main returns nothing: stop
        (AUX, "def g(x):\n    return aux(x) * 2", 2, 0.4),  # no main: stop
        (AUX, "def f(x:\n    return x", 2, 0.4),  # main is no Python: stop
        ("def aux(x:\n    return x", MAIN, 2, 0.6),  # aux is no Python: 0.6, then stop
        ("def aux(x):\n    print(x)", MAIN, 2, 3.6),  # aux returns nothing: -0.4
        ("def helper(x):\n    return x", MAIN, 2, 2.1),  # no aux: 0.6 + 0.5 + 1.0
        ("def f(x):\n    return x\naux = f", MAIN, 2, 2.1),  # main's function by another name: no aux
        ("def g(x):\n    return x\naux = g", MAIN, 2, 4.0),
        ("", MAIN, 2, 2.1),
        ("", "", 2, 0.0),
    ],
)
def test_levels_of_a_pair(aux, main, passed, total):
    assert judged(main, aux, passed, tests=2).total == pytest.approx(total)


@pytest.mark.parametrize(
    ("main", "passed", "total"),
    [
        ("def f(x):\n    return x", 2, 2.1),
        ("def f(x):\n    return x", 1, 1.6),
        ("def f(x):\n    return x", 0, 1.1),
        ("def f(x):\n    print(x)", 2, 0.0),  # it returns nothing: stop
        ("def f(x:\n    return x", 2, 0.0),
        ("def g(x):\n    return x", 2, 0.0),
        ("", 2, 0.0),
    ],
)
def test_levels_of_a_single_agent(main, passed, total):
    assert judged(main, None, passed, tests=2).total == pytest.approx(total)


def test_mains_function_by_another_name_is_not_run():
    """It would be read before main's function is there."""
    own = "def f(x):\n    return x * 2"
    assert judged(own, "def f(x):\n    return x\naux = f").code == own


def test_parts_of_a_pair():
    parts = judged("def f(x):\n    y = aux(x)\n    return x", passed=1, tests=4).parts()
    # total: 1.0 + 0.5 + 0.25 + (0.5 + 1.0 - 0.5) = 2.75 of 4; cooperation: 1.0 of 1.5
    assert parts == pytest.approx(
        {
            "structure": 1.0,
            "syntax": 1.0,
            "tests": 0.25,
            "cooperation": 2 / 3,
            "cooperation_ungated": 2 / 3,
            "return": 0.6875,
            "solved": 0.0,
            "levels_passed": 3.0,
            "syntax_ungated": 1.0,
            "scheme_fallback": 0.0,
            "scheme_coordinator": 0.0,
            "scheme_filter": 0.0,
            "scheme_decorator": 0.0,
        }
    )
    assert judged(MAIN).parts() == pytest.approx(
        dict.fromkeys(parts, 1.0)
        | {"levels_passed": 3.0, "scheme_fallback": 0.0, "scheme_coordinator": 0.0, "scheme_filter": 0.0}
    )


def test_parts_of_a_single_agent():
    parts = judged("def f(x):\n    return x", None, passed=1, tests=2).parts()
    want = {"structure": 1.0, "syntax": 1.0, "tests": 0.5, "return": 1.6 / 2.1, "solved": 0.0, "syntax_ungated": 1.0}
    want |= {"levels_passed": 3.0}
    assert parts == pytest.approx(want)


def test_ungated_parts_wait_for_nothing():
    parts = judged(MAIN, passed=0).parts()
    assert (parts["cooperation"], parts["cooperation_ungated"]) == (0.0, 1.0)
    parts = judged("def g(x):\n    return x").parts()
    assert (parts["syntax"], parts["syntax_ungated"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("main", "returns"),
    [
        ("def f(x):\n    return x", True),
        ("f = lambda x: x", True),
        ("def f(x):\n    yield x", True),
        ("@aux\ndef f(x):\n    return x", True),
        ("def f(x):\n    if x:\n        return x", True),
        ("def f(x):\n    return 0\nf = cached(f)", True),
        ("def f(x):\n    return", False),
        ("def f(x):\n    return None", False),
        ("def f(x):\n    pass\n    # return x", False),
        ("def f(x):\n    def g():\n        return x", False),
        ("def f(x):\n    g = lambda: 1", False),
        ("def f(x):\n    raise ValueError\n    return x", False),
        ("def f(x):\n    return 1\ndef f(x):\n    pass\nf(1)", False),  # the last one is in force
    ],
)
def test_to_return_is_to_return_something(main, returns):
    found = judged(main)
    assert (found.main_defined, found.main_returns) == (True, returns)


@pytest.mark.parametrize(
    "main",
    [
        "async def f(x):\n    return x",
        "class f:\n    pass",
        "f = 3",
        "f, g = 1, 2",
        "import f",
        "def f(x):\n    return 1\nf = 3",
        "'def f(x)'",
    ],
)
def test_no_definition(main):
    assert not judged(main).main_defined


@pytest.mark.parametrize(
    ("main", "passed", "levels"),
    [
        (MAIN, 1, 3),
        (MAIN, 0, 2),  # no test passes
        ("def f(x:\n    return aux(x)", 1, 0),  # no Python, so there is no main function either
        ("def f(x):\n    print(aux(x))", 1, 0),  # returns nothing
        ("", 1, 0),
    ],
)
def test_the_level_that_stopped_is_a_part(main, passed, levels):
    assert judged(main, passed=passed).parts()["levels_passed"] == levels


def test_a_broken_helper_stops_at_syntax():
    assert judged(MAIN, "def aux(x:\n    return x").parts()["levels_passed"] == 1


def test_a_main_function_that_returns_nothing_is_not_run():
    box = Canned()
    job = Job("f", "assert candidate(1) is None")
    main = "def f(x):\n    found = aux(x)\n    if found:\n        print(found)"
    [found] = grade([job], [{"aux": "def aux(x):\n    return 1", "main": main}], box)
    assert (found.total, found.syntax, found.verdicts, box.seen) == (0.4, 0.0, (), [])


def test_an_async_helper_is_none():
    found = judged(MAIN, "async def aux(x):\n    return x + 1")
    assert (found.aux_defined, found.structure, found.cooperation) == (False, 0.6, 0.0)
    assert found.total == pytest.approx(2.1)


def test_all_programs_go_to_the_box_at_once_and_only_what_can_run():
    box = Canned()
    job = Job("f", "assert candidate(1) == 1", prelude="import os", setup="y = 2")
    mains = ["def f(x):\n    return 1", "def f(x:\n    return 1", "no", "def f(x):\n    return 2"]
    grades = grade([job] * 4, [{"main": main} for main in mains], box)
    [programs] = box.seen
    assert [program.code for program in programs] == [
        "import os\ndef f(x):\n    return 1",
        "import os\ndef f(x):\n    return 2",
    ]
    assert {(p.tests, p.entry, p.prelude, p.setup) for p in programs} == {
        ("assert candidate(1) == 1", "f", "import os", "y = 2")
    }
    assert [len(found.verdicts) for found in grades] == [1, 0, 0, 1]
    assert [found.code for found in grades] == [programs[0].code, "", "", programs[1].code]


def test_every_line_has_an_author():
    aux = "import math\nimport os\n\ndef aux(x):\n    # more\n    return x + 1\nprint(aux(1))"
    found = judged("import os\nimport re\n" + MAIN, aux, prelude="import math\nK = 1")
    lines = ["import math", "import os", "import re", "K = 1", "def aux(x):", "    # more", "    return x + 1"]
    assert found.code.split("\n") == [*lines, "def f(x):", "    return aux(x) * 2"]
    assert found.authors == ("", "aux", "main", "", "aux", "aux", "aux", "main", "main")


def test_nothing_to_run_starts_no_box():
    box = Canned()
    [found] = grade([Job("f", "assert candidate(1)")], [{"main": ""}], box)
    assert box.seen == [] and found.verdicts == ()


def test_the_error_names_the_line():
    assert judged("def f(x):\n    y = 1\n    return (x").syntax_error == "line 3: '(' was never closed"
    assert judged(MAIN).syntax_error is None
    assert judged("return x").syntax_error == "line 1: 'return' outside function"
    assert judged("def f():\n    class A:\n        return 1").syntax_error == "line 3: 'return' outside function"
    inside = "class A:\n    class B:\n        return 1\n    def f(self):\n        return 1"
    assert judged(inside).syntax_error == "line 3: 'return' outside function"
    assert judged("class A:\n    return 1\nclass B:\n    return 2").syntax_error.startswith("line 2: ")


def test_wrong_keys():
    with pytest.raises(ValueError, match="answers of helper, main; want main, or aux and main"):
        grade([Job("f", "assert candidate(1)")], [{"helper": "", "main": ""}], Canned())


def test_a_broken_prelude_is_the_problems_fault():
    with pytest.raises(ValueError, match="the prelude of 'f' does not parse: line 1"):
        judged(MAIN, prelude="def g(:")
