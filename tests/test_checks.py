"""What a training rule gives back, checked, and how the trainer treats it: state, rows, warnings, mistakes."""

import dataclasses
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from policy_cases import make_batch
from toy import Lucky, toy

from coevolve import (
    Episode,
    Joint,
    Lesson,
    PolicySpec,
    Problem,
    Row,
    Sampling,
    Targets,
    Trainer,
    Turn,
    by_episode,
    chain,
    fixed,
    magrpo,
    mareinforce,
    rounds,
)  # fmt: skip
from coevolve.cautions import averaged_away
from coevolve.checks import _LEARNER, check_learner, checked_targets, plain_state
from coevolve.credit import own_reward, team_mean
from coevolve.runs import checkpoint


def given():
    return Lesson([], {"ann": make_batch(3, 0), "bob": make_batch(2, 1)})


def aims(lesson, name, **changes):
    return Targets(torch.zeros(lesson.batches[name].mask_BT.shape), **changes)


def test_targets_come_in_the_order_of_the_batches_and_some_may_be_missing():
    lesson = given()
    both = {"bob": aims(lesson, "bob"), "ann": aims(lesson, "ann")}
    assert list(checked_targets(both, lesson)) == ["ann", "bob"]
    assert list(checked_targets({"bob": both["bob"]}, lesson)) == ["bob"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda lesson: None, "want a mapping from policies to Targets"),
        (lambda lesson: {"ann": torch.zeros(3)}, "want a mapping from policies to Targets"),
        (lambda lesson: {"cat": aims(lesson, "ann")}, "targets for 'cat', which does not learn; there are ann, bob"),
        (lambda lesson: {"ann": Targets(torch.zeros(3))}, r"policy 'ann': adv_BT has the shape \[3\]; want \[3, "),
        (lambda lesson: {"bob": aims(lesson, "ann")}, "policy 'bob': adv_BT has the shape"),
        (lambda lesson: {"bob": aims(lesson, "bob", return_BT=torch.zeros(1, 1))}, "'bob': return_BT has the shape"),
        (lambda lesson: {"bob": aims(lesson, "bob", columns={"x_B": torch.zeros(3)})}, r"x_B .* \[3\]; want \[2\]"),
        (
            lambda lesson: {"bob": Targets(torch.full(lesson.batches["bob"].mask_BT.shape, math.nan))},
            "policy 'bob': adv_BT is not finite",
        ),
        (lambda lesson: {"bob": aims(lesson, "bob", columns={"x": torch.zeros(2)})}, "'x' does not end in _B or _BT"),
        (lambda lesson: {"bob": aims(lesson, "bob", metrics={"m": "1"})}, "'bob': the metric 'm' is '1'; want a num"),
        (lambda lesson: {"bob": aims(lesson, "bob", metrics={"m": torch.zeros(2)})}, "the metric 'm' is .*; want a n"),
    ],
)
def test_targets_that_do_not_fit_are_named(made, message):
    lesson = given()
    with pytest.raises(ValueError, match=message):
        checked_targets(made(lesson), lesson)


def test_columns_go_with_their_rows():
    targets = Targets(
        torch.arange(6.0).view(3, 2), columns={"a_B": torch.arange(3), "b_BT": torch.arange(6).view(3, 2)}
    )
    some = targets.select(torch.tensor([2, 0]), 1)
    assert some.adv_BT.tolist() == [[4.0], [0.0]]
    assert some.columns["a_B"].tolist() == [2, 0]
    assert some.columns["b_BT"].tolist() == [[4], [0]]


def test_a_state_is_kept_as_a_checkpoint_would_give_it_back():
    state = {"kl": {"ann": 0.1}, "seen": [1, None, "x"]}
    assert plain_state(state) == state
    assert plain_state(state)["kl"] is not state["kl"]


@pytest.mark.parametrize("state", [None, [1], {"a": torch.zeros(1)}, {"a": (1, 2)}, {1: 2}, {"a": float("nan")}])
def test_a_state_that_json_does_not_hold_is_refused(state):
    with pytest.raises(ValueError, match="its state"):
        plain_state(state)


def counting(before=None):
    """A rule that counts its steps, and says which step it is."""
    made = mareinforce()

    def advantage(lesson, state):
        steps = state.get("steps", 0) + 1
        targets, _ = made.advantage(lesson, {})
        return {n: dataclasses.replace(t, metrics={"count": steps}) for n, t in targets.items()}, {"steps": steps}

    return dataclasses.replace(made, advantage=advantage, start=before or {})


