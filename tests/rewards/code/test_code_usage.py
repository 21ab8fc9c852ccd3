"""Whether a main function calls its helper, only passes its result on, or throws it away."""

import textwrap

import pytest
from boxes import judged


def of(body: str):
    return judged(f"def f(x, *rest):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}")


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x) + 1",
        "return [aux(y) for y in x]",
        "return (lambda y: aux(y))(x)",
        "return list(map(aux, x))",
        "return sorted(x, key=aux)",
        "return functools.reduce(aux, x)",
        "def g(y):\n    return aux(y)\nreturn g(x)",
        "if x:\n    return 1\nreturn aux(x)",
        "if 1 < 'a':\n    return aux(x)\nreturn x",  # an error
        "return 0 or aux(x)",
        "return True and aux(x)",
        "try:\n    return 1 / x\nfinally:\n    y = aux(x)",
    ],
)
def test_calls(body):
    assert of(body).calls_aux


@pytest.mark.parametrize(
    "body",
    [
        "return x  # aux(x)",
        "'''aux(x)'''\nreturn 'aux(x)'",
        "return x\naux(x)",
        "if False:\n    return aux(x)\nreturn x",
        "if True:\n    return x\nelse:\n    return aux(x)",
        "while 0:\n    aux(x)\nreturn x",
        "if 1 > 2:\n    return aux(x)\nreturn x",
        "if not 1:\n    return aux(x)\nreturn x",
        "if x and 0:\n    return aux(x)\nreturn x",
        "if True:\n    return x\nreturn aux(x)",
        "return (False and aux(x)) or x",
        "return x or 1 or aux(x)",
        "return x if True else aux(x)",
        "raise ValueError\nreturn aux(x)",
        "def g(y):\n    return aux(y)\nreturn x",  # g is not called
        "aux = abs\nreturn aux(x)",
        "def aux(y):\n    return y\nreturn aux(x)",
        "from math import floor as aux\nreturn aux(x)",
        "global aux\naux = abs\nreturn aux(x)",
        "for aux in x:\n    return aux(x)",
        "return x.aux(x)",
        "return aux",
        "return print(aux)",
    ],
)
def test_no_calls(body):
    assert not of(body).calls_aux


def test_a_parameter_is_no_helper():
    assert not judged("def f(x, aux=abs):\n    return aux(x)").calls_aux


def test_calls_by_functions_that_main_reads():
    own = "def g(x):\n    return aux(x) + 1\n\n"
    assert judged(f"{own}def f(x):\n    return g(x)").calls_aux
    assert judged(f"{own}def f(x):\n    return list(map(g, x))").calls_aux
    assert judged("class A:\n    def m(self):\n        return aux(1)\n\ndef f(x):\n    return A().m()").calls_aux
    assert not judged(f"{own}def f(x):\n    return x").calls_aux
    assert not judged(f"{own}def f(x, g=abs):\n    return g(x)").calls_aux


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x)",
        "'''What it does.'''\nreturn aux(x)",
        "return aux(x, *rest, base=10)",
        "y = aux(x)\nreturn y",
        "y = x\nz: int = aux(y)\ny = z\nreturn y",
        "return aux(x) + 0",
        "return 1 * aux(x)",
        "return +aux(x) ** 1",
        "return aux(x) if True else 3",
        "pass\nreturn aux(x)\nreturn 3",
        "if True:\n    return aux(x)",
        "if 2 > 1:\n    y = aux(x)\nreturn y",
        "if x:\n    pass\nreturn aux(x)",
        "assert True\nreturn aux(x)",
        "r, = (aux(x),)\nreturn r",
        "y, z = x, 1\n[r, z] = aux(y), z\nreturn r",
        "aux(x)\nreturn aux(x)",
        "return aux(x) | 0",
        "return 0 ^ aux(x)",
        "return -(-aux(x))",
        "return aux(x) if 1 < 2 else 3",
        "def g(y):\n    return aux(y)\nreturn g(x)",
    ],
)
def test_wrappers(body):
    assert of(body).wrapper


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x) + 1",
        "return aux(x + 1)",
        "return aux(len(x))",
        "return -aux(x)",
        "return -(~aux(x))",
        "return aux(x) | 1",
        "return 0 - aux(x)",
        "r, s = aux(x)\nreturn r",
        "assert x\nreturn aux(x)",
        "aux(x)\nx.sort()\nreturn aux(x)",
        "def g(y):\n    return aux(y) + 1\nreturn g(x)",
        "def g(y):\n    return aux(y)\nreturn g(x) + 1",
        "return aux(x) or 0",  # left: see is_wrapper
        "return sorted(aux(x))",
        "if not x:\n    return 0\nreturn aux(x)",
        "return x",
        "y = aux(x)\nreturn x",
        "return [aux(x)]",
        "return aux(aux(x))",
        "for y in x:\n    return aux(y)",
        "return list(map(aux, x))",
        "aux(x)",
    ],
)
def test_no_wrappers(body):
    assert not of(body).wrapper


