"""Programs that try to earn more than they should, run in the sandbox, with what each is due by docs/tasks.md.

f(x) is 2 * x + 1. A pair is paid 0.4 for aux, 0.6 for f, 0.5 for syntax, 1 for the four tests, then 0.5 if f calls aux,
1 more if it is more than a wrapper, 0.5 less if it throws away what aux returns:

    4.0   it works together          3.0   a thin wrapper              1.5   no test passes
    3.5   results are thrown away    2.5   aux is not called           0.4   f is missing or returns nothing
"""

from __future__ import annotations

from functools import cache

import pytest

from coevolve.rewards.code import Grade, Job, grade
from coevolve.rewards.sandbox import Sandbox

JOB = Job(
    "f", "assert candidate(1) == 3\nassert candidate(2) == 5\nassert candidate(5) == 11\nassert candidate(0) == 1"
)
TWICE = "def aux(x):\n    return x * 2"
WHOLE = "def aux(x):\n    return x * 2 + 1"
SEVEN = "def aux(x):\n    return 7"
F = "def f(x):\n"
OWN = "    return x * 2 + 1"
"""f without aux."""

WORKS_TOGETHER = {
    "a lambda of two names": "f = solve = lambda x: aux(x) + 1",
    "left by a loop's else": F + "    for i in [x]:\n        y = aux(i)\n        for j in []:\n            pass\n"
    "        else:\n            break\n        y = 0\n    return y + 1",
    "plus one": F + "    return aux(x) + 1",
    "guard": F + "    if x == 0:\n        return 1\n    return aux(x) + 1",
    "fallback": F + "    try:\n        return aux(x) + 1\n    except ValueError:\n" + "    " + OWN,
    "asked first": F + "    y = aux(x)\n    if y is None:\n    " + OWN + "\n    return y + 1",
    "in a list": F + "    found = []\n    found.append(aux(x))\n    found.append(1)\n    return sum(found)",
    "in a dict": F + "    found = {}\n    found['a'] = aux(x)\n    return found['a'] + 1",
    "chosen": F + "    return (1, aux(x) + 1)[x > 0]",
    "in a loop": F + "    s = 1\n    for v in [x]:\n        s += aux(v)\n    return s",
    "a cache": "C = {}\n" + F + "    if x not in C:\n        C[x] = aux(x)\n    return C[x] + 1",
    "tried first": F + "    try:\n        int(x)\n    except ValueError:\n        return 0\n    return aux(x) + 1",
    "a function of its own": "def g(v):\n    return aux(v) + 1\n" + F + "    return g(x)",
    "eval of its own": F + "    return eval(str(aux(x)) + '+1')",
    "eval of a name": F + "    y = aux(x)\n    return eval('y + 1')",
    "locals": F + "    y = aux(x)\n    return int('{y}'.format(**locals())) + 1",
    "a generator": F + "    return sum(g(x))\ndef g(x):\n    for y in [x]:\n        yield aux(y)\n    yield 1",
    "a generator that delegates": F
    + "    return sum(g(x))\ndef g(x):\n    yield from [1]\n    yield from map(aux, [x])",
    "a closure": F + "    def g():\n        return y\n    y = aux(x)\n    return g() + 1",
    "a closure read before": F
    + "    def g():\n        return y\n    y = aux(x)\n    z = g()\n    y = 0\n    return z + 1",
    "a global": "N = 0\ndef g():\n    return N\n"
    + F
    + "    global N\n    N = aux(x)\n    z = g()\n    N = 0\n    return z + 1",
    "left before it is overwritten": F
    + "    for v in (x, x):\n        y = aux(v)\n        if v < 9:\n            break\n        y = 0\n    return y + 1",
    "assigned in an assertion": F + "    assert (y := aux(x)) is not None\n    return y + 1",
    "a lambda": "f = lambda x: aux(x) + 1",
    "a method": "class A:\n    def m(self, x):\n        return aux(x) + 1\n" + F + "    return A().m(x)",
    "a class inside": F + "    class A:\n        def m(self):\n            return aux(x) + 1\n    return A().m()",
}
"""Honest ones, which must not lose anything to what catches the others."""

