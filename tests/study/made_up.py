"""Results and studies with known outcomes."""

import math

import yaml

from coevolve.recipe.validate import validate
from coevolve.study.claims import Study
from coevolve.study.results import Evaluated, Machine, Result

HERE = Machine(processor="a processor", compute=("cpu, compiled loops",), threads=1)


def result(arm, seed, *, machine=HERE, versions=None, rows=(), problems=4, steps=None, **curves):
    """One with these curves, a step for each point if not said; an agent's is written ``ann__kl``, a slash otherwise
    ``reward_pioneer``; what is no number was not known."""
    curves = {
        _key(key): [None if math.isnan(value) else float(value) for value in values] for key, values in curves.items()
    }
    points = len(next(iter(curves.values())))
    curves = {"reward": [0.0] * points, "turns": [1.0] * points} | curves
    roles = {"roles": {"pioneer": "ann", "observer": "bob"}}
    return Result(
        arm=arm, seed=seed, recipe=roles | ({"steps": steps} if steps else {}), machine=machine,
        evaluated=Evaluated(),
        versions=versions or {"torch": "2"}, commit="0" * 40, curves=curves, problems=problems, rows=list(rows),
        took={"training": 60.0, "evaluation": 12.0, "finished": "2026-11-24T12:00:00+00:00"},
    )  # fmt: skip


def _key(name):
    agent, _, rest = name.rpartition("__")
    return f"agents/{agent}/{rest}" if agent else name.replace("_", "/", 1) if name.startswith("reward_") else name


def row(weights="trained", setting="team", role="pioneer", policy="ann", **numbers):
    return {"weights": weights, "setting": setting, "role": role, "policy": policy, **numbers}


STUDY = """
page: ../study.md
seeds: {quick: 1, full: 12}
arms: {a: {recipe: a.yaml}, b: {recipe: b.yaml}, a2: {recipe: a.yaml}, b2: {recipe: b.yaml}}
premises: {reads: {recipe: a.yaml}, checks: {recipe: b.yaml}}
claims:
  K1:
    paper: a paper
    says: a is better
    number: much
    comparisons: [{arm: a, than: b, measure: end reward, direction: more, margin: 0.02, matched: nothing}]
    follows: {confirmed: Take a., refuted: Take b., equal: Take either.}
figures:
  F1:
    title: Both arms
    reads: Higher is better.
    draws: ends
    x: KL
    y: reward
    lines: {both: {arm: [a, b], x: kl, y: reward}}
"""


def study(**changes):
    """One claim, that a's final reward is above b's; changes of its comparison, or of the claim."""
    tree = yaml.safe_load(STUDY)
    claim = tree["claims"]["K1"]
    for key, value in changes.items():
        place = (
            claim
            if key in ("premise", "needs_premise", "elsewhere", "comparisons", "since")
            else claim["comparisons"][0]
        )
        place[key] = value
    return validate(Study, tree, "a study")


def pairs(differences, base=0.5, **more):
    """Arms a and b whose final rewards differ so, seed by seed."""
    return {
        "a": {seed: result("a", seed, reward=[base + one] * 5, **more) for seed, one in enumerate(differences)},
        "b": {seed: result("b", seed, reward=[base] * 5) for seed in range(len(differences))},
    }


def everywhere(found):
    """Results by the processor that they say."""
    kept = {}
    for arm, seeds in found.items():
        for seed, one in seeds.items():
            kept.setdefault(one.machine.processor, {}).setdefault(arm, {})[seed] = one
    return kept
