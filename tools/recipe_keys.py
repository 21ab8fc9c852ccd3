"""Writes ``docs/reference/recipe.md``, every key of a recipe with its type and default: ``make docs-code``.

All of it is read from the source: types and defaults from signatures and fields, the words from docstrings.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from coevolve.algorithms import ALGORITHMS
from coevolve.cast import CASTS
from coevolve.credit import CREDITS
from coevolve.engines import ENGINES
from coevolve.learners import LEARNERS
from coevolve.models.spec import LoraSpec, PolicySpec, RecipePolicy
from coevolve.plays import PLAYS
from coevolve.pretrain.corpus import SOURCES
from coevolve.pretrain.recipe import CausalLMRecipe, ClassifierRecipe, Common
from coevolve.recipe import schema
from coevolve.recipe.schema import Recipe
from coevolve.rewards.sandbox import Sandbox
from coevolve.rewards.several import REWARDS
from coevolve.tasks import TASKS
from coevolve.tasks.expert import Expert
from coevolve.types import Sampling
from docs_code import ROOT

PAGE = ROOT / "docs" / "reference" / "recipe.md"

_HEAD = """# Every key of a recipe

*Made from the source by `make docs-code`; do not edit.*

A key that is left out has its default; one without a default is needed. `coevolve train recipe.yaml key.sub=value`
overrides a key, `'policies.*.key=value'` in all policies, and `--dry-run` prints the recipe with what was left to it. A
component (task, play, cast, algorithm, engine, learner, credit) is a name, or `{name: ..., key: value}` with its
settings, or `file.py:Name` of your own. Where the texts say None, True and False, a recipe says null, true and false.
A recipe that has `sampling` has `max_new_tokens` in it.
"""

_GROUPS: Mapping[str, tuple[str, Mapping[str, Callable[..., Any]], tuple[str, ...]]] = {
    "Tasks": ("`task: {name: ...}`; what each is, its data and its rewards: [tasks](../tasks.md).", TASKS, ()),
    "Inside coding tasks": (
        "`task.sandbox` and `task.feedback: {expert: ...}`; other modes of feedback have no settings.",
        {"sandbox": Sandbox, "expert": Expert},
        (),
    ),
    "Rewards": (
        "`task.reward` of `rows` and of the writing tasks, beside functions of your own (`file.py:name`).",
        REWARDS,
        (),
    ),
    "Plays": ("`play: {name: ...}`", PLAYS, ()),
    "Casts": ("`cast: {name: ...}`", CASTS, ("roles",)),
    "Algorithms": ("`algorithm: {name: ...}`; [which to take](../choosing.md).", ALGORITHMS, ()),
    "Credit rules": ("`algorithm.credit`", CREDITS, ()),
    "Engines": (
        "`engine: {name: ...}`, or `policies.NAME.engine`; [sampling by a server](../guides/servers.md).",
        ENGINES,
        (),
    ),
    "Learners": (
        "`learner: {name: ...}`, for several GPUs or machines ([clusters](../guides/cluster.md)).",
        LEARNERS,
        ("name", "spec", "reference", "critic", "steps", "seed"),
    ),
}
"""Heading -> what it says, the components by name, and parameters that a recipe cannot set."""

_MANY = 4
"""Fewest keys of a component for whose keys a variant refers to it."""

_NEEDED = inspect.Parameter.empty

_TYPES = {"engine": "component or null", "agents": "component", "sources": "list of mappings"}
"""Types that signatures do not say."""

_LEFT_OUT = {"output_dir": "runs/RECIPE-SEED"}
"""Defaults that are no constants."""

_WORDS = {
    "CountFromZero": "whole number from 0",
    "Count": "whole number from 1",
    "Several": "whole number from 2",
    "NotNegative": "number from 0",
    "PositiveFraction": "above 0, up to 1",
    "Positive": "number above 0",
    "Fraction": "0 to 1",
    "BelowOne": "0 to below 1",
    "Finite": "number",
    "Threshold": "number",
    "Folder": "path",
    "Path": "path",
    "Workers": "true, false or auto",
    "StrictSampling": "mapping",
    "PolicyName": "text",
    "Role": "text",
    "Kind": "text",
    "Source": "text or list of mappings",
    "Any": "anything",
    "Precision": "float32 or bfloat16",
    "Bounds": "pair (whole number, whole number or null)",
    "Name": "text",
    "Scoring": "ours, paper",
    "LoraSpec": "mapping",
    "Component": "component",
    "Compute": "auto, reference, torch or cpu",
    "CreditSpec": "component",
    "RewardSpec": "function, component, or a list of them",
    "Seats": "mapping",
    "None": "null",
    "bool": "true or false",
    "str": "text",
    "int": "whole number",
    "float": "number",
}


def page() -> str:
    """Return the page's text."""
    groups = (line for heading in _GROUPS for line in _group(heading))
    return "\n".join([_HEAD, *_fixed(), *groups, *_pretraining()]).rstrip() + "\n"


def _fixed() -> Iterator[str]:
    yield "## The recipe\n\n| key | type | default | |\n|---|---|---|---|"
    yield "| `base` | text | `null` | Another recipe, whose keys this one changes ([how](../recipes.md)). |"
    said = _said_of_fields()
    for key, field in Recipe.model_fields.items():
        default = _LEFT_OUT.get(key, _NEEDED if field.is_required() else field.default)
        yield f"{_row(key, Recipe.__annotations__[key], default)} {said.get(key, '')} |"
    engine = _prose(RecipePolicy).replace("\n\n", " ")
    for heading, text, made in (
        ("Policies: `policies.NAME`", f"{_prose(PolicySpec)}\n\n{engine}", RecipePolicy),
        ("Adapters: `policies.NAME.lora`", _prose(LoraSpec), LoraSpec),
        ("Sampling: `sampling`", _prose(Sampling), Sampling),
    ):
        yield f"\n## {heading}\n\n{text}\n"
        yield from _table([(one.name, one.type, _default_of(one)) for one in dataclasses.fields(made)])


