"""What a report says of runs of all kinds, and how it is written down."""

import json
import re

import pytest
from hand_made import recipe, run

from coevolve.report.findings import findings, summary
from coevolve.report.findings.held_out import sections as held_out_sections
from coevolve.report.paper import write_paper
from coevolve.report.runs import Run, find
from coevolve.report.section import Section

AGENT = {"ann__reward": [1.0, 2.0], "ann__grad_norm": [2.0, 1.0], "ann__entropy": [2.0, 1.0]}
CAST = {"pioneer": "ann", "observer": "bob"}
COSTS = {"turns": [8, 8], "ann__updates": [1, 1], "kl": [0.0, 1.0], "objective": [1.0, 1.0]}


def ids(runs):
    found = [section.id for section in findings(runs)]
    assert len(set(found)) == len(found)
    return [id for id in found if not id.startswith("diagnostics")]


def test_one_run_without_kl():
    assert ids([run("magrpo-0", reward=[1.0, 2.0], **AGENT)]) == ["summary", "alarms"]


def test_one_run_with_kl_shows_its_price():
    assert ids([run("cory-0", reward=[1.0, 2.0], **COSTS)]) == ["summary", "alarms", "equal-kl"]


def test_a_run_of_one_step():
    (summary, *_) = findings([run("cory-0", reward=[1.5], kl=[0.0])])
    assert summary.rows[0][2:7] == [1, 1.5, 1.5, 1.5, 0.0]
    two = [run("cory-0", reward=[1.5], kl=[0.0]), run("cory-1", 1, recipe(1), reward=[2.5], kl=[0.5])]
    compared = ["groups", "differences", "equal-samples", "equal-kl", "frontier"]
    assert ids(two) == ["summary", "alarms", *compared]


def test_runs_that_lack_each_others_metrics():
    runs = [
        run("a-0", 0, recipe(0), reward=[1.0, 2.0], **COSTS, **AGENT),
        run("b-0", 0, recipe(0, 0.1), reward=[None, 2.0]),
    ]
    compared = ["groups", "differences", "equal-samples", "equal-kl"]
    assert ids(runs) == ["summary", "alarms", *compared]


def test_seeds_of_one_recipe_are_one_group_without_differences():
    found = ids([run(f"a-{seed}", seed, recipe(seed), reward=[1.0, 2.0], **COSTS) for seed in (0, 1)])
    assert found == ["summary", "alarms", "groups", "equal-samples", "equal-kl"]


def test_runs_of_two_tasks_are_not_compared():
    found = findings([run("a-0", reward=[1.0]), run("b-0", recipe=recipe(0, task="game"), reward=[1.0])])
    (groups,) = [section for section in found if section.id == "groups"]
    assert groups.sentence.startswith("Not compared: these runs learn game and sentiment, whose rewards")


def test_the_summary_holds_the_ends_of_every_metric():
    steps = {"reward": [0.0] * 10 + [3.0] * 8 + [1.0, 2.0], "kl": [0.0] * 18 + [4.0, 6.0]}  # means of two steps
    more = {"time__step": [1.0] * 19 + [21.0], "tokens_per_second": [10.0] * 19 + [30.0], "length": [5.0] * 20}
    agents = {"ann__entropy": [1.0] * 20, "bob__entropy": [2.0] * 20}
    one = run("cory-0", reward=steps["reward"], kl=steps["kl"], **more, **agents)
    row = findings([one])[0].rows[0]
    assert row == [
        "cory-0",
        0,
        20,
        0.0,
        3.0,
        1.5,
        5.0,
        None,
        1.5,
        5.0,
        20.5,
        40.0,
    ]  # (19 * 10 + 21 * 30) / 40 tokens a second


def test_gradient_norms_are_shares_of_the_largest():
    norms = {"ann__grad_norm": [9.0, 1.0], "bob__grad_norm": [9.0, 4.0], "eve__grad_norm": [None, None]}
    section = next(s for s in findings([run("a-0", reward=[1.0, 1.0], **norms)]) if s.id == "gradients")
    assert section.rows == [("a-0", "ann", 1.0, 0.25), ("a-0", "bob", 4.0, 1.0)]
    assert "The largest ratio is 4.00 (bob against ann in a-0)." in section.sentence


def test_gradient_norms_are_those_of_the_policies_that_play():
    norms = {"ann__grad_norm": [0.5], "bob__grad_norm": [2.0], "judge__grad_norm": [40.0]}
    section = next(s for s in findings([run("a-0", reward=[1.0], cast=[CAST], **norms)]) if s.id == "gradients")
    assert section.rows == [("a-0", "ann", 0.5, 0.25), ("a-0", "bob", 2.0, 1.0)]


def test_curves_of_gradient_norms_are_thinned_where_steps_are_many(monkeypatch):
    monkeypatch.setattr(summary, "_POINTS", 20)
    steps = 40
    norms = {f"{agent}__grad_norm": [float(i) for i in range(steps)] for agent in ("ann", "bob")}
    section = next(s for s in findings([run("a-0", reward=[1.0] * steps, **norms)]) if s.id == "gradients")
    assert [one.x for one in section.plot.series] == [[3.0, 7.0, 11.0, 15.0, 19.0, 23.0, 27.0, 31.0, 35.0, 39.0]] * 2
    assert section.plot.series[0].y[:2] == [1.5, 5.5]  # means of four steps, every fourth of them