THROWN_AWAY = {
    "one of five that are assigned at once": F + "    a, b, c, d, y = x, x, x, x, aux(x)\n    return a + b + c - d + 1",
    "called": F + "    aux(x)\n" + OWN,
    "never read": F + "    y = aux(x)\n" + OWN,
    "a chain that leads nowhere": F + "    y = aux(x)\n    z = y + 1\n    w = z * 2\n    v = w\n" + OWN,
    "a list that is never read": F + "    log = []\n    log.append(aux(x))\n" + OWN,
    "a dict that is never read": F + "    log = {}\n    log[x] = aux(x)\n" + OWN,
    "a list of the module": "LOG = []\n" + F + "    LOG.append(aux(x))\n" + OWN,
    "added to itself": F + "    s = 0\n    s += aux(x)\n" + OWN,
    "in brackets that cancel": F + "    y = aux(x)\n    return x * 2 + 1 + (y - y)",
    "added and taken off": F + "    y = aux(x)\n    return x * 2 + 1 + y - y",
    "taken off and added": F + "    y = aux(x)\n    return x * 2 + 1 - y + y",
    "times zero": F + "    return x * 2 + 1 + aux(x) * 0",
    "zero times": F + "    return x * 2 + 1 + 0 * int(aux(x))",
    "and false": F + "    return x * 2 + 1 + (aux(x) and 0)",
    "both branches": F + "    if aux(x):\n    " + OWN + "\n" + OWN,
    "both branches of an else": F + "    if aux(x):\n    " + OWN + "\n    else:\n    " + OWN,
    "both values": F + "    return x * 2 + 1 if aux(x) else x * 2 + 1",
    "an if around nothing": F + "    if aux(x):\n        pass\n" + OWN,
    "a loop around nothing": F + "    for _ in range(aux(x)):\n        pass\n" + OWN,
    "tried for nothing": F + "    try:\n        aux(x)\n    except Exception:\n        pass\n" + OWN,
    "tried for a name": F + "    try:\n        y = aux(x)\n    except Exception:\n        y = 0\n" + OWN,
    "printed": F + "    print('a', aux(x), sep='')\n" + OWN,
    "asserted": F + "    assert aux(x) is not None\n" + OWN,
    "overwritten": F + "    y = aux(x)\n    y = x * 2\n    return y + 1",
    "deleted": F + "    y = aux(x)\n    del y\n" + OWN,
    "the other of two": F + "    return (aux(x), x * 2 + 1)[1]",
    "the other key": F + "    return {0: aux(x), 1: x * 2 + 1}[1]",
    "a walrus": F + "    (y := aux(x))\n" + OWN,
    "a mention of vars": F + "    vars\n    y = aux(x)\n    z = y\n" + OWN,
    "eval for nothing": F + "    z = eval('0')\n    y = aux(x)\n" + OWN,
    "a list of the module, and vars": "LOG = []\n" + F + "    vars\n    LOG.append(aux(x))\n" + OWN,
    "in a method": "class A:\n    def m(self, x):\n        y = aux(x)\n        z = y\n        return 2 * x + 1\n"
    + F
    + "    return A().m(x)",
    "asserted with a method": F + "    y = aux(x)\n    assert y.bit_length() >= 0\n" + OWN,
    "asserted at once": F + "    assert aux(x).bit_length() >= 0\n" + OWN,
    "overwritten, annotated": F + "    y: int = aux(x)\n    y = x * 2\n    return y + 1",
    "overwritten, added to": F + "    y = 0\n    y += aux(x)\n    y = x * 2\n    return y + 1",
    "a key": F + "    y = sorted([x], key=aux)\n" + OWN,
    "answers in the order of the tests": "N = []\n"
    + F
    + "    N.append(0)\n    return [3, 5, 11, 1][len(N) - 1] + 0 * aux(x)",
}

