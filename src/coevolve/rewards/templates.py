"""Templates with ``{name}`` in them: which names there are, of columns of a row or of roles."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping


def names_in(template: str, where: str, named: str) -> list[str]:
    """The names in a template's braces. where: what messages call it; named: what a name is of.

    Raises ValueError for a template that is none.
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
    """The names in templates, each once, in their order, but for those that are no columns (besides). templates: by
    what messages call them."""
    found = dict.fromkeys(
        name for where, template in templates.items() for name in names_in(template, where, "a column")
    )
    return tuple(name for name in found if name not in besides)
