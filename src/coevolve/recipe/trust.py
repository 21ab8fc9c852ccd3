"""Code of others is run only when it is asked for: what in a run, a recipe or a team would be run, and the refusal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coevolve.models.names import is_recipe
from coevolve.rewards.judge import JUDGE
from coevolve.runs.signature import files_in
from coevolve.tasks.coding import EXPERT


def code_in(settings: Any) -> list[str]:
    """What in these settings needs trust, each once: Python files, as ``components.from_file`` would run them; recipes
    of models that would be trained; an expert or a judge, who is sent the key in whichever environment variable they
    name; and a server that is started with flags, some of which load code."""
    files = [file for file in files_in(settings) if not is_recipe(file) or os.path.isfile(file)]
    return sorted({*files, *_experts(settings), *_servers(settings)})


def need_trust(owner: str | Path, settings: Any, why: str = "") -> None:
    """Raises ValueError if these settings of the owner, a run or a team, name code. why: it is not this user's own."""
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
    if isinstance(settings, Mapping) and EXPERT in settings:
        yield f"feedback by an {EXPERT}"
    if isinstance(settings, Mapping) and settings.get("name") == JUDGE:
        yield f"a reward by a {JUDGE}"
    if isinstance(settings, Mapping | list | tuple):
        for value in inner:
            yield from _experts(value)