def _pretraining() -> Iterator[str]:
    yield "## Pre-training: `coevolve pretrain`\n"
    yield "A recipe that makes a model instead of training a team; `coevolve recipes show pretrain-sums` prints one.\n"
    yield f"{_prose(Common)}\n"
    yield from _table(_fields(Common))
    for kind, made in (("causal_lm", CausalLMRecipe), ("classifier", ClassifierRecipe)):
        yield f"### kind: {kind}\n\n{_prose(made)}\n"
        yield from _table([row for row in _fields(made) if row[0] not in {"kind", *Common.model_fields}])
    yield f"Names of sources: {', '.join(f'`{name}`' for name in SOURCES)}.\n"


def _fields(made: type[BaseModel]) -> list[tuple[str, Any, Any]]:
    hints = {key: hint for one in reversed(made.__mro__) for key, hint in inspect.get_annotations(one).items()}
    return [
        (key, hints[key], _LEFT_OUT.get(key, _NEEDED if field.is_required() else field.default))
        for key, field in made.model_fields.items()
    ]


def _said_of_fields() -> dict[str, str]:
    """Return key -> the text below it in the class ``Recipe``."""
    tree = ast.parse(Path(schema.__file__).read_text("utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Recipe")
    return {
        key.target.id: _code(" ".join(text.value.value.split()))
        for key, text in itertools.pairwise(body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _group(heading: str) -> Iterator[str]:
    said, components, fixed = _GROUPS[heading]
    yield f"## {heading}\n\n{said}\n"
    first: dict[tuple[str, ...], str] = {}
    for name, made in components.items():
        rows = [
            (one.name, one.annotation, one.default)
            for one in inspect.signature(made).parameters.values()
            if one.name not in fixed
        ]
        like = first.setdefault(tuple(key for key, _, _ in rows), name)
        if like == name or len(rows) < _MANY:
            yield f"### {name}\n\n{_prose(made)}\n"
            yield from _table(rows)
        else:
            yield f"### {name}\n"
            yield from _variant(made, like, components[like])


def _variant(made: Callable[..., Any], like: str, other: Callable[..., Any]) -> Iterator[str]:
    """Yield what is said of a component that has the keys of another one, with other defaults or types."""
    there = inspect.signature(other).parameters
    differ = [
        (one.name, one.annotation, one.default)
        for one in inspect.signature(made).parameters.values()
        if (one.default, one.annotation) != (there[one.name].default, there[one.name].annotation)
    ]
    yield from (f"{part}\n" for part in _prose(made).split("\n\n") if part not in _prose(other))
    yield f"The keys of `{like}`, of which {'these' if differ else 'none'} differ{':' if differ else '.'}\n"
    if differ:
        yield from _table(differ)


def _table(rows: Sequence[tuple[str, Any, Any]]) -> Iterator[str]:
    if not rows:
        yield "No settings.\n"
        return
    yield "| key | type | default |\n|---|---|---|"
    yield from (_row(*row) for row in rows)
    yield ""


def _row(key: str, hint: Any, default: Any) -> str:
    return f"| `{key}` | {_TYPES.get(key) or _type(hint)} | {_default(default)} |"


def _type(hint: Any) -> str:
    """Return a type in words, from its source; functions are left out, which a recipe names by their file."""
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    text = re.sub(r"Literal\[([^]]*)\]", lambda found: re.sub(r"[\'\"]", "", found[1]), text)
    text = re.sub(r"\w+(\.\w+)+", lambda found: found[0].rpartition(".")[2], text)
    text = re.sub(r"Annotated\[Count, Field\(ge=(\d+)\)\]", r"whole number from \1", text)
    text = re.sub(r"Annotated\[(.*?), \w+\(.*?\)\]", r"\1", text)
    text = re.sub(r" \| (Feedback|Done|Callable\[(\[\]|\.\.\.), \w+\])", "", text)
    text = re.sub(r"dict\[[^]]*\]", "mapping", text).replace("Sequence[", "list[")
    text = re.sub(r"\b(" + "|".join(_WORDS) + r")\b", lambda found: _WORDS[found[1]], text)
    text = re.sub(r"tuple\[([^]]*)\]", r"pair (\1)", text)
    return re.sub(r"list\[([^]]*)\]", r"list (\1)", text).replace(" | ", " or ")


def _default(value: Any) -> str:
    """Return a default as YAML has it."""
    if value is _NEEDED:
        return "needed"
    plain = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value
    plain = json.loads(json.dumps(plain))  # lists for tuples
    text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf, sort_keys=False).removesuffix("...\n")
    return f"`{text.strip()}`"


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NEEDED if field.default is dataclasses.MISSING else field.default


def _prose(made: Any) -> str:
    text = re.sub(r"\n+(?=1\. )", "\n\n", inspect.getdoc(made) or "")  # Markdown wants an empty line before a list
    return _code(text)


def _code(text: str) -> str:
    """Return the text with code in one backtick, and ``<`` elsewhere so that it is no tag."""
    parts = re.split(r"``(.+?)``", text)
    return "".join(f"`{part}`" if i % 2 else re.sub("<(?=[\\w/|])", "&lt;", part) for i, part in enumerate(parts))


def main() -> None:
    if not PAGE.exists() or PAGE.read_text("utf-8") != page():
        PAGE.write_text(page(), "utf-8")
        print("written:", PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
