"""Algorithms of one's own, ``examples/``: what each computes, by hand, and that it learns its game from its recipe."""

import math
import os
from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest
import torch
from lesson_cases import lesson, paid, spoke
from toy import without_times

from coevolve import Outputs
from coevolve.recipe.build import build
from coevolve.recipe.components import from_file
from coevolve.recipe.read import load_recipe
from coevolve.runs.evaluated import evaluate_run
from coevolve.runs.folder import read_lines

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    """``Name`` of ``file.py:Name``."""
    return from_file(str(EXAMPLES / name), (), "algorithm")


def rewards(name, *overrides, steps):
    trainer = build(load_recipe(EXAMPLES / f"{name}.yaml", overrides))
    with closing(trainer):
        return [trainer.step(i)["reward"] for i in range(steps)]


# An even start is paid 3 in both games; the best is 5.
@pytest.mark.parametrize("name", ["rae", "entropy_bonus", "preferences", "partner_baseline", "crossed", "bare_prompt"])
def test_it_learns(name):
    paid = rewards(name, steps=12)
    assert paid[0] < 3.8
    assert fmean(paid[-3:]) > 4.5


@pytest.mark.slow
def test_it_learns_in_another_process_whose_end_is_told():
    with closing(build(load_recipe(EXAMPLES / "learner_process.yaml"))) as trainer:
        learns(trainer)
        trainer.policies["ann"].process.kill()
        with pytest.raises(ValueError, match="the process of policy 'ann' ended with -9"):
            trainer.step(16)


@pytest.mark.slow
def test_it_learns_from_another_process_whose_end_is_told():
    with closing(build(load_recipe(EXAMPLES / "engine_http.yaml"))) as trainer:
        learns(trainer)
        trainer.engine.process.kill()
        trainer.engine.process.wait()
        with pytest.raises(OSError, match=r"the engine HTTPEngine does not answer: .*refused"):
            trainer.step(16)


def learns(trainer):
    paid = [trainer.step(i)["reward"] for i in range(16)]
    assert paid[0] < 4
    assert fmean(paid[-3:]) > 4.4


def weights(policy):
    with policy.active() as model:
        return [x.detach().clone() for x in model.parameters()]


def test_a_frozen_judge_of_ones_own_stays_what_it_is():
    small = ["batch_size=4", "members=2", "workers=false", "threads=1"]
    trainer = build(load_recipe(EXAMPLES / "judge.yaml", small))
    before = {name: weights(policy) for name, policy in trainer.policies.items()}
    with closing(trainer):
        for i in range(2):
            trainer.step(i)
    same = {name: all(map(torch.equal, before[name], weights(p))) for name, p in trainer.policies.items()}
    assert same == {"ann": False, "bob": False, "cleo": True}
    spoken = trainer.episodes[0].turns
    assert [turn.role for turn in spoken] == ["short", "detailed", "judge", "short", "detailed"]
    assert spoken[2].heard == tuple(spoken[:2])
    assert spoken[3].heard == (spoken[0], f"The judge said: {spoken[2].text}")


@pytest.mark.slow
def test_a_learner_elsewhere_learns_what_one_here_learns(tmp_path):
    """The same numbers but for times, checkpoint and resume included; and its process ends with the run."""
    lines, alone = [], ["roles={first: ann, second: ann}", "policies={ann: {model: coevolve-coin}}", "steps=4"]
    for name, learner in (("here", ["learner=null", "workers=false"]), ("there", [])):
        recipe = load_recipe(EXAMPLES / "learner_process.yaml", [*learner, *alone])
        for steps in (2, 4):
            trainer = build(recipe.model_copy(update={"steps": steps}))
            with closing(trainer):
                trainer.run(tmp_path / name, resume=steps > 2, listeners=[])
                assert trainer.sample(1)  # a run does not close what it was given
        lines.append([without_times(line) for line in read_lines(tmp_path / name / "metrics.jsonl")])
    assert len(lines[0]) == 4
    assert lines[0] == lines[1]
    assert all(policy.process.poll() == 0 for policy in trainer.policies.values())


@pytest.mark.slow
def test_an_evaluation_asks_an_engine_of_ones_own_for_the_trained_weights(tmp_path):
    recipe = load_recipe(EXAMPLES / "engine_http.yaml", ["steps=8", f"output_dir={tmp_path / 'run'}"])
    with closing(build(recipe)) as trainer:
        trainer.run(tmp_path / "run", listeners=[], recipe=recipe.record())
    rows = evaluate_run(tmp_path / "run", trust_code=True, samples=64)["rows"]
    paid = {row["weights"]: row["reward"] for row in rows if (row["setting"], row["decoding"]) == ("team", "sampled")}
    assert paid["trained"] > paid["start"] + 0.4


def test_what_was_started_is_closed_if_the_rest_cannot_be_built():
    wrong = ["policies.eve={model: coevolve-coin, weights: frozen}", "algorithm={name: maac, critic: eve}"]
    recipe = load_recipe(EXAMPLES / "learner_process.yaml", wrong)
    before = children()
    with pytest.raises(ValueError, match="policy 'eve' is a critic and frozen"):
        build(recipe)
    assert children() == before


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_every_role_has_its_own_moving_baseline():
    rule = example("rae.py:rae")(decay=0.75)
    episodes = [paid((4.0, 1.0), spoke("x", "ann", "C"), spoke("y", "ann", "D", heard=("C",))) for _ in range(2)]
    episodes[1] = paid((8.0, 1.0), *episodes[1].turns)
    given = lesson(rule, episodes)
    targets, state = rule.advantage(given, {"baselines": {"ann as x": 2.0}})
    assert targets["ann"].adv_BT[:, 0].tolist() == [2.0, 1.0, 6.0, 1.0]  # 4 - 2, 1 - 0, 8 - 2, 1 - 0
    assert state == {"baselines": {"ann as x": 0.75 * 2 + 0.25 * 6, "ann as y": 0.25}}


