"""From a name in a recipe to an object: of a registry or the user's ``file.py:Name``, called with checked settings."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, create_model

from coevolve.faults import is_interrupt, raised
from coevolve.files import cut, shown
from coevolve.recipe.inputs import did_you_mean, validate

Made = TypeVar("Made")

USER = "coevolve_user."
"""What the names of modules made of users' files begin with; their paths follow."""


_MAY_LEAVE = ("roles",)
"""What is given to a factory that has a parameter for it: a cast may know the roles by itself."""


def component(spec: Any, registry: Mapping[str, Callable[..., Made]], kind: str, /, **fixed: Any) -> Made:
    """Build what a recipe names: ``name``, ``{name: n, key: value}``, or ``file.py:Name`` in place of the name.

    The settings are checked against the factory's signature, keys and types; ``fixed`` are what a recipe cannot give,
    and a factory need not take the roles. kind is the recipe's key ("task", "play"), for messages. Raises ValueError
    for an unknown name or setting.
    """
    return resolve(spec, registry, kind, **fixed)()


def resolve(spec: Any, registry: Mapping[str, Callable[..., Made]], kind: str, /, **fixed: Any) -> Callable[[], Made]:
    """``component`` up to the call: everything is checked, nothing is built."""
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
    return partial(factory, **given, **checked(factory, rest, kind, fixed))


def checked(
    factory: Callable[..., Any], settings: Mapping[str, Any], where: str, fixed: Iterable[str]
) -> dict[str, Any]:
    """The settings, coerced to the types of the factory's parameters. Raises ValueError for a wrong key or type."""
    valid = validate(_schema(factory, tuple(fixed)), dict(settings), where)
    return {key: getattr(valid, key) for key in settings}


@functools.cache
def _schema(factory: Callable[..., Any], fixed: tuple[str, ...]) -> type[BaseModel]:
    """The parameters of a factory as the fields of a model, but for the fixed ones."""
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
    return create_model("Settings", __config__=config, **fields)


def _hints(function: Any) -> dict[str, Any]:
    """The types of a function's parameters; of those that name what is imported for type checkers alone, none."""
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
    """A class or a function makes the component; a coroutine function (a play) or another object already is one."""
    maker = inspect.isclass(found) or inspect.isroutine(found) or isinstance(found, partial)
    return maker and not inspect.iscoroutinefunction(found)


def from_file(name: str, registry: Iterable[str], kind: str) -> Any:
    """The object ``Name`` of ``file.py:Name``. registry: other names that could have been meant, for messages.

    Raises ValueError if there is no such thing.
    """
    file, colon, attribute = name.rpartition(":")
    if name.endswith(".py"):
        raise ValueError(f"{kind}: {shown(name)} is a file; write {name}:Name, with the name of what is meant in it")
    if not colon or not file.endswith(".py"):
        known = sorted(registry)
        listed = ", ".join([*known, "file.py:Name"])
        raise ValueError(f"{kind}: unknown name {shown(name)}{did_you_mean(name, known)}; known: {listed}")
    path = Path(file).absolute()
    if not os.path.isfile(path):  # unlike Path.is_file, also for a name that no file system takes
        raise ValueError(f"{kind}: no file {cut(path)}, named by {shown(name)}")
    module = _import(path, kind)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ValueError(f"{kind}: {path} has no {attribute!r}{did_you_mean(attribute, public)}")
    return getattr(module, attribute)


def _import(path: Path, kind: str) -> Any:
    """A user's file as a module; its folder is not put on sys.path, and importing it twice gives one module."""
    name = f"{USER}{path}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if is_interrupt(error):
            raise
        raise ValueError(f"{kind}: {path} cannot be imported: {raised(error)}") from error
    return module