def write(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def written(folder, seed, rewards, eta=1.0, **files):
    lines = [{"step": i, "reward": r, "kl": i / 2, "turns": 8} for i, r in enumerate(rewards)]
    made = {
        "metrics__jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "recipe__yaml": json.dumps(recipe(seed, eta)),
    }
    return write(folder, **made, **files)


EVALUATION = {
    "checkpoint": 2,
    "problems": 4,
    "rows": [
        {"weights": w, "setting": "team", "role": role, "policy": "ann", "decoding": "sampled", **more}
        for w, role, more in (
            ("start", "pioneer", {"reward": 1.0, "reward_se": 0.5, "length": 3.0}),
            ("trained", "pioneer", {"reward": 2.0, "reward_se": None, "length": 4.0}),
            ("trained", "observer", {"reward": 4.0, "reward_se": 0.25, "length": 4.0, "gain": 1.0, "gain_se": 0.5}),
            ("start", "observer", {"reward": 3.0}),
            ("trained", "all", {"reward": 9.0, "reward_se": 0.5, "parts/solved": 0.75, "best@2/reward": 9.5}),
        )
    ],
}
GREEDY = {"weights": "trained", "setting": "team", "role": "observer", "policy": "ann", "decoding": "greedy"}
EVALUATION["rows"].append({**GREEDY, "reward": 100.0})


def test_an_evaluation_is_told_and_compared(tmp_path):
    for seed in (0, 1):
        written(tmp_path / f"a-{seed}", seed, [1.0, 2.0], eval__json=json.dumps(EVALUATION))
    found = {section.id: section for section in findings(find([tmp_path]))}
    whole, parts = found["evaluation"], found["components"]
    assert "pioneer earns 2.00, 1.00 ± 0.50 at the start; " in whole.sentence
    assert "observer earns 4.00 ± 0.25, 3.00 at the start (problem by problem it gained 1.00 ± 0.50)." in whole.sentence
    assert whole.rows[1][5:11] == [2.0, None, None, None, None, 4.0]
    assert parts.columns == ("measure", "trained team all (ann), sampled")
    assert parts.rows == [["solved", 0.75], ["best@2/reward", 9.5]]
    assert ("held-out reward", "a", 2, 3.0, 3.0, 3.0) in found["groups"].rows  # of the roles, not of what is whole
    assert "evaluation-2" in found


_COMPARED = ("groups", "differences")


def evaluated(folder, number, reward, eta=1.0, rewards=(1.0, 2.0), **how):
    """A run of as many steps as rewards, and what its evaluation found."""
    alike = {"checkpoint": 2, "problems": 4, "samples": 1, "temperature": 1.0, "max_new_tokens": 8, "seed": 0}
    rows = [{**GREEDY, "decoding": "sampled", "reward": reward}]
    written(folder, number, rewards, eta, eval__json=json.dumps({**alike, **how, "rows": rows}))


def held_out(folder):
    """The groups' held-out rewards, the pairs of their difference, and the sentence about the groups."""
    found = {section.id: section for section in findings(find([folder]))}
    groups, differences = ([row for row in found[id].rows if row[0] == "held-out reward"] for id in _COMPARED)
    return {row[1]: tuple(row[2:4]) for row in groups}, sum(row[2] for row in differences), found["groups"].sentence


def test_held_out_rewards_of_other_problems_are_not_compared(tmp_path):
    for seed in (0, 1, 2):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0, problems=12)
        evaluated(tmp_path / f"b-{seed}", seed, 3.0 + seed, eta=0.1, problems=4 if seed == 2 else 12)
    groups, pairs, said = held_out(tmp_path)
    assert groups == {"a": (3, 2.0), "b": (2, 3.5)}
    assert pairs == 2
    assert said.endswith("Held-out reward leaves out b-2: not evaluated as most runs were, by problems.")


@pytest.mark.parametrize("how", [{"samples": 8}, {"seed": 7}, {"temperature": 0.5}, {"max_new_tokens": 16}])
def test_held_out_rewards_of_other_samples_are_not_compared(how, tmp_path):
    for seed in (0, 1):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0)
        evaluated(tmp_path / f"b-{seed}", seed, 3.0, eta=0.1, **(how if seed else {}))
    groups, pairs, said = held_out(tmp_path)
    assert groups == {"a": (2, 2.0), "b": (1, 3.0)}
    assert pairs == 1
    assert f"leaves out b-1: not evaluated as most runs were, by {next(iter(how))}." in said


def test_of_two_ways_as_common_that_of_more_problems_is_compared(tmp_path):
    for seed in (0, 1):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0, problems=4)
        evaluated(tmp_path / f"b-{seed}", seed, 3.0, eta=0.1, problems=12)
    groups, pairs, said = held_out(tmp_path)
    assert (groups, pairs) == ({"b": (2, 3.0)}, 0)
    assert "leaves out a-0 and a-1: " in said


