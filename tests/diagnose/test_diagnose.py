"""A run from end to end: the command, the file it writes, whom it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from parlour import Paid, scene
from toy import RECIPE
from toy import __file__ as toy_file

from coevolve.cli import main
from coevolve.diagnose import diagnose
from coevolve.diagnose.entrants import build as build_teams
from coevolve.diagnose.entrants import entrant, others
from coevolve.diagnose.run import _rows
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.report.findings.diagnostics import sections
from coevolve.report.runs import read


@pytest.fixture(scope="module")
def trained(micro_model: str, tmp_path_factory: pytest.TempPathFactory):
    """(name, overrides) -> a trained run of that name."""
    folder = tmp_path_factory.mktemp("diagnosed")

    def train(name: str, *overrides: str) -> Path:
        (folder / "recipe.yaml").write_text(
            RECIPE.format(model=micro_model, out=folder / name, toy=Path(toy_file).resolve())
        )
        recipe = load_recipe(folder / "recipe.yaml", overrides)
        build(recipe).run(recipe.output_dir, save_every=2, samples=1, recipe=recipe.record())
        return recipe.output_dir

    return train


@pytest.fixture(scope="module")
def run(trained) -> Path:
    return trained("run")


@pytest.fixture(scope="module")
def seed1(trained) -> Path:
    return trained("seed1", "seed=1")


def of(result, kind):
    return [row for row in result["rows"] if row["kind"] == kind]


def test_the_command(run, seed1, capsys):
    assert main(["diagnose", str(run), "--with", str(seed1), str(run / "checkpoint-2"), "--problems", "3"]) == 0
    result = json.loads((run / "diagnostics.json").read_text())
    # The task holds out four problems, which are played 64 times each to make 256 episodes.
    assert (result["checkpoint"], result["problems"], result["samples"], result["max_new_tokens"]) == (4, 3, 64, 5)
    assert list(dict.fromkeys(row["kind"] for row in result["rows"])) == [
        "team", "alone", "swap", "messages", "influence", "cross-play",
    ]  # fmt: skip
    assert [row["setting"] for row in of(result, "team")] == ["trained", "start"]
    # Steps 2 and 3 were played after the exchange.
    assert [row["setting"] for row in of(result, "swap")] == ["pioneer=ann, observer=bob"]
    assert {(row["role"], row["policy"]) for row in of(result, "messages")} == {("observer", "ann")}
    crosses = [(row["from"], row["by"]) for row in of(result, "cross-play") if row["setting"] == "cross"]
    assert len(crosses) == 6
    assert {name for pair in crosses for name in pair} == {"run", "seed1", "run@2"}
    assert all("reason" not in row for row in result["rows"])
    out = capsys.readouterr().out
    assert f"diagnostics: {run / 'diagnostics.json'}" in out
    assert "Cross-play" in out
    assert sections(read(run))[0].id == "diagnostics-run-team"


def test_the_same_twice_and_row_by_row(run):
    found = []
    result = diagnose(run, problems=2, listener=found.append)
    assert [row["setting"] for row in found] == [row["setting"] for row in result["rows"]]
    assert diagnose(run, problems=2) == result
    assert of(result, "cross-play") == []


def test_every_team_is_trained_once_the_start_has_played():
    trained = []
    entrants = [SimpleNamespace(load=lambda _, name=name: trained.append(name)) for name in ("run", "seed1")]
    found = _rows(scene(Paid(lambda a, b: float(len(trained)))), {}, entrants)
    team, start = next(found), next(found)
    assert trained == ["run", "seed1"]
    assert (team["reward"], start["reward"], start["difference"]) == (2.0, 0.0, -2.0)


def test_an_earlier_checkpoint_plays_its_own_cast(run):
    result = diagnose(run, problems=2, checkpoint=2)
    assert result["checkpoint"] == 2
    assert [row["policy"] for row in of(result, "team")] == ["ann+bob"] * 2


def test_an_earlier_self_has_weights_and_a_cast_of_its_own(run):
    host = entrant(run)
    [twin] = others([run / "checkpoint-2"], host)
    policies = build_teams([host, twin])
    assert list(policies) == ["ann", "bob", "run@2/ann", "run@2/bob"]
    host.load(policies)
    twin.load(policies)

    def weights(name):
        return next(iter(policies[name].weights.base.causal.state_dict().values()))

    assert not weights("ann").equal(weights("run@2/ann"))
    assert twin.cast == {"pioneer": "run@2/ann", "observer": "run@2/bob"}
    assert host.cast == {"pioneer": "bob", "observer": "ann"}


def test_adapters_of_all_teams_share_one_base(trained):
    lora = ["policies.ann.weights=lora", "policies.bob.weights=lora"]
    host = entrant(trained("lora0", *lora))
    guests = others([trained("lora1", "seed=1", *lora)], host)
    policies = build_teams([host, *guests])
    assert len({id(policy.weights.base) for policy in policies.values()}) == 1
    for one in (host, *guests):
        one.load(policies)
    assert len({tuple(p.detach().flatten()[:3].tolist()) for n in policies for p in policies[n].parameters[1:2]}) == 4


def altered(run: Path, copy: Path, **keys) -> Path:
    """The run with another recipe."""
    shutil.copytree(run, copy)
    recipe = yaml.safe_load((copy / "recipe.yaml").read_text())
    (copy / "recipe.yaml").write_text(yaml.safe_dump(recipe | keys))
    return copy


def test_who_cannot_play_with_whom(run, tmp_path):
    other_roles = altered(run, tmp_path / "roles", roles={"first": "ann", "second": "bob"})
    other_task = altered(run, tmp_path / "task", task={"name": "sentiment"})
    start = {"ann": {"model": "coevolve-tiny"}}
    single = altered(run, tmp_path / "single", roles={"pioneer": "ann"}, policies=start, cast={"name": "fixed"})
    for paths, why in [
        ([other_roles], "its roles are first, second; those of this run are pioneer, observer"),
        ([other_task], "its task is .*sentiment.*; that of this run is .*Lucky"),
        ([run], "is among the teams twice"),
        ([tmp_path / "nothing"], "is no run: there is no such folder"),
        ([run / "checkpoint-3"], "has no checkpoint of step 3; there are 2, 4"),
    ]:
        with pytest.raises(ValueError, match=why):
            diagnose(run, beside=paths, trust_code=True)
    with pytest.raises(ValueError, match="one role, pioneer; a mixed team takes two"):
        diagnose(single, beside=[run], trust_code=True)


def test_nothing_is_written_when_it_fails(seed1):
    with pytest.raises(ValueError, match="9 problems asked for; Lucky has 4 held out"):
        diagnose(seed1, problems=9)
    assert not (seed1 / "diagnostics.json").exists()


def test_a_run_without_diagnostics_says_how_they_are_made(seed1):
    [section] = sections(read(seed1))
    assert f"`coevolve diagnose {seed1}`" in section.sentence
