"""OpenAI's chat completions for a team: requests read as problems, episodes written as responses.

The problem is the last message of the user, or ``columns``, an extension field, for tasks with several columns. The
answer is the last turn of the last role; every choice has an extension field ``coevolve`` with the whole transcript.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from coevolve.recipe.validate import validate
from coevolve.teams.team import Team
from coevolve.teams.telling import Piece
from coevolve.types import Episode, Role, Turn

_MOST_CHOICES = 128
_SEEDS = 1 << 31  # a request without a seed gets a random one below this

_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "top_p": [1],
    "presence_penalty": [0],
    "frequency_penalty": [0],
    "logit_bias": [{}],
    "logprobs": [False],
    "top_logprobs": [0],
    "stop": [[]],
    "tools": [[]],
    "functions": [[]],
    "tool_choice": ["none", "auto"],
    "reasoning_effort": ["none"],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
}
"""Request fields that a team does not support, and the values that are accepted since they change nothing."""

_SILENT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)
"""Request fields that are ignored, as they would not change the answer."""


class RefusedError(ValueError):
    """A request that is refused. status: the HTTP status; code, param: those of OpenAI's error object."""

    def __init__(
        self, said: str, *, status: int = HTTPStatus.BAD_REQUEST, code: str | None = None, param: str | None = None
    ):
        super().__init__(said)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        return failure(str(self), "invalid_request_error", self.code, self.param)


class _Part(BaseModel):
    type: str
    text: str = ""


class _Message(BaseModel):
    role: str
    content: str | list[_Part] | None = None


class _StreamOptions(BaseModel):
    include_usage: bool = False


class Request(BaseModel):
    """The body of a request: the fields that a team supports."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[_Message] = []
    columns: dict[str, Any] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int = Field(1, ge=1, le=_MOST_CHOICES)
    seed: int = Field(default_factory=lambda: secrets.randbelow(_SEEDS))
    temperature: float | None = Field(None, ge=0)
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None

    @property
    def longest(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def request(body: Mapping[str, Any], name: str) -> Request:
    """Read the body of a request to the team ``name``. Raises RefusedError for fields and values that are not
    supported, and for another model's name."""
    given = {key: value for key, value in body.items() if value is not None and key not in _SILENT}
    for key, values in _NEUTRAL.items():
        if given.pop(key, values[0]) not in values:
            raise RefusedError(
                f"{key}: a team is sampled as it was trained, but for temperature, seed and length; leave it out",
                code="unsupported_parameter", param=key,
            )  # fmt: skip
    try:
        asked = validate(Request, given, "request")
    except ValueError as error:
        raise RefusedError(str(error)) from error
    if asked.model != name:
        raise RefusedError(
            f"the model {asked.model!r} does not exist; this server has {name!r}",
            status=HTTPStatus.NOT_FOUND, code="model_not_found", param="model",
        )  # fmt: skip
    if asked.stream and asked.n > 1:
        raise RefusedError("stream: one choice at a time; leave n out, or do not stream", param="n")
    return asked


def problem(asked: Request, team: Team) -> dict[str, Any]:
    """Return the columns of the problem in a request. Raises RefusedError if it has none."""
    if asked.columns is not None:
        return asked.columns
    if team.asks is not None and len(team.asks) == 0:
        return {}
    if team.asks is None or len(team.asks) != 1:
        named = ", ".join(team.asks or ("as its prompts name them",))
        raise RefusedError(
            f"columns: the task {team.task.name} is not asked with one text; add `columns`, an object with {named} "
            "(extra_body={'columns': {...}} of the openai package)",
            param="columns",
        )
    said = [message for message in asked.messages if message.role == "user"]
    if not said:
        raise RefusedError("messages: no message of the user", param="messages")
    return {team.asks[0]: _text(said[-1])}


def _text(message: _Message) -> str:
    if isinstance(message.content, str):
        return message.content
    if not message.content or any(part.type != "text" for part in message.content):
        raise RefusedError("messages: the last one of the user is no text; a team reads text only", param="messages")
    return "\n".join(part.text for part in message.content)


def completion(asked: Request, episodes: Sequence[Episode], last: Role) -> dict[str, Any]:
    """Return the response to a request that does not stream. last: the role whose last turn is the answer."""
    choices = []
    for index, episode in enumerate(episodes):
        turn = answer(episode, last)
        message = {"role": "assistant", "content": turn.text, "refusal": None}
        choices.append({"index": index, "message": message, "logprobs": None} | _end(asked, episode, turn))
    return _head(asked.model, "chat.completion") | {"choices": choices, "usage": _usage(episodes)}


class Stream:
    """The chunks of one streamed answer, which share an id.

    live: the role whose text is streamed as the answer; None if the answer is known only at the end of the play.
    """

    def __init__(self, model: str, live: Role | None) -> None:
        self._head = _head(model, "chat.completion.chunk")
        self._live, self._begun, self._sent = live, False, ""

    def told(self, said: Piece | Turn) -> dict[str, Any]:
        """Return the chunk for a piece of a turn, or for a whole turn."""
        delta = {} if self._begun else {"role": "assistant", "content": ""}
        self._begun = True
        if isinstance(said, Turn):
            return self._chunk(delta, coevolve={"turn": _spoken(said)})
        if said.role == self._live:
            self._sent += said.text
            delta = delta | {"content": said.text}
        return self._chunk(delta, coevolve={"piece": said._asdict()})

    def ended(self, asked: Request, episode: Episode, last: Role) -> Iterator[dict[str, Any]]:
        """Yield the chunks that end the stream: the rest of the answer, the transcript, and the usage if requested."""
        turn = answer(episode, last)
        if turn.text.startswith(self._sent) and (rest := turn.text[len(self._sent) :]):
            yield self._chunk({"content": rest})
        yield self._chunk({}, **_end(asked, episode, turn))
        if asked.stream_options is not None and asked.stream_options.include_usage:
            yield self._head | {"choices": [], "usage": _usage([episode])}

    def _chunk(self, delta: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return self._head | {"choices": [choice]}


def answer(episode: Episode, last: Role) -> Turn:
    """Return the last turn of the role ``last``; the last turn of the episode if that role has none."""
    return next((turn for turn in reversed(episode.turns) if turn.role == last), episode.turns[-1])


def failure(said: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Return an OpenAI error object."""
    return {"error": {"message": said, "type": kind, "param": param, "code": code}}


def models(name: str, since: int) -> dict[str, Any]:
    """Return the list of models, which holds only the team."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": since, "owned_by": "coevolve"}]}


def _head(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _end(asked: Request, episode: Episode, turn: Turn) -> dict[str, Any]:
    """Return an answer's finish reason, and its transcript with the seed that reproduces it."""
    position = {id(one): number for number, one in enumerate(episode.turns)}
    turns = [
        _spoken(one)
        | {"heard": [part if isinstance(part, str) else position.get(id(part), part.text) for part in one.heard]}
        for one in episode.turns
    ]
    transcript = {"columns": dict(episode.problem.data), "turns": turns, "answer": position[id(turn)]}
    ended = "stop" if turn.finished else "length"
    return {"finish_reason": ended, "coevolve": transcript | {"seed": asked.seed}}


def _spoken(turn: Turn) -> dict[str, Any]:
    names = ("role", "policy", "round", "text", "finished")
    return {name: getattr(turn, name) for name in names} | {"tokens": len(turn.action_ids)}


def _usage(episodes: Sequence[Episode]) -> dict[str, int]:
    """Return the token counts over all turns: the prompts and completions of the whole team."""
    read = sum(len(turn.prompt_ids) for episode in episodes for turn in episode.turns)
    said = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
    return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
