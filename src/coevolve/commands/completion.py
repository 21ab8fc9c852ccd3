"""``coevolve completion``: completion by the tab key in bash, zsh and fish."""

from __future__ import annotations

import argparse
import os
from typing import Any

from coevolve.commands import Commands, command
from coevolve.console import say

_SHELLS = ("bash", "zsh", "fish")
_ASKED = "_ARGCOMPLETE"  # set by the shell's completion function, which runs this program for candidates


def add(commands: Commands) -> None:
    one = command(
        commands, "completion", completion, 'print a shell\'s code for the tab key: eval "$(coevolve completion bash)"'
    )
    one.add_argument("shell", choices=_SHELLS)


def completion(args: argparse.Namespace) -> None:
    from argcomplete.shell_integration import shellcode

    say(shellcode(["coevolve"], shell=args.shell).strip())


def complete(parser: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> None:
    """If the shell asks for completions, print them and end this process; else do nothing."""
    if _ASKED not in os.environ:
        return
    import argcomplete

    for one in commands.values():
        for action in one._actions:
            if found := _COMPLETERS.get(action.dest):
                action.completer = found  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _recipes(prefix: str, **_: Any) -> list[str]:
    """Return the names of packaged recipes, and YAML files."""
    from argcomplete.completers import FilesCompleter

    from coevolve.recipe.packaged import packaged

    return [*packaged(), *FilesCompleter(("yaml", "yml"))(prefix)]


def _keys(prefix: str, **_: Any) -> list[str]:
    """Return the keys of a recipe, each with its ``=``."""
    from coevolve.recipe.schema import Recipe

    return [f"{key}=" for key in Recipe.model_fields]


def _names(prefix: str, **_: Any) -> list[str]:
    from coevolve.recipe.packaged import packaged

    return list(packaged())


_COMPLETERS = {"recipe": _recipes, "name": _names, "overrides": _keys}
"""Name of an argument -> its completer; other arguments complete to files."""
