"""Exact resume, whatever happens: SIGKILL, a torn file, a foreign recipe, a full disk."""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import time
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked import FORKING
from safetensors.torch import load_file, save_file
from toy import Lucky, toy, without_times

from coevolve import PolicySpec, Trainer, chain, cli, cory, exchange, fixed, magrpo, marlhf, ppo, rounds
from coevolve.commands.train import _run as train_or_go_on
from coevolve.credit import compared, crossed, own_return, team_return
from coevolve.faults import RanksLostError, ShortageError
from coevolve.plays import tools
from coevolve.recipe.inputs import load_yaml
from coevolve.runs import checkpoint
from coevolve.runs.environment import starts
from coevolve.runs.folder import RunDir, plain, read_lines
from coevolve.runs.identity import same_recipe
from coevolve.runs.signature import data_in
from coevolve.tasks.rows import Rows


def train(model, out):
    """In a process of its own."""
    torch.set_num_threads(1)
    rule = cory(eta=0.3, target_kl=0.5, rescale="normalise")
    toy(model, steps=12, algorithm=rule).run(out, resume=RunDir(out).begun, save_every=2)


def launch(model, out):
    process = FORKING.Process(target=train, args=(model, out))
    process.start()
    return process


def lines(run):
    return [without_times(line) for line in read_lines(run / "metrics.jsonl")]


def tensors(run):
    return {p.relative_to(run).as_posix(): load_file(p) for p in sorted(run.glob("checkpoint-12/**/*.safetensors"))}


def identical(a, b):
    return a.keys() == b.keys() and all(
        x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
        for x, y in zip(a.values(), b.values(), strict=True)
    )


def test_sigkill_at_any_moment_then_resume_changes_nothing(micro_model, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = launch(micro_model, whole)
    done.join()
    assert done.exitcode == 0
    kills, chance = 0, random.Random(0)
    while kills < 4:
        process = launch(micro_model, killed)
        seen = len(read_lines(killed / "metrics.jsonl"))
        while process.is_alive() and len(read_lines(killed / "metrics.jsonl")) <= seen:
            time.sleep(0.01)  # let it get somewhere, then kill within about a step
        time.sleep(chance.random() * 0.2)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert kills >= 1
    last = launch(micro_model, killed)
    last.join()
    assert last.exitcode == 0
    assert lines(killed) == lines(whole)
    assert [line["step"] for line in lines(whole)] == list(range(12))
    assert len(tensors(whole)) == 4  # two policies, each with weights and value head
    assert identical(tensors(whole), tensors(killed))
    assert read_lines(killed / "samples.jsonl") == read_lines(whole / "samples.jsonl")
    assert read_lines(killed / "episodes.jsonl") == read_lines(whole / "episodes.jsonl")


@pytest.fixture(scope="module")
def four_steps(micro_model, tmp_path_factory):
    return toy(micro_model, steps=4).run(tmp_path_factory.mktemp("four") / "run", save_every=2)


@pytest.fixture
def run(four_steps, tmp_path):
    """A finished run of four steps with two checkpoints, one's own to be spoilt."""
    return Path(shutil.copytree(four_steps, tmp_path / "run"))


def test_a_text_that_looks_like_a_number_stays_one_in_the_runs_recipe(tmp_path):
    recipe = {"task": {"name": "./mine.py:Mine", "commit": "12e45", "rate": 1e-4}}
    RunDir(tmp_path).begin(recipe, 0, {}, {}, fresh=True)
    assert load_yaml(tmp_path / "recipe.yaml") == recipe


def test_a_longer_run_goes_on_where_a_shorter_one_ended(micro_model, run, tmp_path):
    toy(micro_model, steps=6).run(run, resume=True, save_every=2)
    whole = toy(micro_model, steps=6).run(tmp_path / "whole", save_every=2)
    assert lines(run) == lines(whole)


def test_a_policy_may_be_called_rng(micro_model, tmp_path):
    """Whose optimiser is beside the state of generators."""
    made = {
        "policies": {name: PolicySpec(model=str(micro_model), learning_rate=1e-2) for name in ("rng", "bob")},
        "cast": fixed({"pioneer": "rng", "observer": "bob"}),
    }
    toy(micro_model, steps=1, **made).run(tmp_path / "run", save_every=1)
    toy(micro_model, steps=2, **made).run(tmp_path / "run", resume=True, save_every=1)
    toy(micro_model, steps=2, **made).run(tmp_path / "whole", save_every=1)
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_a_run_is_never_overwritten(micro_model, run):
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match=r"already holds a run.*--resume"):
        toy(micro_model).run(run)
    assert (run / "metrics.jsonl").read_text() == before


def test_keep_last(micro_model, tmp_path):
    run = toy(micro_model, steps=5).run(tmp_path / "run", save_every=1, keep_last=3)
    assert [p.name for p in RunDir(run).checkpoints()] == ["checkpoint-3", "checkpoint-4", "checkpoint-5"]


