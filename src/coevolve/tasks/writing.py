"""Base of the writing tasks: several writers, one text each, paid for how the texts go together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean
from typing import Any

from coevolve.rewards.function import user_feedback
from coevolve.rewards.several import RewardSpec, rewards_of
from coevolve.rewards.writing import Bands, Pair, compare, components, total
from coevolve.rewards.writing_plain import plain
from coevolve.rewards.writing_words import Words, read_words
from coevolve.tasks import data
from coevolve.tasks.data import Later, Split
from coevolve.tasks.heard import Voice, columns_of, sorted_out
from coevolve.tasks.roles import voice_of
from coevolve.tasks.scoring import Scoring, rules
from coevolve.tasks.writing_feedback import advice
from coevolve.types import Case, Problem, Prompt, Role, Turn

WRITER = "writer"
"""The role of a model that writes both texts in one turn, the paper's single-model baseline."""

OTHER = "{name}: {text}\n\n"
AGAIN = "Write it again, better."
BESIDE = "Complement it, do not repeat it."

_DELIMITER = re.compile(r"^[ \t]*-{3,}[ \t]*$", re.MULTILINE)
_SECOND = re.compile(r"\bparagraph 2:", re.IGNORECASE)
_HEADING = re.compile(r"^\s*paragraph [12]:", re.IGNORECASE)


