"""Task ``tldr``: a brief and a detailed summary of a Reddit post, by two writers who do not see each other."""

from __future__ import annotations

from coevolve.rewards.writing import TLDR
from coevolve.tasks import data
from coevolve.tasks.data import Split
from coevolve.tasks.heard import Voice
from coevolve.tasks.writing import WRITER, OfTexts, problems
from coevolve.types import Problem

VOICES = {
    "short": Voice(
        name="Brief summary",
        first="Write a brief, factual summary of this post.\n\n{text}\n\n{told}TL;DR:",
        again="\n\n{told}TL;DR:",
        beside="Keep yours brief; the detailed summary builds on it.",
    ),
    "detailed": Voice(
        name="Detailed summary",
        first="Write a detailed summary of this post, with more unique words and some transition words.\n\n"
        "{text}\n\n{told}TL;DR:",
        again="\n\n{told}TL;DR:",
        beside="Build on it: 2 to 3 times as long, with more unique words and some transition words.",
    ),
    WRITER: Voice(
        name="Both summaries",
        first="Write two summaries of this post with a line --- between them: a brief, factual one, then a detailed "
        "one, 2 to 3 times as long, with more unique words and some transition words.\n\n{text}\n\n{told}TL;DR:",
        again="\n\n{told}TL;DR:",
    ),
}


class Tldr(OfTexts):
    """MAGRPO's TLDR task (arXiv 2508.04652, section "Writing"): roles ``short`` and ``detailed``, or ``writer`` alone.

    Posts are the column ``prompt`` of ``tldr_reddit2013`` (train) and of the rows of ``tldr_openai`` that are not
    ``flagged`` (test) in the folder that COEVOLVE_DATA names, else of the hub's trl-lib/tldr. max_words: use at most
    this many words of a post, its subreddit and title included; None: all. bands: thresholds to change, see
    ``rewards.writing.Bands``. stop_words, transition_words: files with lists that replace the packaged ones, see
    ``rewards.writing_words``. scoring: "paper" also counts padding, see ``rewards.writing_plain``. reward, feedback:
    your own functions instead, see ``rewards.function``. ``Problem.data`` holds all columns of the row and ``text``,
    which the prompts show.

    The paper leaves thresholds to its code, whose reward, docstring and evaluation logger disagree. We follow the
    reward:
    1. Stop words count as different words in level 3. (Its docstring and logger leave them out.)
    2. A level on its outer edge earns 0 and the next one still counts. (Docstring and logger end the sum.)
    3. Transition words are found inside other words, "so" in "also", and lengths include white space at the ends.
    4. The maximum is 2.98, though 3.0 is stated everywhere; ``return`` is still the total / 3.0, as in its tables.
    Differences from the released code:
    5. The lists of stop words and transition words are our own, also in twelve categories; with the released ones as
       ``stop_words`` and ``transition_words``, totals are those of the released code, for padded texts too if
       ``scoring`` is "paper".
    6. Prompts are worded more briefly and end in "TL;DR:", so that a base model continues with a summary.
    7. The writer puts a line of dashes between its texts, in place of another delimiter. The fallbacks are the same,
       and the last one favours the writer: a text cut after a third has a ratio of lengths of 2, in the full band.
    8. An agent that revises continues its own turn, rather than reading its text in a new prompt.

    Raises ValueError for an unknown band and for a list of words that cannot be read; and, when problems are first
    used, for max_words below 1, a row without the column, or missing data.
    """

    _voices = VOICES
    _bands = TLDR
    _column, _end = "prompt", "TL;DR:"

    def problems(self, split: Split, max_words: int | None) -> list[Problem]:
        """Return the posts of a split."""
        name = {"train": "tldr_reddit2013", "test": "tldr_openai"}[split]
        rows = data.rows(name, dataset="trl-lib/tldr", split=split)
        where = f"tldr, split {split!r}"
        return problems(rows, where=where, column=self._column, id="id", end=self._end, max_words=max_words)
