"""Trust: the code that a run, a recipe or a team would run, and the refusal to run it unless the user asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coevolve.learners import TORCHRUN
from coevolve.models.names import is_recipe
from coevolve.recipe.packaged import packaged
from coevolve.rewards.judge import JUDGE
from coevolve.runs.signature import files_in
from coevolve.runtime.cluster import ANY
from coevolve.tasks.coding import EXPERT


def code_in(settings: Any) -> list[str]:
    """Return everything in these settings that needs the user's trust, each item once.

    That is: Python files, which ``components.from_file`` would run; pre-training recipes that would be run, other than
    the packaged ones; an expert or a judge, whose server is sent the key in an environment variable that the settings
    name; a server that is started with flags, some of which load code; and a Ray cluster at an address, whose machines
    can run code here.
    """
    files = [file for file in files_in(settings) if not is_recipe(file) or os.path.isfile(file)]
    files = [file for file in files if Path(file) not in packaged().values()]
    return sorted({*files, *_told(settings)})


def need_trust(owner: str | Path, settings: Any, why: str = "") -> None:
    """Raise ValueError if these settings of the owner (a run, recipe or team) name code.

    why: the reason why the owner does not count as this user's own, for the message.
    """
    if found := code_in(settings):
        raise ValueError(
            f"{owner} comes with code of its own ({', '.join(found)}), which this would run{why and f', and {why}'}; "
            "if you know what is in it, --trust-code, or trust_code=True in Python"
        )


def _told(settings: Any) -> Iterator[str]:
    """Yield what else needs trust, in words: of these settings and of all settings inside them."""
    if isinstance(settings, Mapping):
        engine, feedback, learner = (settings.get(key) for key in ("engine", "feedback", "learner"))
        if isinstance(engine, Mapping) and engine.get("start"):
            yield "an engine's server, started with flags of its own"
        if isinstance(feedback, Mapping) and EXPERT in feedback:
            yield f"feedback by an {EXPERT}"
        if settings.get("name") == JUDGE:
            yield f"a reward by a {JUDGE}"
        if isinstance(learner, Mapping) and learner.get("cluster") not in (None, TORCHRUN, ANY):
            yield f"a Ray cluster at {learner['cluster']}"
    if isinstance(settings, Mapping | list | tuple):
        for inner in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _told(inner)