def split(text: str) -> tuple[str, str]:
    """Return the two texts of a writer: around a line of dashes, else around "Paragraph 2:", else first third and rest.

    White space at the ends and the headings "Paragraph 1:" and "Paragraph 2:" are removed. The third is counted in
    characters, and is at least one.
    """
    text = text.strip()
    border = _DELIMITER.search(text) or _SECOND.search(text)
    third = max(1, len(text) // 3)
    first, second = (text[: border.start()], text[border.end() :]) if border else (text[:third], text[third:])
    return _HEADING.sub("", first).strip(), _HEADING.sub("", second).strip()


class Writing:
    """Base class: problems with one text each, roles that write about it in different ways, paid by the pair reward.

    train, test: the problems; their columns fill the templates. voices: role -> its templates, in the order in which
    the texts are compared; ``beside`` is the instruction behind other roles' texts, ``BESIDE`` if it is "". The role
    ``writer`` may be among them if the others are two. bands: the reward's
    thresholds. words: its stop words and transition words. scoring: "ours", which does not count padding
    (``rewards.writing_plain``), or "paper", which counts all of a text. reward, feedback: the user's own functions
    instead (see ``coevolve.rewards.function``), which are given a writer's text whole, as ``writer``; ``parts`` remain
    those of the packaged reward. rivalry: how much each writer is paid for its share of the team's words beyond an
    equal one, which the others lose.

    Every turn of a case is paid the team's total (0 to 2.98): with two texts the pair's, with more the mean over
    neighbouring pairs. With rivalry this is the mean over the turns.
    """

    solo = False

    def __init__(
        self,
        *,
        train: Sequence[Problem],
        test: Sequence[Problem],
        voices: Mapping[Role, Voice],
        bands: Bands,
        words: Words,
        scoring: Scoring,
        reward: RewardSpec | None,
        feedback: str | Callable[..., Any] | None,
        rivalry: float = 0.0,
    ) -> None:
        self.train, self.test = train, test
        self.voices, self.bands, self.words = dict(voices), bands, words
        self.counted = plain if rules(scoring=scoring) == "ours" else str
        self.asks = columns_of(voices, ("first", "again"), ("told",))
        self.roles = [role for role in voices if role != WRITER]
        self.rivalry = rivalry
        self._reward = self._paid if reward is None else rewards_of(reward)
        self.feedback, self.feedback_asks = (self.advice, ()) if feedback is None else user_feedback(feedback, voices)

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the role's prompt: the text and its instruction, or, after a turn of its own, only what is new.

        heard: nothing (a first turn); turns of other roles, of which each one's last is shown; the role's own last
        turn, which is continued as exact token ids, and the notes after it. If there are no notes or only empty ones,
        the prompt asks for a revision. Raises ValueError for an unknown role.
        """
        voice = voice_of(role, self.voices)
        own, others, since = sorted_out(role, heard)
        names = {other: voice_of(other, self.voices).name for other in others}
        told = [OTHER.format(name=names[other], text=turn.text.strip()) for other, turn in others.items()]
        if told:
            told.append(f"{voice.beside or BESIDE}\n\n")
        return voice.prompt(p, own, told, since, AGAIN)

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return the pay of every turn. Raises ValueError where a case has not one turn of each role."""
        return self._reward(cases)

    def parts(self, cases: Sequence[Case]) -> list[dict[str, float]]:
        """Return the components of ``rewards.writing``, means over the pairs, and the texts' words_1, words_2, ..."""
        return [self._parts(self.texts(case.turns)) for case in cases]

    def advice(self, p: Problem, turns: Sequence[Turn]) -> list[str]:
        """Return the default feedback: what each writer should change about its text.

        A note names the writer's own numbers and its ratio to a neighbour, and never another's words.
        """
        notes = advice(self.texts(turns), self.bands, self.words)
        if len(turns) < len(notes):  # a single writer wrote all texts in one turn
            return [" ".join(f"Text {i}: {note}" for i, note in enumerate(notes.values(), 1))]
        return [notes[turn.role] for turn in turns]

    def texts(self, turns: Sequence[Turn]) -> dict[Role, str]:
        """Return role -> its text as scored, in the order of the roles, not of the turns; a writer's turn is split."""
        spoken = {turn.role: self.counted(turn.text) for turn in turns}
        if WRITER in self.voices and list(spoken) == [WRITER] and len(turns) == 1:
            return dict(zip(self.roles, split(spoken[WRITER]), strict=True))
        if len(turns) != len(self.roles) or set(spoken) != set(self.roles):
            alone = f", or one of {WRITER}" if WRITER in self.voices else ""
            given = ", ".join(turn.role for turn in turns)
            raise ValueError(
                f"want one turn of each role, {', '.join(self.roles)}{alone}; were given {given or 'none'}"
            )
        return {role: spoken[role] for role in self.roles}

    def _paid(self, cases: Sequence[Case]) -> list[list[float]]:
        return [self._pays(case.turns) for case in cases]

    def _pays(self, turns: Sequence[Turn]) -> list[float]:
        """Return the pay of each turn of a case: the total, plus ``rivalry`` times its share of the words beyond
        an equal share."""
        texts = self.texts(turns)
        paid = fmean(total(pair, self.bands) for pair in self._pairs(texts))
        words = {role: len(text.split()) for role, text in texts.items()}
        whole = sum(words.values())
        if not self.rivalry or not whole or len(turns) < len(words):  # the last: a single writer has no rival
            return [paid] * len(turns)
        return [paid + self.rivalry * (words[turn.role] / whole - 1 / len(turns)) for turn in turns]

    def _pairs(self, texts: Mapping[Role, str]) -> list[Pair]:
        return [compare(first, second, self.bands, self.words) for first, second in pairwise(texts.values())]

    def _parts(self, texts: Mapping[Role, str]) -> dict[str, float]:
        found = [components(pair, self.bands) for pair in self._pairs(texts)]
        words = {f"words_{i}": float(len(text.split())) for i, text in enumerate(texts.values(), 1)}
        return {key: fmean(one[key] for one in found) for key in found[0]} | words


class OfTexts(Writing):
    """Base of ``tldr`` and ``arxiv``, whose problems are texts of a data set; their docstrings tell the settings."""

    _voices: Mapping[Role, Voice]
    _bands: Bands
    _column: str
    """The column of the data set with the text as it is there."""
    _end = ""
    """The suffix of the data set's texts that prompts do not show."""

    def __init__(
        self,
        *,
        max_words: int | None = None,
        bands: dict[str, Any] | None = None,
        stop_words: str | None = None,
        transition_words: str | None = None,
        scoring: Scoring = "ours",
        reward: RewardSpec | None = None,
        feedback: str | Callable[..., Any] | None = None,
    ) -> None:
        self._max_words = max_words
        super().__init__(
            train=Later(lambda: self.problems("train", max_words)),
            test=Later(lambda: self.problems("test", max_words)),
            voices=self._voices,
            bands=self._bands.changed(bands or {}),
            words=read_words(stop_words, transition_words),
            scoring=scoring,
            reward=reward,
            feedback=feedback,
        )

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return the role's prompt, as every writing task does; the text of a team's problem is cut as in training."""
        if self._column not in p.data:  # not of the data set, whose texts are cut when they are read
            p = replace(p, data={**p.data, "text": shown(str(p.data["text"]), self._end, self._max_words)})
        return super().prompt(p, role, heard)

    def problems(self, split: Split, max_words: int | None) -> list[Problem]:
        """Return the problems of a split, read from the data set."""
        raise NotImplementedError


def problems(
    rows: Sequence[data.Row], *, where: str, column: str, id: str, max_words: int | None, end: str = ""
) -> list[Problem]:
    """Return rows that are not ``flagged`` as problems, with ``text``, which prompts show, added to their columns.

    ``text`` is the given column without white space around it and without the suffix ``end``, cut to max_words words if
    that is given. id: the column with a row's name. Raises ValueError as ``data.problems`` does, for another row
    without text in the column, and if max_words is below 1.
    """
    if max_words is not None and max_words < 1:
        raise ValueError(f"task.max_words is {max_words}; want at least 1, or none")

    def read(row: data.Row) -> data.Row | None:
        if row.get("flagged"):
            return None
        return {**row, "text": shown(data.text(row, column), end, max_words)}

    return data.problems(rows, where, read, id)


def shown(text: str, end: str, max_words: int | None) -> str:
    """Return a text as prompts show it: without white space around it and the suffix ``end``, and its first words."""
    return first_words(text.strip().removesuffix(end).strip(), max_words)


def first_words(text: str, count: int | None) -> str:
    """Return the first ``count`` words, with the white space between them as it is; the whole text for None."""
    if count is None:
        return text
    ends = [word.end() for word in islice(re.finditer(r"\S+", text), count)]
    return text[: ends[-1]] if ends else ""
