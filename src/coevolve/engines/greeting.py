"""What an inference server says of itself when it is first asked: its routes, version, base model and context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coevolve.engines.routes import Routes
from coevolve.runtime.requests import FailedError, cut, sent


@dataclass(frozen=True)
class Served:
    """The model that a server has. base: its name of the model without adapters; root: that model's folder or hub id,
    None where it does not say; longest: its limit for prompt and turn together, less what it reserves."""

    base: str
    root: str | None = None
    longest: int | None = None


async def served(client: Any, url: str, routes: Routes, model: str | None) -> Served:
    """Ask a server for its base model. model: the name of that, None to take the first listed one that is no adapter.

    Raises ValueError where it lists no model, FailedError if it does not answer; a given name needs no list.
    """
    said = ""
    try:
        answer = await sent(client, "/v1/models")
        said = cut(answer)
        bases = {str(one["id"]): one for one in answer.json()["data"] if not one.get("parent")}
        base = model or next(iter(bases))
        found = bases.get(base, {})
        root, longest = found.get("root"), found.get("max_model_len")
        longest = longest - routes.reserved if isinstance(longest, int) else None
        return Served(base, root if isinstance(root, str) else None, longest)
    except (FailedError, ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        if model is not None:
            return Served(model)
        if isinstance(error, FailedError):
            raise
        raise ValueError(
            f"the server at {url} lists no model at /v1/models ({said or error}); say what it calls the base, "
            "engine.model, or name another url"
        ) from error


async def version(client: Any, url: str, routes: Routes, needed: Iterable[str]) -> str | None:
    """Ask a server for its version, None if it does not tell it. needed: the routes that it has to have.

    Raises ValueError for a route that it lacks, FailedError if it does not answer.
    """
    try:
        paths = dict((await sent(client, "/openapi.json")).json()["paths"])
    except (ValueError, LookupError, TypeError):
        paths = {}
    for route in needed:
        if route.partition("?")[0] not in paths:
            how = routes.hints.get(route, f"it is another version of {routes.name}, or another server")
            raise ValueError(
                f"the server at {url} has no route {route}: {how}; one that is no {routes.name} can be "
                "`engine: openai`, for frozen policies"
            )
    said = (await sent(client, "/version")).json().get("version") if "/version" in paths else None
    return None if said is None else str(said)
