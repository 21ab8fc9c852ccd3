"""The code of an answer."""

import time

import pytest

from coevolve.rewards.code import extract

CODE = "def f(x):\n    return x"


@pytest.mark.parametrize(
    "text",
    [
        CODE,
        f"\n\n{CODE}\n\n",
        f" {CODE}",  # models put a blank in front of the first word
        "    def f(x):\n        return x",
        f"```python\n{CODE}\n```",
        f"```py\n{CODE}\n```",
        f"```\n{CODE}\n```",
        f"~~~\n{CODE}\n~~~",
        f"````Python\n{CODE}\n````",
        f"```python\n{CODE}",
        f"Sure! Here it is:\n\n```python\n{CODE}\n```\nIt gives back x, for f(x).",
        f"Sure! Here it is:\n{CODE}\nIt gives back x.",
        f"Sure\n\n{CODE}\n\nEnjoy",  # names, for Python
        "1. Write it:\n\n   ```python\n   def f(x):\n       return x\n   ```",
        f"```bash\npip install nothing\n```\n```python\n{CODE}\n```",
        CODE.replace("\n", "\r\n"),
        CODE.replace("\n", "\r"),
        f"{CODE}<|endoftext|>def f(x):\n    return 2",
        f"<|im_start|>assistant\n{CODE}<|im_end|>\n<|im_start|>user\nMore.",
        f"{CODE}</s>",
        f"\ufeff{CODE}",
        CODE.replace("return", "ret\0urn"),
        f"{CODE}\n\ndef test_f():\n    assert f(",  # cut off by the limit on tokens
    ],
)
def test_what_is_around_the_code_goes(text):
    assert extract(text) == CODE


@pytest.mark.parametrize("token", ["</s>", "<s>", "<|im_end|>", "<eos>"])
def test_special_tokens_in_a_string_stay(token):
    code = f"def f(x):\n    return x.strip('{token}')  # {token}"
    for text in (code, f" {code}", f"```python\n{code}\n```", f"Here:\n```\n{code}\n```\nIt strips."):
        assert extract(text) == code


def test_an_answer_ends_at_a_special_token_though_more_code_follows():
    text = f"```python\n{CODE}\n```<|im_end|>\n<|im_start|>user\n```python\ndef f(x):\n    return 2\n```"
    assert extract(text) == CODE


def test_tabs_stay():
    assert extract("def f(x):\n\treturn x") == "def f(x):\n\treturn x"


def test_blocks_are_joined_in_their_order():
    text = (
        f"```python\nimport math\n```\nand\n```python\n{CODE}\n```\nor better\n```python\ndef f(x):\n    return +x\n```"
    )
    assert extract(text) == f"import math\n{CODE}\ndef f(x):\n    return +x"


def test_a_broken_block_takes_nothing_from_the_others():
    draft = "def f(x):\n    y = x\n    z = y\n    w = z\n    return w"
    text = f"```python\n{draft}\n```\nor\n```\nf(1) -> 2, f(\n```\nso\n```python\n{CODE}\n```"
    assert extract(text) == f"{draft}\n{CODE}"  # the later one is in force


def test_of_a_broken_block_counts_what_it_defines():
    aux, main = "def aux(x):\n    return x", "def f(x):\n    return aux(x) + 1"
    assert extract(f"```\n{aux}\n```\n```\n{main}\nf(2) returns 3\n```") == f"{aux}\n{main}"
    assert extract(f"```\n{aux}\n```\n```\n>>> f(2)\n3\n```").strip() == aux


def test_what_a_model_thinks_is_no_answer():
    thought = "<think>\n```python\ndef f(x):\n    return 0\n```\nor f(x) = x?\n"
    assert extract(f"{thought}</think>\n\n```python\n{CODE}\n```") == CODE
    assert extract(f"{thought}</think>\n{CODE}") == CODE
    assert extract(f"{thought}</think>\nHere it is:\n{CODE}\nThat is it, done.") == CODE
    assert extract(f"{thought}</think>\n") == "def f(x):\n    return 0"  # nothing else was said
    code = "def f(x):\n    return x.split('</think>')[1]"
    assert extract(code) == code


def test_output_shown_in_a_block_is_no_code():
    assert extract(f"```python\n{CODE}\n```\nf(2), f(3) give\n```\n2 3 (as wanted)\n```") == CODE


