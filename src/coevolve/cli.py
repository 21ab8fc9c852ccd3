"""``coevolve train | eval | report | pretrain | doctor``.

Exit codes: 0 done, 1 the machine's fault (a full disk), 2 the user's (one line says what to change), 130 interrupted.
``COEVOLVE_DEBUG=1`` shows the traceback of an error. What only one command needs is imported inside it.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coevolve.config import Recipe

DEBUG = "COEVOLVE_DEBUG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    stray = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(args, "overrides")]
    if stray:
        parser.error(f"unknown argument {stray[0]!r}")
    args.overrides = [*getattr(args, "overrides", ()), *rest]  # argparse stops collecting at the first option
    command: Callable[[argparse.Namespace], None] = args.command
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            command(args)
    except KeyboardInterrupt as stop:
        return _complain(str(stop) or "stopped", 130)
    except OSError as error:
        full = "; free some space, then go on with --resume" if error.errno == errno.ENOSPC else ""
        return _complain(f"error: {error}{full}", 1, error)
    except (ValueError, TypeError) as error:
        return _complain(f"error: {error}", 2, error)
    return 0


def _warn(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    """One line, without the code that it came from."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _complain(text: str, code: int, error: BaseException | None = None) -> int:
    if error is not None and os.environ.get(DEBUG):
        raise error
    print(" ".join(text.split()), file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coevolve", description="Fine-tune several language models together.")
    commands = parser.add_subparsers(required=True, metavar="train | eval | report | pretrain | doctor")

    def add(name: str, command: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about, description=about)
        one.set_defaults(command=command)
        return one

    for name, command, about in (
        ("train", _train, "train the team of a recipe"),
        ("pretrain", _pretrain, "train a small model from scratch by a recipe"),
    ):
        one = add(name, command, about)
        one.add_argument("recipe", type=Path, help="a YAML file")
        one.add_argument("overrides", nargs="*", metavar="key=value", help="override a key of the recipe: seed=1")
        one.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
        if command is _train:
            one.add_argument("--dry-run", action="store_true", help="print the resolved recipe and the plan, and stop")
    one = add("eval", _eval, "play a team, and each policy alone, on held-out problems")
    one.add_argument("run", type=Path, help="a run directory, or a recipe to play untrained")
    one.add_argument("overrides", nargs="*", metavar="key=value", help="override a key of the recipe: seed=1")
    one.add_argument("--problems", type=int, metavar="N", help="how many held-out problems")
    one.add_argument("--samples", type=int, default=1, metavar="N", help="samples of each, for pass@k and best of k")
    one.add_argument("--checkpoint", type=int, metavar="N", help="the checkpoint after N steps instead of the newest")
    one = add("report", _report, "draw the curves of runs; several seeds of one recipe become one line with a band")
    one.add_argument("runs", type=Path, nargs="+", metavar="run", help="a run directory")
    one.add_argument("--output", type=Path, help="the picture; default: reward-kl.png, in the run if it is only one")
    add("doctor", _doctor, "say what this machine has: versions, devices, isolation of the sandbox, data, extras")
    return parser


def _train(args: argparse.Namespace) -> None:
    from coevolve.config import load_recipe

    recipe = load_recipe(args.recipe, args.overrides)
    if args.dry_run:
        from coevolve.plan import plan

        print(plan(recipe))
        return
    _quiet()
    _train_recipe(recipe, args.resume)
    _show(recipe.output_dir)


def _train_recipe(recipe: Recipe, resume: bool) -> None:
    import torch

    from coevolve.config import build
    from coevolve.report.terminal import progress
    from coevolve.report.trackers import tracker
    from coevolve.rundir import RunDir

    done: list[int] = []
    try:
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        record, run = recipe.record(), recipe.output_dir
        if not resume:
            RunDir(run).check_free()  # before models are loaded, or pre-trained
        with tracker(recipe.report_to, run, record) as track:
            trainer = build(recipe)
            with progress(recipe.steps) as show:
                trainer.run(
                    run,
                    resume=resume,
                    save_every=recipe.save_every,
                    keep_last=recipe.keep_last,
                    samples=recipe.samples,
                    listeners=[show, track, lambda line: done.append(line["step"] + 1)],
                    recipe=record,
                )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped at step {done[-1] if done else 0}; continue with --resume") from None


def _show(run: Path) -> None:
    """The end of a training: how the reward moved, some dialogues, and where everything is."""
    from coevolve.report.plot import rise
    from coevolve.report.samples import show_samples
    from coevolve.rundir import read_lines

    show_samples(run)
    print(rise(read_lines(run / "metrics.jsonl")))
    print(f"plot: {run / 'reward-kl.png'}")
    print(f"run:  {run}")


def _eval(args: argparse.Namespace) -> None:
    from coevolve.evaluate import evaluate_recipe, evaluate_run

    _quiet()
    if args.run.suffix in (".yaml", ".yml"):
        if args.checkpoint is not None:
            raise ValueError("--checkpoint is for runs; a recipe is played untrained")
        evaluate_recipe(args.run, args.overrides, problems=args.problems, samples=args.samples)
        return
    if args.overrides:
        raise ValueError(f"{args.overrides[0]}: a run is evaluated as it was trained; only a recipe takes overrides")
    evaluate_run(args.run, problems=args.problems, checkpoint=args.checkpoint, samples=args.samples)


def _report(args: argparse.Namespace) -> None:
    from coevolve.report.plot import reward_kl, rise
    from coevolve.rundir import read_lines

    one = args.runs[0] if len(args.runs) == 1 else Path()
    output = args.output or one / "reward-kl.png"
    reward_kl(args.runs, output)
    for run in args.runs:
        print(f"{run}: {rise(read_lines(run / 'metrics.jsonl'))}")
    print(f"plot: {output}")


def _pretrain(args: argparse.Namespace) -> None:
    from coevolve.pretrain import pretrain

    print(f"model: {pretrain(args.recipe, args.overrides, args.resume)}")


def _doctor(args: argparse.Namespace) -> None:
    from coevolve.doctor import doctor

    print("\n".join(doctor()))


def _quiet() -> None:
    """Let our own notices through, and keep transformers from drawing progress bars between them."""
    import logging

    from transformers.utils import logging as noise

    ours = logging.getLogger("coevolve")
    if not ours.handlers:
        ours.addHandler(logging.StreamHandler())
        ours.setLevel(logging.INFO)
    chatter: Any = noise
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
