"""Settings that do nothing beside others, or lack something, said and not refused."""

import warnings
from pathlib import Path

import pytest

from coevolve import cli
from coevolve.recipe.packaged import packaged
from coevolve.recipe.read import load_recipe
from coevolve.recipe.warned import warn_of_settings

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
UNCORRECTED = (
    "turns come from a server, and algorithm.mismatch is none, so ratios are to the server's log-probabilities, which "
    "differ from the learner's by rounding; algorithm.mismatch=tis corrects the difference (docs/objectives.md)"
)
SERVED = ["engine=vllm", "policies.*.weights=lora"]
MAGRPO = "algorithm={name: magrpo, estimator: k2}"


def said(*overrides):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_settings(load_recipe(QUICKSTART, overrides))
    return [str(one.message) for one in found]


def test_threads_beyond_the_cores_are_told(monkeypatch):
    monkeypatch.setattr("coevolve.recipe.warned.cores", lambda: 2)
    assert said("threads=2") == []
    assert said("threads=3") == ["threads is 3 on a machine of 2 cores, where they wait for each other"]


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([MAGRPO], ["algorithm.estimator does nothing while beta is 0.0"]),
        ([MAGRPO, "algorithm.beta=0.1"], []),
        (["algorithm={name: rloo, beta: 0}"], []),  # kl and estimator are the variant's own
        (["algorithm={name: rloo, beta: 0, kl: reward}"], ["algorithm.kl does nothing while beta is 0.0"]),
        (["algorithm={name: cory, eta: 0, penalty: sampled}"], ["algorithm.penalty does nothing while eta is 0.0"]),
        (
            ["algorithm={name: ppo, critic: false, value_coef: 1}"],
            ["algorithm.value_coef does nothing while critic is False"],
        ),
        (["algorithm={name: a2c, critic: false}"], []),
        (["algorithm={name: iac, value_coef: 0.6}"], []),  # each policy has a value head of its own
        (
            ["algorithm=magrpo", "policies.bob.value_learning_rate=1e-3"],
            ["policies.bob.value_learning_rate does nothing: the algorithm gives this policy no critic"],
        ),
        (["algorithm=ppo", "policies.bob.value_learning_rate=1e-3"], []),
        (
            ["steps=9", "policies.ann.warmup_steps=9"],
            ["policies.ann.warmup_steps is 9 of 9 steps, so its rate only rises"],
        ),
        (["steps=9", "policies.ann.warmup_steps=8"], []),
        (["steps=9", "policies.ann.warmup_steps=9", "policies.ann.weights=frozen"], []),
        (["steps=1"], []),  # somebody tries whether it runs
        (["steps=9", "reset_every=9"], ["reset_every is 9, and with 9 steps nothing is ever reset"]),
        (["steps=9", "reset_every=8"], []),
        (
            ["steps=5", "cast={name: exchange, every: 5}"],
            ["cast: exchange changes nothing: who plays what is the same in all 5 steps"],
        ),
        (["steps=6", "cast={name: exchange, every: 5}"], []),
        ([*SERVED], [f"ann, bob: {UNCORRECTED}"]),
        ([*SERVED, "algorithm.mismatch=tis"], []),
        ([*SERVED, "algorithm=iac"], []),  # which has no correction
        (["policies.bob.engine={name: vllm}"], [f"bob: {UNCORRECTED}"]),
        (["policies.bob.engine={name: vllm}", "policies.bob.weights=frozen"], []),
    ],
)  # fmt: skip
def test_what_does_nothing_or_is_missing_is_said(overrides, lines):
    assert said(*overrides) == lines


def test_packaged_recipes_have_nothing_to_be_said():
    for path in packaged().values():
        if "kind:" not in path.read_text():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warn_of_settings(load_recipe(path))


def test_a_dry_run_says_them_and_the_algorithms_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    how = ["algorithm={name: magrpo, beta: 0.1, estimator: k1}", "members=2", "reset_every=99", "batch_size=9999"]
    assert cli.main(["train", str(QUICKSTART), "--dry-run", *how]) == 0
    out, err = capsys.readouterr()
    assert "reset_every is 99" in err
    assert "estimator: k1 in the loss does not hold a policy to its start" in err
    assert "a step takes 9999, so that problems repeat within it" in out


@pytest.mark.parametrize(
    ("override", "why"),
    [("sampling.temperature=0", "training needs samples"), ("policies.*.weights=frozen", "so nobody learns")],
)
def test_a_dry_run_refuses_what_could_never_learn(override, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", str(QUICKSTART), "--dry-run", override]) == 2
    assert why in capsys.readouterr().err