def test_a_fence_inside_a_docstring_is_no_fence():
    code = 'def f(x):\n    """\n    ```\n    f(1)\n    ```\n    """\n    return x'
    assert extract(code) == code
    assert extract(f"~~~\n{code}\n~~~") == code
    assert extract("```python\n" + code.replace("    ```", "        ```") + "\n```").endswith("return x")


def test_a_fence_behind_the_last_line_of_code_ends_its_block():
    assert extract(f"```python\n{CODE}```") == CODE
    assert extract(f"Here:\n```python\n{CODE}```\nIt gives back x.") == CODE
    aux = "def aux(x):\n    return 1"
    assert extract(f"```python\n{aux}```\nand\n```python\n{CODE}\n```") == f"{aux}\n{CODE}"
    for text in ('    """Say ```f(1)```\n    """', "    s = '''\n```python\nx```\n'''", "    # as ```x```"):
        code = f"def f(x):\n{text}\n    return x"
        assert extract(code) == extract(f"```python\n{code}\n```") == code
    broken = "# as ```x```\ndef f(x:\n    return x"
    assert extract(f"```python\n{broken}\n```") == "def f(x:\n    return x"


@pytest.mark.parametrize(
    "behind",
    [
        "\n\nThis function returns x.",
        "\nDone",
        "<|im_end|>\nHuman: more",
        "\n\nExample:\n```python\n>>> f(2)\n2\n```",
        "\n\nExample:\n```python\n'f(2)'\n```",
        "\nprint(f(2))\n```\n",
    ],
)
@pytest.mark.parametrize("before", ["", "Sure, it is this:\n"])
def test_a_closing_fence_alone_ends_code_that_begins_the_answer(before, behind):
    assert extract(f"{before}{CODE}\n```{behind}") == CODE


def test_blocks_behind_code_that_begins_the_answer_count():
    example = "def show():\n    return f(2)"
    assert extract(f"{CODE}\n```\n\nTry it so:\n```python\n{example}\n```") == f"{CODE}\n{example}"


def test_a_function_before_a_block_that_defines_it_is_no_beginning():
    sketch = "def f(x):\n    return 0"
    for code in (CODE, "f = lambda x: x"):
        assert extract(f"{sketch}\n```\n{code}\n```\nDone.") == code
    assert extract(f"{sketch}\n```\nIt is rather this:\n{CODE}\n```") == CODE


@pytest.mark.parametrize("other", ["x = 1  # a lambda would do", "x = sorted([2, 1], key=lambda z: z)"])
def test_a_lambda_without_a_name_is_no_function(other):
    assert extract(f"{CODE}\n```\n{other}\n```") == CODE


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            f"The helper:\n{CODE}\nThe main one:\ndef g(x):\n    return f(x)\nDone, enjoy it.",
            f"{CODE}\ndef g(x):\n    return f(x)",
        ),
        (
            "from math import floor\nNow the code is:\ndef f(x):\n    return floor(x)",
            "from math import floor\ndef f(x):\n    return floor(x)",
        ),
        ("It is so:\nK = 2\nand then so:\ndef f(x):\n    return K", "K = 2\ndef f(x):\n    return K"),
        (
            "from math import pi\nA constant is this:\nK = pi\nand then so:\ndef f(x):\n    return K",
            "from math import pi\nK = pi\ndef f(x):\n    return K",
        ),
    ],
)
def test_parts_with_prose_between_them_are_joined(text, code):
    assert extract(text) == code


@pytest.mark.parametrize(
    "other",
    [
        "y = solve(3)",  # would fail, and nothing reads it
        "import numpy as np\ndef n(m): return np.norm(m)",  # the next problem of a model that rambles on
        "def f(x): return 0",  # another version, and shorter
        "x = 3",  # names of f's own
    ],
)
def test_what_the_longest_part_has_no_use_for_is_left_out(other):
    assert extract(f"It is this:\n{CODE}\nIt is good.\n{other}\nThat is it.") == CODE


def test_a_special_token_in_a_comment_of_a_closed_block_cuts_nothing():
    code = "def f(x):\n    y = x\n    # in <s> tags\n    return y"
    for behind in ("", "<|im_end|>\n<|im_start|>user\n```python\ndef f(x):\n    return 2\n```"):
        assert extract(f"Sure, here:\n```python\n{code}\n```\nDone.{behind}") == code
    helper = "def g(x):\n    return f(x)"
    assert extract(f"```python\n{code}\n```\nand\n```python\n{helper}\n```") == f"{code}\n{helper}"