def pairs():
    """Two members: (C, C) is paid 5 and (D, C) 3; log pi, sampled, of each turn."""
    one = paid((5.0, 5.0), spoke("x", "ann", "C", -0.5), spoke("y", "bob", "C", -0.25))
    other = paid((3.0, 3.0), spoke("x", "ann", "D", -1.0), spoke("y", "bob", "C", -0.75))
    return [one, other]


def test_a_turn_is_compared_with_what_others_earned_beside_the_same_partners():
    rule = example("partner_baseline.py:against_same_partners")()
    said = [("C", "C", 5.0), ("D", "C", 3.0), ("C", "D", 1.0), ("D", "C", 4.0)]
    given = lesson(rule, [paid((r, r), spoke("x", "ann", a), spoke("y", "bob", b)) for a, b, r in said])
    targets, _ = rule.advantage(given, {})
    # ann beside C: 5, 3, 4, each against the mean of the other two; beside D nobody else: all others, (5 + 3 + 4) / 3
    assert targets["ann"].adv_BT[:, 0].tolist() == [5 - 3.5, 3 - 4.5, 1 - 4, 4 - 4]
    # bob beside C: 5 and 1; beside D: 3 and 4
    assert targets["bob"].adv_BT[:, 0].tolist() == [4.0, -1.0, -4.0, 1.0]


def test_all_pairings_of_a_group():
    worth = {"CC": 5.0, "CD": 1.0, "DC": 6.0, "DD": 0.0}

    def reward(cases):
        return [[worth["".join(turn.text for turn in case.turns)]] * 2 for case in cases]

    episodes = [paid((0.0, 0.0), spoke("x", "ann", a), spoke("y", "bob", b)) for a, b in ("CC", "DC", "CD")]
    # ann's C, D, C beside bob's C, C, D: means 11/3, 12/3, 11/3; bob's C, C, D beside ann's: 16/3, 16/3, 2/3
    want_a = [11 / 3 - 23 / 6, 12 / 3 - 22 / 6, 11 / 3 - 23 / 6]
    want_b = [16 / 3 - 3, 16 / 3 - 3, 2 / 3 - 16 / 3]
    found = example("crossed.py:crossed")()(episodes, reward)
    assert [a for a, _ in found] == pytest.approx(want_a)
    assert [b for _, b in found] == pytest.approx(want_b)


def test_an_observers_answer_is_a_row_behind_the_bare_prompt_too():
    rule = example("bare_prompt.py:answered_alone")()
    first = spoke("pioneer", "ann", "C", -0.5)
    given = lesson(rule, [paid((1.0, 2.0), first, spoke("observer", "ann", "D", -0.75, heard=(first,)))])
    batch = given.batches["ann"]
    assert batch.ids_BS.tolist() == [[5, 7, 0, 0], [5, 6, 5, 7], [5, 7, 0, 0]]
    assert batch.logp_BT[:, 0].tolist() == [-0.5, -0.75, -0.75]
    assert batch.credit_B.tolist() == [1.0, 2.0, 2.0]
    assert batch.weight_B.tolist() == [3.0, 3.0, 3.0]  # three rows an episode
    targets, _ = rule.advantage(given, {})
    logp_BT = torch.tensor([[-0.5], [-0.75], [-1.0]], requires_grad=True)
    weight_BT = rule.objective.loss_aggregation(batch)
    loss, _ = rule.objective.loss(Outputs(logp_BT), batch, targets["ann"], weight_BT)
    weight = math.exp(-0.25)  # of the answer alone
    assert loss.item() == pytest.approx(-(1.0 + 2.0 + 2.0 * weight))
    assert torch.autograd.grad(loss, logp_BT)[0][:, 0].tolist() == pytest.approx([-1.0, -2.0, -2.0 * weight])


def test_the_entropy_comes_off_the_loss():
    rule = example("entropy_bonus.py:curious_magrpo")(bonus=0.25)
    given = lesson(rule, pairs())
    targets, _ = rule.advantage(given, {})
    logp_BT = torch.tensor([[-1.0], [-2.0]])
    entropy_BT = torch.tensor([[0.5], [1.5]], requires_grad=True)
    out, batch = Outputs(logp_BT, None, entropy_BT), given.batches["ann"]
    weight_BT = rule.objective.loss_aggregation(batch)
    loss, metrics = rule.objective.loss(out, batch, targets["ann"], weight_BT)
    assert loss.item() == pytest.approx(-(1.0 * -1.0 - 1.0 * -2.0) / 2 - 0.25 * 1.0)  # advantages 1 and -1
    assert metrics["loss/entropy"].item() == pytest.approx(-1.0)
    assert torch.autograd.grad(loss, entropy_BT)[0].tolist() == [[-0.125], [-0.125]]


def test_an_entropy_bonus_keeps_a_policy_undecided():
    def entropy(bonus):
        trainer = build(load_recipe(EXAMPLES / "entropy_bonus.yaml", [f"algorithm.bonus={bonus}"]))
        return [trainer.step(i)["agents/ann/entropy"] for i in range(8)][-1]

    assert entropy(5.0) > entropy(0.0) + 0.2
