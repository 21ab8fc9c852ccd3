"""Writes the files of ``examples`` into the pages of the guide: ``python tools/docs_code.py``, or ``make docs-code``.

A page has ``<!-- examples/rae.py -->`` on the line before a fenced block, whose text becomes that of the file. So the
code is in the page wherever it is read, on GitHub too, and a test compares every page with the files.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^<!-- (\S+) -->\n```(\w+)\n.*?^```$", re.DOTALL | re.MULTILINE)


def included(page: str, root: Path = ROOT) -> str:
    """Return the page with every marked block replaced by its file's text. Raises ValueError for a missing file."""
    return _BLOCK.sub(lambda block: f"<!-- {block[1]} -->\n```{block[2]}\n{_text(root / block[1])}```", page)


def files(page: str) -> list[str]:
    """Return the files whose text a page includes."""
    return [block[1] for block in _BLOCK.finditer(page)]


def _text(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"a page includes {file}, which is not there: mend the page's <!-- ... --> line")
    text = file.read_text("utf-8").rstrip("\n") + "\n"
    if re.search(r"^```", text, re.MULTILINE):
        raise ValueError(f"{file} has a line that starts with ```, which would end its block: indent that line")
    return text


def main() -> None:
    for file in sorted((ROOT / "docs").rglob("*.md")):
        page = file.read_text("utf-8")
        if (now := included(page)) != page:
            file.write_text(now, "utf-8")
            print("written:", file.relative_to(ROOT))


if __name__ == "__main__":
    main()