def test_a_checkpoint_that_cannot_be_deleted_ends_no_training(micro_model, tmp_path, monkeypatch):
    def refuse(folder):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(checkpoint.durable, "remove", refuse)
    with pytest.warns(
        UserWarning, match=r"checkpoint-1 could not be deleted whole \(\[Errno 1\] Operation not permitted\); del"
    ):
        run = toy(micro_model, steps=2).run(tmp_path / "run", save_every=1, keep_last=1, listeners=[])
    assert [p.name for p in RunDir(run).checkpoints()] == ["checkpoint-1", "checkpoint-2"]


def frozen(model, of_bob, **settings):
    """Bob is a partner who does not learn."""
    specs = {"ann": PolicySpec(model=str(model), learning_rate=1e-2), "bob": PolicySpec(str(of_bob), weights="frozen")}
    return toy(model, policies=specs, cast=fixed({"pioneer": "ann", "observer": "bob"}), **settings)


def test_a_frozen_partner_who_is_another_now_is_told(micro_model, tmp_path):
    partner = Path(shutil.copytree(micro_model, tmp_path / "partner"))
    run = frozen(micro_model, partner, steps=1).run(tmp_path / "run", listeners=[])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        frozen(micro_model, partner, steps=2).run(run, resume=True, listeners=[])
    other = {name: tensor + 1 for name, tensor in load_file(partner / "model.safetensors").items()}
    save_file(other, partner / "model.safetensors", {"format": "pt"})
    with pytest.warns(
        UserWarning, match=r"the frozen policy 'bob' has other weights in the checkpoint than \S+partner now"
    ):
        frozen(micro_model, partner, steps=3).run(run, resume=True, listeners=[])


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (
            "full",
            "policy 'ann' was kept near a start model with other weights than .*model has now; its KL is to those",
        ),
        ("lora", "agents/ann: the adapter was trained on a base with other weights than .*model has now; what follows"),
    ],
)
def test_a_start_model_that_is_another_now_is_told(micro_model, tmp_path, weights, says):
    """Under an adapter it changes what the policy says, and beside full weights what its KL is to."""
    model = Path(shutil.copytree(micro_model, tmp_path / "model"))
    spec = PolicySpec(model=str(model), learning_rate=1e-2, weights=weights)

    def going(steps):
        return toy(model, roles=["pioneer"], policies={"ann": spec}, algorithm=ppo(), steps=steps)

    run = going(1).run(tmp_path / "run", listeners=[])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        going(2).run(run, resume=True, listeners=[])
    other = {name: tensor * 1.25 for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(other, model / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match=says):
        going(3).run(run, resume=True, listeners=[])


def test_a_torn_checkpoint_is_named(micro_model, run):
    victim = run / "checkpoint-4" / "agents" / "ann" / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"checkpoint-4 is torn: agents/ann/model.safetensors"):
        toy(micro_model).run(run, resume=True)
    victim.unlink()
    with pytest.raises(ValueError, match=r"model.safetensors is missing"):
        toy(micro_model).run(run, resume=True)
    (run / "checkpoint-4" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"no manifest"):
        toy(micro_model).run(run, resume=True)


def test_a_checkpoint_of_another_recipe_is_named(micro_model, run):
    with pytest.raises(ValueError, match=r"another recipe: batch_size is 8 there and 4 here"):
        toy(micro_model, batch_size=4).run(run, resume=True)


@pytest.mark.parametrize(("name", "there"), [("seed", 0), ("members", 1), ("reset_every", None)])
def test_every_number_that_a_step_depends_on_is_part_of_a_run(micro_model, run, name, there):
    with pytest.raises(ValueError, match=f"another recipe: {name} is {there} there and 2 here"):
        toy(micro_model, **{name: 2}).run(run, resume=True)


def test_another_recipe_is_refused_before_the_first_checkpoint_too(micro_model, run):
    for folder in RunDir(run).checkpoints():
        shutil.rmtree(folder)
    (run / ".saved").unlink()
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match=r"another recipe: batch_size is 8 there and 4 here"):
        toy(micro_model, batch_size=4).run(run, resume=True)
    assert (run / "metrics.jsonl").read_text() == before


def test_a_run_that_lost_its_checkpoints_does_not_begin_anew(micro_model, run):
    """Whose recipe says nothing of when the first was due, as it was trained from Python."""
    for folder in RunDir(run).checkpoints():
        shutil.rmtree(folder)
    before = tree(run)
    with pytest.raises(ValueError, match="has metrics of 4 steps, and no checkpoint to go on from; bring one back"):
        toy(micro_model).run(run, resume=True)
    assert tree(run) == before