def test_a_delegate_may_make_a_wrapper():
    delegate = "def g(x):\n    return aux(x)\n"
    assert judged(f"{delegate}def f(x):\n    return g(x)").wrapper
    assert not judged(f"{delegate}def f(x):\n    return g(x) + 1").wrapper
    assert not judged(f"{delegate}def f(x):\n    return g(x - 1)").wrapper


def test_a_lambda_may_be_a_wrapper():
    assert judged("f = lambda x: aux(x)").wrapper
    assert not judged("f = lambda x: aux(x) + 1").wrapper


@pytest.mark.parametrize(
    "body",
    [
        "aux(x)\nreturn x",
        "_ = aux(x)\nreturn x",
        "y = aux(x)\nreturn x * 2",
        "y = aux(x)\ny = x * 2\nreturn y",
        "y = aux(x)\ny\nreturn x",
        "y: int = aux(x) + 1\nreturn x",
        "print(aux(x))\nreturn x",
        "[aux(y) for y in x]\nreturn x",
        "map(aux, x)\nreturn x",
        "aux(x)\ny = aux(x)\nreturn x",
        "if x:\n    y = aux(x)\nreturn x",
        "if aux(x):\n    pass\nreturn x * 2",
        "y = aux(x)\nif y:\n    pass\nreturn x",
        "assert aux(x) == 0\nreturn x * 2",
        "y = aux(x)\nassert y\nreturn x * 2",
        "a, b = aux(x), 1\nreturn x * 2",
        "a, b = aux(x), 1\nreturn b",
        "a, b = aux(x)\nreturn x",
        "str(aux(x))\nreturn x",
        "y = len(str(aux(x)))\nreturn x",
        "for _ in [aux(x)]:\n    pass\nreturn x",
        "return x + aux(x) * 0",
        "return x + (0 & aux(x))",
        "n = 0\nfor y in x:\n    n += aux(y)\nreturn len(x)",
    ],
)
def test_results_thrown_away(body):
    found = of(body)
    assert found.calls_aux and found.ignored


@pytest.mark.parametrize(
    "body",
    [
        "y = aux(x)\nreturn y",
        "y = aux(x)\ny = y * 2\nreturn y",
        "y = aux(x)\ny += 1\nreturn y",
        "if aux(x):\n    return 1\nreturn 2",
        "out = []\nout.append(aux(x))\nreturn out",
        "d = {}\nd[x] = aux(x)\nreturn d",
        "a, b = aux(x)\nreturn a",
        "a, b = aux(x), 1\nreturn a",
        "a, x[0] = aux(x), 1\nx[0], a = aux(x), 1\nreturn x",
        "for y in aux(x):\n    pass\nreturn y",
        "for y in [aux(x)]:\n    x += 1\nreturn x",
        "if aux(x):\n    x += 1\nreturn x",
        "assert x\nreturn str(aux(x))",
        "return x + aux(x) * 1",
        "aux(x)\nreturn aux(x) + 1",
        "y = 0\nfor z in x:\n    if y > 3:\n        return z\n    y = aux(z)\nreturn 1",
        "if x:\n    y = aux(x)\nelse:\n    y = 2\nreturn y",
        "y = aux(x)\ndef g():\n    return y\nreturn g()",
        "n = 0\nfor y in x:\n    n += aux(y)\nreturn n",
        "return x",
    ],
)
def test_results_used(body):
    assert not of(body).ignored
