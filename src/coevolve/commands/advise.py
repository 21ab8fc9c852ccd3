"""``coevolve advise``: measure how a team's rewards vary, and advise on a play, a credit and a baseline."""

from __future__ import annotations

import argparse
from pathlib import Path

from coevolve.commands import Commands, command, on_held_out, overriding, quiet, trusting
from coevolve.console import say
from coevolve.held_out import ADVISED


def add(commands: Commands) -> None:
    one = command(
        commands, "advise", advise, "measure how a team's pay comes about: which play, credit and baseline suit it"
    )
    one.add_argument("run", type=Path, help="a run directory or a recipe; its start policies are measured")
    overriding(one)
    on_held_out(one, ADVISED)
    one.add_argument(
        "--members", type=int, default=4, metavar="N", help="how often each is played; default: %(default)s"
    )
    trusting(one)


def advise(args: argparse.Namespace) -> None:
    from coevolve.diagnose.advice import advise as measure
    from coevolve.recipe.build import check, pretrain
    from coevolve.recipe.packaged import is_recipe
    from coevolve.recipe.read import load_recipe
    from coevolve.recipe.trust import need_trust
    from coevolve.runs.folder import RunDir
    from coevolve.runs.trained import recipe_of

    quiet()
    if is_recipe(args.run):
        recipe = load_recipe(args.run, args.overrides)
        if not args.trust_code:
            need_trust(args.run, recipe.record())
    elif args.overrides:
        raise ValueError(f"{args.overrides[0]}: a run is taken as it was trained; only a recipe takes overrides")
    else:
        recipe = recipe_of(RunDir(args.run), args.trust_code)
    problems = ADVISED if args.problems is None else args.problems
    if problems < 1:
        raise ValueError(f"--problems is {problems}; want at least 1")
    check(recipe)
    pretrain(recipe)
    found = measure(recipe, problems, args.members)
    say(f"{found['play']}: {found['problems']} held-out problems, {found['members']} times each, by start policies")
    for row in found["rows"] + found.get("credits", []):
        say("  " + "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    say(f"  seconds: {found['seconds_sampling']:.3g} to sample a problem, {found['seconds_reward']:.3g} a reward")
    for line in found["advice"]:
        say(f"advice: {line}")