def test_what_is_sampled_ahead_depends_on_when_checkpoints_are_written(tmp_path):
    """So a run with staleness goes on as often."""
    ahead = {"engine": {"staleness": 1}}
    same_recipe(tmp_path, {"save_every": 20}, {"save_every": 7})
    with pytest.raises(ValueError, match="save_every"):
        same_recipe(tmp_path, ahead | {"save_every": 20}, ahead | {"save_every": 7})


def test_only_a_finished_checkpoint_is_missed(tmp_path):
    """Neither one that a kill came before, nor one of a run that was deleted but for what no listing shows."""
    run = RunDir(tmp_path)
    run.create()
    run.append({"step": 0, "reward": 1.0}, [])
    assert not run.lost_checkpoints
    run.saved(1)
    assert run.lost_checkpoints
    (tmp_path / "checkpoint-1").mkdir()
    assert not run.lost_checkpoints
    (tmp_path / "checkpoint-1").rmdir()
    run.truncate(0)  # as a sweep does, which makes a run anew
    run.check(1, resume=True)
    run.saved(1)
    run.metrics.unlink()
    for left in (".report.html.lock", ".reward-kl.png"):
        (tmp_path / left).touch()
    run.check(1, resume=False)
    run.create()
    assert not run.lost_checkpoints


def test_a_gap_in_the_metrics_is_named_before_anything_changes(micro_model, run):
    first, _, *rest = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([first, *rest]))
    before = tree(run)
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl lacks step 1, and the checkpoint is of 4 steps; bring it back"
    ):
        toy(micro_model).run(run, resume=True)
    assert {file: what for file, what in tree(run).items() if file.name != ".lock"} == {
        file: what for file, what in before.items() if file.name != ".lock"
    }


def test_another_algorithm_is_another_recipe(micro_model, run):
    with pytest.raises(ValueError, match=r"another recipe: algorithm.eta is 0.05 there and 0.9 here"):
        toy(micro_model, algorithm=cory(eta=0.9)).run(run, resume=True)


def weather(place: str) -> str:
    """Look out of the window.

    Args:
        place: Where.
    """
    return f"fog in {place}"


def test_another_setting_of_the_play_is_another_recipe(micro_model, run):
    with pytest.raises(ValueError, match=r"another recipe: play_settings.transfer is True there and False here"):
        toy(micro_model, play=chain(transfer=False)).run(run, resume=True)
    assert toy(micro_model, play=tools([weather], turns=1)).identity()["play_settings"]["functions"] == ["weather"]


def test_python_tells_rewards_and_prompts_of_rows_apart(micro_model, run):
    def some(pioneer, observer):
        return 1.0

    def other(pioneer, observer):
        return -100.0

    trainer = toy(micro_model)

    def identity(reward=some, prompt="{question}"):
        data = [{"question": text} for text in "abcd"]
        trainer.task = Rows(data=data, prompts={"pioneer": prompt, "observer": prompt}, reward=reward, test=0.5)
        return plain(trainer.identity())

    one = identity()
    same_recipe(run, one, identity())
    with pytest.raises(ValueError, match=r"another recipe: task_settings\.reward is '.*some' there and '.*other' here"):
        same_recipe(run, one, identity(reward=other))
    with pytest.raises(ValueError, match=r"another recipe: task_settings\.prompts\.pioneer is '\{question\}' there"):
        same_recipe(run, one, identity(prompt="Q: {question}"))
    with pytest.raises(ValueError, match=r"another recipe: engine\.staleness is 1 there and 0 here"):
        same_recipe(run, one | {"engine": {"staleness": 1}}, identity())


def test_python_tells_credits_and_casts_apart_as_recipes_do(micro_model, run):
    def identity(credit=None, every=5):
        rule = magrpo() if credit is None else magrpo(credit=credit)
        return plain(
            toy(micro_model, algorithm=rule, cast=exchange({"pioneer": "ann", "observer": "bob"}, every)).identity()
        )

    one = identity(team_return())
    same_recipe(run, one, identity("team_return"))
    same_recipe(run, one, identity())
    same_recipe(run, identity(crossed()), identity("crossed"))
    named = identity(compared(by=longer))["algorithm"]["credit"]
    assert named == {"name": "compared", "by": "longer"}  # in any process
    for other in (team_return(gamma=0.5), own_return(), own_return(gamma=0.5)):
        with pytest.raises(ValueError, match=r"another recipe: algorithm\.credit"):
            same_recipe(run, one, identity(other))
    assert identity(every=100)["cast"] == identity(every=200)["cast"]
    with pytest.raises(ValueError, match=r"another recipe: cast_settings.every is 100 there and 200 here"):
        same_recipe(run, identity(every=100), identity(every=200))


