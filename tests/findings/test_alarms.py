"""Collapses whose first step is known, and healthy noise."""

import numpy as np
import pytest
from hand_made import run

from coevolve.report.findings.alarms import alarms, section


def found(**columns):
    return [(alarm.signal, alarm.agent, alarm.step) for alarm in alarms(run(**columns))]


def edge(before, after, at, steps=60):
    return [before if i < at else after for i in range(steps)]


HEALTHY = edge(1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("columns", "signal", "agent"),
    [
        ({"ann__distinct_2": edge(0.8, 0.39, 41)}, "distinct_2 fell", "ann"),
        ({"ann__entropy": edge(2.0, 0.39, 41)}, "entropy fell", "ann"),
        ({"ann__length": edge(9.0, 1.0, 41)}, "answers of one token", "ann"),
        ({"ann__eos_rate": edge(0.3, 0.0, 41)}, "answers do not end", "ann"),
        ({"ann__kl": edge(3.0, 16.0, 41)}, "KL runs away", "ann"),
        ({"reward": edge(2.0, 0.9, 41)}, None, None),  # never rose, so there is no rise to lose
        ({"reward": [min(i, 20) / 10 if i < 41 else 0.9 for i in range(60)]}, "reward fell from its peak", "team"),
        (
            {"ann__grad_norm": edge(1.0, 0.01, 41), "bob__grad_norm": HEALTHY},
            "gradients vanish beside the others'",
            "ann",
        ),
    ],
)
def test_a_collapse_is_dated_to_the_step(columns, signal, agent):
    assert found(**columns) == ([(signal, agent, 41)] if signal else [])


FELL = [("distinct_2 fell", "ann", 41)]


@pytest.mark.parametrize(("more", "alarms"), [(16, []), (64, []), (5, FELL), (6, FELL), (7, []), (3, FELL), (2, [])])
def test_distinct_2_is_compared_between_steps_of_as_many_turns(more, alarms):
    """Of four times as many texts, as where dapo samples again, a smaller share of the pairs is distinct."""
    assert found(ann__distinct_2=edge(0.8, 0.39, 41), ann__turns=edge(4, more, 41)) == alarms


def test_distinct_2_that_fell_in_the_steps_of_as_many_turns():
    grown = [16 if i % 3 == 1 else 4 for i in range(60)]
    assert found(ann__distinct_2=edge(0.8, 0.39, 41), ann__turns=grown) == FELL


@pytest.mark.parametrize(
    "turns",
    [
        [4] * 4 + [16] * 51 + [4] * 5,  # only nine steps are of as many
        [4] * 54 + [16] * 6,  # none of the last is
        [None] + [4] * 40 + [16] * 19,  # of as many as at the first step that had any
    ],
)
def test_distinct_2_of_too_few_steps_of_as_many_turns_is_not_judged(turns):
    assert found(ann__distinct_2=edge(0.8, 0.1, 41), ann__turns=turns) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"ann__distinct_2": edge(0.8, 0.41, 41)},  # not half
        {"ann__entropy": edge(2.0, 0.41, 41)},
        {"ann__length": edge(2.0, 1.0, 41)},  # one or two tokens from the start
        {"ann__eos_rate": edge(0.05, 0.0, 41)},  # hardly ever ended
        {"ann__kl": edge(3.0, 14.0, 41)},  # grew, but to less than five times
        {"ann__kl": edge(0.5, 9.0, 41)},  # grew, but is small
        {"ann__kl": [i / 2 for i in range(60)]},  # grows steadily
        {"reward": [min(i, 20) / 10 if i < 41 else 1.2 for i in range(60)]},  # less than half of the rise
        {"ann__grad_norm": edge(1.0, 0.01, 41), "bob__grad_norm": edge(1.0, 0.01, 41)},  # both
        {"ann__grad_norm": edge(1.0, 0.01, 41)},  # nobody to be compared with
        {"ann__entropy": edge(2.0, 0.1, 55)},  # for five of sixty steps only
        {"ann__entropy": [*edge(2.0, 0.1, 30)[:50], *[2.0] * 10]},  # it came back
    ],
)
def test_what_stays_within_limits_or_comes_back_is_no_alarm(columns):
    assert found(**columns) == []


@pytest.mark.parametrize(
    ("key", "before", "beyond", "within"),
    [
        ("length", 9.0, 1.45, 1.55),
        ("eos_rate", 0.3, 0.019, 0.021),
        ("kl", 1.9, 10.1, 9.9),  # five times as much is less than the limit in nats
        ("kl", 3.0, 15.1, 14.9),  # and here it is more
    ],
)
def test_a_limit_is_what_it_is_said_to_be(key, before, beyond, within):
    assert [step for _, _, step in found(**{f"ann__{key}": edge(before, beyond, 41)})] == [41]
    assert found(**{f"ann__{key}": edge(before, within, 41)}) == []


