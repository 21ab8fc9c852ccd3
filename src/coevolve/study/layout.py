"""The layout of the study's page, as Markdown for the documentation and as one HTML file; ``page`` has its content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from markdown_it import MarkdownIt

from coevolve.report.section import Section
from coevolve.report.wording import table_cell, table_rows

BREAK = "\n"  # a line break within a table cell
_RENDERER = MarkdownIt("commonmark", {"html": False}).enable("table")
_ESCAPED_BREAK = "&lt;br&gt;"  # what the renderer makes of a break within a cell
_HEADING = re.compile(r"<(h[23])>(.*?)</h[23]>")
_IMAGE = re.compile(r'<p><img src="([^"]*)"[^>]*></p>')
_WIDE = '<div class="wide" tabindex="0">'
_STYLE = """\
:root{color-scheme:light dark;--page:#fff;--ink:#1c2230;--line:#dfe3ea;--head:#f3f5f8;--link:#1f5fd0}
@media(prefers-color-scheme:dark){
:root{--page:#12151b;--ink:#e6e9f0;--line:#2e3542;--head:#1a1f28;--link:#7fb0ff}}
body{margin:0 auto;padding:1rem;max-width:70rem;background:var(--page);color:var(--ink)}
body{font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1,h2,h3{line-height:1.25}h2{margin-top:2.5rem}a{color:var(--link)}p{max-width:60rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem}
td,th{border:1px solid var(--line);padding:.3rem .6rem;vertical-align:top;text-align:left;min-width:4rem}
th{background:var(--head)}
code{font-size:.88em;overflow-wrap:anywhere}td code{overflow-wrap:normal}
svg{display:block;width:40rem;max-width:none;height:auto;margin-bottom:1rem}"""


@dataclass(frozen=True)
class Picture:
    """The picture of a section: its SVG, and the alternative text for readers who cannot see it."""

    svg: str
    says: str


@dataclass(frozen=True)
class Chapter:
    """A section of the page and its subsections. pictures: subsection id -> picture."""

    section: Section
    inner: Sequence[Section] = ()
    pictures: dict[str, Picture] = field(default_factory=dict)


def picture_name(page: str, id: str) -> str:
    """Return the file name of a picture, which lies beside the page: ``study-frontier.svg``."""
    return f"{page}-{id}.svg"


def markdown(title: str, intro: str, chapters: Sequence[Chapter], page: str) -> str:
    """Return the page as Markdown, for the documentation. page: the page's file name without its suffix, with which
    the file names of its pictures begin."""
    parts = [f"# {title}\n\n{intro}"]
    for chapter in chapters:
        parts += _markdown(chapter.section, "##")
        for one in chapter.inner:
            found = _markdown(one, "###")
            if picture := chapter.pictures.get(one.id):
                found.insert(1, f"![{picture.says}]({picture_name(page, one.id)})")
            parts += found
    return "\n\n".join(parts) + "\n"


def html(title: str, intro: str, chapters: Sequence[Chapter]) -> str:
    """Return the page as one HTML file, made of its Markdown, with the pictures in it; only the files it links to lie
    elsewhere. Tags in the page's texts are shown as text."""
    drawn = {picture_name("", id): one.svg for chapter in chapters for id, one in chapter.pictures.items()}
    found = _RENDERER.render(markdown(title, intro, chapters, ""))
    found = _HEADING.sub(_with_id, found.replace(_ESCAPED_BREAK, "<br>"))
    found = _IMAGE.sub(lambda image: f"{_WIDE}{drawn[image[1]]}</div>" if image[1] in drawn else image[0], found)
    found = found.replace("<table>", f"{_WIDE}<table>").replace("</table>", "</table></div>")
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n{found}</html>\n"
    )


def _with_id(heading: re.Match[str]) -> str:
    """Return a heading with the id that links to it have in Markdown: ``k1`` for a claim K1."""
    tag, text = heading.groups()
    words = re.sub(r"<[^>]*>|&\w+;|[^\w\s-]", "", text).lower()
    return f'<{tag} id="{"-".join(words.replace("-", " ").split())}">{text}</{tag}>'


def _markdown(section: Section, hashes: str) -> list[str]:
    parts = [f"{hashes} {section.title}\n\n{section.sentence}".rstrip()]
    if section.rows:
        rule = ["---"] * len(section.columns)
        rows = [map(table_cell, row) for row in section.rows]
        parts.append(table_rows([map(table_cell, section.columns), rule, *rows]))
    return parts
