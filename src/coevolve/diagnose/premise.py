"""Measurement of CORY's premise before training: can a start policy use a reference at all?

Two roles play in a chain: the first answers and earns r1, the second has heard that answer and earns r2.

    slope   of r2 on r1 within a problem, over its members: does a right reference help more than a wrong one?
    gain    E[r2] - max(E[r1], E[r2 | an empty reference]): is reading an answer worth more than answering, and than
            a template?

An ideal verifier, which keeps a right answer, answers a wrong one anew and is then right with probability p, has slope
1 - p and gain p (1 - p).

Letters: P problems, M members, C columns, R resamples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coevolve.diagnose.messages import Misheard, blank
from coevolve.diagnose.paired import Numbers, with_interval
from coevolve.diagnose.scene import Row, Scene
from coevolve.engines.local import LocalEngine
from coevolve.evaluate import choose
from coevolve.learners.build import build_policies
from coevolve.recipe.build import parts
from coevolve.recipe.schema import Recipe
from coevolve.types import Play

PROBLEMS, MEMBERS = 128, 8


def premise(recipe: Recipe, problems: int = PROBLEMS, members: int = MEMBERS) -> Row:
    """Return slope and gain of a recipe's start policies, each with _low and _high (bootstrap over problems), and the
    means that they are made of: alone, heard, empty. Raises ValueError unless two roles speak in a chain."""
    if recipe.play.get("name") != "chain" or len(recipe.roles) != 2:
        raise ValueError("the premise is about two roles in a chain, of which the second hears the first")
    scene = start(recipe, parts(recipe).play(), problems, members)
    first, second = recipe.roles
    r1_PM, r2_PM = _paid(scene, first, second)
    _, empty_PM = _paid(replace(scene, task=Misheard(scene.task, second, blank)), first, second)
    return {"problems": len(scene.problems), "members": members, **estimated(r1_PM, r2_PM, empty_PM)}


def start(recipe: Recipe, play: Play, problems: int, members: int) -> Scene:
    """Return a scene of a recipe's start policies in this play, on held-out problems. Raises ValueError for policies
    whose weights are in an engine elsewhere."""
    if gone := [name for name, spec in recipe.policies.items() if spec.elsewhere]:
        raise ValueError(
            f"the weights of policy {gone[0]!r} are not here, its own engine has them; nothing is measured"
        )
    how: dict[str, Any] = {"steps": 1, "seed": recipe.seed, "workers": False, "threads": recipe.threads or 1}
    task = parts(recipe).task()
    return Scene(
        play=play,
        cast=recipe.roles,
        task=task,
        engine=LocalEngine(build_policies(recipe.policies, reference=False, critic=False, **how)),
        sampling=recipe.sampling.at_length(recipe.sampling.length_range[1]),
        problems=choose(task, min(problems, len(task.test))),
        members=members,
    )


def estimated(r1_PM: Numbers, r2_PM: Numbers, empty_PM: Numbers) -> Row:
    """Return slope, gain, their intervals and the three means. slope is NaN where r1 never varies within a problem."""
    centred_PM = r1_PM - r1_PM.mean(1, keepdims=True)
    of_slope_CP = np.stack([(centred_PM * r2_PM).sum(1), (centred_PM**2).sum(1)])
    of_gain_CP = np.stack([r2_PM.mean(1), r1_PM.mean(1), empty_PM.mean(1)])
    return {
        **with_interval("slope", of_slope_CP, lambda means_CR: means_CR[0] / means_CR[1]),
        **with_interval("gain", of_gain_CP, lambda means_CR: means_CR[0] - np.maximum(means_CR[1], means_CR[2])),
        "alone": float(r1_PM.mean()),
        "heard": float(r2_PM.mean()),
        "empty": float(empty_PM.mean()),
    }


def _paid(scene: Scene, first: str, second: str) -> tuple[Numbers, Numbers]:
    """Return what each role earned, [P, M] both."""
    episodes = scene.played()
    found = []
    for role in (first, second):
        paid = [[turn.reward for turn in episode.turns if turn.role == role] for episode in episodes]
        found.append(np.array(paid, dtype=np.float64).reshape(len(scene.problems), scene.members))
    return found[0], found[1]
