"""Several authors' code as one program."""

import pytest
from boxes import judged

from coevolve.rewards.code.merge import Piece, merge


def test_imports_come_first_once_and_the_rest_in_order():
    prelude = "from math import pi\nORIGIN = (0, 0)"
    aux = "import math\n\nLIMIT = 3  # of all\n\ndef aux(x):\n    # half of it\n    return math.floor(x)\n"
    main = "from __future__ import annotations\nimport math, os\nimport math\n@cache\ndef f(x):\n    return 1; x = 1\n"
    assert merge([Piece(prelude), Piece(aux), Piece(main)]) == (
        "from __future__ import annotations\n"
        "from math import pi\n"
        "import math\n"
        "import math, os\n"
        "ORIGIN = (0, 0)\n"
        "LIMIT = 3\n"
        "def aux(x):\n    # half of it\n    return math.floor(x)\n"
        "@cache\ndef f(x):\n    return 1; x = 1"
    )


def test_statements_of_one_line_and_of_several():
    code = "a = 'é'; b = 'ü'\nc = '''\nx\n  '''; import os\nif a:\n    b = 1\nelse:\n    b = 2\n"
    assert merge([Piece(code)]) == "import os\na = 'é'\nb = 'ü'\nc = '''\nx\n  '''\nif a:\n    b = 1\nelse:\n    b = 2"


@pytest.mark.parametrize(
    "trial",
    [
        "assert f(1) == 1",
        "print(g(1))",
        "f(1)",
        "for x in [1, 2]:\n    print(x)",
        "for x in [1, 2]:\n    f(x)",
        "if __name__ == '__main__':\n    import doctest",
        "while True:\n    assert g(1)",
        "'''Text.'''",
        "Sure",
        "note: this",
        "pass",
    ],
)
def test_what_tries_the_code_out_is_left_out(trial):
    assert merge([Piece(f"def f(x):\n    return x\n{trial}", tried=["f"])]) == "def f(x):\n    return x"


@pytest.mark.parametrize("kept", ["sys.setrecursionlimit(9)", "TABLE = [1]", "TABLE.append(2)", "y = f(1)", "x += 1"])
def test_what_sets_the_code_up_stays(kept):
    assert merge([Piece(f"def f(x):\n    return x\n{kept}", tried=["f"])]).endswith(f"\n{kept}")


def test_of_two_functions_of_one_name_the_last_one_is_run():
    code = judged("def f(x):\n    return 1\n\ndef f(x):\n    return aux(x) + 2").code
    assert _run(code)["f"](1) == 4


def test_the_helpers_aux_stays_whatever_main_defines():
    for own in ("def aux(x):\n    return 100", "aux = lambda x: 100", "class aux: pass", "aux = abs"):
        assert _run(judged(f"{own}\ndef f(x):\n    return aux(x) + 2").code)["f"](1) == 4


def test_mains_function_stays_whatever_the_helper_defines():
    aux = "def f(x):\n    return 0\n\ndef aux(x):\n    return 5 if x else f(9)"
    code = judged("def f(x):\n    return aux(x) + 1", aux).code
    assert _run(code)["f"](1) == 6
    assert not judged("def g(x):\n    return 1", "def f(x):\n    return 0").main_defined


def test_mains_own_aux_runs_if_the_helper_wrote_none_and_earns_nothing():
    found = judged("def aux(x):\n    return 2\n\ndef f(x):\n    return aux(x) * 3", "I cannot.")
    assert _run(found.code)["f"](1) == 6
    assert (found.calls_aux, found.aux_defined, found.cooperation) == (True, False, 0.0)


def test_constants_functions_inside_and_preludes_stay():
    prelude = "def double(x):\n    return 2 * x"
    aux = "K = 10\n\ndef aux(x):\n    def inner(y):\n        return y + K\n\n    return inner(x)"
    found = judged("def f(x):\n    return double(aux(x))", aux, prelude=prelude)
    assert _run(found.code)["f"](1) == 22


def _run(code):
    space = {}
    exec(code, space)
    return space
