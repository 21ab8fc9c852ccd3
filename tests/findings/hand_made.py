"""Runs with metrics written by hand."""

from pathlib import Path

from coevolve.report.runs import Run


def run(name="quick-0", seed=0, recipe=None, **columns):
    """One value per step and metric; an agent's is written ``ann__kl``, a phase's ``time__step``. None is null."""
    keys = {key: _key(*key.split("__")) for key in columns}
    steps = len(next(iter(columns.values())))
    lines = [{"step": i, **{keys[key]: values[i] for key, values in columns.items()}} for i in range(steps)]
    recipe = {"task": {"name": "sentiment"}, "seed": seed} if recipe is None else recipe
    return Run(Path(name), name, recipe, lines)


def _key(first, *rest):
    return "/".join([first, *rest] if not rest or first == "time" else ["agents", first, *rest])


def recipe(seed, eta=1.0, task="sentiment", **more):
    return {"task": {"name": task}, "algorithm": {"name": "cory", "eta": eta}, "seed": seed, **more}
