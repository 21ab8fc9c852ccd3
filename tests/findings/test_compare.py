"""Groups and their differences, with answers worked out by hand."""

import pytest
from hand_made import recipe, run

from coevolve.report.findings.arms import arms
from coevolve.report.findings.compare import differences, of_groups
from coevolve.report.findings.matched import SAMPLES, match
from coevolve.report.findings.measures import measures


def group(name, eta, ends, seeds=None, start=0.0):
    """One run per seed that goes from ``start`` to its end in two steps."""
    seeds = range(len(ends)) if seeds is None else seeds
    return [
        run(f"{name}-{s}", s, recipe(s, eta), reward=[start, end], objective=[0.0, end / 2])
        for s, end in zip(seeds, ends, strict=True)
    ]


def compared(*groups):
    sides = arms([one for runs in groups for one in runs])
    return differences(sides, measures(sides, []))


def row(section, measure):
    return next(row for row in section.rows if row[0] == measure)


def test_three_pairs_give_a_hint_and_no_evidence():
    found = compared(group("a", 1.0, [1.0, 2.0, 3.0]), group("b", 0.5, [1.5, 3.0, 4.5]))
    # differences 0.5, 1, 1.5: all of one sign, which chance makes in 2 of 8 cases
    assert row(found, "final reward") == ("final reward", "b - a", 3, 1.0, 0.5, 1.5, 0.25, 0.75, "a hint, not evidence")
    assert "Final reward of b less that of a: 1.00 [0.500, 1.50], 3 pairs, p = 0.250, adjusted 0.750" in found.sentence
    assert "3 comparisons in all" in found.sentence
    assert (
        "With fewer than 6 pairs no sign-flip test can reach p < 0.05; with 3 the smallest p is 0.250."
        in found.sentence
    )


def test_an_interval_with_zero_is_no_difference():
    found = compared(group("a", 1.0, [1.0, 2.0, 3.0]), group("b", 0.5, [2.0, 1.0, 3.0]))
    assert row(found, "final reward")[3:] == (0.0, -1.0, 1.0, 1.0, 1.0, "no difference at these seeds")
    # 0, 0 and 1.5, or the other way round: an interval that ends at zero has it, too
    ends = [1.0, 2.0, 3.0], [1.0, 2.0, 4.5]
    for (first, second), interval in zip((ends, ends[::-1]), ((0.5, 0.0, 1.5), (-0.5, -1.5, 0.0)), strict=True):
        found = compared(group("a", 1.0, first), group("b", 0.5, second))
        assert row(found, "final reward")[3:] == (*interval, 1.0, 1.0, "no difference at these seeds")


def test_less_by_three_pairs_is_a_hint_too():
    found = compared(group("a", 1.0, [1.5, 3.0, 4.5]), group("b", 0.5, [1.0, 2.0, 3.0]))
    assert row(found, "final reward")[3:] == (-1.0, -1.5, -0.5, 0.25, 0.75, "a hint, not evidence")


def test_a_mean_of_few_seeds_is_told_with_a_caution():
    def said(*counts):
        sides = arms([one for i, count in enumerate(counts) for one in group("ab"[i], 1.0 / (i + 1), [1.0] * count)])
        return of_groups(sides, measures(sides, [])).sentence

    plain = "Means over seeds with bootstrap 95 % intervals: a has 6 seeds and b has 7 seeds."
    assert said(6, 7) == plain
    few = "a has 6 seeds and b has 5 seeds. Intervals of so few seeds are too narrow: that of 3 holds"
    assert few in said(6, 5)
    assert "b has 2 seeds. Intervals of so few seeds are too narrow:" in said(6, 2)
    assert said(6, 1).endswith("b has 1 seed. One seed says nothing about other seeds.")


def test_eight_pairs_of_one_sign_are_evidence():
    found = compared(group("a", 1.0, [1.0] * 8), group("b", 0.5, [1.5 + i / 8 for i in range(8)]))
    # p = 2 / 2^8 in each of the three measures, and three times that by Holm
    assert row(found, "final reward")[6:] == (2 / 256, pytest.approx(6 / 256), "evidence")
    assert "smallest p" not in found.sentence