def test_a_state_runs_on_through_steps_checkpoints_and_resets(micro_model, tmp_path):
    trainer = toy(micro_model, algorithm=counting({"steps": 5}), steps=4, reset_every=3)
    assert [trainer.step(i)["agents/ann/count"] for i in range(4)] == [6, 7, 8, 6]
    run = toy(micro_model, algorithm=counting(), steps=2).run(tmp_path / "run", save_every=2, listeners=[])
    other = toy(micro_model, algorithm=counting(), steps=3)
    assert checkpoint.load(other, run / "checkpoint-2") == 2
    assert other.state == {"steps": 2}
    assert other.step(2)["agents/ann/count"] == 3


def test_mistakes_of_a_rule_are_blamed_on_it(micro_model):
    def fails(lesson, state):
        return lesson.batches["nobody"], state

    rule = dataclasses.replace(mareinforce(), advantage=fails)
    with pytest.raises(ValueError, match="the advantage, step 0: raised KeyError: 'nobody'"):
        toy(micro_model, algorithm=rule).step(0)
    rule = dataclasses.replace(mareinforce(), advantage=lambda lesson, state: {})
    with pytest.raises(ValueError, match="the advantage, step 0: want the targets and the next state, found dict"):
        toy(micro_model, algorithm=rule).step(0)
    rule = dataclasses.replace(mareinforce(), credit=lambda episodes, reward: [[1.0]])
    with pytest.raises(ValueError, match="the credit, step 0: 1 lists for 8 episodes; want one per episode"):
        toy(micro_model, algorithm=rule).step(0)
    rule = dataclasses.replace(mareinforce(), rows=lambda episodes, rows: [
        dataclasses.replace(rows[0], turn=dataclasses.replace(rows[0].turn, policy="cat"))
    ])  # fmt: skip
    with pytest.raises(ValueError, match="the rows of the algorithm, step 0: one is for policy 'cat'; there are ann, "):
        toy(micro_model, algorithm=rule).step(0)
    rule = dataclasses.replace(mareinforce(), rows=lambda episodes, rows: 1 / 0)
    with pytest.raises(ValueError, match="the rows of the algorithm, step 0: raised ZeroDivisionError"):
        toy(micro_model, algorithm=rule).step(0)


@pytest.mark.parametrize(
    ("credit", "said"),
    [
        (
            lambda episodes, reward: None,
            "it returned None; want a list of one number per turn for every episode: if",
        ),
        (
            lambda episodes, reward: {e.problem.id: [0.0, 0.0] for e in episodes},
            r"it returned \{.*; want a list of one n",
        ),
        (
            lambda share=0.5, other=1.0: own_reward(),
            "it returned <function .*: if it makes a rule, call it; if it is a",
        ),
        (
            lambda episodes, reward: [None for e in episodes],
            "problem 'p.*': it returned None; want a list of one numb",
        ),
        (
            by_episode(lambda e: {t.role: 0.0 for t in e.turns}),
            "it returned {'pioneer': 0.0, 'observer': 0.0}; want a l",
        ),
        (
            by_episode(lambda e: [None for t in e.turns]),
            "problem .*: policy 'ann' is given None; want a finite numbe",
        ),
        (
            by_episode(lambda e: [[0.0, 1.0] for t in e.turns]),
            r"policy 'ann' is given \[0.0, 1.0\]; want a finite number",
        ),
    ],
)
def test_a_credit_that_returns_something_else_is_named(credit, said, micro_model):
    with pytest.raises(ValueError, match=f"the credit, step 0.*{said}"):
        toy(micro_model, algorithm=mareinforce(credit=credit), workers=False).step(0)


def test_a_credit_that_was_not_made_is_named_before_anything_is_loaded():
    def neighbourly(*, share=0.5):
        return own_reward()

    def own(episode):
        return [turn.reward for turn in episode.turns]

    todo = r"; if it makes a rule, call it: {0}\(...\); if it is a rule for one episode, use by_episode\({0}\)"
    for credit, name, said in (
        (neighbourly, "neighbourly", "too many"),
        (own, "own", "too many"),
        (3, "int", "3 is not"),
    ):
        with pytest.raises(ValueError, match=f"algorithm.credit is {name}, which .*{said}.*{todo.format(name)}"):
            toy("nowhere", algorithm=dataclasses.replace(mareinforce(), credit=credit))
    with pytest.raises(ValueError, match=r"algorithm.credit is the function own_reward; call it: own_reward\(...\)"):
        toy("nowhere", algorithm=dataclasses.replace(mareinforce(), credit=own_reward))