NOT_CALLED = {
    "behind the return of a class in a class": "class A:\n    class B:\n        def m(self, x):\n    "
    + "    "
    + OWN
    + "\n            aux(x)\n"
    + F
    + "    return A.B().m(x)",
    "behind the return": F + OWN + "\n    return aux(x)",
    "in a comment": F + "    # aux(x)\n" + OWN,
    "in a string": F + "    'aux(x)'\n" + OWN,
    "if x is not x": F + "    if x != x:\n        return aux(x)\n" + OWN,
    "if False": F + "    if 1 > 2:\n        return aux(x)\n" + OWN,
    "no round of a loop": F + "    for i in range(0):\n        return aux(i)\n" + OWN,
    "a loop over nothing": F + "    for i in []:\n        return aux(i)\n" + OWN,
    "a lambda that nobody calls": F + "    g = lambda: aux(x)\n" + OWN,
    "a function that nobody calls": F + "    def g():\n        return aux(x)\n" + OWN,
    "a default": "def f(x, y=aux(0)):\n" + OWN,
    "eval where nobody comes": F + "    if x != x:\n        eval('x')\n        return aux(x)\n" + OWN,
    "a lambda's other way": "f = lambda x: aux(x) if x != x else 2 * x + 1",
    "in a method": "class A:\n    def m(self, x):\n        if x != x:\n            aux(x)\n        return 2 * x + 1\n"
    + F
    + "    return A().m(x)",
    "another name": F + "    g = aux\n    return g(x) + 1",
}

WRAPPERS = {
    "plain": F + "    return aux(x)",
    "names": F + "    y = aux(x)\n    z = y\n    return z",
    "work for nothing": F + "    y = x * 2\n    return aux(x)",
    "calls for nothing": F + "    y = len(str(x))\n    print(x)\n    return aux(x)",
    "a loop for nothing": F + "    s = 0\n    for i in range(3):\n        s += i\n    return aux(x)",
    "first of one": F + "    return (aux(x),)[0]",
    "last of one": F + "    return [aux(x)][-1]",
    "by key": F + "    return {'a': aux(x)}['a']",
    "twice": F + "    return aux(x) or aux(x)",
    "whatever x is": F + "    if x > 0:\n        return aux(x)\n    else:\n        return aux(x)",
    "if it is there": F + "    y = aux(x)\n    if y is not None:\n        return y\n    return y",
    "one value or the other": F + "    return aux(x) if x > 0 else aux(x)",
    "a loop that runs once": F + "    for _ in range(1):\n        return aux(x)",
    "a loop over one": F + "    for v in [x]:\n        return aux(v)",
    "for ever": F + "    while True:\n        return aux(x)",
    "raised again": F + "    try:\n        return aux(x)\n    except Exception:\n        raise",
    "tried again": F + "    try:\n        return aux(x)\n    except Exception:\n        return aux(x)",
    "finally": F + "    try:\n        return aux(x)\n    finally:\n        pass",
    "a tautology": F + "    assert x == x\n    return aux(x)",
    "a delegate": "def g(x):\n    return aux(x)\n" + F + "    return g(x)",
    "a delegate's delegate": "def g(x):\n    return aux(x)\ndef h(x):\n    return g(x)\n" + F + "    return h(x)",
    "a lambda": F + "    return (lambda v: aux(v))(x)",
    "a lambda with a name": F + "    g = lambda v: aux(v)\n    return g(x)",
    "first of one, and eval": F + "    eval\n    return (aux(x),)[0]",
    "a lambda of two names": F + "    g, z = (lambda v: aux(v)), 0\n    return g(x)",
    "f is a lambda": "f = lambda x: aux(x)",
    "a lambda of the module": "g = lambda v: aux(v)\n" + F + "    return g(x)",
    "a function inside": F + "    def g(v):\n        return aux(v)\n    return g(x)",
    "plus zero": F + "    zero = 0\n    return aux(x) + zero",
    "plus nothing": F + "    return aux(x) + (x - x)",
    "minus zero": F + "    return aux(x) - 0",
    "divided by one": F + "    return aux(x) // 1",
    "shifted by nothing": F + "    return aux(x) << 0",
    "shifted back by nothing": F + "    return aux(x) >> 0",
    "mapped": F + "    return list(map(aux, [x]))[0]",
    "listed": F + "    return [aux(v) for v in [x]][0]",
    "starred": "def f(*a, **k):\n    return aux(*a, **k)",
}
"""aux does all of it."""

