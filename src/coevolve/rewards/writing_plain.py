"""Texts without padding, as a reader sees them: invisible or repeated characters do not raise the writing reward.

Ordinary texts stay exactly as they are. The paper's released code counts everything (``scoring: paper``).
"""

from __future__ import annotations

import re
import unicodedata

LONGEST = 100
"""Characters of a word (such as a link) that count."""

_RUN = re.compile(r"([^\W\d_]|[^\w\s]|_)\1{4,}")
_BLANKS = re.compile(r"([^\S\n]{2})[^\S\n]+")
_LINES = re.compile(r"(\s{3})\s+")
_LONG = re.compile(rf"(\S{{{LONGEST}}})\S+")
_LETTERS = re.compile(r"[^\W\d_]+")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
_LATIN = re.compile(r"[A-Za-z]")
_BESIDE_LATIN = (
    "LATIN", "FEMININE", "MASCULINE", "MICRO", "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH", "HANGUL",
    "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "MODIFIER LETTER TURNED COMMA",
    "MODIFIER LETTER APOSTROPHE",
)  # fmt: skip
"""Beginnings of the names of letters that do not imitate Latin ones: of Latin, and of scripts that are written without
blanks, or whose endings follow a Latin word without one, and what is written as an apostrophe (Hawaiʻi)."""


def plain(text: str) -> str:
    """Return the text without padding.

    Removed are invisible characters (zero-width ones, controls, more than two marks on a letter) and words that mix
    Latin letters with those of another alphabet, which imitate other words (``Pythоn`` with a Cyrillic letter; not
    ``用Python编程``). Letters of another width or weight become plain ones. Kept are at most four of the same letter or
    sign in a row, two blanks, three of line ends and blanks, and the first 100 characters of a word.
    """
    if not text.isascii():
        text = _LETTERS.sub(lambda word: "" if _is_mixed(word[0]) else word[0], _visible(text))
    elif not text.isprintable():
        text = _visible(text)
    return _LONG.sub(r"\1", _RUN.sub(r"\1\1\1\1", _LINES.sub(r"\1", _BLANKS.sub(r"\1", text))))


def _visible(text: str) -> str:
    kept: list[str] = []
    marks = 0
    for letter in text:
        kind = unicodedata.category(letter)
        if kind in ("Lu", "Ll") and (same := unicodedata.normalize("NFKC", letter)).isascii() and len(same) == 1:
            letter = same
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if letter in "\n\r\t" or (kind not in _HIDDEN and marks < 3):
            kept.append(letter)
    return "".join(kept)


def _is_mixed(word: str) -> bool:
    """Return whether a word has both Latin letters and letters of another alphabet that may imitate them."""
    others = (letter for letter in word if not letter.isascii() and letter.isalpha())
    return bool(_LATIN.search(word)) and any(
        not unicodedata.name(letter, "").startswith(_BESIDE_LATIN) for letter in others
    )
