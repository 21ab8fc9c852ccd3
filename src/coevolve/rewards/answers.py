"""A cache of a judge's answers, in memory or in a file: the same question to the same model is paid for once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from coevolve.faults import lacking

_SELECT = "SELECT key, text, asked, answered FROM answers"
_INSERT = "INSERT OR REPLACE INTO answers (key, text, asked, answered) VALUES (?, ?, ?, ?)"


class Answer(NamedTuple):
    """A model's answer to one question. text: the answer. asked, answered: token counts of the question and of the
    answer."""

    text: str
    asked: int
    answered: int


class Answers:
    """The cached answers of one model, by question.

    file: an SQLite database, which several runs may share; None caches in memory only. about: the model and its
    settings, part of each key, so that answers of another model or other settings are never returned. Raises ValueError
    for a file that is not such a database.
    """

    def __init__(self, file: str | None, about: Mapping[str, Any]) -> None:
        self._file, self._about = file, json.dumps(about, sort_keys=True)
        self._memory: dict[str, Answer] = {}

    def of(self, questions: Iterable[str]) -> dict[str, Answer]:
        """Return the cached answers to these questions; questions without one are left out."""
        wanted = list(questions)
        if self._file is not None and (others := {self._key(q): q for q in wanted if q not in self._memory}):
            self._memory |= {others[key]: answer for key, answer in self._read(others)}
        return {question: self._memory[question] for question in wanted if question in self._memory}

    def keep(self, answers: Mapping[str, Answer]) -> None:
        """Add these answers to the cache."""
        self._memory |= answers
        if self._file is not None and answers:
            rows = [(self._key(question), *answer) for question, answer in answers.items()]
            with self._opened() as base, base:
                base.executemany(_INSERT, rows)

    def _read(self, keys: Iterable[str]) -> list[tuple[str, Answer]]:
        with self._opened() as base:
            found = [base.execute(f"{_SELECT} WHERE key = ?", (key,)).fetchone() for key in keys]
        return [(key, Answer(*answer)) for key, *answer in filter(None, found)]

    def _opened(self) -> closing[sqlite3.Connection]:
        assert self._file is not None
        try:
            base = sqlite3.connect(self._file, timeout=60)
            base.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, text, asked, answered)")
            base.execute(f"{_SELECT} LIMIT 1")  # fails if the file holds a table of another program
        except sqlite3.Error as error:
            if lacking(error):
                raise
            raise ValueError(f"task.reward, judge: cache {self._file}: {error}; name another file") from error
        return closing(base)

    def _key(self, question: str) -> str:
        return hashlib.sha256(f"{self._about}\n{question}".encode()).hexdigest()
