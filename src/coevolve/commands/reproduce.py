"""``coevolve reproduce``: decide the papers' claims by fixed rules, from stored runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from coevolve.commands import Commands, command, quiet, side_by_side
from coevolve.console import say
from coevolve.files import check_place

if TYPE_CHECKING:
    from coevolve.study.claims import Book

_STUDY = Path("study/claims.yaml")
_TIERS = "how many seeds; verdicts take full; default: %(default)s"


def add(commands: Commands) -> None:
    one = command(commands, "reproduce", reproduce, "decide the papers' claims by rule, from runs that are kept")
    one.add_argument("claims", nargs="*", metavar="claim", help="C1, M1, ...; default: all that can be run here")
    one.add_argument("--tier", choices=("quick", "full"), default="quick", help=_TIERS)
    one.add_argument("--seeds", metavar="A..B", help="these seeds instead, to share the work among machines")
    side_by_side(one)
    instead = one.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="all claims with state, cost and verdict, and stop")
    instead.add_argument("--again", metavar="ARM/SEED", help="make one run anew and compare it with its kept result")
    instead.add_argument("--page", type=Path, metavar="FILE", help="write the page alone, .md or .html, and stop")
    one.add_argument("--study", type=Path, default=_STUDY, metavar="FILE", help="the claims; default: %(default)s")


def reproduce(args: argparse.Namespace) -> None:
    if not args.study.is_file():
        raise ValueError(f"no file {args.study}; run it in a clone of the repository, or name the claims with --study")
    from coevolve.study import run
    from coevolve.study.claims import read

    quiet()
    book = read(args.study)
    claims = _chosen(book, args.claims)
    if args.list:
        return _list(book, claims)
    if args.claims and (args.page or args.again is not None):
        raise ValueError(f"{'--page' if args.page else '--again'} takes no claims; leave {' '.join(args.claims)} out")
    if args.page:
        return _write(book, args.page)
    if args.again is not None:
        return _again(book, args.again)
    for id in claims:
        if args.claims and (elsewhere := book.study.claims[id].elsewhere):
            say(f"{id} is not decided here: {elsewhere.why} {elsewhere.command}")
    try:
        run.reproduce(book, claims, _seeds(book, args), args.jobs)
    except ChildProcessError:
        _write_both(book)  # with the runs that did not fail
        raise
    _write_both(book)
    return _list(book, claims)


def _chosen(book: Book, names: list[str]) -> list[str]:
    """Return the claims with these names, or all if none is given. Raises ValueError for an unknown name."""
    from coevolve.names import did_you_mean

    for name in names:
        if name not in book.study.claims:
            raise ValueError(f"no claim {name!r}{did_you_mean(name, book.study.claims)}; --list shows them")
    return names or list(book.study.claims)


def _seeds(book: Book, args: argparse.Namespace) -> list[int]:
    """Return the seeds of ``--seeds``, or else of the tier. Raises ValueError for seeds that the study does not use."""
    from coevolve.sweep.grid import values

    if args.seeds is None:
        return list(range(book.study.seeds[args.tier]))
    try:
        found = values(args.seeds, f"--seeds {args.seeds}")
    except ValueError:
        found = [""]  # no list of values: the same error as for seeds that the study has not
    if not all(_is_seed(one, book) for one in found):
        raise ValueError(f"--seeds {args.seeds}: want some of 0..{book.study.seeds['full'] - 1}, such as 0..3,7")
    return list(map(int, found))


def _is_seed(text: str, book: Book) -> bool:
    return text.isdecimal() and int(text) < book.study.seeds["full"]


def _again(book: Book, name: str) -> None:
    from coevolve.study.run import again

    arm, _, seed = name.partition("/")
    if arm not in book.study.arms or not _is_seed(seed, book):
        last = book.study.seeds["full"] - 1
        raise ValueError(f"--again {name}: want an arm of {book.file} and a seed of 0..{last}, such as chicken-joint/0")
    say(f"{name}: {_compared(*again(book, arm, int(seed)))}")


def _compared(differ: list[str], unkept: list[str]) -> str:
    """Say whether two runs have the same numbers, and how their machines and versions differ. differ: the keys that
    differ. unkept: the metrics that the kept one does not have."""
    where = [key for key in differ if key.startswith(("machine.", "versions."))]
    numbers = [key for key in differ if key not in where]
    more = f"; not in the kept one: {_first(unkept)}" if unkept else ""
    elsewhere = f"; made elsewhere: {', '.join(where)}" if where else ""
    if not numbers:
        return f"the same, times and commit aside{more}{elsewhere}"
    return f"not the same: {_first(numbers)}{more}{elsewhere}{', where rounding differs' if where else ''}"


def _first(keys: list[str]) -> str:
    """Return the first five of these keys, and how many more there are."""
    return ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")


def _list(book: Book, claims: list[str]) -> None:
    """Print a table of these claims with state, cost and verdict."""
    from rich import box
    from rich.table import Table

    from coevolve.console import WIDE, console
    from coevolve.runs.environment import processor
    from coevolve.study.page import cost, state
    from coevolve.study.results import one_per_seed
    from coevolve.study.run import kept, premises, wanted_by
    from coevolve.study.verdicts import judge

    done, here, shown = kept(book), processor(), console(WIDE)
    known, seeds = one_per_seed(done, first=here), range(book.study.seeds["full"])
    table = Table(box=box.SIMPLE)
    for title in ("claim", "state", "cost, one process", "verdict"):
        table.add_column(title)
    table.add_column("says", no_wrap=shown.width < WIDE, overflow="ellipsis")  # a sentence in a narrow column is long
    for one in judge(book.study, done, premises(book)):
        if one.id in claims:
            left = [arm for arm, seed in wanted_by(one.found, seeds) if seed not in done.get(here, {}).get(arm, {})]
            table.add_row(one.id, state(one, book), cost(one.id, book, known, left), one.verdict, one.claim.says)
    shown.print(table)


def _write_both(book: Book) -> None:
    """Write the Markdown page of the documentation and the HTML page."""
    _write(book, book.page.with_suffix(".md"), book.page.with_suffix(".html"))


def _write(book: Book, *files: Path) -> None:
    from coevolve.runs.durable import check_writable, make_folder, write_text
    from coevolve.study import page
    from coevolve.study.run import kept, premises

    for file in files:
        check_place(file, "--page")
        page.check_suffix(file)
        make_folder(file.parent)
        check_writable(file)
    done, measured = kept(book), premises(book)
    for file in files:
        for one, text in page.files(book, done, measured, file).items():
            write_text(one, text)
        say(f"page: {_from_here(file)}")


def _from_here(file: Path) -> Path:
    """Return a file's path without ``..``, relative if it lies in or under the current folder."""
    whole, here = file.resolve(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole
