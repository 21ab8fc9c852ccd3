"""Learning, determinism, reductions and controls of the training step, on a model made on the spot."""

import json
import math
import random
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from micro import VOCABULARY
from policy_cases import shaken
from toy import LUCKY, Lucky, toy, without_times

from coevolve import (
    PolicySpec,
    Problem,
    Sampling,
    Trainer,
    a2c,
    chain,
    cory,
    fixed,
    happo,
    noise,
    ppo,
    reinforce_pp,
    score,
    trpo,
)
from coevolve.algorithms import (
    cispo,
    dapo,
    dr_grpo,
    grpo,
    gspo,
    hindsight,
    iac,
    maac,
    madpo,
    magrpo,
    mareinforce,
    maremax,
    marlhf,
    marloo,
    reinforce,
    rloo,
)
from coevolve.measure import Clock
from coevolve.pay import LARGEST
from coevolve.plays import best_of, discussion, hinted, misheard, observers, resampled, rounds, tree
from coevolve.rollout import rollout
from coevolve.trainer import batch_of
from coevolve.types import Episode


def weights(trainer, name):
    return {k: v.clone() for k, v in trainer.policies[name].weights.base.causal.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    ("algorithm", "roles"),
    [
        (cory(eta=0.01), ("pioneer", "observer")),
        (ppo(eta=0.01), ("pioneer",)),
        (ppo(eta=0.01, penalty="sampled", whiten_rewards=True), ("pioneer",)),
        (ppo(eta=0.01, score_clip=3.0), ("pioneer",)),
        (ppo(eta=0.01, rescale="scale"), ("pioneer",)),
        (ppo(eta=0.01, rescale="normalise"), ("pioneer",)),
        (ppo(eta=0.01, penalty="full"), ("pioneer",)),
        (ppo(eta=0.01, value_norm=True), ("pioneer",)),
        (a2c(eta=0.01), ("pioneer",)),
        (reinforce_pp(), ("pioneer",)),
        (happo(eta=0.01), ("pioneer", "observer")),
    ],
    ids=[
        "cory", "ppo", "whiten_rewards", "score_clip", "scale", "normalise", "full", "value_norm", "a2c",
        "reinforce_pp", "happo",
    ],
)  # fmt: skip
def test_it_learns(micro_model, algorithm, roles):
    trainer = toy(micro_model, roles=roles, steps=30, batch_size=32, algorithm=algorithm)
    rewards = [trainer.step(i)["reward"] for i in range(30)]
    assert sum(rewards[-5:]) / 5 > 3 * sum(rewards[:5]) / 5 + 0.3


TEAM_RULES = {
    "magrpo": magrpo,
    "marloo": marloo,
    "maremax": maremax,
    "mareinforce": mareinforce,
}
PLAYS = {
    "rounds": (rounds(), 4),
    "two rounds": (rounds(2), 4),
    "tree": (tree(2, 2), 1),
    "cross": (tree(1, 3, joint="cross"), 1),
    "best_of": (best_of(2, 3), 1),
    "discussion": (discussion(), 4),
    "pipeline": (chain(), 4),
    "resampled": (resampled(4), 1),
    "observers": (observers(2), 4),
    "hinted": (hinted(), 4),
    "misheard": (misheard(0.5), 4),
}


def learns(trainer, steps):
    rewards = [trainer.step(i)["reward"] for i in range(steps)]
    assert sum(rewards[-5:]) / 5 > 3 * sum(rewards[:5]) / 5 + 0.3


@pytest.mark.parametrize("name", TEAM_RULES)
def test_a_team_learns_from_its_joint_return(micro_model, name):
    rule = TEAM_RULES[name](credit="team_return")
    learns(toy(micro_model, roles=("a", "b"), every=99, play=rounds(), members=4, steps=40, algorithm=rule), 40)


def luckier(problem, first, second):
    """The comparator of a reward: how often the token is there."""
    said = [sum(text.count(VOCABULARY[LUCKY]) for text in texts.values()) for texts in (first, second)]
    return said[0] - said[1]


CREDITS = {
    "crossed": marloo(credit="crossed"),
    "two shifts": marloo(credit={"name": "crossed", "shifts": 2}),
    "counterfactual": mareinforce(credit="counterfactual"),
    "difference": magrpo(credit="difference"),
    "shapley": magrpo(credit="shapley"),
    "team_mean": marloo(credit="team_mean"),
    "own_reward": marloo(credit="own_reward"),
    "own_return": marloo(credit="own_return"),
    "to_go": marloo(credit="to_go"),
    "compared": marloo(credit={"name": "compared", "by": luckier}),
}


@pytest.mark.parametrize("name", CREDITS)
def test_a_team_learns_from_what_others_would_have_been_paid(micro_model, name):
    rule = CREDITS[name]
    learns(toy(micro_model, roles=("a", "b"), every=99, play=rounds(), members=4, steps=40, algorithm=rule), 40)


