"""Strict reading of user input: YAML files and key=value overrides; ``recipe.validate`` holds it against a schema.

Every mistake is a one-line ValueError that names the key's path.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from coevolve.files import cut, kind_of, read_text, shown
from coevolve.names import did_you_mean

Tree = dict[str, Any]

_MIB = 1 << 20
_BYTES = 1 * _MIB  # limit for a YAML file; a recipe is a page or two, and reading YAML is slow
_LONGEST = 200  # limit for the characters of a key
_DEEP = 32  # limit for nested levels of keys and lists
_VALUES = 100_000  # limit for the values in a tree, its aliases written out
INT64 = 1 << 63  # integers of 64 bits are below it


class _Loader(yaml.SafeLoader):
    """A YAML loader with the numbers of YAML 1.2 (``_read_numbers_of_1_2``) and strict keys.

    A key given twice, or one that is not text, is an error; so is a value that cannot be constructed (a date of month
    13, ``!!int x``). Each error names the line.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, up to a limit of depth: PyYAML's time grows with its square (seconds for 10,000 brackets)."""
        self._depth += 1
        if self._depth > 2 * _DEEP:  # depths between _DEEP and this: ``_unshared`` names the key
            raise RecursionError
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                problem = "`<<` is not read; write the keys out, or lay the recipe over a `base`"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"the key {shown(key)} is no text; put it in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            if key in seen:
                problem = f"the key {shown(key)} is there twice; leave one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            problem = f"{shown(node.value)} is no {node.tag.rpartition(':')[2]}; put it in quotes if it is a text"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


class Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes texts which ``load_yaml`` or PyYAML would not read as texts, such as 1e-4 or 010."""


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBERS = {
    _INT: re.compile(r"([-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$"),
    _FLOAT: re.compile(
        r"([-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}
"""Unquoted texts that are read as numbers: those of YAML 1.2, and 1_000."""


def _read_numbers_of_1_2() -> None:
    """Make loader and dumper use the numbers of YAML 1.2.

    PyYAML follows YAML 1.1, in which 1e-4 is a text, 010 is 8 and 1:30 is 90: never what a recipe means.
    """
    _Loader.yaml_implicit_resolvers = {
        first: [one for one in resolvers if one[0] not in _NUMBERS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for tag, written in _NUMBERS.items():
        for kind in (_Loader, Dumper):  # the dumper keeps the quotes that readers of YAML 1.1 need
            kind.add_implicit_resolver(tag, written, list("-+.0123456789"))
    _Loader.add_constructor(_INT, _integer)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


_read_numbers_of_1_2()


def dump(tree: Any, **how: Any) -> str:
    """Return settings as YAML that ``load_yaml`` reads back unchanged, keys in their order. how: for ``yaml.dump``."""
    text: str = yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, **how)
    return text


def load_yaml(path: str | Path) -> Tree:
    """Return the mapping in a YAML file. Raises ValueError for no file, bad YAML (with its line) or no mapping."""
    path = Path(path)
    if not os.path.isfile(path):  # unlike Path.is_file, does not raise for a name that no file system takes
        raise ValueError(f"no file {cut(path)}{did_you_mean(cut(path), map(str, path.parent.glob('*.yaml')))}")
    if (size := path.stat().st_size) > _BYTES:
        raise ValueError(f"{path} has {size / _MIB:.1f} MiB; a file of settings has at most {_BYTES // _MIB}")
    tree = _parsed(read_text(path), str(path), lines=True)
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: want keys and values, found {kind_of(tree).removeprefix('a ')}")
    return tree


def apply_overrides(tree: Mapping[str, Any], overrides: Iterable[str]) -> Tree:
    """Return a copy of the tree with each ``a.b=value`` set; ``a.*.b`` sets b in every key of a. Values are YAML. A
    text is the name of a component, or the model of a policy, and leaves the settings of one that is called so.

    Raises ValueError naming the override at fault.
    """
    result: Tree = copy.deepcopy(dict(tree))
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = _keys(result, path.strip())
        named = f"override {shown(override)}"
        if not equals or not all(keys):
            raise ValueError(f"{named}: want key=value or key.sub=value")
        if len(keys) > _DEEP:
            raise ValueError(f"{named}: want at most {_DEEP} keys with dots between them")
        for key in keys:
            _check_key(key, named)
        for one in _starred(result, keys, named):
            _set(result, one, _parsed(text, named, lines=False), named)
    return result


def _keys(tree: Tree, path: str) -> list[str]:
    """Split a path at its dots; where the tree has a key that contains dots, that key stays whole."""
    keys, place, rest = list[str](), cast(Any, tree), path.split(".")
    while rest:
        ends = range(len(rest), 0, -1)
        there = (end for end in ends if isinstance(place, dict) and ".".join(rest[:end]) in place)
        end = next(there, 1)
        keys.append(".".join(rest[:end]))
        place, rest = place.get(keys[-1]) if isinstance(place, dict) else None, rest[end:]
    return keys


def _starred(tree: Tree, keys: list[str], named: str) -> list[list[str]]:
    """Return all paths that a path with ``*`` stands for: one for each key that the tree has at that place."""
    if "*" not in keys:
        return [keys]
    at = keys.index("*")
    place: Any = tree
    for key in keys[:at]:
        place = place.get(key) if isinstance(place, dict) else None
    if not isinstance(place, dict) or not place:
        near = "" if keys[0] in tree else did_you_mean(keys[0], tree)
        raise ValueError(f"{named}: {'.'.join(keys[:at]) or 'the top'} has no keys that * could stand for{near}")
    return [path for key in place for path in _starred(tree, [*keys[:at], key, *keys[at + 1 :]], named)]


def _set(tree: Tree, keys: list[str], value: Any, named: str) -> None:
    place = tree
    for depth, key in enumerate(keys[:-1], 1):
        inner = place.setdefault(key, {})
        if not isinstance(inner, dict):
            above = ".".join(keys[:depth])
            raise ValueError(f"{named}: {above} is {shown(inner)}, with no keys below it; set {above} as a whole")
        place = inner
    there = place.get(keys[-1])
    if isinstance(value, str) and isinstance(there, dict) and there.get("name") == value:
        return
    if isinstance(value, str) and isinstance(there, dict) and keys[0] == "policies" and len(keys) == 2:
        there["model"] = value
        return
    place[keys[-1]] = value


def _parsed(text: str, where: str, *, lines: bool) -> Any:
    """Parse a YAML text into dicts, lists, texts and numbers; no two places share an object.

    Raises ValueError that begins with ``where`` and, with ``lines``, names the line."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if lines and error.problem_mark else ""
        cut = (
            "" if lines or "<stream end>" not in str(error.problem) else "; the shell splits at blanks: quote all of it"
        )
        raise ValueError(f"{where}{line}: not YAML: {error.problem or error.context}{cut}") from error
    except yaml.reader.ReaderError as error:
        line = f", line {text.count(chr(10), 0, error.position) + 1}" if lines else ""
        raise ValueError(f"{where}{line}: not YAML: the character U+{error.character:04X}; want plain text") from error
    except RecursionError as error:
        raise ValueError(f"{where}: {_TOO_DEEP}") from error
    return _unshared(value, where, (), [_VALUES])


