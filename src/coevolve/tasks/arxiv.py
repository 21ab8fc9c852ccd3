"""Task ``arxiv``: background and method of a paper from its abstract, by two writers who do not see each other."""

from __future__ import annotations

from coevolve.rewards.writing import ARXIV
from coevolve.tasks import data
from coevolve.tasks.data import Split
from coevolve.tasks.heard import Voice
from coevolve.tasks.writing import WRITER, OfTexts, problems
from coevolve.types import Problem

VOICES = {
    "background": Voice(
        name="Background and motivation",
        first="Expand this abstract for an introduction: write its background and motivation. Another writer adds "
        "method and implications; do not repeat those.\n\n{text}\n\n{told}Background and motivation:",
        again="\n\n{told}Background and motivation:",
    ),
    "method": Voice(
        name="Method and implications",
        first="Expand this abstract for an introduction: write its method and implications. Another writer adds "
        "background and motivation; do not repeat those.\n\n{text}\n\n{told}Method and implications:",
        again="\n\n{told}Method and implications:",
    ),
    WRITER: Voice(
        name="Introduction",
        first="Expand this abstract into two paragraphs of an introduction with a line --- between them: background "
        "and motivation, then method and implications, with transition words in both.\n\n{text}\n\n"
        "{told}Introduction:",
        again="\n\n{told}Introduction:",
    ),
}


class Arxiv(OfTexts):
    """MAGRPO's arXiv task (arXiv 2508.04652, section "Writing"): roles ``background`` and ``method``, or ``writer``.

    Abstracts are the column ``abstract_text`` of ``arxiv_train`` (train) and ``arxiv_val`` (test) in the folder that
    COEVOLVE_DATA names, else of the hub's OpenMLRL/arXiv_abstract. max_words: use at most this many words of an
    abstract; None: all. bands: thresholds to change, see ``rewards.writing.Bands``. stop_words, transition_words:
    files with lists that replace the packaged ones, see ``rewards.writing_words``. scoring: "paper" also counts
    padding, see ``rewards.writing_plain``. reward, feedback: your own functions instead, see ``rewards.function``.
    ``Problem.data`` holds all columns of the row and ``text``, which the prompts show.

    Deviations and notes 1-5, 7 and 8 of ``Tldr`` hold here too. In addition:
    1. The ratio of lengths is full in 1.3-1.6 and 0 at 0.8 and 2.0, as in the reward's code. (Its docstring and its
       evaluation logger have 1.0-1.3, 0.8 and 1.5, which the paper's runs may have been paid by.) For those:
       ``bands: {ratio: [0.8, 1.0, 1.3, 1.5]}``.
    2. Transition words are searched in both texts joined without a space, so that one may begin in the first text.
    3. Prompts are worded more briefly and end in the name of the paragraph, for base models.

    Raises ValueError for an unknown band and for a list of words that cannot be read; and, when problems are first
    used, for max_words below 1, a row without the column, or missing data.
    """

    _voices = VOICES
    _bands = ARXIV
    _column = "abstract_text"

    def problems(self, split: Split, max_words: int | None) -> list[Problem]:
        """Return the abstracts of a split; the data set calls the held-out one "val"."""
        name = {"train": "train", "test": "val"}[split]
        rows = data.rows(f"arxiv_{name}", dataset="OpenMLRL/arXiv_abstract", split=name)
        where = f"arxiv, split {name!r}"
        return problems(rows, where=where, column=self._column, id="article_id", max_words=max_words)