def test_what_utf8_cannot_hold_becomes_a_question_mark():
    assert extract("def f(x):\n    return '\udcff'") == "def f(x):\n    return '?'"


@pytest.mark.parametrize(
    "text", ["", " \n\t", "hello", "I cannot do that.", "(see above)", "```\n```", "```text\nno\n```"]
)
def test_no_code(text):
    assert extract(text) == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\ndef f(x:\n    return x", "def f(x:\n    return x"),
        ("import math\ndef f(x)\n    return x", "import math\ndef f(x)\n    return x"),
        ("define f(x):\n    return x", "define f(x):\n    return x"),
        ("return x", "return x"),  # a body alone
    ],
)
def test_broken_code_is_returned_as_it_is(text, code):
    assert extract(text) == code


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "a" * 100_000,
        "1+" * 50_000,
        "a" + ".a" * 50_000,
        "- " * 50_000,
        "word\n" * 20_000,
        "(\na\n" * 25_000,
        "x = '''\n" * 12_000,
        "```\n" * 25_000,
        "def f(:\n" * 12_000,
        "def f(): return 1\nand so on\n" * 4_000,
        "<|" * 50_000,
        "\n" * 100_000,
        "@a\n" * 33_000,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_100_000_characters_take_seconds_at_most(text):
    start = time.process_time()
    extract(text)
    assert time.process_time() - start < 5  # measured: 1.2 at most on a busy core


def test_what_prose_sets_under_the_name_of_a_builtin_belongs_to_nothing():
    code = "def f(xs):\n    return max(xs) - min(xs)"
    assert extract(f"{code}\n\nFor [1, 5] we get:\nmax = 5\nmin = 1\nso the result is 4 (that's it).") == code


def test_of_two_versions_of_a_constant_the_first_counts():
    code = "def f(x):\n    y = x * 2\n    return y % LIMIT"
    found = extract(f"LIMIT = 10\nThe code is here:\n{code}\nIf you'd rather have another bound, write\nLIMIT = 100")
    assert found == f"LIMIT = 10\n{code}"


def test_a_function_between_a_bare_fence_and_a_tagged_one_is_the_answer():
    code = "def f(x):\n    return aux(x) + 1"
    found = extract(f"The signature is\ndef f(x): ...\n```\n{code}\n```python\nprint(f(1))\n```")
    assert "aux(x) + 1" in found and "..." not in found


STUMPS = [
    "def f(x):",
    'def f(x):\n    """Give back',
    'def f(x):\n    """Give back x."""',
    "def f(x):\n    y",
    "@cached\ndef f(x):\n    y = x\n    return",
]


@pytest.mark.parametrize("stump", STUMPS)
@pytest.mark.parametrize("fence", ["", "```python\n"])
def test_a_function_that_begins_again_and_is_cut_off_is_left_out(stump, fence):
    assert extract(f"{fence}{CODE}\n\n\n{stump}") == CODE
    assert extract(f"Here:\n{fence}{CODE}\n\n{stump}\n    ") == CODE


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    print(x)",  # no other one
        "def f(x):\n    print(x)\n\ndef f(x):\n    x.sort()",  # neither returns
        f"{CODE}\n\ndef g(x):\n    print(x)",  # another name
        f"{CODE}\n\ndef f(x):\n    return 2",
        f"{CODE}\n\ndef f(x):\n    print(x)\n\nf(2)",  # more follows
    ],
)
def test_other_last_functions_stay(text):
    assert extract(text) == text


def test_a_last_function_in_a_closed_block_was_not_cut_off():
    again = f"{CODE}\ndef f(x):\n    print(x)"
    assert extract(f"```python\n{again}\n```") == again
    assert extract(f"{again}<|im_end|>") == again


def test_a_last_function_that_does_something_else_is_no_stump() -> None:
    whole = "def f(x):\n    if x > 1:\n        return x\n    return 0"
    assert extract(f"{whole}\n\n\ndef f(x):\n    if x > 1:\n        return x") == whole  # its own beginning
    for other in ("def f(x):\n    print(x)", "def f(x):\n    raise ValueError(x)", "def f(x):\n    return 1"):
        assert extract(f"{whole}\n\n\n{other}").endswith(other)
