"""Teams of other roles or another play: what of their rewards is alike, and that nothing else is compared."""

import json

import pytest
from hand_made import recipe, run

from coevolve.report.findings import findings
from coevolve.report.findings.alike import ALL_TURNS, Reward, compared
from coevolve.report.findings.arms import arms
from coevolve.report.findings.opening import opening
from coevolve.report.plot import _panels
from coevolve.report.runs import Group, find

PAIR, ALONE = {"pioneer": "ann", "observer": "bob"}, {"pioneer": "ann"}
SEEDS = range(8)


def turn(role, *heard):
    return {"role": role, "policy": "ann", "round": 0, "text": "", "reward": 1.0, "finished": True,
            "heard": list(heard), "pieces": []}  # fmt: skip


CHAIN = [turn("pioneer"), turn("observer", 0)]
ROUNDS = [turn("pioneer"), turn("observer"), turn("pioneer", 0, "a note"), turn("observer", 1, "")]


def bare(role="pioneer", policy="ann", setting="alone", reward=1.0):
    row = {"weights": "trained", "decoding": "sampled", "length": 1.0}
    return {**row, "setting": setting, "role": role, "policy": policy, "reward": reward}


def written(folder, seed, cast, turns=(), rows=(), play="chain", batch=8, policies=None, **rewards):
    """A run in a folder: two steps of a team. rewards: by role, of both steps."""
    folder.mkdir(parents=True)
    mean = [sum(paid) / len(rewards) for paid in zip(*rewards.values(), strict=True)]
    lines = [
        {"step": step, "cast": cast, "reward": mean[step], "kl": 0.5 * step,
         "turns": batch * len(cast), "objective": 1.0, "agents/ann/kl": 0.5 * step,
         **{f"reward/{role}": by[step] for role, by in rewards.items()}}
        for step in (0, 1)
    ]  # fmt: skip
    settings = recipe(seed, play={"name": play}, batch_size=batch, policies=policies or {})
    (folder / "recipe.yaml").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"step": 0, "problem": "a", "member": 0, "data": {}, "turns": list(turns), "joints": [], "parts": {}}
    (folder / "samples.jsonl").write_text(json.dumps(record) + "\n" if turns else "")
    if rows:
        how = {"checkpoint": 2, "problems": 4, "samples": 1, "temperature": 1.0, "max_new_tokens": 8, "seed": 0}
        (folder / "eval.json").write_text(json.dumps({**how, "rows": list(rows)}))


@pytest.fixture
def cory_and_ppo(tmp_path):
    """CORY's observer reads an answer and earns more; its pioneer alone earns less than PPO's."""
    for seed in SEEDS:
        more = seed / 100
        rows = [bare(policy=name, reward=0.2 + more) for name in ("ann", "bob")]
        rows += [bare(role, setting="team", reward=0.9) for role in PAIR]
        pay = {"pioneer": [0.2, 0.3 + more], "observer": [0.6, 0.9]}
        written(tmp_path / f"cory-{seed}", seed, PAIR, CHAIN, rows, **pay)
        alone = [bare(reward=0.4), bare(setting="team", reward=0.4)]
        written(tmp_path / f"ppo-{seed}", seed, ALONE, CHAIN[:1], alone, batch=16, pioneer=[0.2, 0.4])
    return find([tmp_path])


def test_a_team_with_an_observer_is_compared_with_a_pioneer_by_the_pioneer(cory_and_ppo):
    found = {section.id: section for section in findings(cory_and_ppo)}
    rows = {row[0]: row for row in found["differences"].rows}
    assert list(rows) == [
        "final reward (pioneer alone)", "mean reward over training (pioneer alone)",
        "held-out reward (each policy alone)",
    ]  # fmt: skip
    # by all turns it would be 0.4 - 0.635, and the sign another one
    assert rows["final reward (pioneer alone)"][1] == "ppo - cory"
    assert rows["final reward (pioneer alone)"][3] == pytest.approx(0.4 - 0.335)
    assert rows["held-out reward (each policy alone)"][3] == pytest.approx(0.2 - 0.035)
    assert (
        "Compared is what pioneer earns, who speaks first in all of them and hears nobody" in found["groups"].sentence
    )
    assert found["groups"].plot.y == "final reward (pioneer alone)"
    assert (
        "Not compared between groups that differ in steps, problems or members: peak" in found["differences"].sentence
    )
    assert "means over all turns, which are unlike in these teams" in found["summary"].sentence


def test_equal_kl_and_the_frontier_are_of_the_same_reward(cory_and_ppo):
    found = {section.id: section for section in findings(cory_and_ppo)}
    kl, frontier = found["equal-kl"], found["frontier"]
    assert [row[1:4] for row in kl.rows[-2:]] == [("cory", 8, pytest.approx(0.335)), ("ppo", 8, pytest.approx(0.4))]
    assert (
        "that differ in roles, play or who learns: reward at a KL of 0.500 nats (pioneer alone)"
        in found["differences"].sentence
    )
    assert (kl.title, kl.plot.y) == ("Reward against KL (pioneer alone)", "reward (pioneer alone)")
    assert [row[3] for row in frontier.rows] == [pytest.approx(0.335), pytest.approx(0.4)]
    assert frontier.plot.y == "reward (pioneer alone)"
    assert kl.sentence.endswith("which are unlike here.") and frontier.sentence.endswith("which are unlike here.")


