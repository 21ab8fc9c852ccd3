"""Tokenizers and turns for the task tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from coevolve.tasks import data
from coevolve.types import Case, Problem, Turn

Review = Callable[..., None]


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a byte-level tokenizer without a single merge: every byte is one token."""
    folder = tmp_path_factory.mktemp("letters")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bytewise).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    return str(folder)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tokenizer whose tokens are words, each with the space before it."""
    folder = tmp_path_factory.mktemp("words")
    wordwise = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    wordwise.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    PreTrainedTokenizerFast(tokenizer_object=wordwise).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    return str(folder)


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Review:
    """Makes COEVOLVE_DATA hold these reviews, the same in both splits."""
    monkeypatch.setenv(data.FOLDER, str(tmp_path))

    def write(*texts: str) -> None:
        lines = "".join(json.dumps({"text": text, "label": 1, "id": f"r{i}"}) + "\n" for i, text in enumerate(texts))
        for split in ("train", "test"):
            (tmp_path / f"imdb_{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))

    return write


def _said(problem: Problem, text: str) -> Turn:
    return Turn("pioneer", "llm", problem, 0, 0, (), (), (), text, False)


@pytest.fixture
def said() -> Callable[[Problem, str], Turn]:
    """(problem, text) -> a turn of which only the text matters."""
    return _said


@pytest.fixture
def case() -> Callable[..., Case]:
    """(problem, *texts) -> a case of turns that said these texts."""
    return lambda problem, *texts: Case(problem, tuple(_said(problem, text) for text in texts))