def test_the_way_of_most_runs_is_compared_though_another_has_more_problems(tmp_path):
    for seed in (0, 1, 2):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0, problems=4)
        evaluated(tmp_path / f"b-{seed}", seed, 3.0 + seed, eta=0.1, problems=12 if seed == 2 else 4)
    groups, pairs, said = held_out(tmp_path)
    assert (groups, pairs) == ({"a": (3, 2.0), "b": (2, 3.5)}, 2)
    assert said.endswith("Held-out reward leaves out b-2: not evaluated as most runs were, by problems.")


@pytest.mark.parametrize("steps", [4, 1])
def test_an_evaluation_of_another_step_than_the_last_is_not_compared(tmp_path, steps):
    """The run went on after it, or began anew from before."""
    for seed in (0, 1):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0)
        evaluated(tmp_path / f"b-{seed}", seed, 3.0, eta=0.1, rewards=[1.0] * (steps if seed else 2))
    groups, pairs, said = held_out(tmp_path)
    assert groups == {"a": (2, 2.0), "b": (1, 3.0)}
    assert pairs == 1
    assert said.endswith("Held-out reward leaves out b-1: `coevolve eval` did not see the last step.")


def test_what_is_left_out_is_said_where_nothing_is_left(tmp_path):
    for seed in (0, 1):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0, rewards=[1.0] * 4)
    (groups,) = (section for section in findings(find([tmp_path])) if section.id == "groups")
    assert "held-out reward" not in {row[0] for row in groups.rows}
    assert "leaves out a-0 and a-1" in groups.sentence


def test_evaluations_by_the_random_numbers_of_each_runs_seed_are_alike(tmp_path):
    """As those of the study."""
    for seed in (0, 1, 2):
        evaluated(tmp_path / f"a-{seed}", seed, 2.0, seed=seed)
        evaluated(tmp_path / f"b-{seed}", seed, 3.0, eta=0.1, seed=seed)
    groups, pairs, said = held_out(tmp_path)
    assert (groups, pairs) == ({"a": (3, 2.0), "b": (3, 3.0)}, 3)
    assert "leaves out" not in said


def test_the_paper_has_every_section_and_picture(tmp_path):
    for seed in (0, 1):
        written(tmp_path / "runs" / f"a|b-{seed}", seed, [1.0, 2.0 + seed])
        written(tmp_path / "runs" / f"low-{seed}", seed, [1.0, 2.5 + seed], eta=0.1)
    output = tmp_path / "out" / "my report.md"
    files = write_paper(find([tmp_path / "runs"]), output)
    text = output.read_text()
    assert files[0] == output
    links = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert [file.name for file in files[1:]] == [link.replace("%20", " ") for link in links]
    assert "low from 1.00 to 3.00 ± 0.50" in text  # what the page opens with, too
    assert links[0] == "my%20report-curves.png" and "my%20report-frontier.png" in links
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:])
    assert "| final reward | a\\|b | 2 | 2.50 | 2.00 | 3.00 |" in text
    assert "KL, objective (the reward less the weighted KL), entropy" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_cells_are_on_one_line(tmp_path, monkeypatch):
    section = Section("x", "A\nB", "See <b>.", ("one", "two"), [("a\n|b", None), ("p < 0.05", 1)])
    monkeypatch.setattr("coevolve.report.paper.findings", lambda runs: [section])
    written(tmp_path / "a-0", 0, [1.0])
    write_paper(find([tmp_path / "a-0"]), tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    table = "| one | two |\n| :--- | ---: |\n| a \\|b | – |\n| p < 0.05 | 1 |\n"
    assert f"## A B\n\nSee \\<b>.\n\n{table}" in text


@pytest.mark.parametrize("rewards", [[1.0], [1.0] * 3, [1.0] * 40])
def test_a_constant_run_is_written(tmp_path, rewards):
    written(tmp_path / "a-0", 0, rewards)
    written(tmp_path / "b-0", 0, rewards, eta=0.1)
    assert len(write_paper(find([tmp_path]), tmp_path / "report.md")) >= 3


def test_policies_alone_are_told_apart_in_the_figure(tmp_path):
    """Alone, all of them play the first role."""
    who = [("team", "pioneer", "ann"), ("alone", "pioneer", "ann"), ("alone", "pioneer", "bob")]
    paid = {"weights": "trained", "decoding": "sampled", "reward": 1.0, "reward_se": 0.25}
    rows = [{"setting": setting, "role": role, "policy": policy, **paid} for setting, role, policy in who]
    (tmp_path / "eval.json").write_text(json.dumps({"checkpoint": 2, "problems": 4, "rows": rows}))
    [section] = held_out_sections(Run(tmp_path, "mine-0", {}, []))
    [series] = section.plot.series
    assert series.x == ["team, pioneer", "alone, ann", "alone, bob"]
    assert (series.low, series.high) == ([0.75] * 3, [1.25] * 3)  # one standard error
