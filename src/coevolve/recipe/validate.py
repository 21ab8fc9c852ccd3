"""Validation of user input against a schema, a pydantic model: what is wrong, where, and what was meant.

Every mistake is a one-line ValueError that names the key's path and, for an unknown key, the nearest known one, or what
the key of another trainer is called here.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from coevolve.files import shown
from coevolve.names import did_you_mean
from coevolve.recipe.inputs import INT64

Schema = TypeVar("Schema")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def validate(
    schema: type[Schema] | TypeAdapter[Schema],
    tree: Any,
    where: str,
    places: Callable[[], Mapping[str, str]] = dict,
) -> Schema:
    """Return the tree as an instance of this pydantic model (or of the type of this adapter).

    places: returns key -> where it belongs, for a key that stands in another place. Raises a one-line ValueError:
    where, the path of the key, what is wrong, and the nearest known key.
    """
    try:
        if isinstance(schema, TypeAdapter):
            return schema.validate_python(tree)
        assert issubclass(schema, BaseModel)
        found = schema.model_validate(tree)
    except ValidationError as error:
        kind = schema._type if isinstance(schema, TypeAdapter) else schema
        raise ValueError(f"{where}: {_explain(error, kind, places)}") from error
    _check_numbers(found, where, ())
    return found


def _check_numbers(value: Any, where: str, path: tuple[str, ...]) -> None:
    """Raise ValueError naming the key of a number that is not finite or does not fit into 64 bits.

    The validated values are checked, not the tree: ``"nan"`` is a text until a field wants a number.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {'.'.join(path)} is {value}; want a finite number")
    if isinstance(value, int) and not -INT64 <= value < INT64:
        raise ValueError(f"{where}: {'.'.join(path)} is beyond 64 bits; want a smaller number")
    for key, inner in _inside(value):
        _check_numbers(inner, where, (*path, str(key)))


def _inside(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (key or index, value) pairs of a mapping, list, tuple, model or dataclass; none for other values."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    if isinstance(value, str | int | float | None):  # nearly all values are
        return ()
    return ((key, getattr(value, key)) for key in _fields(type(value)))


_AN_EPOCH = "steps (an epoch is problems / batch_size of them)"


_OF_TRL = {
    "bf16": "dtype: bfloat16 of a policy",
    "epsilon": "algorithm.clip",
    "eval_steps": "not needed: problems held out are played at every checkpoint (save_every, samples)",
    "gradient_accumulation_steps": "batch_size (micro_tokens of a policy bounds the memory)",
    "logging_steps": "not needed: every step is logged",
    "loss_type": "algorithm.loss_aggregation",
    "lr_scheduler_type": "schedule of a policy",
    "max_completion_length": "sampling.max_new_tokens",
    "max_steps": "steps",
    "model_name_or_path": "model of a policy",
    "num_generations": "members",
    "num_iterations": "algorithm.epochs",
    "num_train_epochs": _AN_EPOCH,
    "peft_config": "lora of a policy, with weights: lora",
    "per_device_train_batch_size": "batch_size, in prompts",
    "reward_funcs": "task.reward",
    "save_steps": "save_every",
    "save_total_limit": "keep_last",
    "scale_rewards": "algorithm.std",
    "train_dataset": "task.data",
}
"""TRL's setting -> its name in a recipe; docs/from-trl.md lists all."""


_OF_VERL = {
    "kl_coef": "eta of ppo and cory, beta (with kl: reward) of the others",
    "kl_loss_coef": "beta of the algorithm (ppo and cory have eta)",
    "lr": "learning_rate of a policy",
    "n": "members",
    "total_epochs": _AN_EPOCH,
}
"""verl's setting, without its section -> its name in a recipe."""


_OF_PEFT = {
    "lora_alpha": "lora.alpha of a policy",
    "r": "lora.rank of a policy",
    "target_modules": "lora.targets of a policy",
}
"""peft's setting -> its name in a recipe."""


_BESIDE = {"n": {"members", "max_new_tokens"}, "r": {"rank"}}
"""Short words, of which plays and tasks may have their own -> the known keys beside which they are another's."""


def _in_our_words(word: str, known: Sequence[str]) -> str:
    """Return ``"; TRL's max_steps is steps"``, or an empty text for a word that is none of TRL's, verl's or peft's."""
    if not _BESIDE.get(word, set(known)) & set(known):
        return ""
    theirs = {"TRL": _OF_TRL, "verl": _OF_VERL, "peft": _OF_PEFT}
    return next((f"; {whose}'s {word} is {names[word]}" for whose, names in theirs.items() if word in names), "")


def _explain(error: ValidationError, schema: Any, places: Callable[[], Mapping[str, str]]) -> str:
    """Describe the first unknown key if there is one (it often causes the other errors), else the first error."""
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] not in _UNKNOWN_KEY)
    first = errors[0]
    path, known = _locate(schema, first["loc"])
    if first["type"] in _UNKNOWN_KEY:
        word = str(first["loc"][-1])
        near = _belongs_to(word, known, places()) or _in_our_words(word, known) or did_you_mean(word, known)
        return f"unknown key {path}{near}; known: {', '.join(known) or 'none'}"
    if first["type"].startswith("missing"):
        beside = [e["loc"] for e in errors[1:] if e["type"] == first["type"] and e["loc"][:-1] == first["loc"][:-1]]
        also = [str(loc[-1]) for loc in beside]
        return (
            f"{path}: missing, and without a default"
            + f"; so {'is' if len(also) == 1 else 'are'} {', '.join(also)}" * bool(also)
        )
    if want := _want(first):
        return f"{path} is {shown(first['input'])}; want {want}"
    message = _OUR_NAMES.sub("", first["msg"].removeprefix("Value error, "))
    given = "" if first["type"].startswith("value_error") else f", found {shown(first['input'])}"
    return f"{path}: {message[0].lower()}{message[1:]}{given}" if path else message


