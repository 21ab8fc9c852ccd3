"""Several authors' code as one program."""

import pytest
from boxes import judged

from coevolve.rewards.code.merge import Piece, chunks


def merge(pieces):
    return "\n".join(text for text, _ in chunks(pieces))


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
        "n = int(input())\nprint(f(n))",
        "y = f(numbers)\nz = y + 1\nassert z",
        "a, b = f(1), f(2)\nif a:\n    b.sort()",
        "f(1).total = 3",
        "unittest.main()",
        "doctest.testmod()",
        "'''Text.'''",
        "Sure",
        "note: this",
        "pass",
    ],
)
def test_what_tries_the_code_out_is_left_out(trial):
    assert merge([Piece(f"def f(x):\n    return x\n{trial}", tried=["f"])]) == "def f(x):\n    return x"


@pytest.mark.parametrize(
    "kept",
    [
        "sys.setrecursionlimit(9)",
        "TABLE = [1]",
        "TABLE.append(2)",
        "y = g(1)",
        "x += 1",
        "f = cached(f)",
        "f = f(1)",  # a factory
        "y = {1: f}",
    ],
)
def test_what_sets_the_code_up_stays(kept):
    assert merge([Piece(f"def f(x):\n    return x\n{kept}", tried=["f"])]).endswith(f"\n{kept}")


@pytest.mark.parametrize(
    ("trial", "kept"),
    [
        ("def main():\n    print(f(int(input())))\nmain()", "def main():\n    print(f(int(input())))"),
        ("def test_f():\n    assert g(1) == 4\ntest_f()", "def test_f():\n    assert g(1) == 4"),
        (
            "def go():\n    f(1)\ndef main():\n    go()\nif x:\n    main()",
            "def go():\n    f(1)\ndef main():\n    go()",
        ),
        ("def n():\n    return input()\nx = n()", "def n():\n    return input()"),
        ("y = f(1)\ny = 2\ny.sort()", "y = 2\ny.sort()"),
        ("def table(n):\n    assert n\n    return [n]\nT = table(1)", None),  # assertions of what sets up
    ],
)
def test_calls_that_only_try_the_code_out_are_left_out(trial, kept):
    code = "def f(x):\n    return x\n"
    assert merge([Piece(code + trial, tried=["f"])]) == code + (trial if kept is None else kept)


@pytest.mark.parametrize(
    "filled",
    [
        "T = []\nfor i in range(9):\n    T.append(i)\n    print(i)",
        "T = {}\nfor i in range(9):\n    assert i < 9\n    T[i] = i",
        "T = 1\nwhile T < 9:\n    T += 1\n    print(T)",
    ],
)
def test_what_fills_a_table_is_no_trial_though_it_prints(filled):
    reader = "\ndef f(n):\n    return T"
    assert merge([Piece(filled + reader, tried=["f"])]) == filled + reader


@pytest.mark.parametrize(
    "trial",
    [
        "for i in range(9):\n    print(i)",
        "print(T.index(1))",
        "assert T.index(1)",
        "for i in T:\n    T.clear()\n    print(f(i))",  # calls what is tested
        "if __name__ == '__main__':\n    T.clear()\n    print(T)",
        "if len(sys.argv) < 2:\n    print('usage')\n    sys.exit(1)",  # a module is no table
    ],
)
def test_what_only_prints_a_table_is_a_trial(trial):
    code = "import sys\nT = [1]\ndef f(n):\n    return T, sys.path"
    assert merge([Piece(f"{code}\n{trial}", tried=["f"])]) == code


@pytest.mark.parametrize(
    "trial",
    [
        "for v in [1, 2]:\n    seen.add(v)\n    print(v)",  # which f fills itself
        "for v in values:\n    T.append(v)\n    print(v)",  # of values that nobody has set
        "try:\n    T.pop()\n    print(T)\nexcept ValueError:\n    pass",
    ],
)
def test_what_a_function_fills_or_is_not_known_is_a_trial(trial):
    code = "T = []\nseen = set()\ndef f(n):\n    seen.add(n)\n    return T"
    assert merge([Piece(f"{code}\n{trial}", tried=["f"])]) == code


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("from my_module import f", ""),  # which the program defines
        ("from helpers import *", ""),
        ("from . import other", ""),
        ("import numpy as np, os", "import os\n"),
        ("import my.tools", ""),
        ("from my_module import f, needed, other", "from my_module import needed\n"),
        ("import needed.inner", "import needed.inner\n"),
        ("from math import *", "from math import *\n"),
        ("from os.path import f, join", "from os.path import f, join\n"),
    ],
)
def test_imports_that_fail_and_are_of_no_use_are_left_out(line, kept):
    code = "def f(x):\n    return f(needed.inner(x))"
    assert merge([Piece(f"{line}\n{code}")]) == kept + code


@pytest.mark.parametrize("reader", ["def g(n):\n    return T[n]", "class G:\n    def g(self):\n        return T"])
def test_a_table_that_the_program_reads_is_no_trial(reader):
    helper, table = "def f(n):\n    return [n]\n", "T = f(9)"
    assert merge([Piece(helper + table, tried=["f"]), Piece(reader)]) == helper + table + "\n" + reader
    alone = "def g(T):\n    return T\ndef h():\n    T = 1\n    return T"  # names of their own
    assert merge([Piece(helper + table, tried=["f"]), Piece(alone)]) == helper + alone
    asked = "n = input()\nT = f(n)"  # which would end every import
    assert merge([Piece(helper + asked, tried=["f"]), Piece(reader)]) == helper + reader


