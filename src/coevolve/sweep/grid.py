"""The grid of a sweep: one recipe per combination of values (``seed=0..9 algorithm.eta=0.03,0.1``)."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from coevolve.files import cut, shown
from coevolve.names import check_run_name
from coevolve.recipe.build import check_taught, parts
from coevolve.recipe.read import load_recipe
from coevolve.recipe.schema import Recipe
from coevolve.report import trackers

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
_DASHED = re.compile(r"(\d+)-(\d+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_MOST = 10_000  # runs; more is probably a typing error, and checking them would take hours
_SETTING, _SETTINGS = 40, 120
"""Most characters of one setting and of all settings in a folder's name; file systems allow 255 in all."""

Axes = dict[str, list[str]]
"""Key -> its values, as written in an override."""


def grid(path: Path, overrides: Iterable[str], output: Path) -> list[Recipe]:
    """Return a checked recipe for each combination of the values, the last key varying fastest.

    path: a recipe file; its stem begins the names of the runs' folders in ``output``. Raises ValueError for an invalid
    combination and for two that are the same run, naming them, and for more than ``_MOST`` combinations.
    """
    axes = _axes(overrides)
    if (count := math.prod(map(len, axes.values()))) > _MOST:
        raise ValueError(f"{count:,} combinations; a sweep is of at most {_MOST:,}")
    varied = [key for key, values in axes.items() if len(values) > 1]
    recipes = []
    seen: dict[str, str] = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        here = " ".join(f"{key}={chosen[key]}" for key in varied)
        try:
            recipe = _checked(load_recipe(path, [f"{key}={value}" for key, value in chosen.items()]))
        except ValueError as error:
            said = f"{error}{_written_with_a_dash(chosen, str(error))}"
            raise ValueError(f"{here}: {said}" if here else said) from error
        # The order of the roles counts too: a chain speaks in it.
        record = json.dumps([recipe.record(), list(recipe.roles)], sort_keys=True)
        if record in seen:
            raise ValueError(f"{here} and {seen[record]} are the same run; leave one out")
        seen[record] = here
        name = _name(path.stem, {key: chosen[key] for key in varied if key != "seed"}, recipe.seed)
        check_run_name(name)
        recipes.append(recipe.model_copy(update={"output_dir": output / name}))
    return recipes


def _written_with_a_dash(chosen: Mapping[str, str], error: str) -> str:
    """Return ``"; a range is 0..3"`` if the error is about a value such as 0-3; else an empty text."""
    dashed = (_DASHED.fullmatch(value) for key, value in chosen.items() if f"{key}=" in error)
    return next((f"; a range is {ends[1]}..{ends[2]}" for ends in dashed if ends), "")


def _checked(recipe: Recipe) -> Recipe:
    """Return the recipe. Raises ValueError for components and trackers that do not exist or are invalid, and where
    nobody could learn; the task is only built when a run starts."""
    check_taught(recipe)
    made = parts(recipe)
    for make in (made.play, made.cast):
        make()
    trackers.check(recipe.report_to)
    return recipe


def _axes(overrides: Iterable[str]) -> Axes:
    axes: Axes = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not key or not equals:
            raise ValueError(f"override {shown(override)}: want key=value, key=a,b,c or key=0..9")
        if key in axes:
            raise ValueError(f"{cut(key)} is there twice; separate its values by commas: {cut(key)}=a,b")
        if key == "output_dir":
            raise ValueError("output_dir: every run has a folder of its own; say where they go with --output")
        axes[key] = values(text, override)
    return axes


def values(text: str, override: str) -> list[str]:
    """Split ``"0..2,7"`` into 0, 1, 2, 7; commas inside of brackets, braces and quotes do not separate values.

    Raises ValueError, naming the override, for invalid YAML and for a range that descends or has more than ``_MOST``
    values.
    """
    try:
        node = yaml.compose(f"[{text}]", yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        why = getattr(error, "problem", None) or "nested too deeply, or of characters that no text has"
        raise ValueError(f"override {shown(override)}: not YAML values with commas between: {why}") from error
    if not isinstance(node, yaml.SequenceNode):  # for instance of "a]: [b"
        raise ValueError(f"override {shown(override)}: not YAML values with commas between")
    found = []
    for item in node.value:
        written = text[item.start_mark.index - 1 : item.end_mark.index - 1].strip()
        ends = _RANGE.fullmatch(written)
        if ends is None:
            found.append(written)
            continue
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise ValueError(f"override {shown(override)}: {written} goes down; want {last}..{first}")
        if last - first >= _MOST:
            raise ValueError(
                f"override {shown(override)}: {last - first + 1:,} values; a sweep is of at most {_MOST:,} runs"
            )
        found.extend(map(str, range(first, last + 1)))
    return found or [text]


def _name(stem: str, settings: Mapping[str, str], seed: int) -> str:
    """Return a run's folder name, ``cory-eta=0.1-3``; a report groups seeds by the part before the last dash."""
    shown = [_safe(f"{_short(key, list(settings))}={value}", _SETTING) for key, value in settings.items()]
    return "-".join([stem, *([_safe("-".join(shown), _SETTINGS)] if shown else []), str(seed)])


def _short(key: str, keys: Sequence[str]) -> str:
    """Return the shortest end of a dotted key that no other key ends with."""
    words = key.split(".")
    ends = (".".join(words[-n:]) for n in range(1, len(words) + 1))
    return next((end for end in ends if sum(f".{k}".endswith(f".{end}") for k in keys) == 1), key)


def _safe(text: str, longest: int) -> str:
    """Return the text if it is a safe file name, else its safe characters, cut, and a hash of the whole text."""
    clean = _UNSAFE.sub("-", text).strip("-")
    if clean == text and len(text) <= longest:
        return text
    return f"{clean.replace('=-', '=')[: longest - 7]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
