"""Can a start model for the task `checkable` read? `python tools/pretrain/checks_premise.py RUN_FOLDER`.

Slope and gain of CORY's premise (`coevolve.diagnose.premise`) on 1,000 held-out problems, and whether they are enough
to ship the model.
"""

import argparse
from pathlib import Path

from coevolve.diagnose.premise import premise
from coevolve.recipe.schema import load_recipe

PROBLEMS, MEMBERS = 1000, 4
TOKENS = 64  # the longest answer that it is taught has 50
SLOPE, GAIN = 0.5, 0.1
RECIPE = Path(__file__).parents[2] / "recipes" / "cory-arithmetic-tiny.yaml"


def measured(run: Path) -> dict[str, float]:
    """The premise of a finished run's model."""
    model = run / "model"
    if not model.is_dir():
        raise ValueError(f"{run} holds no finished run; train it first: coevolve pretrain recipes/pretrain-checks.yaml")
    overrides = [
        "task=checkable",
        f"sampling.max_new_tokens={TOKENS}",
        *(f"policies.{name}.model={model}" for name in ("ann", "bob")),
    ]
    return premise(load_recipe(RECIPE, overrides), PROBLEMS, MEMBERS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run of recipes/pretrain-checks.yaml")
    found = measured(parser.parse_args().run)
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    enough = found["slope"] >= SLOPE and found["gain"] >= GAIN
    print(f"{'enough' if enough else 'not enough'} to ship it: slope {SLOPE:g} and gain {GAIN:g} are wanted")
