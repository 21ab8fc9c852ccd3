"""Sizes of batches from the memory that is free now (``coevolve train --fit-memory``): ``micro_tokens`` of policies and
``max_tokens`` of local engines, by the formulas of a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from coevolve.checks import MOST_STEPS, check_cast
from coevolve.learners.sizes import weightless
from coevolve.models.policy import UNLIMITED, context_of
from coevolve.recipe import memory, rank_memory
from coevolve.recipe.build import Parts, check
from coevolve.recipe.memory import positions
from coevolve.recipe.room import GIB, SHARE, Fit, Size
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trial import asked
from coevolve.types import PolicyName

LEAST = 256
"""Tokens that there has to be memory for, unless all of a step has fewer."""
_LEARNING = "use a smaller model, weights: lora, gradient_checkpointing: true or dtype: bfloat16"
_SAMPLING = "use a smaller model or dtype: bfloat16"


def fitted(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Return the recipe with sizes that fit into the memory that is free now, and a line about each of them.

    ``micro_tokens`` of a policy that learns is the largest power of two that fits into nine tenths of what is free on
    its device, and no more than holds all that a step has. ``micro_tokens`` of ranks, which have to share a step's
    micro-batches, and ``max_tokens`` of local engines, whose formula leaves out what reads the prompts, are lowered to
    what fits and never raised. Raises ValueError if not even a small size fits, for a device that is not of this
    machine or does not say what is free, for ranks under Ray or torchrun, and for a model of unknown size.
    """
    checked = check(recipe)
    if recipe.learner is not None and not rank_memory.on_ranks(recipe):
        name = recipe.learner["name"]
        return recipe, [f"micro_tokens and max_tokens stay: the learner {name} is your own, and needs what it needs"]
    check_cast(checked.cast(), recipe.policies, recipe.steps, recipe.batch_size * recipe.members)
    fits, lines, micro = _fits(recipe, checked), list[str](), dict[PolicyName, int]()
    learnt = _learnt(recipe, checked)
    for name, spec in recipe.policies.items():
        if (place := _tightest((fit, one) for fit in fits for one in fit.learning if one.policy == name)) is not None:
            bound = _own(spec.micro_tokens) if recipe.learner is not None else learnt[name]
            micro[name], line = _chosen(f"policies.{name}.micro_tokens", *place, bound, _LEARNING)
            lines.append(line)
    cache, local = None, [name for name, spec in recipe.policies.items() if positions(recipe, spec)]
    if (place := _tightest((fit, one) for fit in fits for one in fit.sampling)) is not None:
        owners = dict.fromkeys(f"policies.{n}.engine" if recipe.policies[n].engine else "engine" for n in local)
        keys = " and ".join(f"{owner}.max_tokens" for owner in owners)
        own = min(positions(recipe, recipe.policies[name]) for name in local)
        cache, line = _chosen(keys, *place, _own(own), _SAMPLING)
        lines.append(line)
    servers = dict.fromkeys(recipe.engine_of(spec)["name"] for n, spec in recipe.policies.items() if n not in local)
    lines += [f"engine {name} is not sized: memory that it takes from now on counts as free" for name in servers]
    return _with(recipe, micro, cache), lines


def _fits(recipe: Recipe, checked: Parts) -> list[Fit]:
    """Return what is free on each device, and the sizes that are to fit there. Raises ValueError where that is not
    known."""
    try:
        if rank_memory.on_ranks(recipe):
            fits = rank_memory.fits_of_ranks(recipe, checked.algorithm)
        else:
            fits = memory.fits_of_processes(recipe, checked)
        for fit in fits:
            if not fit.here:
                raise ValueError(f"there is no device {fit.device} on this machine")
            if fit.free is None:
                raise ValueError(f"device {fit.device} does not say how much of its memory is free")
    except ValueError as error:
        raise ValueError(
            f"{error}; --fit-memory knows models and memory of this machine only, so leave it out and write "
            "policies.*.micro_tokens, and max_tokens of `engine: local`, into the recipe"
        ) from error
    return fits