def test_only_who_had_it_at_the_start_can_lose_it():
    """Answers of three tokens, and a tenth of them that ended."""
    assert found(ann__length=edge(3.0, 1.0, 41)) == [("answers of one token", "ann", 41)]
    assert found(ann__length=edge(2.9, 1.0, 41)) == []
    assert found(ann__eos_rate=edge(0.1, 0.0, 41)) == [("answers do not end", "ann", 41)]
    assert found(ann__eos_rate=edge(0.099, 0.0, 41)) == []


def test_a_fiftieth_of_the_others_gradient_is_hardly_any():
    vanished, little = ({"ann__grad_norm": edge(1.0, share, 41), "bob__grad_norm": HEALTHY} for share in (0.019, 0.021))
    assert found(**vanished) == [("gradients vanish beside the others'", "ann", 41)]
    assert found(**little) == []


def test_steps_in_which_nobody_learns_say_nothing_of_a_gradient():
    norms = {"ann__grad_norm": edge(1.0, 0.01, 41), "bob__grad_norm": edge(1.0, 1.0, 0)}
    for norm in norms.values():
        norm[47:53] = [0.0] * 6
    assert found(**norms) == [("gradients vanish beside the others'", "ann", 41)]


def shaky(*levels):
    """At each level for so many steps, a tenth above and below it by turns. Steps differ by 0.2, so the deviation of
    one is 0.2 / 0.6745 / sqrt(2) = 0.2097, and four of them are 0.8387."""
    values = [level for level, steps in levels for _ in range(steps)]
    return [value + (-0.1 if i % 2 else 0.1) for i, value in enumerate(values)]


def test_only_a_rise_beyond_the_noise_can_be_lost():
    """It rises by 0.1 more than the level, from 0 in the median."""
    assert found(reward=shaky((0, 20), (0.75, 21), (0, 19))) == [("reward fell from its peak", "team", 41)]
    assert found(reward=shaky((0, 20), (0.73, 21), (0, 19))) == []


def test_half_of_a_rise_is_lost():
    """From 0.25, the median of the first six steps, to 2: the limit is 1.125."""
    risen = [min(i, 20) / 10 for i in range(41)]
    assert found(reward=risen + [1.12] * 19) == [("reward fell from its peak", "team", 41)]
    assert found(reward=risen + [1.13] * 19) == []
    assert found(reward=risen + [1.12] * 9 + [2.0] + [1.12] * 9) == [("reward fell from its peak", "team", 41)]


def test_an_objective_below_its_start_cost_more_than_it_gained():
    """Every other of the last steps is 0.1 above the level, and the limit 0.8387 below 0."""
    alarm = ("objective fell below its start", "team", 41)
    assert found(objective=shaky((0, 41), (-0.95, 19))) == [alarm]
    assert found(objective=shaky((0, 41), (-0.93, 19))) == []
    assert found(objective=edge(1.0, 0.99, 41)) == [alarm]  # nothing is noise there
    assert found(objective=edge(1.0, 1.01, 41)) == []


def test_kl_is_judged_by_the_first_half_of_the_run():
    assert found(ann__kl=edge(3.0, 16.0, 25)) == [("KL runs away", "ann", 25)]


def test_a_single_outlier_neither_begins_nor_ends_a_collapse():
    entropy = edge(2.0, 0.1, 41)
    entropy[20], entropy[50] = 0.1, 2.0
    assert found(ann__entropy=entropy) == [("entropy fell", "ann", 41)]


def test_two_outliers_in_a_row_are_ignored_and_three_end_a_collapse():
    entropy = edge(2.0, 0.1, 41)
    entropy[50:52] = [2.0] * 2
    assert found(ann__entropy=entropy) == [("entropy fell", "ann", 41)]
    entropy[52] = 2.0
    assert found(ann__entropy=entropy) == [("entropy fell", "ann", 53)]


def test_the_start_is_the_first_tenth_and_three_steps_at_least():
    """Entropy 1 is more than a fifth of 2, and less than a fifth of 9."""
    assert found(ann__entropy=[9.0, 2.0, 2.0, 9.0, 9.0] + [2.0] * 5 + [1.0] * 10) == []  # the median of 9, 2, 2
    assert found(ann__entropy=[9.0, 9.0] + [2.0] * 39 + [1.0] * 19) == []  # and of 9, 9, 2, 2, 2, 2


def test_the_earliest_alarm_is_told_first():
    fell = {"ann__entropy": edge(2.0, 0.1, 41), "ann__length": edge(9.0, 1.0, 30)}
    assert found(**fell) == [("answers of one token", "ann", 30), ("entropy fell", "ann", 41)]


def test_a_collapse_is_dated_in_noise():
    noise = np.exp(np.random.default_rng(1).normal(scale=0.2, size=60))
    assert found(ann__entropy=list(edge(2.0, 0.1, 41) * noise)) == [("entropy fell", "ann", 41)]


