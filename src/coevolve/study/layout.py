"""The layout of the study's page, as Markdown for the documentation and as one HTML file; ``page`` has its content."""

from __future__ import annotations

import html as escaping
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from coevolve.report.section import Section
from coevolve.report.wording import table_rows

BREAK = "\n"  # a line break within a table cell
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
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
    """Return the page as one HTML file that includes its pictures; only the files it links to lie elsewhere."""
    parts = [f"<h1>{_inline(title)}</h1>{_paragraphs(intro)}"]
    for chapter in chapters:
        parts.append(_html(chapter.section, "h2"))
        for one in chapter.inner:
            picture = chapter.pictures.get(one.id)
            parts.append(_html(one, "h3", picture.svg if picture else ""))
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{escaping.escape(title)}</title><style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _markdown(section: Section, hashes: str) -> list[str]:
    parts = [f"{hashes} {section.title}\n\n{section.sentence}".rstrip()]
    if section.rows:
        rule = ["---"] * len(section.columns)
        rows = [[str(cell).replace("|", "\\|").replace(BREAK, "<br>") for cell in row] for row in section.rows]
        parts.append(table_rows([section.columns, rule, *rows]))
    return parts


def _html(section: Section, tag: str, svg: str = "") -> str:
    parts = [f'<{tag} id="{section.id}">{_inline(section.title)}</{tag}>{_paragraphs(section.sentence)}']
    if svg:
        parts.append(f'<div class="wide" tabindex="0">{svg}</div>')
    if section.rows:
        head = "".join(f"<th>{_inline(title)}</th>" for title in section.columns)
        rows = "".join(f"<tr>{''.join(f'<td>{_inline(str(c))}</td>' for c in row)}</tr>" for row in section.rows)
        parts.append(f'<div class="wide" tabindex="0"><table><tr>{head}</tr>{rows}</table></div>')
    return "\n".join(parts)


def _paragraphs(text: str) -> str:
    """Return the text as HTML paragraphs; a block whose lines all begin with a dash becomes a list."""
    found = []
    for block in filter(None, text.split("\n\n")):
        lines = block.split("\n")
        if all(line.startswith("- ") for line in lines):
            found.append(f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>")
        else:
            found.append(f"<p>{_inline(block)}</p>")
    return "".join(found)


def _inline(text: str) -> str:
    """Return Markdown links, code and bold, and the line breaks of a cell, as HTML."""
    found = escaping.escape(text, quote=False)
    found = _CODE.sub(r"<code>\1</code>", _LINK.sub(r'<a href="\2">\1</a>', found))
    return _BOLD.sub(r"<b>\1</b>", found).replace(BREAK, "<br>")
