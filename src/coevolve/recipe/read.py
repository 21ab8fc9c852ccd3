"""How a file becomes a recipe: its base, its overrides, short forms and the names of files.

A recipe may begin with ``base: other.yaml`` (one level, relative to the recipe): its keys then override the base's, one
by one. ``key: null`` removes a key of the base; a component of another name replaces the base's with all its settings.
The name of a file (``.yaml``, ``.txt``, a table as in ``tasks.tables``, or ``file.py:Name``) is relative to the recipe
that it stands in; in a list only ``file.py:Name`` is. Where a base or a model names a recipe file that does not exist,
the packaged recipe of that name is meant, if there is one.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coevolve import defaults
from coevolve.algorithms import ALGORITHMS
from coevolve.files import cut, shown
from coevolve.learners import LEARNERS
from coevolve.models.spec import LoraSpec, RecipePolicy
from coevolve.names import did_you_mean
from coevolve.recipe.inputs import apply_overrides, load_yaml
from coevolve.recipe.packaged import beside, located, packaged
from coevolve.recipe.schema import Recipe
from coevolve.recipe.validate import validate
from coevolve.runs.identity import flat
from coevolve.runs.signature import ROWS, rows_in
from coevolve.types import Sampling

_COMPONENTS = ("task", "play", "cast", "algorithm", "engine", "learner")
_A_FILE = re.compile(r"[^:{}\n]+(\.ya?ml|\.jsonl(\.gz)?|\.json|\.[ct]sv|\.parquet|\.txt|\.py:\w+)$")


def names_file(value: Any, folder: Path = Path()) -> bool:
    """Return whether a value is the name of a file.

    A value with blanks counts as a sentence, unless the file exists or the path is absolute. The folders of an absolute
    path may have any names."""
    if not isinstance(value, str) or "\n" in value:
        return False
    file = os.path.expanduser(value)
    absolute = os.path.isabs(file)
    if not _A_FILE.fullmatch(os.path.basename(file) if absolute else value):
        return False
    return absolute or not re.search(r"\s", value) or os.path.isfile(folder / (file.rpartition(":")[0] or file))


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe, its base and the ``key.sub=value`` overrides. Raises a one-line ValueError for any mistake."""
    path, overrides, full = located(path), list(overrides), list[str]()
    trees = [_over_its_base(path, _read(path))]
    # One by one: `algorithm.eta=1` may set a key of what `algorithm=cory` named.
    for override in overrides:
        full.append(_in_full(override, trees[-1]))
        trees.append(_spelt_out(apply_overrides(trees[-1], full[-1:]), Path.cwd()))
        _check_undone(full, trees[-2], trees[-1])
    try:
        return _valid(path, trees[-1])
    except ValueError as error:
        at_fault = [_mistake(path, tree) for tree in trees].index(str(error))
        if not at_fault:
            raise
        said = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"override {shown(overrides[at_fault - 1])}: {said}") from error


def _in_full(override: str, tree: Mapping[str, Any]) -> str:
    """Return the override, or what ``cluster=ADDRESS`` is short for. tree: the recipe before it."""
    key, equals, address = override.partition("=")
    if key.strip() != "cluster" or not equals:
        return override
    if not tree.get("learner"):
        raise ValueError(
            f"override {shown(override)}: no ranks that a cluster could place; say how many each policy has, before it "
            f"or with it: 'learner={{name: fsdp, ranks: 2, cluster: ADDRESS}}'"
        )
    return f"learner.cluster={address}"