def test_many_comparisons_take_evidence_away():
    a, b = group("a", 1.0, [1.0] * 6), group("b", 0.5, [1.5 + i / 8 for i in range(6)])
    found = compared(a, b)
    assert row(found, "final reward")[6:] == (2 / 64, pytest.approx(6 / 64), "a hint, not evidence")
    assert (
        "With 6 pairs the smallest p is 0.0312, and 0.0938 when adjusted for so many comparisons: too few pairs for "
        "evidence, however large the difference." in found.sentence
    )


def test_of_unlike_many_pairs_the_fewest_and_the_most_are_told():
    a, b = (group(name, eta, [1.0] * 8) for name, eta in (("a", 1.0), ("b", 0.5)))
    few = group("c", 0.1, [2.0 + i for i in range(2)])
    assert "no sign-flip test can reach p < 0.05; with 2 the smallest p is 0.500." in compared(a, b, few).sentence
    # three groups, three measures: 9 * 2 / 2^8, where 8 seeds are a pair
    six = compared(a, b, group("c", 0.1, [2.0 + i for i in range(6)]))
    assert "With 8 pairs the smallest p is 0.00781, and 0.0703 when adjusted for so many" in six.sentence


def test_differences_of_up_to_three_pairs_of_groups_are_told():
    groups = [group(name, 1.0 / (i + 1), [1.0, 2.0 + i]) for i, name in enumerate("abcd")]
    assert [compared(*groups[:n]).sentence.count(", adjusted ") for n in (2, 3, 4)] == [1, 3, 0]


def test_one_seed_says_nothing_about_others():
    found = compared(group("a", 1.0, [1.0]), group("b", 0.5, [2.0]))
    assert row(found, "final reward")[2:] == (1, 1.0, None, None, 1.0, 1.0, "one seed says nothing about other seeds")


def test_only_seeds_that_both_have_are_paired():
    found = compared(
        group("a", 1.0, [1.0, 2.0, 9.0], seeds=(0, 1, 5)), group("b", 0.5, [8.0, 3.0, 4.0], seeds=(7, 1, 0))
    )
    assert row(found, "final reward")[2:6] == (2, 2.0, 1.0, 3.0)  # 4 - 1 for seed 0, 3 - 2 for seed 1
    assert (
        "Only seeds that both groups of a pair have are compared: a has 0, 1 and 5; b has 0, 1 and 7." in found.sentence
    )


def test_groups_without_a_common_seed_are_not_compared():
    found = compared(group("a", 1.0, [1.0], seeds=[0]), group("b", 0.5, [1.0], seeds=[1]))
    assert found.rows == []
    assert found.sentence.startswith("Nothing to compare: the groups share no seed.")


def test_the_objective_is_compared_at_equal_eta_only():
    other = [run(f"c-{s}", s, recipe(s, 1.0, steps=9), reward=[0.0, 1.0], objective=[0.0, 2.0]) for s in (0, 1)]
    found = compared(group("a", 1.0, [1.0, 2.0]), group("b", 0.5, [1.0, 2.0]), other)
    assert [one[1] for one in found.rows if one[0] == "objective"] == ["c - a"]
    assert (
        "Not compared between groups that differ in the weight of the KL or in who learns: objective." in found.sentence
    )


def test_the_weight_of_the_kl_is_the_one_that_was_used():
    """Recipes leave defaults out, and call it eta or beta."""

    def runs(name, algorithm, weight):
        return [
            run(f"{name}-{s}", s, recipe(s) | {"algorithm": algorithm}, reward=[0.0, 1.0], objective=[0.0, 2.0],
                ann__eta=[None, weight])
            for s in (0, 1)
        ]  # fmt: skip

    adapts = [
        run(f"adapts-{s}", s, recipe(s), reward=[0.0, 1.0], objective=[0.0, 2.0], ann__eta=[0.3, 0.4]) for s in (0, 1)
    ]
    said, silent = runs("said", {"name": "ppo", "eta": 0.3}, 0.3), runs("silent", {"name": "ppo"}, 0.3)
    low, high = (runs(f"beta{beta}", {"name": "rloo", "beta": beta}, beta) for beta in (0.02, 0.3))
    found = compared(said, silent, low, high, adapts)
    rows = {one[1] for one in found.rows if one[0] == "objective"}
    assert rows == {"silent - said", "beta0.3 - said", "beta0.3 - silent"}


