"""Fronts and areas worked out by hand."""

import pytest
from hand_made import recipe, run

from coevolve.report.findings.arms import arms
from coevolve.report.findings.frontier import hypervolume, pareto, sections

REFERENCE = (4.0, 1.0)


@pytest.mark.parametrize(
    ("points", "front", "area"),
    [
        ([], [], 0.0),
        ([(1.0, 2.0)], [(1.0, 2.0)], 3.0),  # 3 nats wide, 1 high
        ([(1.0, 2.0), (2.0, 3.0)], [(1.0, 2.0), (2.0, 3.0)], 1.0 + 4.0),  # 1 wide and 1 high, then 2 and 2
        ([(2.0, 3.0), (1.0, 2.0), (3.0, 2.5)], [(1.0, 2.0), (2.0, 3.0)], 5.0),  # the third costs more for less
        ([(1.0, 2.0), (1.0, 2.0), (1.0, 1.5)], [(1.0, 2.0)], 3.0),  # twice the same, and one below it
        ([(1.0, 2.0), (2.0, 2.0)], [(1.0, 2.0)], 3.0),  # the same reward for more KL
        ([(5.0, 9.0)], [(5.0, 9.0)], 0.0),  # beyond the reference's KL
        ([(1.0, 0.5)], [(1.0, 0.5)], 0.0),  # below its reward
    ],
)
def test_fronts_and_areas(points, front, area):
    assert pareto(points) == front
    assert hypervolume(points, REFERENCE) == area


def ended(name, seed, eta, kl, reward, begun=1.0, **more):
    return run(f"{name}-{seed}", seed, recipe(seed, eta, **more), reward=[begun, reward], kl=[0.0, kl])


def test_groups_that_differ_in_eta_alone_have_one_area():
    runs = [ended("high", 0, 1.0, 2.0, 3.0), ended("low", 0, 0.1, 10.0, 5.0), ended("plain", 0, 1.0, 4.0, 2.0, steps=9)]
    points, areas = sections(arms(runs))
    assert [row[-1] for row in points.rows] == ["yes", "yes", "no"]
    assert [series.points for series in points.plot.series] == [True, True, True, False]
    front = points.plot.series[-1]
    assert (front.x, front.y) == ([2.0, 10.0, 10.0], [3.0, 3.0, 5.0])  # the reward of the cheaper one until the next
    # The reference is 1.1 * 10 nats and a reward of 1: 8 * 2 + 1 * 4 for the sweep, 7 * 1 for the single point
    assert [row[:4] for row in areas.rows] == [("high", 2, 1, pytest.approx(20.0)), ("plain", 1, 1, pytest.approx(7.0))]


def test_areas_are_seed_by_seed_where_every_eta_has_the_seed():
    runs = [ended("high", seed, 1.0, 2.0, 3.0) for seed in (0, 1, 2)]
    runs += [ended("low", seed, 0.1, 10.0, 5.0 + seed) for seed in (0, 1)]
    _, areas = sections(arms(runs))
    # 20 for seed 0, 8 * 2 + 1 * 5 for seed 1; seed 2 lacks an eta
    assert [row[1:] for row in areas.rows] == [(2, 2, pytest.approx(20.5), pytest.approx(20.0), pytest.approx(21.0))]


def test_the_reference_is_the_lowest_reward_that_any_run_began_with():
    # up to 11 nats and a reward of 0.5: 8 * 2.5 + 1 * 4.5
    _, areas = sections(arms([ended("high", 0, 1.0, 2.0, 3.0), ended("low", 0, 0.1, 10.0, 5.0, begun=0.5)]))
    assert [row[:4] for row in areas.rows] == [("high", 2, 1, pytest.approx(24.5))]
    assert "(KL 11.0, a tenth beyond the largest; reward 0.500, the smallest at a start)" in areas.sentence


def test_a_sweep_of_which_no_seed_has_every_eta_has_no_area():
    _, areas = sections(arms([ended("high", 0, 1.0, 2.0, 3.0), ended("low", 1, 0.1, 10.0, 5.0)]))
    assert (areas.id, areas.rows, areas.plot) == ("hypervolume", [], None)


@pytest.mark.parametrize("names", [("cory-eta=1e-3", "cory-eta=0.1"), ("cory eta=1e-3", "cory eta=0.1")])
def test_a_family_is_named_without_eta(names):
    _, areas = sections(arms([ended(name, 0, eta, 1.0, 2.0) for name, eta in zip(names, (1e-3, 0.1), strict=True)]))
    assert [row[0] for row in areas.rows] == ["cory"]


def test_families_of_one_name_are_told_apart_by_what_they_differ_in():
    """A sweep of two etas, one run of which was trained on to more steps."""
    runs = [ended(f"cory-eta={eta}", seed, eta, 1.0, 2.0, steps=2) for eta in (0.1, 0.3) for seed in (0, 1)]
    runs[-1] = ended("cory-eta=0.3", 1, 0.3, 1.0, 2.0, steps=4)
    _, areas = sections(arms(runs))
    assert [row[:3] for row in areas.rows] == [("cory steps=2", 2, 1), ("cory steps=4", 1, 1)]
    assert areas.plot.series[0].x == ["cory steps=2", "cory steps=4"]


def test_a_run_and_its_copy_are_of_two_families():
    runs = [ended(f"cory-eta={eta}", seed, eta, 1.0, 2.0) for eta in (0.1, 0.3) for seed in (0, 1)]
    copy = ended("cory-eta=0.1", 0, 0.1, 9.0, 7.0)
    _, areas = sections(arms([*runs, copy]))
    assert [row[:3] for row in areas.rows] == [("cory", 2, 2), ("cory (2)", 1, 1)]


def test_an_algorithm_may_be_a_name_alone():
    runs = [
        run(f"{name}-0", 0, recipe(0) | {"algorithm": name}, reward=[1.0, 2.0], kl=[0.0, 1.0]) for name in ("a", "b")
    ]
    assert [section.id for section in sections(arms(runs))] == ["frontier"]


def test_without_a_second_group_or_kl_there_is_no_frontier():
    one = ended("high", 0, 1.0, 2.0, 3.0)
    assert sections(arms([one])) == []
    assert sections(arms([one, run("magrpo-0", 0, recipe(0, None), reward=[1.0, 2.0])])) == []


def test_a_group_with_a_run_that_lost_its_kl_is_left_out_by_name():
    runs = [ended("high", 0, 1.0, 2.0, 3.0), ended("low", 0, 0.1, 10.0, 5.0), ended("torn", 0, 1.0, 1.0, 9.0, steps=9)]
    assert "Left out" not in sections(arms(runs))[0].sentence
    runs.append(ended("torn", 1, 1.0, None, 9.0, steps=9))
    points, areas = sections(arms(runs))
    assert points.sentence.endswith("Left out, because a run has no KL at its end: torn.")
    assert [row[0] for row in points.rows] == ["high", "low"]
    assert [row[0] for row in areas.rows] == ["high"]  # the sweep of both


def test_without_a_sweep_there_is_no_area():
    assert len(sections(arms([ended("a", 0, 1.0, 2.0, 3.0), ended("b", 0, 1.0, 4.0, 2.0, steps=9)]))) == 1