def _belongs_to(word: str, known: Sequence[str], places: Mapping[str, str]) -> str:
    """Return where a key belongs, and the known key that begins as it does, if any; empty if it belongs nowhere."""
    if word not in places:
        return ""
    alike = [key for key in known if min(len(key), len(word)) > 2 and (key.startswith(word) or word.startswith(key))]
    return f"; {word} is a setting of {places[word]}" + "".join(f"; or did you mean {key!r}?" for key in alike[:1])


_RANGES = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
}


def _want(error: ErrorDetails) -> str:
    """Return the range or the words that a value had to be in; empty for any other kind of mistake."""
    if error["type"] == "literal_error":
        words = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"one of {', '.join(words)}{did_you_mean(shown(error['input']), words)}"
    return _RANGES.get(error["type"], "").format(**error.get("ctx", {}))


_OUR_NAMES = re.compile(r" or an instance of \w+")
"""The part of pydantic's messages that names a Python class, which a file cannot contain."""


def _locate(schema: Any, loc: Sequence[str | int]) -> tuple[str, list[str]]:
    """Return the dotted path of a pydantic location (without union tags) and the keys known where it ends."""
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
    """Return the types of a union, without their Annotated wrappers; another type alone."""
    if typing.get_origin(kind) is Annotated:
        return _flatten(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (Union, types.UnionType):
        return [member for arg in typing.get_args(kind) for member in _flatten(arg)]
    return [kind]


def _fields(kind: Any) -> dict[str, Any]:
    """Return key -> type of a model or a dataclass; empty for any other type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return {}


def _child(kind: Any, part: str | int) -> Any:
    """Return the type of the value at this key or index, None if there is none."""
    if typing.get_origin(kind) in (dict, list, Mapping, Sequence) and typing.get_args(kind):
        return typing.get_args(kind)[-1]
    return _fields(kind).get(str(part))
