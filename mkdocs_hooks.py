"""What the site needs besides mkdocs: formulas without a network, and links that leave ``docs``."""

from __future__ import annotations

import posixpath
import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)\)")


def on_page_content(html: str, **_: Any) -> str:
    """TeX, as ``pymdownx.arithmatex`` marks it, as MathML, which browsers draw by themselves."""
    return _FORMULA.sub(_mathml, html)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A file outside of ``docs`` has no page to link to: its path in the repository instead."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda link: _in_the_repository(link, folder), markdown)


def _mathml(found: re.Match[str]) -> str:
    return convert(unescape(found[2]), display="block" if found[1] == "div" else "inline")


def _in_the_repository(link: re.Match[str], folder: str) -> str:
    path = posixpath.normpath(posixpath.join(folder, link[2]))
    if path.startswith("docs/"):
        return link[0]
    return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"
