"""Straight curves, read off at equal cost."""

import numpy as np
import pytest
from hand_made import recipe, run

from coevolve.report.findings.arms import arms
from coevolve.report.findings.matched import KL, SAMPLES, match, section


def pair(first, second):
    runs = [run("a-0", 0, recipe(0), **first), run("b-0", 0, recipe(0, 0.5), **second)]
    return arms(runs)


def test_rewards_are_read_at_the_same_number_of_samples():
    groups = pair({"reward": [0.0, 1.0, 2.0, 3.0], "turns": [10] * 4}, {"reward": [0.0, 1.0], "turns": [20] * 2})
    found = match(SAMPLES, groups)
    # means over 20 turns: a is at 0.5, 1.5, 2.5 after 20, 30, 40 samples; b at 0 and 1 after 20 and 40
    assert (found.grid[0], found.grid[-1], found.alike) == (20.0, 40.0, True)
    rows = section(found).rows
    assert rows[:4] == [(25.0, "a", 1, 1.0, None, None), (25.0, "b", 1, 0.25, None, None), *rows[2:4]]
    assert rows[2:] == [
        (30.0, "a", 1, 1.5, None, None),
        (30.0, "b", 1, 0.5, None, None),
        (35.0, "a", 1, 2.0, None, None),
        (35.0, "b", 1, 0.75, None, None),
        (40.0, "a", 1, 2.5, None, None),
        (40.0, "b", 1, 1.0, None, None),
    ]


def test_a_mean_over_steps_has_cost_what_was_spent_when_it_ended():
    """Of 20 steps a mean is over two: the first is known after step 1, when two steps were paid for."""
    rewards = [float(i) for i in range(20)]
    found = match(SAMPLES, arms([run("a-0", 0, recipe(0), reward=rewards, turns=[10] * 20)]))
    assert (found.grid[0], found.grid[-1]) == (20, 200)
    assert found.rewards["a"][0][[0, -1]].tolist() == [0.5, 18.5]


def test_the_reward_at_a_kl_is_that_of_the_first_time():
    groups = pair(
        {"reward": [0.0, 1.0, 5.0, 3.0], "kl": [0.0, 1.0, 0.5, 2.0]},
        {"reward": [0.0, 1.0, 0.0], "kl": [0.0, 1.5, 1.0]},
    )
    found = match(KL, groups)
    assert (found.grid[0], found.grid[-1]) == (0.0, 1.5)
    assert found.rewards["a"][0][-1] == pytest.approx(
        2.0
    )  # half way from 1 at 1 nat to 3 at 2; the 5 was on a way back
    assert found.rewards["b"][0][-1] == 1.0


def test_seeds_make_a_band():
    runs = [run(f"a-{seed}", seed, recipe(seed), reward=[0.0, 1.0 + seed], turns=[10, 10]) for seed in (0, 1, 2)]
    found = section(match(SAMPLES, arms(runs)))
    assert found.rows[-1] == (20.0, "a", 3, 2.0, 1.0, 3.0)
    (series,) = found.plot.series
    assert (series.y[-1], series.low[-1], series.high[-1]) == (2.0, 1.0, 3.0)


def test_runs_without_a_cost_are_left_out_by_name():
    found = section(match(SAMPLES, pair({"reward": [0.0, 1.0], "turns": [8, 8]}, {"reward": [0.0, 1.0]})))
    assert found.sentence.endswith("Left out: b-0; these runs do not count their turns.")
    assert [row[1] for row in found.rows] == ["a"] * 4
    nobody = section(match(KL, pair({"reward": [0.0]}, {"reward": [0.0]})))
    assert nobody.sentence == "Left out: a-0 and b-0; these runs have no reference, and so no KL."
    assert (nobody.rows, nobody.plot) == ([], None)


def test_costs_that_do_not_overlap_are_not_compared():
    found = section(match(KL, pair({"reward": [0.0], "kl": [1.0]}, {"reward": [0.0], "kl": [2.0]})))
    assert found.sentence == "Not comparable: there is no cost that all runs came by."
    assert found.rows == []


def same_curve(name, eta, steps, size, total):
    """A run whose reward, and KL, depend on the turns spent only, as those of the turns in the middle of a step."""
    spent = (np.arange(steps) + 0.5) * size / total
    kl = (10 * spent).tolist()
    return run(f"{name}-0", 0, recipe(0, eta), reward=(1 - np.exp(-3 * spent)).tolist(), kl=kl, turns=[size] * steps)


@pytest.mark.parametrize("axis", [SAMPLES, KL], ids=["samples", "kl"])
@pytest.mark.parametrize(
    ("steps", "size", "others", "its"),
    [(40, 50, 200, 50), (40, 50, 200, 10), (100, 4, 100, 16), (50, 10, 1000, 10)],
)
def test_a_longer_run_or_one_of_other_batches_on_the_same_curve_is_neither_ahead_nor_behind(
    axis, steps, size, others, its
):
    total = steps * size
    found = match(axis, arms([same_curve("a", 1.0, steps, size, total), same_curve("b", 0.5, others, its, total)]))
    apart = found.rewards["a"][0] - found.rewards["b"][0]
    assert len(apart) == 61
    assert np.abs(apart).max() < 0.01


def test_runs_are_smoothed_over_as_many_turns_and_these_are_told():
    found = match(SAMPLES, arms([same_curve("a", 1.0, 40, 50, 2000), same_curve("b", 0.5, 200, 50, 2000)]))
    assert section(found).sentence.startswith("Reward of each run by what it had spent, a mean over 200 turns, from")
    uncounted = match(KL, pair({"reward": [0.0, 1.0], "kl": [0.0, 1.0]}, {"reward": [0.0] * 2, "kl": [0.0, 2.0]}))
    assert "a mean over 1 step, from" in section(uncounted).sentence


def test_a_run_that_stopped_counting_its_turns_is_compared_up_to_there():
    groups = pair({"reward": [0.0, 1.0, 9.0], "turns": [8, 8, None]}, {"reward": [0.0, 1.0, 2.0], "turns": [8] * 3})
    found = match(SAMPLES, groups)
    assert (found.grid[-1], found.rewards["a"][0][-1], found.left_out) == (16.0, 1.0, [])


def test_a_step_without_a_reward_does_not_count_in_the_mean():
    rewards = [float(i) for i in range(18)] + [None, 30.0]
    found = match(SAMPLES, arms([run("a-0", 0, recipe(0), reward=rewards, turns=[10] * 20)]))
    assert found.rewards["a"][0][-1] == 30.0