@pytest.mark.parametrize(
    ("call", "want"),
    [("update", "want a mapping of metrics, {} for none"), ("describe", "want the batch, or a changed")],
)
def test_a_learner_that_returns_something_else_is_named(call, want, micro_model, monkeypatch):
    trainer = toy(micro_model, algorithm=mareinforce(), workers=False)
    monkeypatch.setattr(trainer.policies["bob"], call, lambda *given: None)
    with pytest.raises(ValueError, match=f"policy 'bob': the learner LocalLearner returned None from {call}; {want}"):
        trainer.step(0)


def test_a_learner_that_is_asked_for_log_probabilities_must_say_them():
    rule = dataclasses.replace(magrpo(), logp_old=True)
    parts = dict.fromkeys(_LEARNER)
    check_learner("ann", SimpleNamespace(**parts | {"trainable": True}, logps=None), rule)
    check_learner("ann", SimpleNamespace(**parts | {"trainable": False}), rule)  # it is asked for nothing
    with pytest.raises(ValueError, match=r"policies\.ann is a learner without logps\(batch\), which this algorithm"):
        check_learner("ann", SimpleNamespace(**parts | {"trainable": True}), rule)


def test_a_policy_that_is_left_out_is_told_once(micro_model):
    made = mareinforce()

    def advantage(lesson, state):
        targets, after = made.advantage(lesson, state)
        return {"ann": targets["ann"]}, after

    trainer = toy(micro_model, algorithm=dataclasses.replace(made, advantage=advantage), steps=2)
    with pytest.warns(
        UserWarning, match="policy 'bob': .* no targets.*; that is right where a rule updates it at other steps"
    ):
        trainer.step(0)
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        trainer.step(1)
    assert [str(one.message) for one in again if "no targets" in str(one.message)] == []


def test_credit_is_asked_once_a_step_with_everything_in_sight(micro_model):
    asked = []

    def credit(episodes, reward):
        asked.append(len(episodes))
        return team_mean()(episodes, reward)

    toy(micro_model, algorithm=mareinforce(credit=credit), members=2).step(0)
    assert asked == [16]


def test_what_the_task_would_pay_is_checked_and_timed(micro_model):
    def credit(episodes, reward):
        from coevolve import Case

        paid = reward([Case(e.problem, tuple(e.turns)) for e in episodes])
        assert paid == [[t.reward for t in e.turns] for e in episodes]
        return paid

    line = toy(micro_model, algorithm=mareinforce(credit=credit)).step(0)
    assert line["agents/ann/credit"] == pytest.approx(line["reward/pioneer"])


def twice(episodes, rows):
    """Every row again."""
    return list(rows)


def test_added_rows_are_learnt_from_and_are_not_what_was_sampled(micro_model):
    plain, more = (
        toy(micro_model, algorithm=dataclasses.replace(mareinforce(credit="own_reward"), rows=rows))
        for rows in (None, twice)
    )
    one, two = plain.step(0), more.step(0)
    assert two["agents/ann/grad_norm"] == pytest.approx(2 * one["agents/ann/grad_norm"], rel=1e-4)
    assert two["agents/ann/turns"] == one["agents/ann/turns"]  # what was said is what it was
    assert more.lessons["ann"][0].extra_B.tolist() == [False] * 8 + [True] * 8
    assert two["agents/ann/drift"] == pytest.approx(one["agents/ann/drift"], abs=1e-6)


def test_a_policy_that_never_speaks_learns_from_added_rows(micro_model):
    def histories(episodes, rows):
        last = {row.episode: row for row in rows}  # whose prompt has everything in it that was said
        turns = {n: dataclasses.replace(row.turn, role="judge", policy="cat") for n, row in last.items()}
        return [dataclasses.replace(row, turn=turns[n]) for n, row in last.items()]

    start = PolicySpec(model=str(micro_model), learning_rate=1e-2)
    trainer = Trainer(
        task=Lucky(), play=chain(), cast=fixed({"pioneer": "ann", "observer": "bob"}), batch_size=8, steps=1,
        policies={"ann": start, "bob": start, "cat": start}, sampling=Sampling((2, 5)),
        algorithm=dataclasses.replace(mareinforce(), rows=histories),
    )  # fmt: skip
    line = trainer.step(0)
    assert line["agents/cat/grad_norm"] > 0
    assert "agents/cat/turns" not in line
    batch, _ = trainer.lessons["cat"]
    assert batch.roles == ("pioneer", "observer", "judge")
    assert batch.episode_B.tolist() == list(range(8))


