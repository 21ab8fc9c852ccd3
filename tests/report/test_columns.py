"""The numbers behind the curves of a page."""

from pathlib import Path

from coevolve.report.page import columns as module
from coevolve.report.page.build import _unique
from coevolve.report.page.columns import columns
from coevolve.report.runs import Run


def run(lines):
    return Run(Path("r"), "r", {}, lines)


def test_axes_are_summed_up_and_changes_of_the_cast_are_found():
    a, b = {"p": "ann", "o": "bob"}, {"p": "bob", "o": "ann"}
    lines = [
        {"step": 0, "cast": a, "turns": 4, "reward": 0.123456789, "agents/ann/updates": 2, "agents/bob/updates": 1},
        {"step": 1, "cast": a, "turns": 4, "reward": None, "agents/ann/updates": 2, "agents/bob/updates": 1},
        {"step": 2, "cast": b, "turns": 6, "reward": 5.0, "kl": float("nan"), "agents/ann/updates": 2},
    ]
    [found] = columns([run(lines)])
    assert (found["steps"], found["turns"], found["updates"]) == ([0, 1, 2], [4, 8, 14], [3, 6, 8])
    assert found["columns"]["reward"] == [0.12346, None, 5.0]
    assert found["columns"]["kl"] == [None, None, None]
    assert found["casts"] == [
        {"cast": a, "steps": 0, "turns": 4, "updates": 3},
        {"cast": b, "steps": 2, "turns": 14, "updates": 8},
    ]
    assert (found["every"], found["written"]) == (1, 3)


def test_gradient_steps_are_those_of_the_policies_that_play():
    lines = [{"step": 0, "cast": {"p": "ann"}, "agents/ann/updates": 2, "agents/judge/updates": 5}]
    [found] = columns([run(lines)])
    assert found["updates"] == [2]
    assert found["columns"]["agents/judge/updates"] == [5]


def test_names_that_runs_share_are_numbered():
    assert _unique(["a", "a (2)", "a", "b"]) == ["a", "a (2)", "a (3)", "b"]


def test_long_runs_are_thinned_and_say_so(monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 10)
    lines = [{"step": i, "turns": 1} for i in range(30)]  # 30 numbers where 10 fit: every third, and the last
    [found] = columns([run(lines)])
    assert (found["every"], found["written"]) == (3, 30)
    assert found["steps"] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 29]
    assert found["turns"] == [step + 1 for step in found["steps"]]
    assert found["columns"]["turns"] == [1] * 11
    assert found["updates"] == [0] * 11
