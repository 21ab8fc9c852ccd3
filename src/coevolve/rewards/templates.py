"""The names in templates such as ``{name}``: columns of a row, or roles."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping


def names_in(template: str, where: str, named: str) -> list[str]:
    """Return the names in a template's braces. where: the template's name in messages; named: what a name refers to
    ("a column"), for messages.

    Raises ValueError for an invalid template.
    """
    try:
        fields = [piece[1:] for piece in string.Formatter().parse(template) if piece[1] is not None]
    except ValueError as error:
        raise ValueError(f"{where}: {error}; want {{name}}, and {{{{ or }}}} for a brace") from error
    for name, spec, conversion in fields:
        if not name or name.isdigit() or spec or conversion or "." in name or "[" in name:
            raise ValueError(f"{where}: a brace around {name!r}; want the plain name of {named} in it")
    return [str(name) for name, _, _ in fields]


def columns_in(templates: Mapping[str, str], besides: Collection[str]) -> tuple[str, ...]:
    """Return the column names in several templates, each once, in order. templates: by their names in messages.
    besides: names that are no columns, left out."""
    found = dict.fromkeys(
        name for where, template in templates.items() for name in names_in(template, where, "a column")
    )
    return tuple(name for name in found if name not in besides)
