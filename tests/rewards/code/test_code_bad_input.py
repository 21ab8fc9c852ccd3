"""No answer, whatever is in it, is an error of the grading."""

import time

import pytest
from boxes import AUX, Canned

from coevolve.rewards.code import Job, grade

NASTY = {
    "empty": "",
    "no code": "I am sorry, but as a language model I cannot.",
    "two of one name": "def f(x):\n    return 1\ndef f(x):\n    return aux(x)",
    "surrogates": "def f(x):\n    return '\ud800\udfff'",
    "null": "def f(x):\0\n    return '\0'",
    "crlf": "def f(x):\r\n\treturn aux(x) + 1\r\n",
    "open brackets": "(" * 100_000,
    "one name": "a" * 100_000,
    "prose": "So it goes on and on.\n" * 4_500,
    "deep sum": "def f(x):\n    return " + "1+" * 30_000 + "1",
    "deep sum that parses": "def f(x):\n    return " + "aux(x)+" * 600 + "1",
    "deep blocks": "def f(x):\n" + "".join(" " * i + " if aux(x):\n" for i in range(98)) + " " * 99 + "return 1",
    "long chain of elif": "def f(x):\n    if x:\n        pass\n" + "    elif aux(x):\n        return 1\n" * 3_000,
    "many calls": "def f(x):\n" + "    y = aux(x)\n" * 6_500 + "    return x",
    "many names": "def f(x):\n" + "".join(f"    y{i} = aux(x)\n" for i in range(2_000)) + "    return x",
    "many tries": "def f(x):\n"
    + "    try:\n        y = aux(x)\n    except E:\n        pass\n" * 1_200
    + "    return y",
    "many functions": "".join(f"def g{i}(x):\n    return g{i + 1}(x)\n" for i in range(2_500)) + "f = lambda x: g0(x)",
    "class": "class f:\n    def __call__(self, x):\n        return aux(x)",
    "lambda": "f = lambda x: aux(x)",
    "coroutine": "async def f(x):\n    return await aux(x)",
    "generator": "def f(x):\n    yield from aux(x)",
    "decorators": "@aux\n@(lambda g: g)\ndef f(x):\n    return aux(x)",
    "decorator on another line": "@\\\nstaticmethod\ndef f(x):\n    return aux(x)",
    "global": "def f(x):\n    global aux\n    aux = f\n    return aux(x)",
    "nonlocal": "def f(x):\n    nonlocal y\n    return aux(x)",
    "future": "from __future__ import braces\ndef f(x):\n    return 1",
    "return alone": "return aux(x)",
    "form feed": "\fdef f(x):\n    return 1\f",
    "separators": "def f(x):\n    return 'a\u2028b\x85c\x1cd'\nx = 1; y = 'é'",
    "annotated": "f(3): int = 4\nf: int\nx.f = 1\nf[0] = aux",
    "loop to itself": "def f(x):\n    return g(x)\ndef g(x):\n    return f(x) + h(x)\ndef h(x):\n    return aux(h)",
    "bytes": "def f(x):\n    return b'\xff'",
    "escapes": "def f(x):\n    return '\\d\\q' + aux(x)",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_any_answer_is_graded_within_seconds(text):
    start = time.process_time()
    answers = [
        {"aux": AUX, "main": text},
        {"aux": text, "main": "def f(x):\n    return aux(x) + 1"},
        {"main": text},
    ]
    grades = grade([Job("f", "assert candidate(1) == 2")] * 3, answers, Canned())
    for found in grades:
        assert 0 <= found.total <= (4.0 if found.pair else 2.1)
        parts = found.parts()
        assert 0 <= parts.pop("levels_passed") <= 3
        assert all(0 <= value <= 1 for value in parts.values())
        assert (found.code != "") == bool(found.verdicts) == (found.main_returns and found.syntax_error is None)
    assert time.process_time() - start < 30  # three grades; measured: 4 at most on a busy core


def test_entry_and_helper_of_one_name():
    """No pair could solve it; one agent can."""
    job = Job("aux", "assert candidate(1) == 2")
    with pytest.raises(ValueError, match="the tested function is called aux, as the helper of a pair is; rename it"):
        grade([job], [{"aux": AUX, "main": AUX}], Canned())
    [found] = grade([job], [{"main": AUX}], Canned())
    assert found.total == pytest.approx(0.6 + 0.5 + 1.0)


def test_too_deep_and_too_much_is_said():
    job = Job("f", "assert candidate(1) == 2")
    deep, much = grade([job] * 2, [{"main": NASTY["deep sum that parses"]}, {"main": NASTY["many calls"]}], Canned())
    assert (deep.syntax_error, much.syntax_error) == ("line 1: nested too deep", "line 1: more code than is judged")
