"""``coevolve eval``: play a team, and each policy alone, on held-out problems."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from coevolve.commands import Commands, at_checkpoint, command, on_held_out, overriding, quiet, trusting
from coevolve.files import check_place
from coevolve.held_out import EVALUATED


def add(commands: Commands) -> None:
    one = command(commands, "eval", evaluate, "play a team, and each policy alone, on held-out problems")
    one.add_argument(
        "run", type=Path, help="a run directory, or a recipe (a file, or a packaged one's name) to play untrained"
    )
    overriding(one)
    on_held_out(one, EVALUATED)
    about = "samples of each, for pass@k and best of k; default: %(default)s"
    one.add_argument("--samples", type=int, default=1, metavar="N", help=about)
    at_checkpoint(one)
    one.add_argument("--play", metavar="NAME", help="another play than the run was trained with, such as rounds")
    one.add_argument("--decoding", choices=("greedy", "sampled"), help="one alone, without the time of the other")
    one.add_argument("--evaluation-seed", type=int, metavar="N", help="other random numbers, for a second look")
    about = "the file of the result; default: eval.json of a run, with both decodings of its own play"
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help=about)
    trusting(one)


def evaluate(args: argparse.Namespace) -> None:
    from coevolve.recipe.packaged import is_recipe
    from coevolve.runs.evaluated import evaluate_recipe, evaluate_run

    quiet()
    how: dict[str, Any] = {"problems": args.problems, "samples": args.samples, "trust_code": args.trust_code}
    if args.output is not None:
        check_place(args.output, "--output")
        how["output"] = args.output
    if args.decoding is not None:
        how["decodings"] = [args.decoding]
    if args.evaluation_seed is not None:
        how["seed"] = args.evaluation_seed
    if is_recipe(args.run):
        if args.checkpoint is not None:
            raise ValueError("--checkpoint is for runs; a recipe is played untrained")
        if args.play is not None:
            raise ValueError(f"--play is for runs; of a recipe it is the override play={args.play}")
        evaluate_recipe(args.run, args.overrides, **how)
        return
    if args.overrides:
        raise ValueError(f"{args.overrides[0]}: a run is evaluated as it was trained; only a recipe takes overrides")
    evaluate_run(args.run, checkpoint=args.checkpoint, play=args.play, **how)
