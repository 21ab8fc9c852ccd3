"""The word lists of the writing reward, stop words and transition words: Coevolve's own, or read from files.

A file is text in UTF-8 whose name ends in ``.txt``, with one word or phrase a line; empty lines and lines that begin
with "#" are skipped, and case does not matter. In a file of transition words, a line in brackets begins a category;
each category counts once:

    [contrast]
    however
    on the other hand
    [time]
    meanwhile
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STOP_WORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being below between both but
    by can could did do does doing down during each few for from further had has have having he her here hers herself
    him himself his how i if in into is it its itself just me might more most must my myself no nor not now of off on
    once only or other our ours ourselves out over own same shall she should so some such than that the their theirs
    them themselves then there these they this those through to too under until up us very was we were what when where
    which while who whom why will with would you your yours yourself yourselves
    """.split()  # noqa: SIM905  (as a list it would be a page)
)
"""Words that are not content words: articles, pronouns, prepositions, auxiliaries, conjunctions."""

TRANSITIONS: dict[str, tuple[str, ...]] = {
    "addition": (
        "furthermore", "moreover", "additionally", "also", "besides", "in addition", "as well as", "not only",
        "together with", "along with", "on top of",
    ),
    "examples": (
        "for example", "for instance", "such as", "including", "in particular", "particularly", "specifically",
        "especially", "namely", "notably", "mainly", "primarily", "to illustrate",
    ),
    "explanation": (
        "that is", "in other words", "in fact", "actually", "indeed", "clearly", "obviously", "basically",
        "essentially", "fundamentally", "to clarify", "simply put",
    ),
    "cause": (
        "so", "therefore", "thus", "hence", "then", "consequently", "accordingly", "as a result", "thereby",
        "for this reason", "because of this", "due to this", "this leads to", "owing to", "thanks to",
    ),
    "contrast": (
        "but", "however", "yet", "still", "while", "whereas", "although", "instead", "rather", "otherwise",
        "nevertheless", "nonetheless", "conversely", "by contrast", "in contrast", "on the other hand",
        "on the contrary", "regardless",
    ),
    "order": (
        "first", "second", "third", "next", "then", "finally", "lastly", "initially", "later", "meanwhile",
        "subsequently", "afterward", "to begin with", "in the end", "ultimately", "at the same time",
    ),
    "emphasis": (
        "indeed", "certainly", "surely", "definitely", "absolutely", "undoubtedly", "of course", "naturally",
        "obviously", "clearly", "evidently", "in fact", "significantly", "notably", "granted",
    ),
    "summary": (
        "in summary", "in conclusion", "to conclude", "to sum up", "to summarize", "in short", "in brief", "briefly",
        "overall", "on the whole", "all in all", "after all", "ultimately", "in the end", "essentially", "basically",
    ),
    "comparison": (
        "similarly", "likewise", "equally", "just as", "just like", "much like", "as with", "in the same way",
        "in comparison", "comparable to", "by analogy",
    ),
    "concession": (
        "though", "although", "even though", "despite", "in spite of", "while", "whereas", "even if", "regardless of",
        "admittedly", "granted", "nevertheless", "nonetheless", "however", "yet", "still",
    ),
    "condition": (
        "if", "unless", "provided that", "given that", "assuming that", "as long as", "in case", "otherwise",
        "or else", "should", "were", "had",
    ),
    "time": (
        "as", "when", "while", "after", "before", "until", "since", "during", "later", "earlier", "previously",
        "recently", "currently", "eventually", "finally", "meanwhile", "immediately", "nowadays",
    ),
}  # fmt: skip
"""Category -> phrases, found as substrings: "so" is in "also" and "as" in "was". Some phrases are in several."""


@dataclass(frozen=True)
class Words:
    """The word lists of a reward, in lower case. stop: words without content. transitions: category -> phrases."""

    stop: frozenset[str]
    transitions: Mapping[str, tuple[str, ...]]


OURS = Words(STOP_WORDS, TRANSITIONS)


def read_words(stop_words: str | None, transition_words: str | None) -> Words:
    """Read the lists from these files; a file that is None leaves Coevolve's own list. Raises ValueError, in one line,
    for a file that cannot be used."""
    return Words(
        stop=OURS.stop if stop_words is None else _stop_words(stop_words),
        transitions=OURS.transitions if transition_words is None else _transitions(transition_words),
    )


def _stop_words(file: str) -> frozenset[str]:
    where = f"task.stop_words: {file}"
    found = set()
    for number, line in _lines(file, where):
        if _category(line):
            raise ValueError(f"{where}, line {number}: {line!r} begins a category, as in a file of transition words")
        found.add(line)
    return frozenset(found)


def _transitions(file: str) -> dict[str, tuple[str, ...]]:
    where = f"task.transition_words: {file}"
    found: dict[str, tuple[str, ...]] = {}
    category = ""
    for number, line in _lines(file, where):
        if name := _category(line):
            if name in found:
                raise ValueError(f"{where}, line {number}: the category {line} is there twice; put them together")
            category, found[name] = name, ()
        elif not category:
            raise ValueError(
                f"{where}, line {number}: {line!r} is in no category; want a line such as [contrast] first"
            )
        else:
            found[category] += (line,)
    if empty := [name for name, phrases in found.items() if not phrases]:
        raise ValueError(f"{where}: the category [{empty[0]}] has no words; add some or leave it out")
    return found


def _category(line: str) -> str:
    """Return the name in the brackets of a line that begins a category, "" for any other line."""
    return line[1:-1].strip() if line.startswith("[") and line.endswith("]") else ""


def _lines(file: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line in lower case) of each line that counts. Raises ValueError if there is no such file,
    it is no text, or no line counts."""
    if not file.endswith(".txt"):
        raise ValueError(f"{where}: want a text file, one word or phrase a line, whose name ends in .txt")
    try:
        text = Path(file).read_text("utf-8-sig")
    except (OSError, ValueError) as error:  # missing, no access, not UTF-8, or an invalid file name
        raise ValueError(f"{where}: cannot be read as text: {getattr(error, 'strerror', None) or error}") from error
    lines = [(number, line.strip().lower()) for number, line in enumerate(text.split("\n"), 1)]
    found = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not found:
        raise ValueError(f"{where} holds no words; want one word or phrase a line")
    if bad := [number for number, line in found if not line.isprintable()]:
        raise ValueError(f"{where}, line {bad[0]}: it has characters that no text has; want one word or phrase a line")
    yield from found