def test_a_policy_that_plays_no_role_is_refused_before_anything_is_loaded():
    start = PolicySpec("nowhere")
    frozen = dataclasses.replace(start, weights="frozen")
    with pytest.raises(ValueError, match=r"policies\.bob plays no role; name it in the cast of the first 64 steps or"):
        toy("nowhere", policies={"ann": frozen, "bob": start}, cast=fixed({"pioneer": "ann"}))


def test_a_cast_is_asked_for_the_steps_that_there_are(micro_model):
    here = [{"pioneer": "ann", "observer": "bob"}, {"pioneer": "bob", "observer": "ann"}]
    short = toy(micro_model, steps=2, cast=lambda step: here[step], workers=False)
    assert short.speakers == ["ann", "bob"]
    assert short.identity()["cast"] == here
    # A short trial of a cast that seats a policy later.
    toy(
        micro_model, steps=1, cast=lambda step: {"pioneer": ("ann", "bob")[step > 40], "observer": "ann"}, workers=False
    )
    with pytest.raises(ValueError, match=r"the cast, step 2: .*list index out of range"):
        toy("nowhere", steps=3, cast=lambda step: here[step])


def test_a_step_of_more_problems_than_there_are_is_warned_of(micro_model):
    with pytest.warns(UserWarning, match="batch_size is 17 and the task has 16 training problems: a problem comes sev"):
        toy(micro_model, batch_size=17, members=2, algorithm=magrpo(), workers=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="batch_size is")
        toy(micro_model, batch_size=16, members=2, algorithm=magrpo(), workers=False)
        toy(micro_model, batch_size=17, workers=False)  # one member a problem, with which nothing is compared


@pytest.mark.parametrize("resume", ["run/checkpoint-2", 1, None])
def test_a_run_is_resumed_or_not(resume, micro_model, tmp_path):
    with pytest.raises(ValueError, match=f"resume: want True or False .a run is resumed .*, found {resume!r}"):
        toy(micro_model, workers=False).run(tmp_path / "run", resume=resume)


def test_the_columns_of_a_batch_say_where_its_rows_are_from(micro_model):
    trainer = toy(micro_model, play=rounds(2), members=2, batch_size=2, algorithm=magrpo())
    trainer.step(0)
    batch, _ = trainer.lessons["bob"]
    assert batch.roles == ("pioneer", "observer")
    assert batch.role_B.tolist() == [1] * 8
    assert batch.episode_B.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch.joint_B.tolist() == list(range(8))
    assert batch.select(torch.tensor([5, 2])).joint_B.tolist() == [5, 2]


def zero_sum(pays, credit):
    """Joints of two that pay each other, and the rows of the step."""
    episodes = []
    for first, second in pays:
        turns = [Turn(role, role, Problem("p"), 0, 0, [5], [7], [0.0], "", True) for role in "ab"]
        turns[0].reward, turns[1].reward = first, second
        episodes.append(Episode(Problem("p"), 0, turns, [Joint(tuple(turns), (first, second))]))
    found = credit(episodes, None)
    rows = [Row(t, c, i) for i, (e, credits) in enumerate(zip(episodes, found, strict=True))
            for t, c in zip(e.turns, credits, strict=True)]  # fmt: skip
    return episodes, rows


PAYS = [(1.0, -1.0), (-1.0, 1.0)] * 4


@pytest.mark.parametrize(
    ("pays", "credit", "want"),
    [
        (PAYS, team_mean(), True),
        ([(a + 3, b + 3) for a, b in PAYS], team_mean(), True),  # a constant sum is as bad
        (PAYS, own_reward(), False),
        (PAYS[:4], team_mean(), False),  # may be chance
        ([(1.0, -1.0)] * 8, team_mean(), False),  # nothing varies
        ([*PAYS[:-1], (1.0, 1.0)], team_mean(), False),
        ([(1.0, 1.0), (0.0, 0.0)] * 4, team_mean(), False),
    ],
)
def test_pay_that_credit_averages_away(pays, credit, want):
    assert averaged_away(*zero_sum(pays, credit)) is want


def test_it_is_warned_of_once(micro_model, monkeypatch):
    trainer = toy(micro_model, play=rounds(), members=2, algorithm=magrpo())
    monkeypatch.setattr(trainer.task, "reward", lambda cases: [
        [1.0, -1.0] if int(case.problem.id[1:]) % 2 else [-1.0, 1.0] for case in cases
    ], raising=False)  # fmt: skip
    with pytest.warns(UserWarning, match="set algorithm.credit to own_return or own_reward"):
        trainer.step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step(1)