def _check_undone(overrides: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError if the last override takes away what an earlier one has set. before, now: the recipe, without
    and with the last one."""
    last, gone = _path_of(overrides[-1]), flat(before).keys() - flat(now).keys()
    for other in overrides[:-1]:
        path = _path_of(other)
        if len(path) > len(last) and any(_below(key, path) and _below(key, last) for key in gone):
            raise ValueError(
                f"override {shown(overrides[-1])}: it replaces all of {'.'.join(last)}, also what {other} set before; "
                "leave one of them out, or say it with what it replaces: key={name: ..., key: value}"
            )


def _path_of(override: str) -> list[str]:
    return override.partition("=")[0].strip().split(".")


def _below(key: str, path: Sequence[str]) -> bool:
    """Return whether a dotted key is at this path, in which * is any one, or below it."""
    parts = key.split(".")
    return len(parts) >= len(path) and all(one in ("*", part) for one, part in zip(path, parts, strict=False))


def _mistake(path: Path, tree: Mapping[str, Any]) -> str:
    """Return what is wrong with the tree of a recipe; empty if nothing is."""
    try:
        _valid(path, tree)
    except ValueError as error:
        return str(error)
    return ""


def _valid(path: Path, tree: Mapping[str, Any]) -> Recipe:
    tree = dict(tree)
    if "kind" in tree and "roles" not in tree:
        raise ValueError(f"{path}: a recipe with `kind` is for `coevolve pretrain`; the recipe of a team has `roles`")
    if tree.get("output_dir") is None:
        tree["output_dir"] = f"runs/{path.stem}-{tree.get('seed', defaults.SEED)}"
    return validate(Recipe, tree, str(path), places)


def places(siblings: Mapping[str, Callable[..., Any]] | None = None) -> dict[str, str]:
    """Return setting -> whose it is and where it stands, for one that stands in another place of a recipe.

    siblings: the components of the kind that was given it, of which another one may have it.
    """
    several: dict[str, Iterable[str]] = {
        "a learner: learner.{0}": _settings(LEARNERS),
        "a policy's lora: policies.*.lora.{0} for all, policies.NAME.lora.{0} for one": LoraSpec.__dataclass_fields__,
        "an algorithm: algorithm.{0}": _settings(ALGORITHMS),
        "sampling: sampling.{0}": Sampling.__dataclass_fields__,
        "a policy: policies.*.{0} for all, policies.NAME.{0} for one": RecipePolicy.__dataclass_fields__,
        "the recipe: {0}, with nothing before it": Recipe.model_fields,
        "the command: --{0}": ["resume"],
    }
    theirs = _settings(siblings or {})
    return {name: where.format(name) for where, names in several.items() for name in names if name not in theirs}


def _settings(registry: Mapping[str, Callable[..., Any]]) -> set[str]:
    return {name for made in registry.values() for name in inspect.signature(made).parameters}


def _read(path: Path) -> dict[str, Any]:
    return _spelt_out(load_yaml(path), path.parent)


def _over_its_base(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of this path with its base, if it names one, filled in below it."""
    if "base" not in tree:
        return tree
    over = {key: value for key, value in tree.items() if key != "base"}
    if not isinstance(tree["base"], str):
        raise ValueError(f"{path}: base is {shown(tree['base'])}; want the path of another recipe")
    base = beside(tree["base"], path.parent)
    if not os.path.isfile(base):
        known = {one.name for one in (*path.parent.glob("*.yaml"), *packaged().values())} - {path.name}
        near = did_you_mean(cut(tree["base"]), sorted(known))
        raise ValueError(f"{path}: its base {cut(tree['base'])} is not there, nor a recipe of the package{near}")
    below = _read(base)
    if "base" in below:
        raise ValueError(f"{path}: its base {base} has a base itself; one level is the limit")
    return _laid_over(below, over)


def _spelt_out(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the recipe with short forms expanded (``play: chain``, ``ann: coevolve-tiny``) and files ``anchored``."""
    tree = dict(tree)
    for key in _COMPONENTS:
        if key in tree:
            tree[key] = _component({"name": tree[key]} if isinstance(tree[key], str) else tree[key], folder)
    if isinstance(tree.get("callbacks"), list):
        named = [{"name": one} if isinstance(one, str) else one for one in tree["callbacks"]]
        tree["callbacks"] = [anchored(one, folder) for one in named]
    if isinstance(tree.get("policies"), Mapping):
        policies = {n: {"model": p} if isinstance(p, str) else p for n, p in tree["policies"].items()}
        policies = {n: _with_engine(p) if isinstance(p, Mapping) else p for n, p in policies.items()}
        tree["policies"] = anchored(policies, folder)
    return tree


def _component(settings: Any, folder: Path) -> Any:
    """Return a component's settings, ``anchored`` but for rows. A recipe over a base may leave the name to the base."""
    if not isinstance(settings, Mapping):
        return anchored(settings, folder)
    return {**anchored(settings, folder), **rows_in({"name": ROWS, **settings})}


def _with_engine(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**policy, "engine": {"name": policy["engine"]}} if isinstance(policy.get("engine"), str) else policy


def anchored(value: Any, folder: Path) -> Any:
    """Return the settings with the names of files made absolute, relative names from this folder.

    Of a list's items only ``file.py:Name`` and mappings are: other words may be those of a command.
    """
    if isinstance(value, Mapping):
        return {key: anchored(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [anchored(one, folder) if isinstance(one, Mapping) or is_code(one, folder) else one for one in value]
    if names_file(value, folder):
        return str(beside(value, folder))
    return value


def is_code(value: Any, folder: Path = Path()) -> bool:
    """Return whether a value is ``file.py:Name``."""
    return ".py:" in os.path.basename(str(value)) and names_file(value, folder)


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any], component: bool = False) -> dict[str, Any]:
    if component and over.get("name", base.get("name")) != base.get("name"):
        return dict(over)
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            result[key] = _laid_over(base[key], value, key not in ("roles", "policies"))  # whose keys are free names
        else:
            result[key] = value
    return result
