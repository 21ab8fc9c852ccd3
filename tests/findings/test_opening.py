"""What a report opens with, in words."""

from hand_made import recipe, run

from coevolve.report.findings.opening import opening

LORA = {"model": "some/base", "weights": "lora"}


def test_a_team_is_told_by_what_its_policies_are():
    policies = {"a": LORA, "b": {"model": "some/base", "weights": "frozen"}, "c": LORA}
    told = {"policies": policies, "task": {"name": "sums"},
            "play": {"name": "rounds", "n": 2}, "roles": {"short": "a", "long": "b"}, "algorithm": {"name": "magrpo"},
            "batch_size": 8, "members": 4, "seed": 3}  # fmt: skip
    assert opening([run(reward=[1.0, 2.0], recipe=told)]).trained == (
        "a and c (some/base, LoRA) learnt sums as short and long in the play rounds by MAGRPO, beside b "
        "(some/base, frozen): 2 steps of 8 problems, each played 4 times, seed 3."
    )


def test_a_run_without_a_recipe_is_told_by_its_metrics():
    said = opening([run(reward=[1.0] * 10, ann__reward=[1.0] * 10, recipe={})])
    assert said.trained == "ann learnt a task: 10 steps, seed 0."
    assert said.came == "The reward went from 1.00 to 1.00."
    assert (said.alarms, said.judged) == ([], True)


def test_several_runs_are_told_by_group():
    runs = [run(f"a-{seed}", seed, recipe(seed), reward=[0.0, 1.0 + seed]) for seed in (0, 1)]
    runs.append(run("b-0", 0, recipe(0, eta=0.1), reward=[0.5, 3.0]))
    said = opening(runs)
    assert said.trained == "3 runs on sentiment: a (2 seeds) and b (1 seed)."
    assert said.came == "Reward: a from 0 to 1.50 ± 0.50; b from 0.500 to 3.00."
    assert not said.judged


def test_an_objective_below_its_start_is_an_alarm():
    reward = [0.1 * i for i in range(40)]
    paid = [1.0 - 0.1 * i for i in range(40)]
    [alarm] = opening([run(reward=reward, objective=paid)]).alarms
    assert alarm.startswith("objective fell below its start (team), from step ")
    assert opening([run(reward=reward, objective=reward)]).alarms == []


def test_missing_numbers_need_not_last():
    """Two of a hundred are no alarm from the first on."""
    loss = [None if i in (3, 90) else 1.0 for i in range(100)]
    assert opening([run(reward=[1.0] * 100, loss=loss)]).alarms == [
        "loss is no number at 2 steps (team), first at step 3"
    ]