@pytest.mark.slow
@pytest.mark.parametrize("play", [chain(), hinted()], ids=["chain", "hinted"])
def test_what_was_heard_is_learnt_alone(micro_model, play):
    """One policy in both roles."""
    roles, rule = fixed({"a": "ann", "b": "ann"}), hindsight(credit="first_joint", beta=0.01)
    learns(toy(micro_model, cast=roles, roles=("a",), play=play, members=4, steps=40, algorithm=rule), 40)


def test_hindsight_with_a_cap_of_nothing_is_leave_one_out(micro_model):
    """A cap of 0 is ``marloo`` of own rewards, step by step."""
    lines = []
    for rule in (hindsight(cap=0, clip=0.2), marloo(credit="own_reward", clip=0.2)):
        trainer = toy(micro_model, cast=fixed({"a": "ann", "b": "ann"}), roles=("a",), members=2, algorithm=rule)
        lines.append([without_times(trainer.step(i)) for i in range(2)])
    assert lines[0] == lines[1]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [madpo(minibatch=16), madpo(margin="own", pairs=None, reference=False)])
def test_a_team_learns_from_preferences(micro_model, rule):
    learns(toy(micro_model, roles=("a", "b"), every=99, play=rounds(), members=4, steps=40, algorithm=rule), 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "agents", ["magrpo", {"name": "ppo", "eta": 0.01, "credit": "team_sum"}, "iac"], ids=["magrpo", "ppo", "iac"]
)
def test_a_team_learns_from_a_judge_who_learns_from_comparisons(micro_model, agents):
    policies = {name: PolicySpec(model=str(micro_model), learning_rate=1e-2) for name in ("ann", "bob", "judge")}
    rule = marlhf(judge="judge", agents=agents, warmup=5)
    trainer = toy(
        micro_model, roles=("a", "b"), every=99, policies=policies, play=rounds(), members=4, steps=50, algorithm=rule
    )
    lines = [trainer.step(i) for i in range(50)]
    assert fmean(line["agents/judge/agreed"] for line in lines[5:25]) > 0.6  # few pairs a step; chance is .5
    assert sum(line["reward"] for line in lines[-5:]) > 3 * sum(line["reward"] for line in lines[:5]) + 1.5
    assert trainer.state["step"] == 50


def test_a_judge_that_cannot_read_is_told(micro_model):
    policies = {name: PolicySpec(model=str(micro_model)) for name in ("ann", "bob", "judge")}
    trainer = toy(
        micro_model, roles=("a", "b"), policies=policies, play=rounds(), members=2, algorithm=marlhf(judge="judge")
    )
    trainer.policies["judge"].tokenizer = SimpleNamespace(get_vocab=lambda: {"another": 0})
    with pytest.raises(
        ValueError, match="policy 'judge' is to read what policy 'ann' said, as token ids, and has another"
    ):
        trainer.step(0)


