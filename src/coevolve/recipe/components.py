"""Components by name: a registered factory, or the user's ``file.py:Name``, called with checked settings."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, create_model

from coevolve.faults import is_interrupt, raised
from coevolve.files import cut, shown
from coevolve.names import did_you_mean
from coevolve.recipe.validate import validate

Made = TypeVar("Made")

USER = "coevolve_user."
"""Prefix of the names of modules that are imported from users' files; the file's path follows."""


_MAY_LEAVE = ("roles",)
"""Fixed arguments that a factory gets only if it has a parameter for them: a cast may know its roles by itself."""


def component(spec: Any, registry: Mapping[str, Callable[..., Made]], kind: str, /, **fixed: Any) -> Made:
    """Build the component that a recipe names: ``name``, ``{name: n, key: value}``, or ``file.py:Name`` for the name.

    The settings' keys and types are checked against the factory's signature. fixed: further arguments, which a recipe
    cannot set; a factory need not take ``roles``. kind: the recipe's key ("task", "play"), for messages. Raises
    ValueError for an unknown name or setting.
    """
    return resolve(spec, registry, kind, **fixed)()


def resolve(
    spec: Any,
    registry: Mapping[str, Callable[..., Made]],
    kind: str,
    places: Callable[[], Mapping[str, str]] = dict,
    /,
    **fixed: Any,
) -> Callable[[], Made]:
    """Check a component as ``component`` does and return a function that builds it; nothing is built yet. places: as of
    ``inputs.validate``."""
    settings = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(settings, Mapping) or not isinstance(settings.get("name"), str):
        raise ValueError(f"{kind}: want a name, or a mapping with `name` and its settings; found {shown(spec)}")
    name = settings["name"]
    rest = {key: value for key, value in settings.items() if key != "name"}
    factory = registry[name] if name in registry else from_file(name, registry, kind)
    if not _is_factory(factory):
        if rest:
            raise ValueError(f"{kind}: {name} is the {kind} itself and takes no settings; found {', '.join(rest)}")
        return lambda: cast(Made, factory)
    parameters = inspect.signature(factory).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {key: value for key, value in fixed.items() if anything or key in parameters or key not in _MAY_LEAVE}
    return partial(factory, **given, **checked(factory, rest, kind, fixed, places))


def checked(
    factory: Callable[..., Any],
    settings: Mapping[str, Any],
    where: str,
    fixed: Iterable[str],
    places: Callable[[], Mapping[str, str]] = dict,
) -> dict[str, Any]:
    """Return the settings, coerced to the types of the factory's parameters. places: as of ``inputs.validate``.

    Raises ValueError for a wrong key or type.
    """
    valid = validate(_schema(factory, tuple(fixed)), dict(settings), where, places)
    return {key: getattr(valid, key) for key in settings}


@functools.cache
def _schema(factory: Callable[..., Any], fixed: tuple[str, ...]) -> type[BaseModel]:
    """Return a pydantic model whose fields are the factory's parameters, without the fixed ones."""
    made_by = factory.func if isinstance(factory, partial) else factory
    hints = _hints(made_by.__init__ if inspect.isclass(made_by) else made_by)
    fields: dict[str, Any] = {}
    extra = "forbid"
    for p in inspect.signature(factory).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            extra = "allow"
        elif p.kind is not p.VAR_POSITIONAL and p.name not in fixed:
            fields[p.name] = (hints.get(p.name, Any), ... if p.default is p.empty else p.default)
    config = ConfigDict(extra=cast(Any, extra), arbitrary_types_allowed=True, protected_namespaces=())
    with warnings.catch_warnings():
        # A parameter may be called `copy` or `json`, as the model's own methods are, which nobody calls.
        warnings.filterwarnings("ignore", r"Field name \".*\" in \"Settings\" shadows an attribute", UserWarning)
        return create_model("Settings", __config__=config, **fields)


def _hints(function: Any) -> dict[str, Any]:
    """Return the types of a function's parameters, without those whose names are imported for type checkers only."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        function = inspect.unwrap(function)
        found = dict[str, Any]()
        for name, hint in getattr(function, "__annotations__", {}).items():
            with suppress(NameError):
                one = types.SimpleNamespace(__annotations__={name: hint})
                found |= typing.get_type_hints(one, getattr(function, "__globals__", {}), include_extras=True)
        return found


def _is_factory(found: Any) -> bool:
    """Return whether an object builds the component, as a class or function does.

    A coroutine function (a play) or another object is the component itself.
    """
    maker = inspect.isclass(found) or inspect.isroutine(found) or isinstance(found, partial)
    return maker and not inspect.iscoroutinefunction(found)


def from_file(name: str, registry: Iterable[str], kind: str) -> Any:
    """Return the object ``Name`` of ``file.py:Name``. registry: other names that could have been meant, for messages.

    Raises ValueError if the file or the object does not exist, or the file cannot be imported.
    """
    file, colon, attribute = name.rpartition(":")
    if name.endswith(".py"):
        raise ValueError(f"{kind}: {shown(name)} is a file; write {name}:Name, with the name of what is meant in it")
    if not colon or not file.endswith(".py"):
        known = sorted(registry)
        listed = ", ".join([*known, "file.py:Name"])
        raise ValueError(f"{kind}: unknown name {shown(name)}{did_you_mean(name, known)}; known: {listed}")
    path = Path(file).absolute()
    if not os.path.isfile(path):  # unlike Path.is_file, does not raise for a name that no file system takes
        raise ValueError(f"{kind}: no file {cut(path)}, named by {shown(name)}")
    module = _import(path, kind)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ValueError(f"{kind}: {path} has no {attribute!r}{did_you_mean(attribute, public)}")
    return getattr(module, attribute)


def _import(path: Path, kind: str) -> Any:
    """Import a user's file as a module, once for all imports; its folder is not put on sys.path."""
    name = f"{USER}{path}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look up their module here
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if is_interrupt(error):
            raise
        raise ValueError(f"{kind}: {path} cannot be imported: {raised(error)}") from error
    return module
