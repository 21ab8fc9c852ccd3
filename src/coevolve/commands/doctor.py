"""``coevolve doctor``: print what this machine has: versions, devices, isolation of the sandbox, data, extras."""

from __future__ import annotations

import argparse

from coevolve.commands import Commands, command
from coevolve.console import say


def add(commands: Commands) -> None:
    one = command(
        commands,
        "doctor",
        doctor,
        "say what this machine has: versions, devices, isolation of the sandbox, data, extras",
    )
    one.add_argument(
        "--cluster",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="the machines of a Ray cluster and what they have; of RAY_ADDRESS, or one that runs here, if left out",
    )


def doctor(args: argparse.Namespace) -> None:
    if args.cluster is not None:
        from coevolve.runtime.cluster import nodes

        say("\n".join(nodes(args.cluster)))
        return
    from coevolve import doctor as machine

    say("\n".join(machine.doctor()))
