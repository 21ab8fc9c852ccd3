"""The commands of ``coevolve``, one file each: ``add`` registers a command with its arguments and its function.

A command's imports happen when it runs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Commands = Any  # argparse has no public name for what add_subparsers returns

RECIPE = "a YAML file, or the name of a packaged recipe (`coevolve recipes`)"


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], about: str
) -> argparse.ArgumentParser:
    """Add a command that calls ``run``, and return its parser."""
    one: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    one.set_defaults(command=run)
    return one


def trusting(one: argparse.ArgumentParser) -> None:
    """Add ``--trust-code``, for commands that may run other people's code."""
    one.add_argument("--trust-code", action="store_true", help="run the code that it names, whoever wrote it")


def overriding(one: argparse.ArgumentParser) -> None:
    """Add ``key=value`` overrides, for commands that read one recipe."""
    about = "override a key of the recipe: seed=1, or --seed 1"
    one.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=about)


def at_checkpoint(one: argparse.ArgumentParser) -> None:
    """Add ``--checkpoint``, for commands that read a run."""
    one.add_argument("--checkpoint", type=int, metavar="N", help="the checkpoint after N steps instead of the newest")


def on_held_out(one: argparse.ArgumentParser, default: int) -> None:
    """Add ``--problems``, for commands that play held-out problems. default: how many they play if it is left out."""
    about = f"how many held-out problems; default: {default}, or all if the task has fewer"
    one.add_argument("--problems", type=int, metavar="N", help=about)


def resuming(one: argparse.ArgumentParser) -> None:
    """Add ``--resume``, for commands that train by a recipe."""
    one.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")


def side_by_side(one: argparse.ArgumentParser) -> None:
    """Add ``--jobs``, for commands that train several runs."""
    one.add_argument("--jobs", type=int, metavar="N", help="runs at once; default: what cores and GPUs allow")


def quiet() -> None:
    """Show the log messages of Coevolve, and silence the messages and progress bars of transformers."""
    import logging
    import os
    import sys

    from coevolve.console import Plain

    ours = logging.getLogger("coevolve")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(Plain())
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
    # peft imports bitsandbytes if it is installed, which then logs that a package for loading kernels is missing
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # read at the import
    if "transformers" in sys.modules:  # imported before, by the calling program
        chatter: Any = sys.modules["transformers"].utils.logging
        chatter.set_verbosity_error()
        chatter.disable_progress_bar()