def test_a_longer_run_goes_on_where_its_casts_are_those_of_the_shorter_one(micro_model, tmp_path):
    def identity(steps, every=1):
        roles = {"pioneer": "ann", "observer": "bob"}
        of_step = [roles, {"pioneer": "bob", "observer": "ann"}]
        cast = lambda step: of_step[step // every % 2]  # noqa: E731
        return plain(toy(micro_model, steps=steps, cast=cast, workers=False).identity())

    same_recipe(tmp_path, identity(2), identity(4))
    same_recipe(tmp_path, identity(4), identity(2))
    with pytest.raises(ValueError, match="another recipe: cast is "):
        same_recipe(tmp_path, identity(2), identity(4, every=2))


def test_the_order_of_the_roles_is_part_of_a_run(tmp_path):
    """A chain speaks in it."""
    one, other = ({"roles": dict(pairs)} for pairs in (PAIRS, PAIRS[::-1]))
    same_recipe(tmp_path, one, {"roles": dict(PAIRS)})
    with pytest.raises(ValueError, match="roles is 'pioneer, observer' there and 'observer, pioneer' here"):
        same_recipe(tmp_path, one, other)
    same_recipe(tmp_path, {"cast": [dict(PAIRS)]}, {"cast": [dict(PAIRS)] * 2})
    with pytest.raises(ValueError, match="another recipe: cast is"):  # of a run without a recipe
        same_recipe(tmp_path, {"cast": [dict(PAIRS)]}, {"cast": [dict(PAIRS[::-1])]})


PAIRS = (("pioneer", "ann"), ("observer", "bob"))


def test_where_turns_are_sampled_ahead_the_numbers_depend_on_the_checkpoints(tmp_path):
    ahead, plain = ({"engine": {"name": "vllm", "staleness": by}} for by in (1, 0))
    same_recipe(tmp_path, {**plain, "save_every": 2}, {**plain, "save_every": 3})
    with pytest.raises(ValueError, match="another recipe: save_every is 2 there and 3 here"):
        same_recipe(tmp_path, {**ahead, "save_every": 2}, {**ahead, "save_every": 3})


def test_what_a_judge_was_asked_is_no_data(tmp_path):
    """Every step may write it."""
    file = tmp_path / "answers.sqlite"
    file.touch()
    rewards = [{"name": "judge", "cache": str(file)}]
    assert list(data_in({"reward": rewards[0]})) == list(data_in({"reward": rewards})) == []
    assert list(data_in({"data": str(file)})) == [str(file)]


def longer(columns, one, other):
    return len(str(one)) - len(str(other))


def test_settings_of_a_play_are_part_of_a_run(tmp_path):
    made = {"play": "chain.<locals>.play", "play_settings": {"transfer": True}}
    same_recipe(tmp_path, made, made)
    with pytest.raises(ValueError, match="another recipe: play is"):
        same_recipe(tmp_path, made | {"play": "rounds.<locals>.play"}, made)
    with pytest.raises(ValueError, match=r"another recipe: play_settings\.transfer is"):
        same_recipe(tmp_path, made | {"play_settings": {"transfer": False}}, made)


def test_what_computes_in_smaller_pieces_goes_on(micro_model, tmp_path):
    """As a run that ran out of memory is told to."""
    spec = PolicySpec(model=str(micro_model), learning_rate=1e-2)
    policies = [
        dict.fromkeys(("ann", "bob"), dataclasses.replace(spec, **more))
        for more in ({}, {"micro_tokens": 64, "gradient_checkpointing": True})
    ]
    run = toy(micro_model, steps=1, policies=dict(policies[0])).run(tmp_path / "run", save_every=1, listeners=[])
    toy(micro_model, steps=2, policies=dict(policies[1])).run(run, resume=True, save_every=1, listeners=[])
    assert len(lines(run)) == 2


def test_steps_may_not_change_under_a_schedule(micro_model, tmp_path):
    def scheduled(steps):
        trainer = toy(micro_model, steps=steps)
        spec = dataclasses.replace(trainer.policies["ann"].spec, schedule="linear")
        policies = dict.fromkeys(("ann", "bob"), spec)
        return Trainer(
            task=Lucky(),
            play=chain(),
            cast=trainer.cast,
            policies=policies,
            algorithm=cory(),
            steps=steps,
            batch_size=4,
        )

    run = scheduled(2).run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"another recipe: steps is 2 there and 3 here"):
        scheduled(3).run(run, resume=True)


def tree(folder):
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_no_run_is_resumed_where_there_is_none(micro_model, tmp_path):
    with pytest.raises(ValueError, match=r"nowhere holds no run to go on with; to start one there leave --resume out"):
        toy(micro_model).run(tmp_path / "nowhere", resume=True)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 2, "mine": 2}\n')  # somebody else's
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=r"holds no run to go on with"):
        toy(micro_model).run(tmp_path, resume=True)
    assert tree(tmp_path) == before


