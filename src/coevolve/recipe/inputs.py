"""What a user wrote, read strictly: YAML files, key=value overrides, schemas.

Every mistake is a ValueError of one line that names the key's path and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

Tree = dict[str, Any]
Schema = TypeVar("Schema")

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers (PyYAML reads 1e-4 as text); a key given twice, or one that is not text, is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is no text", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is there twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_yaml(path: str | Path) -> Tree:
    """The mapping in a YAML file. Raises ValueError for no file, bad YAML (with its line) or another kind of value."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {path}{did_you_mean(str(path), map(str, path.parent.glob('*.yaml')))}")
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path}{line}: not a recipe in YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {one_line(error)}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: want keys and values, found {'nothing' if tree is None else type(tree).__name__}")
    return tree


def apply_overrides(tree: Mapping[str, Any], overrides: Iterable[str]) -> Tree:
    """A copy of the tree with each ``a.b=value`` set, values typed as in YAML. ValueError names the override."""
    result: Tree = copy.deepcopy(dict(tree))
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ValueError(f"override {override!r}: want key=value or key.sub=value")
        try:
            value = yaml.load(text, _Loader)
        except yaml.YAMLError as error:
            raise ValueError(f"override {override!r}: the value is not YAML: {one_line(error)}") from error
        place = result
        for depth, key in enumerate(keys[:-1], 1):
            inner = place.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"override {override!r}: {'.'.join(keys[:depth])} is {inner!r}, with no keys below it")
            place = inner
        place[keys[-1]] = value
    return result


def validate(schema: type[Schema] | TypeAdapter[Schema], tree: Any, where: str) -> Schema:
    """The tree as this pydantic model (or as the type of this adapter).

    Raises ValueError of one line: where, the path of the key, what is wrong, and the nearest known key.
    """
    try:
        if isinstance(schema, TypeAdapter):
            return schema.validate_python(tree)
        assert issubclass(schema, BaseModel)
        return schema.model_validate(tree)
    except ValidationError as error:
        kind = schema._type if isinstance(schema, TypeAdapter) else schema
        raise ValueError(f"{where}: {_explain(error, kind)}") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing if no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: Any) -> str:
    """For a message: ``repr``, or for a whole number too long for Python to print (5,000 digits) its length."""
    long = isinstance(value, int) and value.bit_length() > 1000
    return f"a whole number of {value.bit_length()} bits" if long else repr(value)


def one_line(error: BaseException) -> str:
    """The message of an exception without its line breaks."""
    return " ".join(str(error).split())


def _explain(error: ValidationError, schema: Any) -> str:
    """The first unknown key if there is one (it often causes the other errors), else the first error."""
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] not in _UNKNOWN_KEY)
    first = errors[0]
    path, known = _locate(schema, first["loc"])
    if first["type"] in _UNKNOWN_KEY:
        return f"unknown key {path}{did_you_mean(str(first['loc'][-1]), known)}; known: {', '.join(known) or 'none'}"
    if want := _want(first):
        return f"{path} is {shown(first['input'])}; want {want}"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"].startswith(("missing", "value_error")) else f", found {shown(first['input'])}"
    return f"{path}: {message[0].lower()}{message[1:]}{given}" if path else message


_RANGES = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
}


def _want(error: ErrorDetails) -> str:
    """What a value out of its range, or none of several words, had to be; empty for any other mistake."""
    if error["type"] == "literal_error":
        words = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"one of {', '.join(words)}{did_you_mean(shown(error['input']), words)}"
    return _RANGES.get(error["type"], "").format(**error.get("ctx", {}))


def _locate(schema: Any, loc: Sequence[str | int]) -> tuple[str, list[str]]:
    """The dotted path of a pydantic location, and the keys known where it ends (union tags in it are passed over)."""
    candidates, path = _flatten(schema), list[str]()
    for depth, part in enumerate(loc):
        inner = [child for c in candidates for child in _flatten(_child(c, part)) if child is not None]
        last = depth == len(loc) - 1
        tag = len(candidates) > 1 and not inner and str(part) not in {key for c in candidates for key in _fields(c)}
        if inner or (last and not tag):
            path.append(str(part))
        if inner and not last:
            candidates = inner
    return ".".join(path), sorted({key for c in candidates for key in _fields(c)})


def _flatten(kind: Any) -> list[Any]:
    """The members of a union, out of their Annotated wrappers."""
    if typing.get_origin(kind) is Annotated:
        return _flatten(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (Union, types.UnionType):
        return [member for arg in typing.get_args(kind) for member in _flatten(arg)]
    return [kind]


def _fields(kind: Any) -> dict[str, Any]:
    """Key -> type, of a model or a dataclass; empty for anything else."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return {}


def _child(kind: Any, part: str | int) -> Any:
    """The type below this key or index, None if there is none."""
    if typing.get_origin(kind) in (dict, list, Mapping, Sequence) and typing.get_args(kind):
        return typing.get_args(kind)[-1]
    return _fields(kind).get(str(part))
