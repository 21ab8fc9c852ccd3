"""Texts and answers that try to earn more than they should, with what each is due."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coevolve import Problem, score_texts
from coevolve.rewards.numbers import is_right, last_number
from coevolve.rewards.writing_plain import plain
from coevolve.tasks import Tldr

BRIEF = "My cat ran away and nobody knows why"  # 8 words, 36 characters, 8 different words
HIDDEN, SOFT, MARK = "\u200b", "\u00ad", "\u0301"


def _longer(change: str) -> str:
    """The brief text and once more, in letters that look like it: 73 characters."""
    again = "".join(chr(ord(letter) + 0xFEE0) if change == "wide" and letter != " " else letter for letter in BRIEF)
    if change == "bold":
        again = "".join(letter if letter == " " else chr(0x1D41A + ord(letter.lower()) - 97) for letter in BRIEF)
    if change == "cyrillic":
        again = BRIEF.translate({ord("a"): "\u0430", ord("o"): "\u043e", ord("y"): "\u0443", ord("n"): "\u0438"})
    if change in (HIDDEN, SOFT):
        again = " ".join(word[0] + change + word[1:] for word in BRIEF.split())
    if change == MARK:
        again = " ".join(word + MARK * 9 for word in BRIEF.split())
    return f"{BRIEF} {again}"


# The second text, and what the pair is due: 0.5 for the numbers of words; up to 1 for 1.1 to 1.6 times the characters;
# nothing more, as there are no more different words (fewer than 1.3 times).
PADDED = {
    "the same": (BRIEF, 0.5),
    "blanks behind": (BRIEF + " " * 40, 0.5),  # 38 / 36
    "lines behind": (BRIEF + "\n" * 40, 0.5),  # 39 / 36
    "wide blanks behind": (BRIEF + "\u00a0" * 40, 0.5),
    "hidden letters behind": (BRIEF + HIDDEN * 40, 0.5),
    "controls behind": (BRIEF + "\x00\x01" * 20, 0.5),
    "directions behind": (BRIEF + "\u202e" * 40, 0.5),
    "signs behind": (BRIEF + "!" * 40, 0.5 + (40 / 36 - 1.1) / 0.5),  # four of them count
    "one letter behind": (BRIEF + "y" * 40, 0.5),
    "blanks between": (BRIEF.replace(" ", "     "), 0.5 + (43 / 36 - 1.1) / 0.5),  # two blanks count: 36 + 7
    "hidden letters inside": (_longer(HIDDEN), 1.5),  # twice the text, and not one other word
    "soft hyphens inside": (_longer(SOFT), 1.5),
    "marks upon marks": (_longer(MARK), 1.5),
    "wide letters": (_longer("wide"), 1.5),
    "bold letters": (_longer("bold"), 1.5),
    "capitals": (f"{BRIEF} {BRIEF.upper()}", 1.5),
    "letters of two alphabets": (_longer("cyrillic"), 0.5),  # what is left of it is hardly longer
    "one word again and again": (BRIEF + " cat" * 10, 1.5),  # 76 / 36
    "punctuation as words": ("- " * 20 + BRIEF, 1.5),  # 76 / 36
    "one giant token": ("b" * 12_000, 0.0),  # one word
    "blanks alone": (" " * 100, 0.0),
    "nothing": ("", 0.0),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_earns_nothing(name: str) -> None:
    text, due = PADDED[name]
    found = score_texts(Tldr(), Problem("p"), {"short": BRIEF, "detailed": text})
    assert found.rewards == pytest.approx({"short": due, "detailed": due})


@pytest.mark.parametrize("texts", [("", ""), (" ", " "), ("a" * 5000, "b" * 12_000), ("- " * 8, "- " * 16)])
def test_no_text_at_all(texts: tuple[str, str]) -> None:
    short, detailed = texts
    paid = score_texts(Tldr(), Problem("p"), {"short": short, "detailed": detailed}).rewards["short"]
    # Dashes are words for the numbers of words, 15 and 31 characters are 2.07 times, and none is a different word.
    assert paid == (1.5 if short.startswith("-") else 0.0)


def test_a_link_is_100_characters() -> None:
    link = "https://example.com/" + "abc/def" * 100
    assert plain(f"see {link} now") == f"see {link[:100]} now"


def test_transition_words_pay_once_a_category() -> None:
    """0.5 + 1 + 0.5 + 0.6 for texts, and of the 0.4 the twentieth "also" pays as much as the first."""
    often = score_texts(Tldr(), Problem("p"), {"short": BRIEF, "detailed": _spam("moreover " * 4)})
    once = score_texts(Tldr(), Problem("p"), {"short": BRIEF, "detailed": _spam("moreover")})
    assert often.parts["ungated_coherence"] == once.parts["ungated_coherence"] == pytest.approx(0.4)


def _spam(words: str) -> str:
    return f"{BRIEF} but my dog {words}".replace("but", "bot")


ORDINARY = [
    " A text that begins with a blank, and ends with one. ",
    "Two paragraphs.\n\nWith an ellipsis... a -- dash, 100000 dollars,\ttabs, and (so on)!!!",
    "Zürich, naïve café, São Paulo, Łódź, 北京, Москва, Ελλάδα, ½, 5 µm, 30 °C, €5, “quoted” – yes",
    "an emoji \U0001f600, a\u0301 mark, a list:\n- one\n- two",
    "A paragraph. \n\nAnother, with x_t, \u03c8_t and a question????",
    "我喜欢用Python编程, and more; Pythonを学ぶ, Python을 배운다, ใช้Pythonเขียน",
    "hmmm, aaah, www.example.com/a/b?c=d&e=f",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert plain(text) == text


def test_a_letter_that_imitates_another_is_found_between_letters_that_do_not() -> None:
    # Two marks on a letter are ordinary: Thai, decomposed Vietnamese, Hindi with a dot typed apart; and apostrophes.
    for text in ("ที่", "e\u0302\u0301", "बड\u093cे", "Hawai\u02bbi", "don\u02bct"):
        assert plain(text) == text
    assert plain("e" + MARK * 9) == "e" + MARK * 2
    assert plain("我喜欢用Pyth\u043en编程, and more") == ", and more"


def test_the_paper_counts_everything() -> None:
    padded = {"short": BRIEF, "detailed": BRIEF + " " * 40}  # 76 / 36 = 2.1
    assert score_texts(Tldr(scoring="paper"), Problem("p"), padded).rewards["short"] == 1.5
    assert score_texts(Tldr(), Problem("p"), padded).rewards["short"] == 0.5


# --- answers that are numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("1 2 3 4 5", True),  # the last number counts, and only that
        ("5 4", False),
        ("#### 5 #### 6", False),
        ("#### 5\n" * 1000 + "6", False),
        ("5 or 6", False),
        ("nan", False),
        ("inf", False),
        ("5/0", False),
        ("0/0", False),
        ("5" * 5000, False),
        ("5." + "0" * 5000, False),
        ("1/" + "9" * 5000, False),
        ("1e400 5e0", False),  # no exponents: it ends in 0
        ("\u0665", False),  # an Arabic five
        ("5\u200b6", False),
        ("-5", False),
        ("x=5", True),
        ("5" + "\n" * 1000, True),
    ],
)
def test_one_number_counts(answer: str, right: bool) -> None:
    assert is_right(answer, Fraction(5)) is right


# Were one of these looked at again from each of its characters, this would take minutes.


@pytest.mark.parametrize("unit", ["1", "1,", ".", "-", "1/", "1,000", "5 ", "-$", "1.1", "#### 5"])
def test_long_answers(unit: str) -> None:
    assert last_number(unit * 100_000) in (None, 1, Fraction("1.1"), 5, 1000)


@pytest.mark.parametrize(
    ("unit", "kept"),
    [
        ("a", 4),
        ("ab ", 100_000),
        (" ", 2),
        ("!", 4),
        ("\u200b", 0),
        ("a\u0301", 50),  # 100 characters
        ("\u0430a", 0),  # Cyrillic and Latin
        ("- ", 100_000),
        ("_a", 50),
    ],
)
def test_long_texts(unit: str, kept: int) -> None:
    assert plain(unit * 100_000) == unit * kept