def test_a_run_beyond_its_last_step_is_told(micro_model, run):
    before = tree(run)
    with pytest.raises(ValueError, match=r"is at step 4, beyond the 3 steps asked for; ask for more \(steps=\.\.\.\)"):
        toy(micro_model, steps=3).run(run, resume=True)
    assert tree(run) == before


@pytest.mark.parametrize("resume", [False, True])
def test_no_run_goes_into_a_folder_that_is_something_else(micro_model, tmp_path, resume):
    folder = tmp_path / "model"
    shutil.copytree(micro_model, folder)
    before = tree(folder)
    with pytest.raises(ValueError, match=r"model holds (no run to go on with|'config.json'.* and no run; choose)"):
        toy(micro_model).run(folder, resume=resume)
    assert tree(folder) == before


def test_a_run_of_pretraining_is_not_resumed_as_a_training(micro_model, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    (tmp_path / "recipe.yaml").write_text("kind: causal_lm\n")
    with pytest.raises(ValueError, match="belongs to another recipe"):
        toy(micro_model).run(tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 2}\n'


def test_older_checkpoints_that_a_kill_left_are_deleted(micro_model, tmp_path):
    """Behind the last step there is nothing to train, so no later checkpoint would see to them."""
    run = toy(micro_model, steps=4).run(tmp_path / "run", save_every=2, keep_last=2)
    assert [step.name for step in RunDir(run).checkpoints()] == ["checkpoint-2", "checkpoint-4"]
    toy(micro_model, steps=4).run(run, resume=True, save_every=2, keep_last=1)
    assert [step.name for step in RunDir(run).checkpoints()] == ["checkpoint-4"]


def test_a_state_that_holds_more_than_numbers_is_not_read(micro_model, run):
    file = RunDir(run).checkpoints()[-1] / "training" / "ann.pt"
    torch.save({"optimizer": Path("x")}, file)
    rewrite_manifest(file.parents[1])
    with pytest.raises(ValueError, match=r"ann\.pt holds other things than numbers, .*; delete the checkpoint"):
        toy(micro_model, steps=4).run(run, resume=True)


def test_a_state_that_is_not_finite_is_named(micro_model, run):
    folder = RunDir(run).checkpoints()[-1]
    state = torch.load(folder / "training" / "ann.pt")
    state["optimizer"]["state"][0]["exp_avg"].view(-1)[0] = torch.nan
    torch.save(state, folder / "training" / "ann.pt")
    rewrite_manifest(folder)
    with pytest.raises(ValueError, match=r"ann: its optimiser's state holds NaN or infinite numbers; delete"):
        toy(micro_model, steps=4).run(run, resume=True)


def rewrite_manifest(folder):
    """What somebody does who changes a checkpoint on purpose."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    found = {p.relative_to(folder).as_posix(): [p.stat().st_size, zlib.crc32(p.read_bytes())] for p in files}
    (folder / "manifest.json").write_text(json.dumps(found))


def test_what_a_power_cut_left_behind_the_last_checkpoint_is_dropped(micro_model, run, tmp_path):
    whole = toy(micro_model).run(tmp_path / "whole")
    for name in ("metrics.jsonl", "episodes.jsonl", "samples.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'\0\0\0\n{"step": 4, "rew\xff\n{"step": 5}\n\0')
    toy(micro_model).run(run, resume=True)
    assert lines(run) == lines(whole)


def test_a_line_broken_among_those_that_are_kept_is_named(micro_model, run):
    _, *rest = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("[1]\n" + "".join(rest))
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1"):
        toy(micro_model, steps=5).run(run, resume=True)


FULL = (
    r"^could not write \S+checkpoint-6 \(\d+ MiB were free there\): the disk is full \(.*No space left.*\); "
    r"free some space; the run and its older checkpoints are intact$"
)


@pytest.mark.parametrize("error", [Exception("No space left on device (os error 28)"), OSError(28, "No space left")])
def test_a_full_disk_in_a_library_leaves_the_run_loadable(micro_model, run, monkeypatch, error):
    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full)
    with pytest.raises(OSError, match=FULL):
        toy(micro_model, steps=6).run(run, resume=True)
    assert [p.name for p in RunDir(run).checkpoints()] == ["checkpoint-2", "checkpoint-4"]
    assert not list(run.glob(".checkpoint*"))


@pytest.mark.parametrize("state", ["{}", "[]", "null", '{"step": 4}', '{"step": 4, "policies": [], "identity": {}}'])
def test_a_checkpoint_of_another_version_is_named(micro_model, run, state):
    folder = run / "checkpoint-4"
    (folder / "trainer.json").write_text(state)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["trainer.json"] = [len(state), zlib.crc32(state.encode())]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        ValueError, match=r"checkpoint-4.*(fit this version|trainer\.json: |another recipe|differ in the policies)"
    ) as told:
        toy(micro_model).run(run, resume=True)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("manifest", ["", "null", "[]", "3", "{}"])
def test_a_broken_manifest_is_named(micro_model, run, manifest):
    (run / "checkpoint-4" / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match=r"checkpoint-4 is torn: its manifest.*delete the folder"):
        toy(micro_model).run(run, resume=True)


def test_a_manifest_of_names_that_cannot_be(micro_model, run):
    manifest = run / "checkpoint-4" / "manifest.json"
    files = json.loads(manifest.read_text())
    first, *others = files
    manifest.write_text(json.dumps({"9" * 9000: files[first], **{name: files[name] for name in others}}))
    with pytest.raises(ValueError, match=r"checkpoint-4 is torn: 9{200} is missing"):
        toy(micro_model).run(run, resume=True)


def test_resuming_with_fewer_samples(micro_model, run):
    toy(micro_model, steps=5).run(run, resume=True, samples=2)
    steps = [row["step"] for row in read_lines(run / "samples.jsonl")]
    assert [steps.count(step) for step in (0, 2, 4, 5)] == [4, 4, 4, 2]
    assert [(one["step"], one["seed"], one["compute"]["threads"] > 0) for one in starts(run)] == [
        (0, 0, True), (4, 0, True)
    ]  # fmt: skip


def test_a_torn_last_line_is_dropped(micro_model, run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
    assert len(read_lines(run / "metrics.jsonl")) == 4
    toy(micro_model, steps=5).run(run, resume=True)
    assert [line["step"] for line in lines(run)] == [0, 1, 2, 3, 4]


def test_a_full_disk_leaves_the_run_loadable(micro_model, run, monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(torch, "save", full)
    trainer = toy(micro_model, steps=6)
    with pytest.raises(OSError, match=FULL):
        trainer.run(run, resume=True)
    monkeypatch.undo()
    assert not list(run.glob(".checkpoint*"))
    assert checkpoint.load(toy(micro_model), run / "checkpoint-4") == 4


def test_a_fault_of_a_gpu_is_no_full_disk_and_no_checkpoint_of_another_version(micro_model, run):
    """Whoever reads that of a checkpoint would delete it."""

    def broken(*given):
        raise RuntimeError("CUDA error: unspecified launch failure")

    trainer = toy(micro_model, steps=6)
    trainer.policies["ann"].save = broken
    with pytest.raises(RuntimeError, match=r"^CUDA error: unspecified launch failure$"):
        trainer.run(run, resume=True)
    assert [p.name for p in RunDir(run).checkpoints()] == ["checkpoint-2", "checkpoint-4"]
    trainer = toy(micro_model)
    trainer.policies["ann"].load = broken
    with pytest.raises(RuntimeError, match=r"^CUDA error: unspecified launch failure$"):
        checkpoint.load(trainer, run / "checkpoint-4")


def test_ranks_that_are_lost_while_a_checkpoint_is_written_are_no_full_disk(micro_model, tmp_path, capsys):
    trainer, saved = toy(micro_model, steps=4), []
    save = trainer.policies["ann"].save

    def lost_once(folder):
        saved.append(folder)
        if len(saved) == 2:
            assert list((tmp_path / "run").glob(".checkpoint-4*"))
            raise RanksLostError("rank 0 of 2 of policy 'ann' died")
        save(folder)

    trainer.policies["ann"].save = lost_once
    run = RunDir(tmp_path / "run")

    def attempt(resume):
        assert not list(run.path.glob(".checkpoint*"))
        trainer.run(run.path, resume=resume, save_every=2, listeners=[])

    train_or_go_on(run, attempt, resume=False)
    assert "rank 0 of 2 of policy 'ann' died; all policies go on from" in capsys.readouterr().out
    whole = toy(micro_model, steps=4).run(tmp_path / "whole", save_every=2)
    assert lines(run.path) == lines(whole)


def test_ranks_that_are_lost_again_before_another_checkpoint_end_the_training(tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    tried = []

    def attempt(resume):
        tried.append(resume)
        if len(tried) > 2:
            pytest.fail("tried again from the same checkpoint")
        raise RanksLostError("gone")

    with pytest.raises(RanksLostError, match="gone"):
        train_or_go_on(RunDir(tmp_path), attempt, resume=False)
    assert tried == [False, True]


def out_of_memory(*args, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("where", ["torch.load", "coevolve.learners.local.LocalLearner.load"])
def test_a_checkpoint_for_which_there_is_no_memory_is_not_called_broken(run, micro_model, monkeypatch, where):
    """Somebody who is told to delete it loses a sound one."""
    monkeypatch.setattr(where, out_of_memory)
    with pytest.raises(ShortageError, match=r"checkpoint-4.*: out of memory \(OutOfMemoryError") as told:
        checkpoint.load(toy(micro_model, steps=4), run / "checkpoint-4")
    assert "delete" not in str(told.value)


def test_everything_comes_back(micro_model, tmp_path):
    rule = cory(eta=0.3, target_kl=0.5, rescale="normalise")
    trainer = toy(micro_model, steps=4, algorithm=rule)
    run = trainer.run(tmp_path / "run")
    other = toy(micro_model, steps=4, algorithm=rule)
    assert checkpoint.load(other, run / "checkpoint-4") == 4
    assert other.state == trainer.state
    assert without_times(other.step(4)) == without_times(trainer.step(4))


def test_an_agent_of_a_checkpoint_loads_alone(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = run / "checkpoint-4" / "agents" / "ann"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model(**tokenizer("a b", return_tensors="pt")).logits.isfinite().all()
    written = json.loads((run / "environment.json").read_text())
    assert written["seed"] == 0
    assert {"credit", "epochs"} <= written["settings"]["algorithm"].keys()  # said by no recipe


def test_a_switch_that_there_was_not_yet_and_that_is_off_is_no_other_recipe(tmp_path):
    same_recipe(tmp_path, {"algorithm": {"eta": 0.1}}, {"algorithm": {"eta": 0.1, "value_norm": False}})
    with pytest.raises(ValueError, match=r"algorithm.value_norm is None there and True here"):
        same_recipe(tmp_path, {"algorithm": {"eta": 0.1}}, {"algorithm": {"eta": 0.1, "value_norm": True}})


def test_how_far_ahead_turns_are_sampled_is_part_of_a_run(tmp_path):
    plain, ahead = (
        {"engine": {"name": "vllm", "url": url, **more}} for url, more in (("a", {}), ("b", {"staleness": 1}))
    )
    for there, here in (
        (plain, {"engine": {"name": "vllm", "staleness": 0}}),
        ({"engine": {"staleness": 0}}, {"engine": "local"}),
    ):
        same_recipe(tmp_path, there, here)
    for there, here in ((plain, ahead), (ahead, plain), ({"engine": "local"}, ahead)):
        with pytest.raises(ValueError, match=r"another recipe: engine\.staleness"):
            same_recipe(tmp_path, there, here)


def test_a_frozen_partner_behind_an_engine_is_part_of_a_run(tmp_path):
    """Of one that learns, the gate before its updates looks at what the engine says."""

    def bob(model, weights):
        return {"policies": {"bob": {"weights": weights, "engine": {"name": "openai", "model": model}}}}

    same_recipe(tmp_path, bob("a", "lora"), bob("b", "lora"))
    with pytest.raises(ValueError, match=r"another recipe: policies\.bob\.engine\.model is 'a' there and 'b' here"):
        same_recipe(tmp_path, bob("a", "frozen"), bob("b", "frozen"))


def test_what_computes_otherwise_is_refused_unless_the_recipe_says_so(tmp_path):
    one = SimpleNamespace(compute="torch", about="torch, prefix tree", spec=PolicySpec("m"))
    trainer = SimpleNamespace(policies={"ann": one})
    checkpoint.same_compute(tmp_path, {"ann": "torch"}, trainer)
    with pytest.raises(ValueError, match="was computed by cpu for policy 'ann', and here is torch, prefix tree; to go"):
        checkpoint.same_compute(tmp_path, {"ann": "cpu"}, trainer)
    one.spec = PolicySpec("m", compute="torch")
    checkpoint.same_compute(tmp_path, {"ann": "cpu"}, trainer)


def judged(model, steps):
    policies = {name: PolicySpec(model=str(model), learning_rate=1e-2) for name in ("ann", "bob", "judge")}
    cast = fixed({"a": "ann", "b": "bob"})
    rule = marlhf(judge="judge", warmup=1)
    return toy(model, policies=policies, cast=cast, play=rounds(), members=2, algorithm=rule, steps=steps, batch_size=4)


def test_a_head_that_nobody_asks_has_no_moments_and_the_run_goes_on(micro_model, tmp_path):
    whole = judged(micro_model, 3).run(tmp_path / "whole", save_every=1, listeners=[])
    part = judged(micro_model, 2).run(tmp_path / "part", save_every=1, listeners=[])
    assert lines(judged(micro_model, 3).run(part, resume=True, save_every=1, listeners=[])) == lines(whole)


def test_who_did_not_learn_last_is_of_the_version_that_it_was(micro_model, tmp_path):
    """A play may draw by it (``misheard``), so a resumed run would hear something else."""
    spec = PolicySpec(model=str(micro_model), learning_rate=1e-2)
    policies = {"ann": dataclasses.replace(spec, weights="frozen"), "bob": spec}
    cast = fixed({"pioneer": "ann", "observer": "bob"})
    made = [toy(micro_model, policies=dict(policies), cast=cast, steps=2) for _ in range(2)]
    run = made[0].run(tmp_path / "run", save_every=1, listeners=[])
    shutil.rmtree(run / "checkpoint-2")
    made[1].run(run, resume=True, save_every=1, listeners=[])
    assert made[1].versions == made[0].versions == {"ann": 0, "bob": 2}
    assert [made[1].policies[name].version for name in ("ann", "bob")] == [0, 2]


def test_a_trainer_that_has_learnt_begins_no_run(micro_model, tmp_path):
    trainer = toy(micro_model, steps=1)
    trainer.run(tmp_path / "one", listeners=[])
    with pytest.raises(ValueError, match="this trainer has learnt 1 steps already, and a run begins with the weights"):
        trainer.run(tmp_path / "two", listeners=[])
    assert not list((tmp_path / "two").glob("*.jsonl"))  # nothing was begun


def test_a_trainer_that_failed_inside_its_first_update_begins_no_run(micro_model, tmp_path):
    """Who learnt before the failure has other weights, though no version says so."""
    trainer = toy(micro_model, steps=1, workers=False)
    honest = trainer.policies["bob"].update

    def failing(*given):
        raise KeyboardInterrupt

    trainer.policies["bob"].update = failing
    with pytest.raises(KeyboardInterrupt):
        trainer.run(tmp_path / "one", listeners=[])
    trainer.policies["bob"].update = honest
    assert set(trainer.versions.values()) == {0}
    with pytest.raises(ValueError, match="this trainer has learnt a part of step 0 already, and a run begins with the"):
        trainer.run(tmp_path / "two", listeners=[])


def test_a_trainer_that_failed_before_its_first_update_may_begin_again(micro_model, tmp_path):
    trainer = toy(micro_model, steps=1, workers=False)
    honest = trainer.task.reward

    def failing(cases):
        raise ValueError("not yet")

    trainer.task.reward = failing
    with pytest.raises(ValueError, match="not yet"):
        trainer.run(tmp_path / "one", samples=1, listeners=[])
    trainer.task.reward = honest
    again = trainer.run(tmp_path / "two", samples=1, listeners=[])
    fresh = toy(micro_model, steps=1, workers=False).run(tmp_path / "three", samples=1, listeners=[])
    assert lines(again) == lines(fresh)


def test_a_project_goes_on_elsewhere_and_is_told_of_rows_that_changed(micro_model, tmp_path, capsys):
    project, rows = tmp_path / "here", [{"prompt": word, "answer": "a"} for word in ("cat", "dog", "owl", "hen")]
    project.mkdir()
    (project / "pay.py").write_text("def pay(writer, **columns):\n    return float(len(writer))\n")
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (project / "recipe.yaml").write_text(
        "task: {name: rows, data: rows.jsonl, test: 0.5, prompts: {writer: '{prompt}'}, reward: pay.py:pay}\n"
        "play: rounds\nroles: {writer: ann}\n"
        f"policies: {{ann: {micro_model}}}\nalgorithm: grpo\nsampling: {{max_new_tokens: 2}}\nbatch_size: 1\n"
        "members: 2\nsamples: 0\nsave_every: 1\n"
    )
    words = ["train", "recipe.yaml", "output_dir=run", "workers=false"]
    with contextlib.chdir(project):
        assert cli.main([*words, "steps=1"]) == 0, capsys.readouterr().err
    project = project.rename(tmp_path / "there")
    capsys.readouterr()
    with contextlib.chdir(project):
        assert cli.main([*words, "steps=1", "--resume"]) == 0, capsys.readouterr().err
        assert cli.main([*words, "steps=2", "--resume"]) == 0, capsys.readouterr().err  # of the old place's checkpoint
        assert "goes on with other" not in capsys.readouterr().err
        (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
        assert cli.main([*words, "steps=3", "--resume"]) == 0
        assert f"goes on with other files: {project / 'rows.jsonl'} changed" in capsys.readouterr().err
        (project / "others.jsonl").write_text((project / "rows.jsonl").read_text())
        (project / "other").mkdir()
        (project / "other" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for data in ("others.jsonl", "other/rows.jsonl"):  # of another name, and of other content
            assert cli.main([*words, "steps=4", "--resume", f"task.data={data}"]) == 2
            assert "another recipe: task.data is" in capsys.readouterr().err


def test_a_setting_that_no_recipe_names_and_that_changed_is_told(micro_model, tmp_path):
    recipe, run = {"algorithm": {"name": "mine.py:mine"}}, tmp_path / "run"
    toy(micro_model, steps=1, algorithm=cory(eta=0.1)).run(run, recipe=recipe, listeners=[])
    with pytest.warns(UserWarning, match=r"goes on with other settings: algorithm\.eta was 0\.1 and is 0\.2; what a"):
        toy(micro_model, steps=2, algorithm=cory(eta=0.2)).run(run, recipe=recipe, listeners=[], resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        toy(micro_model, steps=3, algorithm=cory(eta=0.2)).run(run, recipe=recipe, listeners=[], resume=True)
