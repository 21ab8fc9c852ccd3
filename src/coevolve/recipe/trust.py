"""Trust: the code that a run, a recipe or a team would run, and the refusal to run it unless the user asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coevolve.models.names import is_recipe
from coevolve.recipe.packaged import packaged
from coevolve.rewards.judge import JUDGE
from coevolve.runs.signature import files_in
from coevolve.tasks.coding import EXPERT


def code_in(settings: Any) -> list[str]:
    """Return everything in these settings that needs the user's trust, each item once.

    That is: Python files, which ``components.from_file`` would run; pre-training recipes that would be run, other than
    the packaged ones; an expert or a judge, whose server is sent the key in an environment variable that the settings
    name; and a server that is started with flags, some of which load code.
    """
    files = [file for file in files_in(settings) if not is_recipe(file) or os.path.isfile(file)]
    files = [file for file in files if Path(file) not in packaged().values()]
    return sorted({*files, *_experts(settings), *_servers(settings)})


def need_trust(owner: str | Path, settings: Any, why: str = "") -> None:
    """Raise ValueError if these settings of the owner (a run, recipe or team) name code.

    why: the reason why the owner does not count as this user's own, for the message.
    """
    if found := code_in(settings):
        raise ValueError(
            f"{owner} comes with code of its own ({', '.join(found)}), which this would run{why and f', and {why}'}; "
            "if you know what is in it, --trust-code, or trust_code=True in Python"
        )


def _servers(settings: Any) -> Iterator[str]:
    for key, inner in settings.items() if isinstance(settings, Mapping) else ():
        if key == "engine" and isinstance(inner, Mapping) and inner.get("start"):
            yield "an engine's server, started with flags of its own"
        yield from _servers(inner)


def _experts(settings: Any) -> Iterator[str]:
    inner = settings.values() if isinstance(settings, Mapping) else settings
    feedback = settings.get("feedback") if isinstance(settings, Mapping) else None
    if isinstance(feedback, Mapping) and EXPERT in feedback:
        yield f"feedback by an {EXPERT}"
    if isinstance(settings, Mapping) and settings.get("name") == JUDGE:
        yield f"a reward by a {JUDGE}"
    if isinstance(settings, Mapping | list | tuple):
        for value in inner:
            yield from _experts(value)
