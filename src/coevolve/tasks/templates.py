"""Templates of what roles are told: which columns of a problem fill them."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable


def columns(templates: Iterable[str], besides: Collection[str]) -> tuple[str, ...]:
    """The names in braces, each once, in the order of the templates, but for those that are no columns (besides)."""
    names = (name for template in templates for _, name, _, _ in string.Formatter().parse(template) if name)
    return tuple(name for name in dict.fromkeys(names) if name not in besides)