def test_where_the_kl_of_a_role_is_known_it_is_what_its_reward_cost(tmp_path):
    """The team's KL is a mean with the observer's, which is the larger."""
    for seed in SEEDS:
        for name, cast, batch in (("cory", PAIR, 8), ("ppo", ALONE, 16)):
            pay = {role: [0.2, 0.4] for role in cast}
            folder = tmp_path / f"{name}-{seed}"
            written(folder, seed, cast, CHAIN[: len(cast)], [bare()], batch=batch, **pay)
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            for line in lines:
                line |= {"kl/pioneer": line["kl"] / len(cast), "objective/pioneer": line["step"] * (1 + len(cast))}
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {section.id: section for section in findings(find([tmp_path]))}
    rows = {row[0]: row for row in found["differences"].rows}
    assert rows["objective (pioneer alone)"][1:4] == ("ppo - cory", len(SEEDS), pytest.approx(-1.0))
    assert rows["reward at a KL of 0.250 nats (pioneer alone)"][3] == pytest.approx(0.3 - 0.4)
    assert [row[2] for row in found["frontier"].rows] == [pytest.approx(0.25), pytest.approx(0.5)]
    for section in ("equal-kl", "frontier", "differences", "groups"):
        assert "unlike here" not in found[section].sentence and "is known of all turns" not in found[section].sentence


def test_a_kl_that_only_the_last_steps_know_by_role_prices_nothing(tmp_path):
    """A run begun before there was such a line, and gone on with."""
    for name, cast in (("cory", PAIR), ("ppo", ALONE)):
        folder = tmp_path / f"{name}-0"
        written(folder, 0, cast, CHAIN[: len(cast)], [bare()], **{role: [0.2, 0.4] for role in cast})
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines[1] |= {"kl/pioneer": 0.1, "objective/pioneer": 0.1}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compared(arms(find([tmp_path]))) == Reward("pioneer", priced=False)


def test_a_step_that_has_no_kl_at_all_lacks_none_of_a_role(tmp_path):
    """As one in which nobody spoke who learns."""
    for name, cast in (("cory", PAIR), ("ppo", ALONE)):
        folder = tmp_path / f"{name}-0"
        written(folder, 0, cast, CHAIN[: len(cast)], [bare()], **{role: [0.2, 0.4] for role in cast})
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines[0]["kl"] = None
        lines[1] |= {"kl/pioneer": 0.1, "objective/pioneer": 0.1}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compared(arms(find([tmp_path]))) == Reward("pioneer", priced=True)


def test_teams_that_somebody_else_opens_are_not_compared(tmp_path):
    pay = {"pioneer": [0.0, 1.0], "observer": [0.0, 1.0]}
    written(tmp_path / "a-0", 0, PAIR, CHAIN, **pay)
    written(tmp_path / "b-0", 0, PAIR, [turn("observer"), turn("pioneer", 0)], play="another", **pay)
    assert compared(arms(find([tmp_path]))) is None


def test_the_opening_and_the_curves_say_whose_reward_it_is(cory_and_ppo):
    said = opening(cory_and_ppo)
    assert said.came.startswith("Reward (pioneer alone): cory from 0.200 to 0.3350 ± 0.0087; ")
    assert said.footnote.endswith("The curves are means over all turns, which are unlike in these teams.")
    panels = _panels(arms(cory_and_ppo))
    assert panels["reward/pioneer"] == "task reward per turn (pioneer alone)"
    assert panels["reward"] == "task reward per turn, of unlike turns"


def test_a_frozen_partner_is_no_policy_that_was_trained(tmp_path):
    frozen = {"bob": {"weights": "frozen"}}
    rows = [bare(policy="ann", reward=0.5), bare(policy="bob", reward=0.1)]
    written(tmp_path / "pair-0", 0, PAIR, CHAIN, rows, policies=frozen, pioneer=[0.0, 0.5], observer=[0.0, 0.5])
    written(tmp_path / "one-0", 0, ALONE, CHAIN[:1], [bare(setting="team")], pioneer=[0.0, 0.5])
    (groups,) = [section for section in findings(find([tmp_path])) if section.id == "groups"]
    assert [row[1:4] for row in groups.rows if row[0].startswith("held-out")] == [("pair", 1, 0.5)]
    assert "Held-out reward leaves out one-0: no policy that learns was played alone as pioneer." in groups.sentence


