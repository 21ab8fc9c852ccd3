"""``coevolve chat``: play an exported team on what you type, a line a problem."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, command, quiet, trusting


def add(commands: Commands) -> None:
    one = command(commands, "chat", chat, "play an exported team on what you type, a line a problem")
    one.add_argument("team", type=Path, help="a folder that `coevolve export` wrote")
    one.add_argument("--greedy", action="store_true", help="the most likely token always, instead of sampling")
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampling; default: %(default)s")
    trusting(one)


def chat(args: argparse.Namespace) -> None:
    from coevolve.teams.chat import chat

    quiet()
    chat(args.team, greedy=args.greedy, seed=args.seed, trust_code=args.trust_code)
