"""``coevolve doctor``."""

from __future__ import annotations

import argparse

from coevolve.commands import Commands, command
from coevolve.console import say


def add(commands: Commands) -> None:
    command(
        commands,
        "doctor",
        doctor,
        "say what this machine has: versions, devices, isolation of the sandbox, data, extras",
    )


def doctor(args: argparse.Namespace) -> None:
    from coevolve import doctor as machine

    say("\n".join(machine.doctor()))