def test_a_critic_that_nobody_plays_is_no_agent():
    """Its gradients have a scale of their own."""
    norms = {"ann__grad_norm": [0.5] * 20, "bob__grad_norm": [0.6] * 20, "judge__grad_norm": [40.0] * 20}
    assert found(cast=[{"main": "ann", "aux": "bob"}] * 20, **norms) == []
    assert {one[1] for one in found(cast=[{"main": "ann", "aux": "bob", "judge": "judge"}] * 20, **norms)} == {
        "ann", "bob"
    }  # fmt: skip
    falls = {"judge__entropy": edge(2.0, 0.1, 41, 60)}  # beside its own start
    assert found(cast=[{"main": "ann"}] * 60, **falls) == [("entropy fell", "judge", 41)]


def test_a_policy_is_compared_with_itself_in_the_same_role():
    """Ann's answers are surer as observer all along, and it ends as one."""
    phases = [{"pioneer": one, "observer": other} for one, other in (("ann", "bob"), ("bob", "ann"))] * 4
    cast = [phase for phase in phases for _ in range(5)]
    role = [0.3 if line["observer"] == "ann" else 2.0 for line in cast]
    assert found(cast=cast, ann__entropy=role) == []
    assert found(ann__entropy=role) == [("entropy fell", "ann", 35)]  # where nobody knows of roles
    fallen = [value / 10 if i >= 25 else value for i, value in enumerate(role)]
    assert found(cast=cast, ann__entropy=fallen) == [("entropy fell", "ann", 25)]


def test_what_fell_in_another_role_just_before_the_end():
    cast = [{"pioneer": "ann"} if 50 <= i < 98 else {"observer": "ann"} for i in range(101)]
    assert found(cast=cast, ann__entropy=edge(2.0, 0.1, 70, 98) + [2.0] * 3) == [("entropy fell", "ann", 70)]


def test_too_few_steps_in_one_role_are_told():
    cast = [{"pioneer": "ann"}] * 6 + [{"observer": "ann"}] * 6
    short = run("short-0", reward=[1.0] * 12, cast=cast, ann__entropy=[2.0] * 12)
    assert section([short]).sentence.endswith("In one role for too few steps to judge its texts: ann of short-0.")


def healthy(seed, steps):
    """A run that learns, with the noise that random lengths and small batches make."""
    rng, t = np.random.default_rng(seed), np.linspace(0, 1, steps)
    columns = {"reward": np.tanh(3 * t) + 0.3 * rng.normal(size=steps)}
    for agent in ("ann", "bob"):
        columns[f"{agent}__distinct_2"] = (0.7 - 0.2 * t) * spread(rng, 0.15, steps)
        columns[f"{agent}__entropy"] = (2 - 1.2 * t) * spread(rng, 0.3, steps)
        columns[f"{agent}__kl"] = 20 * np.sqrt(t) * spread(rng, 0.3, steps)
        columns[f"{agent}__length"] = 8 * spread(rng, 0.4, steps)
        columns[f"{agent}__eos_rate"] = rng.binomial(64, 0.3 - 0.15 * t) / 64
        columns[f"{agent}__grad_norm"] = 2 * spread(rng, 0.8, steps)
    return {key: values.tolist() for key, values in columns.items()}


def spread(rng, scale, steps):
    return np.exp(scale * rng.normal(size=steps))


@pytest.mark.parametrize("steps", [10, 30, 100])
def test_healthy_noise_raises_no_alarm(steps):
    assert [found(**healthy(seed, steps)) for seed in range(40)] == [[]] * 40


def test_missing_numbers_are_told_whatever_the_length():
    columns = {"reward": [1.0, 1.0, 1.0], "ann__grad_norm": [1.0, None, None], "ann__explained_variance": [None] * 3}
    assert found(**columns) == [("grad_norm is no number at 2 steps", "ann", 1)]
    assert found(ann__loss__kl=[None] * 3) == []  # a part of the loss, which tells of it itself


def test_agents_that_rest_are_judged_by_the_steps_they_play():
    one = run(reward=HEALTHY, ann__entropy=edge(2.0, 0.1, 41))
    for line in one.lines[::2]:
        del line["agents/ann/entropy"]
    assert [(alarm.signal, alarm.step) for alarm in alarms(one)] == [("entropy fell", 41)]


def test_the_section_says_what_was_found():
    good, bad = run("good-0", reward=HEALTHY), run("bad-0", reward=HEALTHY, ann__entropy=edge(2.0, 0.1, 41))
    assert section([good]).sentence.startswith("No alarm in 1 run: what was measured of diversity,")
    both = section([good, bad])
    assert both.sentence.startswith("1 alarm in 1 of 2 runs.")
    assert both.rows == [("bad-0", 41, "entropy fell", "ann", 2.0, 0.1, 0.4)]
    assert section([run("tiny", reward=[1.0] * 9)]).sentence == "Too short to judge (fewer than 10 steps): tiny."
