"""The schemes of cooperation: examples of each, and what looks like one and is another."""

import textwrap

import pytest
from boxes import judged

EXAMPLES = {
    "fallback": [
        "y = aux(x)\nif y is None:\n    return x * 2\nreturn y",
        "y = aux(x)\nif y is not None:\n    return y\nreturn x * 2",
        "y = aux(x)\nif not y:\n    y = sorted(x)\nreturn y",
        "y = aux(x)\nif y < 0:\n    return len(x)\nelse:\n    return y",
        "y = aux(x)\nreturn y if y else x * 2",
        "return aux(x) or x * 2",
        "try:\n    return aux(x)\nexcept ValueError:\n    return 0",
        "try:\n    y = aux(x)\nexcept Exception:\n    y = x * 2\nreturn y",
        "try:\n    return aux(x)\nexcept Exception:\n    pass\nn = 0\nfor y in x:\n    n += y\nreturn n",
        "out = []\nfor y in x:\n    z = aux(y)\n    if z is None:\n        z = y * 2\n    out.append(z)\nreturn out",
        "y = aux(x)\nif y:\n    return aux(y)\nreturn 0",  # two calls as well; the first that fits counts
    ],
    "coordinator": [
        "return aux(x) + aux(x + 1)",
        "return sum(aux(y) for y in x)",
        "out = []\nfor y in x:\n    if aux(y):\n        out.append(y)\nreturn out",
        "return list(map(aux, x))",
        "return sorted(x, key=aux)",
        "return list(map(lambda y: aux(y) + 1, x))",
        "while not aux(x):\n    x += 1\nreturn x",
        "return aux(x) + len(x)",
        "a = aux(x)\nb = sum(x)\nreturn (a, b)",
        "n = len(x)\nn += aux(x)\nreturn n",
        "if not x:\n    return []\nreturn aux(x) + f(x[1:])",
    ],
    "filter": [
        "if aux(x):\n    return x * 2\nreturn x + 1",
        "k = aux(x)\nif k == 1:\n    return x + 1\nelif k == 2:\n    return x + 2\nelse:\n    return 0",
        "k = aux(x)\nmatch k:\n    case 'up':\n        return x + 1\n    case _:\n        return x - 1",
        "return 'yes' if aux(x) else 'no'",
        "if aux(x):\n    r = x * 2\nelse:\n    r = x\nreturn r",
    ],
    "decorator": [
        "if x < 0:\n    return 0\nreturn aux(x)",
        "if not isinstance(x, int):\n    raise TypeError\nreturn aux(x)",
        "return sorted(aux(x))",
        "return aux(x) + 3",
        "return aux(x + 3)",
        "return round(aux(x), 2)",
        "x = x.strip()\nreturn aux(x)",
        "return sorted(aux(x), key=lambda y: y[1])",
        "y = aux(x)\nreturn str(y)",
        "y = aux(x)\nif y > 10:\n    return 10\nreturn y",  # a bound is a polish, no other way
        "if x > 3:\n    return aux(x)\nelse:\n    return aux(-x)",  # one of the two is called
        "n = 0\nfor y in aux(x):\n    n += y\nreturn n",  # called once, for the loop
        "try:\n    return aux(x) + 1\nexcept ValueError:\n    raise",
        "try:\n    n = int(x)\nexcept ValueError:\n    return 0\nreturn aux(n) + 1",  # it is not aux that may fail
        "return aux(x) % (10 ** 9 + 7)",
    ],
    None: [
        "return aux(x)",
        "y = aux(x)\nreturn y",
        "return x * 2",
        "y = aux(x)\nreturn x * 2",
        "return x  # aux(x) or x",
        "if False:\n    return aux(x) or 1\nreturn x",
    ],
}


@pytest.mark.parametrize(("scheme", "body"), [(scheme, body) for scheme, bodies in EXAMPLES.items() for body in bodies])
def test_scheme(scheme, body):
    found = judged(f"def f(x):\n{textwrap.indent(body, '    ')}")
    assert found.scheme == scheme
    flags = {name: value for name, value in found.parts().items() if name.startswith("scheme_")}
    assert flags == {f"scheme_{name}": float(name == scheme) for name in EXAMPLES if name}


def test_a_scheme_needs_a_helper_that_is_there():
    found = judged("def f(x):\n    return aux(x) or 1", "")
    assert found.calls_aux and not found.aux_defined
    assert not any(value for name, value in found.parts().items() if name.startswith("scheme_"))


def test_a_function_of_mains_own_that_calls_aux_is_looked_at():
    own = "def g(x):\n    return [aux(y) for y in x]\n\n"
    assert judged(f"{own}def f(x):\n    return g(x)").scheme == "coordinator"