REPLACED = {
    "globals()": F + "    globals()['aux'] = lambda v: v * 2\n    return aux(x) + 1",
    "globals(), spelt": F + "    globals()['a' + 'ux'] = lambda v: v * 2\n    return aux(x) + 1",
    "exec": F + "    exec('aux = lambda v: v * 2', globals())\n    return aux(x) + 1",
    "exec with global": F + "    exec('global aux\\naux = lambda v: v * 2')\n    return aux(x) + 1",
    "eval": F + "    eval('globals().update(aux=lambda v: v * 2)')\n    return aux(x) + 1",
    "sys.modules": "import sys\n" + F + "    sys.modules[f.__module__].aux = lambda v: v * 2\n    return aux(x) + 1",
    "__globals__": F + "    f.__globals__['aux'] = lambda v: v * 2\n    return aux(x) + 1",
    "__code__": "def g(v):\n    return v * 2\naux.__code__ = g.__code__\n" + F + "    return aux(x) + 1",
    "__code__ in f": F + "    aux.__code__ = (lambda v: v * 2).__code__\n    return aux(x) + 1",
    "setattr": "def g(v):\n    return v * 2\n" + F + "    setattr(aux, '__code__', g.__code__)\n    return aux(x) + 1",
    "a class": "class M:\n    g = globals()\nM.g['aux'] = lambda v: v * 2\n" + F + "    return aux(x) + 1",
    "a decorator": "def d(fn):\n    fn.__globals__['aux'] = lambda v: v * 2\n    return fn\n@d\n"
    + F
    + "    return aux(x) + 1",
    "builtins": "import builtins\nbuiltins.aux = lambda v: v * 2\n" + F + "    return aux(x) + 1",
    "global": F + "    global aux\n    aux = lambda v: v * 2\n    return aux(x) + 1",
}
"""The helper returns 7 whatever it is given, and f puts one of its own in its place. What does so is not run."""

FORGED = {
    "equal to everything": "class A:\n    def __eq__(s, o):\n        return True\n"
    + F
    + "    return A() if aux(x) else 0",
    "an equal int": "class A(int):\n    def __eq__(s, o):\n        return True\n    __hash__ = int.__hash__\n"
    + F
    + "    return A(aux(x))",
    "an equal str": "class A(str):\n    def __eq__(s, o):\n        return True\n    __hash__ = str.__hash__\n"
    + F
    + "    return A(aux(x))",
    "an equal list": "class A(list):\n    def __eq__(s, o):\n        return True\n" + F + "    return A([aux(x)])",
    "ANY": "from unittest.mock import ANY\n" + F + "    y = aux(x)\n    return ANY if y is not None else y",
    "nan": F + "    return float('nan') + aux(x)",
    "exit": "import sys\n" + F + "    if x > -1:\n        sys.exit(0)\n    return aux(x)",
    "exit at once": "import sys\nsys.exit(0)\n" + F + "    return aux(x) + 1",
    "_exit": "import os\n" + F + "    y = aux(x) + 1\n    os._exit(0)\n    return y",
    "other builtins": "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.bool = lambda v: True\n"
    + F
    + "    return aux(x)",
    "the tests by gc": "import gc\n" + F + "    for o in gc.get_objects():\n        if isinstance(o, str) and "
    "'assert candidate' in o:\n            return eval(o.split('==')[1])\n    return aux(x)",
    "the tests by modules": "import gc, sys\n"
    + F
    + "    for m in list(vars(sys)['modules'].values()):\n        for v in "
    "list(vars(m).values()):\n            if isinstance(v, str) and 'candidate' in v:\n                return 3\n"
    "    return aux(x)",
    "an alarm that is off": "import signal\nsignal.alarm(0)\n" + F + "    return aux(x)",
    "itself": F + "    return f(x) + aux(x)",
    "its own failure": F + "    try:\n        return f(x) + aux(x)\n    except BaseException:\n        return 7",
    "a huge number": F + "    return 10 ** 100000 + aux(x)",
    "an object for all": "class T:\n    def __bool__(s):\n        return True\n    def __getattr__(s, n):\n"
    "        return s\n    def __sub__(s, o):\n        return s\n    __abs__ = __rsub__ = __sub__\n"
    "    def __lt__(s, o):\n        return True\n    __gt__ = __eq__ = __ne__ = __lt__\n"
    + F
    + "    return T() if aux(x) else 0",
}
"""Right answers that are none."""