def test_a_table_that_calls_the_helper_can_be_made():
    main = "def f(n):\n    return aux(n)\nT = [f(i) for i in range(3)]\ndef g(n):\n    return T[n]"
    aux = "def aux(n):\n    return n"
    assert merge([Piece(aux, ["f"], ["f", "aux"]), Piece(main, ["aux"], ["f"])]) == f"{aux}\n{main}"


@pytest.mark.parametrize(
    "table",
    [
        "T = main(9)",  # which is taken out of this piece
        "def g():\n    return main(1)\nT = g()",
        "def n():\n    return input()\nT = n()",
    ],
)
def test_a_table_that_cannot_be_made_is_a_trial(table):
    code = "def aux(n):\n    return n\n"
    reader = Piece("def main(n):\n    return T[n]")
    made = merge([Piece(code + table, without=["main"], tried=["aux", "main"]), reader])
    assert "T =" not in made


@pytest.mark.parametrize(
    "helper",
    [
        "def aux(n):\n    self = main\n    cls = lambda n: 42\n    self.__code__ = cls.__code__\n    return n",
        "def aux(n):\n    self = aux\n    self.__globals__['ma' + 'in'] = lambda n: 42\n    return n",
        "class A:\n    def f(self):\n        setattr(self.modules['__main__'], 'ma' + 'in', abs)",
        "def aux(n):\n    import answer as self\n    self.main = lambda n: 42\n    return n",
        "def aux(n):\n    self = __import__('answer')\n    self.main = lambda n: 42\n    return n",
        "class A:\n    def f(n):\n        import answer as cls\n        cls.main = abs",
    ],
)
def test_a_helper_does_not_reach_main_by_the_name_self(helper):
    """Nor by a module of that name; what a method is given is its own object's."""
    assert merge([Piece(helper, without=["main"])]) == ""
    own = "class A:\n    def f(self):\n        self.main = 1"
    assert merge([Piece(own, without=["main"])]) == own


def test_of_two_functions_of_one_name_the_last_one_is_run():
    code = judged("def f(x):\n    return 1\n\ndef f(x):\n    return aux(x) + 2").code
    assert _run(code)["f"](1) == 4


@pytest.mark.parametrize(
    "own",
    [
        "def aux(x):\n    return 100",
        "aux = lambda x: 100",
        "class aux: pass",
        "aux = abs",
        "if True:\n    def aux(x):\n        return 100",
        "try:\n    from helper import aux\nexcept ImportError:\n    aux = abs",
        "aux, = (lambda x: 100),",
        "(aux := lambda x: 100)",
        "for aux in [lambda x: 100]: pass",
        "del aux",
        "globals()['aux'] = lambda x: 100",
        "setattr(__import__('sys').modules['m'], 'aux', abs)",
        "exec('aux = abs')",
        "def g():\n    return 1\ng.__globals__['aux'] = abs",
        "@(aux := lambda g: g)\ndef g():\n    return 1",
        "def g(x=(aux := abs)):\n    return 1",
        "def g():\n    global aux\n    aux = abs",
        "class A:\n    global aux\n    aux = abs",
        "from aux import aux",
        "from helper import aux",
        "import aux",
        "import helper as aux",
        "from math import floor, ceil as aux",
    ],
)
def test_the_helpers_aux_stays_whatever_main_defines(own):
    code = judged(f"{own}\ndef f(x):\n    return aux(x) + 2").code
    assert code.startswith(("def aux(x):\n    return x + 1\n", "from math import floor\ndef aux"))
    assert _run(code)["f"](1) == 4


@pytest.mark.parametrize("said", ["Evaluate and execute it.", "Takes modules.", "aux"])
def test_a_docstring_reaches_nothing(said):
    code = judged(f'def f(x):\n    """{said}"""\n    return eval("aux(x) + 2")').code
    assert _run(code)["f"](1) == 4


def test_a_docstring_that_is_read_reaches_names():
    reads = 'def f(x):\n    """globals().__setitem__("aux", abs) or aux(x) + 2"""\n    return eval(f.__doc__)'
    assert "f" not in _run(judged(reads).code)


def test_words_that_contain_others_reach_nothing():
    assert "f" in _run(judged("def f(x):\n    return eval('aux(x)') + len('executed')").code)
    assert "f" not in _run(judged("def f(x):\n    eval('exec(str(x))')\n    return aux(x)").code)


def test_a_main_function_that_replaces_aux_is_not_run():
    assert "f" not in _run(judged("def f(x):\n    global aux\n    aux = abs\n    return aux(x) + 2").code)
    read = judged("def f(x):\n    global aux\n    return aux(x) + 2")
    assert _run(read.code)["f"](1) == 4


def test_the_helpers_own_example_is_left_out():
    found = judged("def f(x):\n    return aux(x) + 2", "def aux(x):\n    return x + 1\ny = aux(numbers)\nprint(y)")
    assert found.code == "def aux(x):\n    return x + 1\ndef f(x):\n    return aux(x) + 2"


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
