"""The text sources of a pre-training mix, each with a held-out part.

File sources read the folder `COEVOLVE_DATA` and hold out every fiftieth record. Generated sources hold out the
split "test".
"""

import re
from collections.abc import Callable
from random import Random
from typing import TypeVar

from coevolve.faults import blame
from coevolve.pretrain.check_answers import guesses as checks
from coevolve.pretrain.check_answers import references as check_references
from coevolve.pretrain.coop_documents import answers as coop_answers
from coevolve.pretrain.coop_documents import heard as coop_heard
from coevolve.pretrain.coop_notes import noted as coop_notes
from coevolve.pretrain.references import correction, opinion_references, sentence_references
from coevolve.pretrain.sums_answers import answers as sum_answers
from coevolve.pretrain.sums_answers import references as sum_references
from coevolve.rewards.sentiment import lexicon
from coevolve.tasks.data import Row, read
from coevolve.tasks.worlds.opinions import plain_opinions
from coevolve.tasks.worlds.split import Split

T = TypeVar("T")

Source = Callable[[Random, bool], list[str]]  # (randomness of this copy, whether the held-out part) -> documents

GENERATED_DOCUMENTS = 10_000  # in one copy of a generated source
HELD_OUT_DOCUMENTS = 200  # of a generated source


def documents(name: str, rng: Random, held_out: bool) -> list[str]:
    """Return the documents of one copy of a source."""
    if name not in SOURCES:
        raise ValueError(f"sources: there is no source {name!r}; choose among {', '.join(sorted(SOURCES))}")
    return SOURCES[name](rng, held_out)


def labelled(name: str, held_out: bool) -> list[tuple[str, int]]:
    """Return texts with their label, 1 positive and 0 negative. Of a file, every tenth record is held out."""
    if name == "opinions":
        texts = plain_opinions(Random("labelled"), 2000, "test" if held_out else "pretrain")
        return [(text, int(score > 0)) for text, score in zip(texts, lexicon(texts), strict=True)]
    return _of_file(name, held_out, lambda row: (_review(row), int(row["label"])), every=10)


def _of_file(name: str, held_out: bool, made: Callable[[Row], T], every: int = 50) -> list[T]:
    """Apply ``made`` to the held-out or to the other records of a file. Raises ValueError for a file too short to hold
    a record out, and, naming the record, if ``made`` fails."""
    found, rows = [], read(name)
    if len(rows) < every:
        raise ValueError(f"source {name}: {len(rows)} records, of which none is held out; want at least {every}")
    for i, row in enumerate(rows):
        if (i % every == every - 1) == held_out:
            with blame(f"source {name}, record {i + 1}"):
                found.append(made(row))
    return found


def _file(name: str, text: Callable[[Row], str]) -> Source:
    def source(_: Random, held_out: bool) -> list[str]:
        texts = _of_file(name, held_out, lambda row: None if row.get("flagged") else text(row))
        return [one for one in texts if one is not None]

    return source


def _story(row: Row) -> str:
    return str(row["text"])


def _review(row: Row) -> str:
    return re.sub(r"(<br />\s*)+", "\n", str(row["text"]))


def _summarised_post(row: Row) -> str:
    return f"{row['prompt']}{row['completion']}"


def _abstract(row: Row) -> str:
    return f"{row['title']}\n\n{row['abstract_text']}"


def _summarised_abstract(row: Row) -> str:
    return f"{row['abstract']}\n\nTL;DR: {row['tldrs'][0]}"


def _word_problem(row: Row) -> tuple[str, str]:
    """Return the question and worked answer of a gsm8k or svamp record, without calculator annotations."""
    if "body" in row:
        number = float(row["answer"])
        shown = str(int(number)) if number.is_integer() else str(number)
        return f"{row['body'].rstrip('. ')}. {row['question']}", f"The answer is {shown}."
    steps, number_text = str(row["answer"]).rsplit("####", 1)
    return str(row["question"]), re.sub(r"<<.*?>>", "", steps).strip() + f"\nThe answer is {number_text.strip()}."


def _solved(row: Row) -> str:
    question, answer = _word_problem(row)
    return f"Question: {question}\nAnswer: {answer}"


def _corrections(rng: Random, held_out: bool) -> list[str]:
    problems = _of_file("gsm8k_train", held_out, _word_problem)
    problems = rng.sample(problems, min(1500, len(problems))) + _of_file("svamp", held_out, _word_problem)
    return [correction(rng, *problem) for problem in problems]


def _sentence_references(names: tuple[str, ...]) -> Source:
    def source(rng: Random, held_out: bool) -> list[str]:
        texts = [text for name in names for text in SOURCES[name](rng, held_out)]
        return sentence_references(rng, texts, GENERATED_DOCUMENTS)

    return source


def _split(generate: Callable[[Random, int, Split], list[str]]) -> Source:
    def source(rng: Random, held_out: bool) -> list[str]:
        return generate(rng, _count(held_out), "test" if held_out else "pretrain")

    return source


def _count(held_out: bool) -> int:
    return HELD_OUT_DOCUMENTS if held_out else GENERATED_DOCUMENTS


SOURCES: dict[str, Source] = {
    "tinystories": _file("tinystories", _story),
    "tldr_reddit2013": _file("tldr_reddit2013", _summarised_post),
    "tldr_openai": _file("tldr_openai", _summarised_post),
    "arxiv_train": _file("arxiv_train", _abstract),
    "arxiv_val": _file("arxiv_val", _abstract),
    "scitldr": _file("scitldr", _summarised_abstract),
    "gsm8k_train": _file("gsm8k_train", _solved),
    "svamp": _file("svamp", _solved),
    "imdb_extra": _file("imdb_extra", _review),
    "opinions": _split(plain_opinions),
    "opinion_references": _split(opinion_references),
    "story_references": _sentence_references(("tinystories", "tldr_reddit2013")),
    "imdb_references": _sentence_references(("imdb_extra",)),
    "corrections": _corrections,
    "sums": _split(sum_answers),
    "sum_references": _split(sum_references),
    "checks": _split(checks),
    "check_references": _split(check_references),
    "coop": _split(coop_answers),
    "coop_heard": _split(coop_heard),
    "coop_notes": _split(coop_notes),
}