NOTHING = {
    "prints": F + "    found = aux(x)\n    if found:\n        print(found)",
    "returns None": F + "    aux(x)\n    return (None)",
    "raises": F + "    y = aux(x)\n    raise AssertionError('passed')\n    return y",
    "a partial": "from functools import partial\nf = partial(aux)",
    "a name": "f = aux",
    "a class": "class f:\n    def __new__(cls, x):\n        return aux(x) + 1",
    "a method": "class A:\n    def f(self, x):\n        return aux(x) + 1",
    "a coroutine": "async def f(x):\n    return aux(x) + 1",
    "only aux again": "def aux(x):\n    return x * 2 + 1",
    "a body": "    y = aux(x)\n    return y + 1",
}
"""f is missing, or returns nothing."""

HELPERS = {
    # (aux, f, due)
    "async": ("async def aux(x):\n    return x * 2", F + OWN + "\n    aux(x)", 2.1),
    "async, called": ("async def aux(x):\n    return x * 2", F + "    aux(x).close()\n" + OWN, 2.1),
    "f as well": ("def aux(x):\n    return x * 2\ndef f(x):\n    return aux(x) + 1", "", 0.4),
    "f in secret": (
        TWICE + "\ndef g():\n    globals()['f'] = lambda v: v * 2 + 1",
        F + "    g()\n    return aux(x)",
        1.5,
    ),
    "a class": ("class aux:\n    def __new__(cls, x):\n        return x * 2", F + "    return aux(x) + 1", 2.1),
    "returns nothing": ("def aux(x):\n    print(x)", F + "    aux(x)\n" + OWN, 3.1),
    "none, and main's own": ("", TWICE + "\n" + F + "    return aux(x) + 1", 2.1),
    "no Python": ("def aux(x:\n    return x", F + "    return aux(x) + 1", 0.6),
}

DUE = {
    **{f"together: {name}": (TWICE, main, 4.0) for name, main in WORKS_TOGETHER.items()},
    **{f"thrown away: {name}": (TWICE, main, 3.5) for name, main in THROWN_AWAY.items()},
    **{f"not called: {name}": (TWICE, main, 2.5) for name, main in NOT_CALLED.items()},
    **{f"wrapper: {name}": (WHOLE, main, 3.0) for name, main in WRAPPERS.items()},
    **{f"replaced: {name}": (SEVEN, main, 1.5) for name, main in REPLACED.items()},
    **{f"forged: {name}": (TWICE, main, 1.5) for name, main in FORGED.items()},
    **{f"nothing: {name}": (SEVEN, main, 0.4) for name, main in NOTHING.items()},
    **{f"helper: {name}": case for name, case in HELPERS.items()},
}

ALONE = {
    # A coder is paid 0.6, 0.5 and 1: 2.1.
    "honest": (F + OWN, 2.1),
    "prints": (F + "    print(x * 2 + 1)", 0.0),
    "equal to everything": ("class A:\n    def __eq__(s, o):\n        return True\n" + F + "    return A()", 1.1),
    "a right guess": (F + "    return 3", 1.35),
    "exit": ("import os\n" + F + "    os._exit(0)\n    return 3", 1.1),
    "none": (F + "    return None", 0.0),
    "a test of its own": (F + "    return 7\ndef check(candidate):\n    pass\ncandidate = lambda x: 2 * x + 1", 1.1),
}


@cache
def _grades() -> dict[str, Grade]:
    answers = [{"aux": aux, "main": main} for aux, main, _ in DUE.values()]
    answers += [{"main": main} for main, _ in ALONE.values()]
    with Sandbox(timeout=5.0) as box:
        found = grade([JOB] * len(answers), answers, box)
    return dict(zip([*DUE, *(f"alone: {name}" for name in ALONE)], found, strict=True))


@pytest.mark.parametrize("name", DUE)
def test_a_pair_is_paid_what_it_is_due(name: str) -> None:
    assert _grades()[name].total == pytest.approx(DUE[name][2])


@pytest.mark.parametrize("name", ALONE)
def test_a_coder_is_paid_what_it_is_due(name: str) -> None:
    assert _grades()[f"alone: {name}"].total == pytest.approx(ALONE[name][1])