@dataclass(frozen=True)
class _Bound:
    """The size that is large enough, whatever the memory. size: None if that is not known. why: the reason, as the end
    of a sentence."""

    size: int | None
    why: str


def _own(size: int) -> _Bound:
    return _Bound(size, "it is not raised")


def _learnt(recipe: Recipe, checked: Parts) -> dict[PolicyName, _Bound]:
    """Return, for each policy, a micro-batch that holds all that it learns from in a step: its turns, counted as a dry
    run does, by an episode with empty answers, each as long as the context of its model."""
    unknown = _Bound(None, "how many a step has is not known")
    calls: Sequence[Any] = []
    if checked.algorithm.rows is None:  # else it adds rows to those of the turns
        with suppress(ValueError):
            calls = asked(recipe, checked)
    roles = Counter(say.role for call in calls for says in call.values() for say in says)
    cast, turns = checked.cast(), Counter[PolicyName]()
    for seats in {tuple(cast(step).items()) for step in range(min(recipe.steps, MOST_STEPS))}:
        here = Counter[PolicyName]()
        for role, name in seats:
            here[name] += roles[role]
        turns |= here  # the larger of two counts
    episodes = recipe.batch_size * recipe.members * (1 + checked.algorithm.resample)
    found: dict[PolicyName, _Bound] = {}
    for name, spec in recipe.policies.items():
        made, count = weightless(spec.model), episodes * turns[name]
        context = UNLIMITED if isinstance(made, str) else context_of(made.config)
        said = f"a step has {count * context:,} if no answer changes what is asked, {count:,} turns of {context:,}"
        found[name] = _Bound(_up(count * context), said) if count and context < UNLIMITED else unknown
    return found


def _tightest(places: Iterable[tuple[Fit, Size]]) -> tuple[Fit, Size] | None:
    """Return the device, and the size to fit there, that have room for the fewest tokens."""
    return min(places, key=lambda place: place[1].most(place[0].free or 0), default=None)


def _chosen(key: str, fit: Fit, size: Size, bound: _Bound, advice: str) -> tuple[int, str]:
    """Return the size for a key, and a line that says why. Raises ValueError with this advice if not even a small one
    fits."""
    free = fit.free or 0
    most, least = size.most(free), LEAST if bound.size is None else min(LEAST, bound.size)
    has = f"device {fit.device} has {free / GIB:.2f} GiB free now"
    if most < least:
        raise ValueError(
            f"{key}: {has} and needs {size.fixed / GIB:.2f} held before the first token, so not even {least} fit into "
            f"{SHARE:.0%} of it; {advice}, or end what else needs memory"
        )
    found = bound.size if bound.size is not None and bound.size <= most else _down(most)
    why = f"{has}, {most:,} fit into {SHARE:.0%} of it; {bound.why}"
    return found, f"{key} is {found:,} (the recipe has {size.tokens:,}): {why}"


def _with(recipe: Recipe, micro: dict[PolicyName, int], cache: int | None) -> Recipe:
    """Return the recipe with these micro_tokens, and max_tokens for its local engines (None: as they are)."""
    policies, engine = {}, recipe.engine
    for name, spec in recipe.policies.items():
        found = replace(spec, micro_tokens=micro.get(name, spec.micro_tokens))
        if cache is not None and positions(recipe, spec):
            sized = recipe.engine_of(spec) | {"max_tokens": cache}
            found, engine = (replace(found, engine=sized), engine) if spec.engine else (found, sized)
        policies[name] = found
    return recipe.model_copy(update={"policies": policies, "engine": engine})


def _down(count: int) -> int:
    """Return the largest power of two that is not above a count."""
    return 1 << (count.bit_length() - 1)


def _up(count: int) -> int:
    """Return the smallest power of two that is not below a count."""
    return 1 << (count - 1).bit_length()
