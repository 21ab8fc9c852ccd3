"""``coevolve serve``: answer OpenAI's chat completions with a team."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, command, quiet, trusting

_HOST, _PORT = "127.0.0.1", 8000


def add(commands: Commands) -> None:
    one = command(commands, "serve", serve, "answer OpenAI's chat completions with a team")
    one.add_argument("team", type=Path, help="a folder that `coevolve export` wrote, or a run directory")
    one.add_argument("--host", default=_HOST, help="the address to listen at; default: %(default)s, this machine only")
    one.add_argument("--port", type=int, default=_PORT, metavar="N", help="default: %(default)s; 0 is any free one")
    trusting(one)


def serve(args: argparse.Namespace) -> None:
    quiet()
    if not 0 <= args.port < 1 << 16:
        raise ValueError(f"--port {args.port}: want 0 to 65535")
    if not args.host:  # Python would listen at every address
        raise ValueError(f"--host is empty; want an address, {_HOST} for this machine only or 0.0.0.0 for every one")
    from coevolve.teams.serve import serve

    serve(args.team, host=args.host, port=args.port, trust_code=args.trust_code)