@pytest.mark.parametrize(
    ("turns", "opener"),
    [
        (ROUNDS, None),  # the pioneer hears notes
        ([turn("solver")], None),  # who is nobody there
        ([turn("pioneer", "a rule")], None),
        ([], None),  # nothing was recorded
        (CHAIN, Reward("pioneer", priced=False)),
        ([turn("pioneer"), turn("observer")], Reward("pioneer", priced=False)),
    ],
)
def test_who_speaks_first_and_hears_nobody_is_seen_in_the_dialogues(tmp_path, turns, opener):
    pay = {"pioneer": [0.0, 1.0], "observer": [0.0, 1.0]}
    written(tmp_path / "a-0", 0, PAIR, CHAIN, **pay)
    written(tmp_path / "b-0", 0, PAIR, turns, play="another", **pay)
    runs = find([tmp_path])
    assert compared(arms(runs)) == opener
    if opener is None:
        found = {section.id: section for section in findings(runs)}
        assert found["groups"].sentence.startswith("Not compared: these teams differ in their roles or play")
        assert not {"differences", "equal-samples", "equal-kl", "frontier"} & found.keys()
        assert opening(runs).came.startswith("Reward (each team's own turns, which are unlike): a from")


def test_a_role_that_nobody_pays_is_not_compared(tmp_path):
    written(tmp_path / "a-0", 0, PAIR, CHAIN, observer=[0.0, 1.0])
    written(tmp_path / "b-0", 0, ALONE, CHAIN[:1], pioneer=[0.0, 1.0])
    assert compared(arms(find([tmp_path]))) is None


def test_teams_of_the_same_roles_and_play_are_compared_by_all_turns(tmp_path):
    pay = {"pioneer": [0.0, 1.0], "observer": [0.0, 1.0]}
    written(tmp_path / "a-0", 0, PAIR, ROUNDS, play="rounds", **pay)
    written(tmp_path / "b-0", 0, dict(PAIR, observer="ann"), ROUNDS, play="rounds", batch=4, **pay)
    assert compared(arms(find([tmp_path]))) == ALL_TURNS


def test_a_setting_that_one_recipe_leaves_to_the_play_is_no_other_play(tmp_path):
    pay = {"pioneer": [0.0, 1.0], "observer": [0.0, 1.0]}
    whole = {"n": 2, "feedback": True}
    for name, said, settings in (("a", {}, whole), ("b", whole, whole), ("c", {}, {"n": 2, "feedback": False})):
        written(tmp_path / name, 0, PAIR, ROUNDS, **pay)
        settled = recipe(0, play={"name": "rounds", "n": 2, **said}, batch_size=8)
        (tmp_path / name / "recipe.yaml").write_text(json.dumps(settled))
        (tmp_path / name / "environment.json").write_text(json.dumps({"step": 0, "settings": {"play": settings}}))
    one, same, other = (Group(run.name, [run]) for run in find([tmp_path]))
    assert compared([one, same]) == ALL_TURNS
    assert compared([one, other]) is None


def test_settings_that_may_change_what_is_paid_are_pointed_out():
    plain, other = recipe(0), recipe(0, sampling={"temperature": 0.5})
    other["task"] = {"name": "sentiment", "bonuses": False}
    runs = [run("a-0", recipe=plain, reward=[0.0], turns=[8]), run("b-0", recipe=other, reward=[0.0], turns=[16])]
    (groups,) = [section for section in findings(runs) if section.id == "groups"]
    assert (
        "They differ in task.bonuses and sampling.temperature: a reward means the same in all only" in groups.sentence
    )
    assert "The runs sampled from 8 to 16 turns, and final means each run's own end" in groups.sentence


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ({"turns": [50, 51]}, ""),  # within a hundredth of 100
        ({"turns": [50, 52]}, "The runs sampled from 100 to 102 turns, and final"),
        ({"turns": [150, None]}, "The runs sampled from 100 to 150 turns, and final"),  # nobody spoke in a step
        ({}, ""),  # of a run that did not count them nothing is known
    ],
)
def test_runs_that_sampled_more_turns_are_pointed_out(turns, said):
    runs = [run("a-0", recipe=recipe(0), reward=[0.0] * 2, turns=[50, 50])]
    runs.append(run("b-0", recipe=recipe(0, 0.5), reward=[0.0] * 2, **turns))
    (groups,) = [section for section in findings(runs) if section.id == "groups"]
    assert said in groups.sentence and ("sampled from" in groups.sentence) == bool(said)


def test_an_objective_over_other_learners_is_not_compared():
    """Where bob is frozen, the team's KL is ann's."""
    both, one = (
        [run(f"{name}-{s}", s, recipe(s, eta, policies={}), reward=[0.0, 1.0], objective=[0.0, 1.0], kl=[0.0, 1.0],
             cast=[PAIR] * 2, ann__kl=[0.0, 1.0], ann__eta=[0.1] * 2, **more) for s in (0, 1)]
        for name, eta, more in (("both", 1.0, {"bob__kl": [0.0, 1.0]}), ("one", 2.0, {}))
    )  # fmt: skip
    found = {section.id: section for section in findings([*both, *one])}
    assert "objective" not in {row[0] for row in found["differences"].rows}
    assert "in the weight of the KL or in who learns: objective." in found["differences"].sentence
    assert found["equal-kl"].sentence.endswith("which are unlike here.")
