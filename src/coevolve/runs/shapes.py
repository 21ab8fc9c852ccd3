"""The types of the keys in each file that a run writes, checked on reading: a file may be cut off or edited by hand.

``folder`` and ``record`` say what the keys mean. Keys that are not listed here are accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter

from coevolve.files import parse_json, read_json
from coevolve.recipe.validate import validate

Number = float | None
"""A number, or null for what could not be measured."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Metrics(_Strict):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]
    step: NonNegativeInt
    reward: Number
    cast: dict[str, str] = {}


class _Turn(_Strict):
    role: str
    policy: str
    round: NonNegativeInt
    text: str
    reward: Number
    finished: bool
    heard: list[int | str]
    pieces: list[str]
    logps: list[Number] = []
    adv: list[Number] = []
    kl: list[Number] = []
    credit: Number = None


class _Joint(_Strict):
    turns: list[NonNegativeInt]
    rewards: list[Number]
    after: NonNegativeInt | None


class _Episode(_Strict):
    step: NonNegativeInt
    problem: str
    member: NonNegativeInt
    data: dict[str, Any]
    turns: list[_Turn]
    joints: list[_Joint]
    parts: dict[str, Number]


class _Row(_Strict):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]
    weights: str
    setting: str
    role: str
    policy: str
    decoding: str


class _Played(_Strict):
    checkpoint: NonNegativeInt
    problems: NonNegativeInt
    samples: NonNegativeInt | None = None


class _Evaluation(_Played):
    max_new_tokens: NonNegativeInt | None = None
    temperature: float | None = None
    seed: NonNegativeInt | None = None
    rows: list[_Row]


class _Condition(_Strict):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str | Number]
    kind: str
    setting: str
    role: str
    policy: str


class _Diagnostics(_Played):
    rows: list[_Condition]


class _Start(_Strict):
    step: NonNegativeInt
    versions: dict[str, str] = {}
    compute: dict[str, Any] = {}


class _Environment(_Start):
    resumed: list[_Start] = []


class _Trainer(_Strict):
    step: NonNegativeInt
    policies: list[str]
    state: dict[str, Any]
    compute: dict[str, str]
    versions: dict[str, NonNegativeInt]
    identity: dict[str, Any]


_SizeAndSum = Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]

_SHAPES: dict[str, TypeAdapter[Any]] = {
    "metrics.jsonl": TypeAdapter(_Metrics),
    "episodes.jsonl": TypeAdapter(_Episode),
    "samples.jsonl": TypeAdapter(_Episode),
    "eval.json": TypeAdapter(_Evaluation),
    "diagnostics.json": TypeAdapter(_Diagnostics),
    "environment.json": TypeAdapter(_Environment),
    "trainer.json": TypeAdapter(_Trainer),
    "manifest.json": TypeAdapter(dict[str, _SizeAndSum]),
}


def read(file: Path) -> dict[str, Any]:
    """Return the JSON object in one of these files. Raises ValueError naming the file and the key at fault."""
    return _checked(read_json(file), file.name, str(file))


def line(text: str, file: Path, place: str) -> dict[str, Any]:
    """Return the JSON object in a line of one of these files. place: "line 3", for messages. Raises like ``read``."""
    where = f"{file}, {place}"
    return _checked(parse_json(text, where), file.name, where)


def _checked(found: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    validate(_SHAPES[name], found, where)
    return found