_TOO_DEEP = f"nested deeper than {_DEEP} levels, or in itself; want a few levels of keys and lists"


def _unshared(value: Any, where: str, path: tuple[str, ...], left: list[int]) -> Any:
    """Return a copy in which every YAML alias is written out. left: how many more values the whole may have."""
    left[0] -= 1
    at = f"{where}: {'.'.join(path)}" if path else where
    if len(path) > _DEEP:
        raise ValueError(f"{where}: {path[0]}: {_TOO_DEEP}")
    if left[0] < 0:
        raise ValueError(f"{where}: more than {_VALUES:,} values, aliases (*name) written out; want far fewer")
    if isinstance(value, dict):
        for key in value:
            _check_key(key, at)
        return {key: _unshared(inner, where, (*path, key), left) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unshared(inner, where, (*path, str(place)), left) for place, inner in enumerate(value)]
    if isinstance(value, str) and (bad := _UNWRITABLE.search(value)):
        raise ValueError(f"{at} holds the character U+{ord(bad[0]):04X}, which no file or prompt can; leave it out")
    if isinstance(value, int) and not -INT64 <= value < INT64:
        raise ValueError(f"{at} is beyond 64 bits; want a smaller number")
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{at} is {kind_of(value)}; put it in quotes if it is a text")
    return value


def _check_key(key: str, at: str) -> None:
    if not key.isprintable() or len(key) > _LONGEST:
        raise ValueError(f"{at}: the key {shown(key)} is too long or cannot be seen; want a name of a few letters")


_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""Characters refused in texts: NUL ends a path, a lone surrogate is half a character."""