def test_a_group_and_its_copy_do_not_differ():
    runs = group("a", 1.0, [1.0, 2.0, 3.0])
    found = compared(runs, runs)
    assert {one[2:] for one in found.rows} == {(3, 0.0, 0.0, 0.0, 1.0, 1.0, "no difference: the same at every seed")}
    assert {one[1] for one in found.rows} == {"a (2) - a"}


def test_a_run_and_its_copy_do_not_differ():
    found = compared(group("a", 1.0, [1.0]), group("a", 1.0, [1.0]))
    assert {one[2:] for one in found.rows} == {(1, 0.0, None, None, 1.0, 1.0, "no difference: the same at every seed")}
    assert {one[1] for one in found.rows} == {"a-0 (2) - a-0"}


def test_the_table_of_groups():
    sides = arms([*group("a", 1.0, [1.0, 2.0, 3.0]), *group("b", 0.5, [5.0], start=1.0)])
    found = of_groups(sides, measures(sides, []))
    assert [list(one) for one in found.rows] == [
        ["final reward", "a", 3, 2.0, 1.0, 3.0],
        ["final reward", "b", 1, 5.0, None, None],
        ["peak reward", "a", 3, 2.0, 1.0, 3.0],
        ["peak reward", "b", 1, 5.0, None, None],
        ["mean reward over training", "a", 3, 1.0, 0.5, 1.5],
        ["mean reward over training", "b", 1, 3.0, None, None],
        ["objective", "a", 3, 1.0, 0.5, 1.5],
        ["objective", "b", 1, 2.5, None, None],
    ]


def test_rewards_at_equal_samples_are_compared_unless_all_runs_end_there():
    def compared_at(turns):
        short = [run("b-0", 0, recipe(0, 0.5), reward=[0.0, 2.0], turns=[turns] * 2)]
        sides = arms([run("a-0", 0, recipe(0), reward=[0.0, 2.0], turns=[8] * 2), *short])
        return {m.title: m.values["b"] for m in measures(sides, [match(SAMPLES, sides)]) if "turns" in m.title}

    assert compared_at(8) == {}
    # b is at 0 after 10 samples and at 2 after 20
    assert compared_at(10) == {"reward at 16.0 turns sampled": {0: pytest.approx(1.2)}}


def test_runs_of_other_lengths_are_pointed_out():
    sides = arms([run("a-0", 0, recipe(0), reward=[0.0] * 5), run("b-0", 0, recipe(0, 0.5), reward=[0.0] * 9)])
    assert "The runs have from 5 to 9 steps" in of_groups(sides, measures(sides, [])).sentence


def test_groups_whose_folders_share_a_name_are_told_by_what_all_of_their_recipes_have():
    """A single policy has none of the settings of a second one."""
    pair = recipe(0, policies={"ann": {"learning_rate": 1e-4}, "bob": {"learning_rate": 1e-4, "dtype": "float32"}})
    alone = recipe(0, 0.5, policies={"ann": {"learning_rate": 3e-5}})
    pair["algorithm"], alone["algorithm"] = {"name": "cory", "eta": 0.1}, {"name": "ppo", "eta": 0.1}
    groups = arms([run("a-0", 0, one, reward=[0.0, 1.0]) for one in (pair, alone)])
    assert [group.name for group in groups] == [
        "a algorithm=cory learning_rate=0.0001", "a algorithm=ppo learning_rate=3e-05"
    ]  # fmt: skip
    other = recipe(0, algorithm={"eta": 0.1, "beta": 0.2})
    groups = arms([run("a-0", 0, one, reward=[0.0, 1.0]) for one in (recipe(0, algorithm={"eta": 0.1}), other)])
    assert [group.name for group in groups] == ["a beta=None", "a beta=0.2"]