BASELINES = {
    "length": marloo(baseline="length"),
    "shrunk": marloo(baseline="shrunk"),
    "moving": marloo(baseline="moving"),
    "of the role, over the team": magrpo(group="role", std="team"),
    "in the agent's deviations": magrpo(std="agent"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_team_learns_against_every_baseline(micro_model, name):
    rule = BASELINES[name]
    learns(toy(micro_model, roles=("a", "b"), every=99, play=rounds(), members=4, steps=40, algorithm=rule), 40)


CRITICS = {
    "iac of a tree, lambda": (iac(lam=0.9), tree(2, 2), 2),
    "iac of others": (iac(critic={"ann": "judge", "bob": "judge"}, clip=0.2, epochs=2), rounds(2), 3),
    "maac": (maac(critic="judge"), rounds(2), 3),
    "maac in units of returns": (maac(critic="judge", value_norm=True), rounds(2), 3),
    "maac with a head of ann's": (maac(critic="ann"), rounds(2), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITICS)
def test_a_team_learns_with_a_critic(micro_model, name):
    rule, play, policies = CRITICS[name]
    spec = PolicySpec(micro_model, learning_rate=1e-2)
    team = dict.fromkeys(("ann", "bob", "judge")[:policies], spec)
    members = 1 if "tree" in name else 4
    trainer = toy(micro_model, roles=("a", "b"), every=99, play=play, members=members, policies=team, algorithm=rule)
    lines = [trainer.step(i) for i in range(30)]
    rewards = [line["reward"] for line in lines]
    assert sum(rewards[-5:]) / 5 > 3 * sum(rewards[:5]) / 5 + 0.3
    known = [value for line in lines for key, value in line.items() if key.endswith("/explained_variance")]
    assert max(known) > 0  # a second turn is worth less than both


def test_a_critic_that_never_speaks(micro_model):
    spec = PolicySpec(micro_model, learning_rate=1e-2)
    judge = {**dict.fromkeys("ab", spec), "judge": spec}
    settings = {"play": rounds(), "cast": fixed({"x": "a", "y": "b"}), "policies": judge}
    trainer = toy(micro_model, algorithm=maac(critic="judge"), steps=2, **settings)
    assert [name for name, policy in trainer.policies.items() if policy.value_head is not None] == ["judge"]
    before = {name: weights(trainer, name) for name in judge}
    trainer.step(0)  # the head starts at 0, so nothing behind it has a gradient yet
    line = trainer.step(1)
    assert not any(same(before[name], weights(trainer, name)) for name in judge)
    assert "agents/judge/length" not in line  # it said nothing
    assert line["agents/judge/loss/value"] > 0
    for name, wrong in (("nobody", "critic names the policy 'nobody'"), ("frozen", "is a critic and frozen")):
        policies = judge | {"frozen": PolicySpec(micro_model, weights="frozen")}
        with pytest.raises(ValueError, match=wrong):
            toy(micro_model, algorithm=maac(critic=name), **settings | {"policies": policies})


def test_a_critic_reads_the_tokens_of_the_others(micro_model):
    spec = PolicySpec(micro_model)
    policies = {"a": spec, "judge": PolicySpec("coevolve-coin")}
    settings = {"roles": ("a",), "cast": fixed({"x": "a"}), "policies": policies, "play": rounds()}
    with pytest.raises(ValueError, match="'judge' is to read what policy 'a' said, as token ids, and has another"):
        toy(micro_model, algorithm=maac(critic="judge"), **settings).step(0)


@pytest.mark.parametrize("name", PLAYS)
def test_magrpo_learns_in_every_play(micro_model, name):
    play, members = PLAYS[name]
    learns(toy(micro_model, roles=("a", "b"), every=99, play=play, members=members, steps=40, algorithm=magrpo()), 40)


REUSED = {"epochs": 2, "minibatch": 16}
GROUP_RULES = [
    grpo(),
    grpo(**REUSED),
    grpo(beta=0.01, estimator="exact", entropy=0.001),
    dr_grpo(mismatch="tis", beta=0.01, estimator="k2"),
    dapo(**REUSED, mismatch="sequence"),
    gspo(epochs=2, clip=0.05),
    rloo(mismatch="icepop"),
    reinforce(),
]


@pytest.mark.parametrize("rule", GROUP_RULES)
def test_one_agent_learns_from_its_group(micro_model, rule):
    learns(toy(micro_model, roles=("a",), play=rounds(), members=4, steps=40, algorithm=rule), 40)


def test_only_the_penalty_in_the_loss_holds_a_policy(micro_model):
    """Nothing is paid and the policy is not its reference: the exact penalty leads back, within 30 steps."""

    class Unpaid(Lucky):
        def reward(self, cases):
            return [[0.0] * len(case.turns) for case in cases]

    trainer = toy(micro_model, roles=("pioneer",), steps=30, algorithm=ppo(eta=1.0, penalty="exact", value_coef=0.0))
    trainer.task = Unpaid()
    shaken(trainer.policies["ann"], 1)
    trainer.publish(trainer.policies, 0)
    found = [trainer.step(i)["agents/ann/kl"] for i in range(30)]
    assert found[0] > 0.05
    assert found[-1] < 0.5 * found[0]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [cispo(**REUSED), trpo(eta=0.01)])
def test_rules_without_a_clip_that_stops_them_learn_at_a_lower_rate(micro_model, rule):
    settings = {"roles": ("a",), "play": rounds(), "members": 4, "steps": 40, "learning_rate": 3e-3}
    learns(toy(micro_model, algorithm=rule, **settings), 40)


def test_of_one_agent_happo_is_ppo(micro_model):
    same_settings = {"eta": 0.05, "credit": "team_sum", "penalty": "sampled"}
    made = [toy(micro_model, roles=("pioneer",), algorithm=rule(**same_settings)) for rule in (happo, ppo)]
    lines = [[without_times(trainer.step(i)) for i in range(2)] for trainer in made]
    assert lines[0] == lines[1]


def test_agents_that_learn_in_turn_know_how_the_first_has_moved(micro_model):
    """The second one's advantages are changed by the first one's update, and which is first is drawn."""
    seen = []
    rule = happo(eta=0.01)

    def watched(lesson, name, logp_BT, targets, state):
        found, state = rule.follow(lesson, name, logp_BT, targets, state)
        seen.append((name, {other: torch.equal(found[other].adv_BT, targets[other].adv_BT) for other in targets}))
        return found, state

    trainer = toy(micro_model, seed=3, algorithm=replace(rule, follow=watched))
    for i in range(6):
        trainer.step(i)
    assert all(same == {name: True, ("ann" if name == "bob" else "bob"): False} for name, same in seen)
    assert {name for name, _ in seen[::2]} == {"ann", "bob"}
    assert [len({a, b}) for (a, _), (b, _) in zip(seen[::2], seen[1::2], strict=True)] == [2] * 6
    speak = [list(trainer.cast(i).values()) for i in range(6)]
    assert [name for name, _ in seen] == [
        names[n] for i, names in enumerate(speak) for n in noise.permutation(2, 3, "in turn", i)
    ]


def test_what_follows_an_update_may_leave_the_others_out(micro_model):
    """Their weights stay; what the algorithm measured of them is logged."""
    rule = happo(eta=0.01)
    trainer = toy(
        micro_model, algorithm=replace(rule, follow=lambda lesson, name, logp_BT, targets, state: ({}, state))
    )
    line = trainer.step(0)
    assert sorted(f"agents/{name}/updates" in line for name in ("ann", "bob")) == [False, True]


def test_a_caution_is_said_once_when_the_trainer_is_built(micro_model):
    with pytest.warns(UserWarning, match="blind"):
        trainer = toy(micro_model, algorithm=cory(eta=0.1, penalty="full"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(0)
        toy(micro_model, algorithm=cory(eta=0.1, penalty="sampled"))


def test_a_team_of_other_models_other_weights_and_other_learning_rates(micro_model, micro_gpt2):
    policies = {
        "full": PolicySpec(model=str(micro_model), learning_rate=1e-2),
        "lora": PolicySpec(model=str(micro_gpt2), weights="lora", learning_rate=5e-2),
        "frozen": PolicySpec(model=str(micro_gpt2), weights="frozen"),
    }
    roles = {"a": "full", "b": "lora", "c": "frozen", "d": "full"}  # one set of weights has two roles
    trainer = Trainer(
        task=Lucky(), play=rounds(2), cast=fixed(roles), policies=policies, algorithm=magrpo(), batch_size=4, members=4
    )
    frozen = trainer.policies["frozen"].weights.base
    before, base = weights(trainer, "full"), {k: v.clone() for k, v in frozen.bare_state().items()}
    for i in range(2):
        line = trainer.step(i)
    assert line["agents/full/lr"] == 1e-2
    assert line["agents/lora/lr"] == 5e-2
    assert "agents/frozen/lr" not in line
    assert same(base, frozen.bare_state())  # which the adapter sits on
    assert not same(before, weights(trainer, "full"))
    assert line["agents/lora/grad_norm"] > 0


def test_weights_in_two_roles_get_the_sum_of_both_gradients(micro_model):
    """One policy in two roles has twice the gradient that one role gives, where both roles say the same."""

    class Deaf(Lucky):
        def prompt(self, p, role, heard):
            return "a b"

    def gradient(roles):
        trainer = Trainer(
            task=Deaf(),
            play=rounds(),
            cast=fixed(roles),
            policies={name: PolicySpec(model=str(micro_model)) for name in roles.values()},
            algorithm=magrpo(credit="own_return"),
            batch_size=64,
            members=4,
            sampling=Sampling(1),
        )
        return trainer.step(0)["agents/ann/grad_norm"]

    one, two = gradient({"a": "ann", "b": "bob"}), gradient({"a": "ann", "b": "ann"})
    assert one < two < 3 * one  # the same direction twice, with other samples


def test_the_return_of_each_turn_and_parts_are_logged(micro_model):
    class Parted(Lucky):
        def parts(self, cases):
            return [{"tokens": float(sum(len(t.action_ids) for t in case.turns))} for case in cases]

    trainer = toy(micro_model, play=rounds(2), members=2, algorithm=magrpo())
    trainer.task = Parted()
    line = trainer.step(0)
    ends = [sum(len(t.action_ids) for t in e.turns[2:]) for e in trainer.episodes]
    firsts = [sum(t.reward for t in e.turns[:2]) / 2 for e in trainer.episodes]
    assert line["parts/tokens"] == pytest.approx(sum(ends) / len(ends))
    assert line["turn/1/reward"] == pytest.approx(sum(firsts) / len(firsts))
    assert line["turn/1/reward"] + line["turn/2/reward"] == pytest.approx(2 * line["reward"])
    ended = toy(micro_model, play=rounds(2, done=-1.0), members=2, algorithm=magrpo()).step(0)
    assert ended["turn/1/reward"] == pytest.approx(ended["reward"]) and "turn/2/reward" not in ended


def test_a_batch_is_reused_as_often_as_asked(micro_model):
    trainer = toy(micro_model, roles=("a",), play=rounds(), members=4, algorithm=grpo(epochs=3, minibatch=8, clip=0.01))
    line = trainer.step(0)
    steps = {int(state["step"]) for state in trainer.policies["ann"].optimizer.state.values()}
    assert steps == {3 * 32 // 8}
    assert 0 < line["agents/ann/clip_fraction"] < 1  # ratios move within a step


def test_the_clip_fraction_is_one_whatever_the_weights(micro_model):
    for weights_ in ("sequence", "turn", "token"):
        rule = magrpo(clip=1e-6, epochs=4, loss_aggregation=weights_)
        trainer = toy(micro_model, roles=("a",), play=rounds(), members=4, algorithm=rule, sampling=Sampling((5, 5)))
        assert 0 < trainer.step(0)["agents/ann/clip_fraction"] < 1


def test_an_id_that_two_problems_have_is_named(micro_model):
    class Twins(Lucky):
        train = (Problem("x", {"n": 1}), Problem("y"), Problem("x", {"n": 2}))

    with pytest.raises(ValueError, match="the task Twins has 1 ids more than once, such as 'x'"):
        Trainer(
            task=Twins(), play=rounds(), cast=fixed({"a": "ann"}), policies={"ann": str(micro_model)}, algorithm=grpo()
        )


def test_an_id_that_is_no_text_is_refused(micro_model):
    class Numbered(Lucky):
        train = (Problem(3), Problem(4))

    with pytest.raises(ValueError, match="the task Numbered has 3 for the id of a problem; want text"):
        Trainer(
            task=Numbered(),
            play=rounds(),
            cast=fixed({"a": "ann"}),
            policies={"ann": str(micro_model)},
            algorithm=grpo(),
        )


def test_a_cast_that_is_none_is_named(micro_model):
    with pytest.raises(ValueError, match=r"^the cast, step 0: it is None; want role -> policy"):
        toy(micro_model, cast=lambda step: None)


def test_metrics_of_an_update_are_numbers(micro_model, monkeypatch):
    trainer = toy(micro_model)
    update = trainer.policies["ann"].update
    monkeypatch.setattr(trainer.policies["ann"], "update", lambda *given: update(*given) | {"on": True})
    line = trainer.step(0)
    assert line["agents/ann/on"] == 1.0 and type(line["agents/ann/on"]) is float
    monkeypatch.setattr(trainer.policies["ann"], "update", lambda *given: update(*given) | {"note": "hello"})
    with pytest.raises(ValueError, match="policy 'ann': the metric 'note' is 'hello'; want a number"):
        trainer.step(1)


def test_groups_of_one_are_warned_of(micro_model):
    async def sometimes(p, team):
        a = await team["a"](peers=p.id, weight=1.0)
        if p.id in ("p1", "p2"):
            a = await team["a"](peers=p.id)
        await score(team, [a])

    trainer = toy(micro_model, roles=("a",), play=sometimes, algorithm=magrpo(), batch_size=16)
    with pytest.warns(UserWarning, match="78% of its turns have no peers"):  # 14 of 18
        trainer.step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(1)  # once is enough


def test_every_problem_has_to_be_one(micro_model):
    class Mixed(Lucky):
        train = (*Lucky.train, "p16")

    with pytest.raises(ValueError, match="the task Mixed has 'p16' for a problem; want"):
        Trainer(
            task=Mixed(), play=chain(), cast=fixed({"a": "ann"}), policies={"ann": str(micro_model)}, algorithm=cory()
        )


def test_the_same_seed_twice_gives_the_same_metrics_and_another_does_not(micro_model, tmp_path):
    def run(name, seed):
        lines = toy(micro_model, seed=seed).run(tmp_path / name) / "metrics.jsonl"
        return [without_times(json.loads(line)) for line in lines.read_text().splitlines()]

    first = run("first", 0)
    assert first == run("second", 0)
    assert first != run("third", 1)


def test_the_seed_names_all_that_a_step_draws(micro_model, monkeypatch):
    """Turns and their length, the problems that join the others, and the pieces of a batch."""
    drawn = []
    monkeypatch.setattr("coevolve.trainer.with_others", lambda *given: drawn.append(given[-2:]) or given[0])
    trainer = toy(micro_model, seed=3)
    stages = [trainer.stage(i, None) for i in range(8)]
    assert stages[2].key(Episode(Problem("p0"), 0), "a") == noise.key(3, 2, "p0", 0, "a")
    assert [stage.sampling.max_new_tokens for stage in stages] == [4, 5, 3, 2, 3, 3, 3, 5]
    trainer.sampled(5, Clock())
    assert drawn == [(3, 5)]
    assert trainer.policies["ann"].seed == 3


def test_what_a_task_draws_from_pythons_generator_is_the_same_twice(micro_model, monkeypatch, tmp_path):
    monkeypatch.setattr(Lucky, "reward", lambda self, cases: [[random.random()] * len(case.turns) for case in cases])

    def run(before):
        random.seed(before)
        lines = toy(micro_model, steps=1).run(tmp_path / f"{before}", samples=0) / "metrics.jsonl"
        return without_times(json.loads(lines.read_text()))

    assert run(1) == run(2)


def test_the_engine_rests_before_anybody_learns(micro_model, monkeypatch):
    """What it holds of a GPU's memory is the learners' then."""
    trainer, told = toy(micro_model), []
    monkeypatch.setattr(trainer.engine, "rest", lambda: told.append("rest"))
    for policy in trainer.policies.values():
        monkeypatch.setattr(policy, "update", lambda *given: told.append("update") or {})
    trainer.step(0)
    assert told == ["rest", "update", "update"]


def test_what_the_learner_said_before_its_update_is_kept_where_a_rule_corrects_the_sampler(micro_model):
    rule = magrpo(clip=0.2, epochs=2, mismatch="tis")
    trainer = toy(micro_model, roles=("a",), play=rounds(), members=2, algorithm=rule)
    trainer.step(0)
    batch = trainer.lessons["ann"][0]
    assert torch.allclose(batch.logp_old_BT, batch.logp_BT, atol=1e-4)  # one and the same model


def test_progress_is_shown_unless_somebody_else_listens(micro_model, tmp_path, capsys):
    toy(micro_model, steps=2).run(tmp_path / "shown")
    out, err = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == ["step 1/2", "step 2/2"]
    assert "Writing model shards" not in err
    told = []
    toy(micro_model, steps=2).run(tmp_path / "silent", listeners=[told.append])
    assert [line["step"] for line in told] == [0, 1]
    assert capsys.readouterr().out == ""


def test_cory_with_one_role_is_ppo(micro_model):
    lines = []
    for algorithm in (cory(eta=0.05), ppo(eta=0.05)):
        trainer = toy(micro_model, roles=("pioneer",), algorithm=algorithm)
        lines.append([without_times(trainer.step(i)) for i in range(3)])
    assert lines[0] == lines[1]


def test_without_transfer_and_with_own_pay_each_agent_is_alone(micro_model):
    pair = toy(micro_model, play=chain(transfer=False), every=100, algorithm=cory(eta=0.05, credit="own_reward"))
    alone = toy(micro_model, roles=("pioneer",), algorithm=ppo(eta=0.05))
    for i in range(3):
        both, one = pair.step(i), alone.step(i)
        assert both["reward/pioneer"] == one["reward/pioneer"]
    assert same(weights(pair, "ann"), weights(alone, "ann"))
    assert not same(weights(pair, "bob"), weights(alone, "ann"))  # another role, other noise


def test_observer_paid_r2_only(micro_model):
    trainer = toy(micro_model, algorithm=cory(eta=0.0, credit="to_go"), every=100)
    line = trainer.step(0)
    r1, r2 = line["reward/pioneer"], line["reward/observer"]
    assert line["agents/ann/credit"] == pytest.approx(r1 + r2)
    assert line["agents/bob/credit"] == pytest.approx(r2)


def test_collective_reward_pays_both_the_sum(micro_model):
    line = toy(micro_model).step(0)
    total = line["reward/pioneer"] + line["reward/observer"]
    assert line["agents/ann/credit"] == pytest.approx(total)
    assert line["agents/bob/credit"] == pytest.approx(total)


def test_state_follows_the_policy_through_an_exchange(micro_model):
    trainer = toy(micro_model, every=1, algorithm=cory(eta=0.3, target_kl=0.5, rescale="normalise"))
    trainer.step(0)
    optimiser = trainer.policies["ann"].optimizer
    trainer.step(1)
    assert trainer.cast(1)["observer"] == "ann"
    assert trainer.policies["ann"].optimizer is optimiser
    assert trainer.state["moments"]["ann"]["count"] == 16
    assert trainer.state["kl"]["ann"] != 0.3


def test_reset_every_rebuilds_everything_but_the_weights(micro_model):
    trainer = toy(micro_model, every=2, reset_every=2, algorithm=cory(target_kl=0.5, rescale="scale"))
    stages = [trainer.stage(i, None) for i in range(8)]
    lengths = [stage.sampling.max_new_tokens for stage in stages]
    of_p0 = [stage.key(Episode(Problem("p0"), 0), "a") for stage in stages]
    assert of_p0[:2] == of_p0[2:4] and of_p0[0] != of_p0[1]  # and so do the random numbers
    assert [stage.step for stage in stages] == list(range(8))  # but messages name the step
    assert lengths == [3, 4] * 4  # the length pattern repeats
    for i in range(2):
        trainer.step(i)
    before = weights(trainer, "ann")
    trainer.reset()
    assert same(before, weights(trainer, "ann"))
    assert trainer.state == {}
    assert not trainer.policies["ann"].optimizer.state


def test_held_out_samples_draw_other_numbers_than_a_step(micro_model, monkeypatch):
    trainer, stages = toy(micro_model), []

    def watched(play, problems, stage):
        stages.append(stage)
        return rollout(play, problems, stage)

    monkeypatch.setattr("coevolve.trainer.rollout", watched)
    trainer.sample(1)
    one = Episode(Problem("p0"), 0)
    assert stages[0].key(one, "a") == noise.key(0, "sample", "p0", 0, "a") != trainer.stage(0, None).key(one, "a")


def test_the_trainer_resets_by_itself(micro_model):
    trainer = toy(micro_model, every=2, reset_every=2, algorithm=cory(target_kl=0.5, rescale="scale"))
    for i in range(3):
        trainer.step(i)
    assert trainer.state["moments"]["ann"]["count"] == 8  # of step 2 alone
    steps = {int(state["step"]) for state in trainer.policies["ann"].optimizer.state.values()}
    assert steps == {4}  # its four epochs
    assert trainer.state["kl"]["ann"] == pytest.approx(0.3, rel=0.2 * 8 / 10000 + 1e-9)


def test_heads_are_read_in_their_own_units_after_a_reset(micro_model):
    trainer = toy(micro_model, every=2, reset_every=1, algorithm=cory(rescale="scale", value_norm=True, target_kl=0.5))
    seen = [(trainer.step(i), trainer.state["values"]["ann"]["count"])[1] for i in range(3)]
    assert 0 < seen[0] < seen[1] < seen[2]
    assert trainer.state["moments"]["ann"]["count"] == 8  # the statistics of rewards begin anew, as ever


def test_a_judge_warms_up_once(micro_model):
    """Not after every reset; and who waits for it is not told of as somebody who is never to learn."""
    policies = {name: PolicySpec(model=str(micro_model)) for name in ("ann", "bob", "judge")}
    agents = {"name": "ppo", "value_norm": True}
    algorithm = marlhf(judge="judge", agents=agents, warmup=2)
    trainer = toy(micro_model, policies=policies, algorithm=algorithm, play=rounds(), members=2, reset_every=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*gave it no targets")
        lines = [trainer.step(i) for i in range(4)]
    assert [set(trainer.policies) - {n for n in policies if f"agents/{n}/loss" in line} for line in lines] == [
        {"ann", "bob"}, {"ann", "bob"}, set(), set(),
    ]  # fmt: skip
    assert trainer.state["step"] == 4
    assert trainer.state["agents"]["values"]["ann"]["count"] > 0


def test_rescaling_switches(micro_model):
    plain = toy(micro_model, algorithm=cory()).step(0)["agents/ann/credit"]
    centred = toy(micro_model, algorithm=cory(rescale="normalise")).step(0)["agents/ann/credit"]
    assert plain > 0
    assert centred == pytest.approx(0.0, abs=1e-6)


def test_scores_are_clipped(micro_model):
    plain, clipped = (toy(micro_model, algorithm=cory(score_clip=clip)).step(0) for clip in (None, 0.01))
    assert plain["agents/ann/credit"] > clipped["agents/ann/credit"] > 0
    assert plain["reward"] == clipped["reward"]  # what is paid is what is shown


@pytest.mark.parametrize("rule", [cory(), magrpo(std="group"), grpo(), marloo(std="agent")])
def test_the_largest_rewards_stay_finite(micro_model, monkeypatch, rule):
    monkeypatch.setattr(Lucky, "reward", lambda self, cases: [
        [LARGEST if LUCKY in t.action_ids else -LARGEST for t in case.turns] for case in cases
    ])  # fmt: skip
    line = toy(micro_model, play=chain(), members=4, algorithm=rule).step(0)
    finite = {name: math.isfinite(value) for name, value in line.items()}
    assert all(finite.values()), finite
    assert abs(line["reward"]) <= LARGEST


@pytest.mark.parametrize(
    "reward",
    [1e308, -1e308, 2e12, 10**400, 10**5000, math.nan, math.inf, "1", None, 1j],
    ids=lambda reward: type(reward).__name__,
)
def test_rewards_that_nobody_can_learn_from_are_named(micro_model, monkeypatch, reward):
    monkeypatch.setattr(Lucky, "reward", lambda self, cases: [[1.0, reward] for case in cases])
    with pytest.raises(
        ValueError, match=r"problem 'p\d+', step 0, paid role 'observer' .* want a finite number"
    ) as error:
        toy(micro_model).step(0)
    assert "\n" not in str(error.value)


def test_twice_the_samples(micro_model):
    trainer = toy(micro_model, roles=("pioneer",), members=2, algorithm=ppo())
    trainer.step(0)
    assert len(trainer.episodes) == 16
    assert [e.member for e in trainer.episodes[:2]] == [0, 1]


def test_shared_and_frozen_policies(micro_model):
    roles = {"pioneer": "ann", "observer": "ann", "critic": "cat"}
    policies = {
        "ann": PolicySpec(model=str(micro_model), learning_rate=1e-2),
        "cat": PolicySpec(model=str(micro_model), weights="frozen"),
    }
    trainer = Trainer(
        task=Lucky(), play=chain(), cast=fixed(roles), policies=policies, algorithm=cory(), batch_size=4, steps=1
    )
    before = weights(trainer, "ann"), weights(trainer, "cat")
    line = trainer.step(0)
    assert not same(before[0], weights(trainer, "ann"))
    assert same(before[1], weights(trainer, "cat"))
    assert "agents/cat/kl" not in line
    assert "agents/cat/reward" in line


def test_lora_agents_on_one_base_learn(micro_model):
    policies = {n: PolicySpec(model=str(micro_model), weights="lora", learning_rate=1e-1) for n in ("ann", "bob")}
    trainer = Trainer(
        task=Lucky(),
        play=chain(),
        cast=fixed({"pioneer": "ann", "observer": "bob"}),
        policies=policies,
        algorithm=cory(eta=0.01),
        batch_size=16,
        steps=20,
    )
    lines = [trainer.step(i) for i in range(20)]
    assert lines[0]["agents/ann/kl"] == pytest.approx(0.0, abs=1e-5)
    assert lines[-1]["agents/ann/kl"] > 1e-4
    assert sum(x["reward"] for x in lines[-5:]) > sum(x["reward"] for x in lines[:5])


def test_every_problem_once_an_epoch_and_the_order_is_a_function_of_the_step():
    problems = Lucky.train
    epoch = [p.id for step in range(4) for p in batch_of(problems, step, 4, seed=0)]
    assert sorted(epoch) == sorted(p.id for p in problems)
    following = [p.id for step in range(4, 8) for p in batch_of(problems, step, 4, seed=0)]
    assert sorted(following) == sorted(epoch)
    assert following != epoch
    assert batch_of(problems, 5, 4, seed=0) == batch_of(problems, 5, 4, seed=0)
    assert batch_of(problems, 0, 16, seed=0) != batch_of(problems, 0, 16, seed=1)


def test_a_role_may_be_silent_for_a_step(micro_model):
    async def sometimes(p, team):
        turn = await team["pioneer"]()
        await score(team, [turn])

    line = toy(micro_model, play=sometimes).step(0)
    assert "agents/ann/kl" in line
    assert not any(key.startswith("agents/bob/") for key in line)


def test_truncated_sampling_is_told_and_measured(micro_model):
    with pytest.warns(UserWarning, match="excess"):
        trainer = toy(micro_model, sampling=Sampling(4, top_k=2))
    assert trainer.step(0)["agents/ann/excess"] > 0
    assert "agents/ann/excess" not in toy(micro_model).step(0)


def test_mistakes_are_named(micro_model):
    with pytest.raises(ValueError, match="temperature is 0"):
        toy(micro_model, sampling=Sampling(4, temperature=0)).step(0)
    with pytest.raises(ValueError, match="'cat' at step 3"):
        toy(micro_model, cast=lambda i: {"pioneer": "ann" if i < 3 else "cat", "observer": "bob"})
    with pytest.raises(ValueError, match="weights is 'lroa'; want one of full, lora, frozen"):
        PolicySpec(model="m", weights="lroa")
    with pytest.raises(
        ValueError, match=r"trainer: policies is \['ann', 'bob'\]; want name -> model, PolicySpec or le"
    ):
        toy(micro_model, policies=["ann", "bob"])
    with pytest.raises(ValueError, match=r"the task is the class Lucky; call it: Lucky\(...\)"):
        Trainer(task=Lucky, play=chain(), cast=fixed({"a": "x"}), policies={"x": str(micro_model)}, algorithm=ppo())
    with pytest.raises(ValueError, match="task SimpleNamespace has no test"):
        Trainer(
            task=SimpleNamespace(train=Lucky.train),
            play=chain(),
            cast=fixed({"a": "x"}),
            policies={"x": str(micro_model)},
            algorithm=ppo(),
        )
    frozen = PolicySpec(model=str(micro_model), weights="frozen")
    still = Trainer(task=Lucky(), play=chain(), cast=fixed({"a": "x"}), policies={"x": frozen}, algorithm=ppo())
    for train in (lambda: still.step(0), lambda: still.run("nowhere")):
        with pytest.raises(ValueError, match="nobody learns"):
            train()
    assert not Path("nowhere").exists()
    with pytest.raises(ValueError, match=r"'observer'.*'bob'.*ann"):
        toy(micro_model, roles=("pioneer",), cast=fixed({"pioneer": "ann", "observer": "bob"}))
    with pytest.raises(ValueError, match="batch_size is 0"):
        toy(micro_model, batch_size=0)


def test_rewards_that_never_differ_are_told_once(micro_model):
    """Whatever the algorithm; one other reward in between begins the count anew."""
    cautions = toy(micro_model).cautions

    def step(*rewards, credits=()):
        rows = [SimpleNamespace(credit=credit) for credit in credits]
        cautions.of_pay([SimpleNamespace(joints=[SimpleNamespace(rewards=[reward]) for reward in rewards])], rows)

    for rewards, steps in (((0.0, 0.0), 4), ((0.0, 1.0), 1), ((0.0, 0.0), 4)):
        for _ in range(steps):
            step(*rewards)
    step(0.0, 0.0, credits=(0.5, -0.5))  # by comparisons
    for reward in (0.1, 0.9, 0.3, 0.7, 0.5, 0.0):  # of one turn a step
        step(reward)
    step(1.0)
    for _ in range(4):
        step(0.0, 0.0)
    with pytest.warns(UserWarning, match="for 5 steps every turn has had the same reward, 0, so nobody has anything"):
        step(0.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(0.0, 0.0)


def test_a_critic_worse_than_nothing_is_told_once(micro_model):
    cautions = toy(micro_model).cautions
    for known, steps in ((-0.1, 19), (0.1, 1), (-0.1, 19)):
        for _ in range(steps):
            cautions.of_learning("ann", {"explained_variance": known})
    cautions.of_learning("bob", {})  # it has none
    with pytest.warns(UserWarning, match=r"'ann': its critic has explained less than nothing .* for 20 steps"):
        cautions.of_learning("ann", {"explained_variance": -0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cautions.of_learning("ann", {"explained_variance": -0.1})
