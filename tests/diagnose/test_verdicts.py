"""What is said about rows, and what is not."""

import json
import math

import pytest

from coevolve.report.findings import diagnostics, verdicts
from coevolve.report.runs import Run

LESS = {"difference": -0.4, "low": -0.5, "high": -0.25}
MORE = {"difference": 0.4, "low": 0.25, "high": 0.5}
SAME = {"difference": 0.1, "low": -0.25, "high": 0.5}
REFUSED = {"reason": "no move"}


def test_the_team():
    trained = {"setting": "trained", "reward": 2.0, "se": 0.125}
    said = verdicts.team([trained, {"setting": "start"} | LESS])
    assert said == (
        "The return is 2.00 ± 0.12 (standard error). The untrained start: 0.400 less (0.250 to 0.500); training "
        "raised it."
    )
    assert verdicts.team([trained, MORE]).endswith("0.400 more (0.250 to 0.500); training lowered it.")
    assert "no measurable difference (-0.250 to 0.500); training changed nothing" in verdicts.team([trained, SAME])
    few = "changed nothing measurable. Intervals of fewer than 20 problems, as all of these are, are too narrow."
    assert verdicts.team([trained | {"n": 19}, SAME]).endswith(few)
    assert verdicts.team([trained | {"n": 20}, SAME]).endswith("measurable.")
    none = {"difference": -0.4, "low": None, "high": None}
    said = verdicts.team([trained | {"n": 5}, none])
    assert "a difference of -0.400, without an interval; training changed nothing measurable. Fewer than 6" in said


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.0), (0.0, 0.5)])
def test_an_interval_that_ends_at_0_measures_nothing(low, high):
    start = {"difference": (low + high) / 2, "low": low, "high": high}
    said = verdicts.team([{"setting": "trained", "reward": 2.0, "se": 0.125}, start])
    assert said.endswith("training changed nothing measurable.")


READS = (0.6, 0.4, 0.8), (0.2, 0.1, 0.3)
"""Slope and gain of a second role that reads, with their intervals."""


@pytest.mark.parametrize(
    ("slope", "gain", "found"),
    [
        (*READS, True),
        ((0.6, 0.3, 0.8), READS[1], None),  # the limit of .3 is in the interval, at its lower end
        ((0.6, 0.31, 0.8), READS[1], True),
        ((0.2, 0.1, 0.3), READS[1], False),  # and at its upper end nothing is above it
        ((0.2, 0.1, 0.31), READS[1], None),
        (READS[0], (0.1, 0.0, 0.2), None),
        (READS[0], (-0.1, -0.2, 0.0), False),
        ((0.2, 0.1, 0.31), (-0.1, -0.2, -0.05), False),  # one that is not above is enough
        ((None, None, None), READS[1], False),
        ((math.nan, math.nan, math.nan), READS[1], False),
        ((0.6, None, None), READS[1], None),  # of too few problems for an interval
        ((0.6, math.nan, math.nan), READS[1], None),
    ],
)
def test_whether_the_second_reads(slope, gain, found):
    row = zip(("slope", "slope_low", "slope_high", "gain", "gain_low", "gain_high"), (*slope, *gain), strict=True)
    assert verdicts.reads(dict(row)) is found


@pytest.mark.parametrize(
    ("slope", "gain", "found"),
    [
        (0.3, 0.01, True), (0.29, 0.01, False), (0.3, 0.0, False), (None, 0.01, False), (0.3, None, False),
        (math.nan, 0.01, False),
    ],
)  # fmt: skip
def test_the_premise_is_a_slope_of_three_tenths_and_a_gain(slope, gain, found):
    assert verdicts.holds({"slope": slope, "gain": gain}) is found


@pytest.mark.parametrize(
    ("ann", "bob", "said"),
    [
        (LESS, LESS, "; the team earns more than any of its policies alone."),
        (LESS, MORE, "; bob would do better without the team."),
        (LESS, SAME, "; ann earns more in the team, of the others it cannot be told."),
        (SAME, SAME, "; no policy is measurably worse off without the team."),
        (SAME, REFUSED, "bob: cannot be played (no move)."),
    ],
)
def test_alone(ann, bob, said):
    assert verdicts.alone([{"policy": "ann"} | ann, {"policy": "bob"} | bob]).endswith(said)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (LESS, "have specialised"),
        (MORE, "another cast would do better"),
        (SAME, "plays the other roles as well, as far as can be told"),
    ],
)
def test_swap(row, said):
    assert said in verdicts.swap([{"setting": "a=bob, b=ann"} | row])


def test_swaps_of_which_one_is_worse_and_one_better():
    said = verdicts.swap([{"setting": "a=y, b=x"} | LESS, {"setting": "a=z, b=y"} | MORE])
    assert said.endswith(
        "; the policies have specialised in their roles, and yet a=z, b=y would do better than the cast that was "
        "trained last."
    )


@pytest.mark.parametrize(
    ("blank", "shuffled", "own", "said"),
    [
        (LESS, LESS, LESS, "What the others say on the problem matters to it."),
        (LESS, LESS, SAME, "An answer of its own would serve as well, as far as can be told."),
        (LESS, SAME, SAME, "anything will do."),
        (MORE, LESS, LESS, "matters to it. It would do better yet without hearing them."),
        (SAME, MORE, SAME, "It would do better without hearing them."),
        (MORE, SAME, SAME, "It would do better without hearing them."),
        (SAME, SAME, LESS, "It makes no measurable use of what it hears."),
        (SAME, REFUSED, SAME, "no measurable difference (-0.250 to 0.500)."),
    ],
)
def test_messages(blank, shuffled, own, said):
    settings = {"blank": blank, "shuffled": shuffled, "own": own}
    rows = [{"role": "b", "setting": setting} | row for setting, row in settings.items()]
    assert verdicts.messages(rows).endswith(said)


@pytest.mark.parametrize(("row", "said"), [(LESS, "uses"), (SAME, "makes no measurable use of"), (MORE, "without")])
def test_notes(row, said):
    assert verdicts.messages([{"role": "b", "setting": "notes blank"} | row]).endswith(f"{said} the notes.")


def moved(low, high, silent, n=64):
    redrawn = {"setting": "redrawn", "n": n, "policy": "p", "share": 0.2, "share_low": low, "share_high": high}
    silence = {"setting": "silent"} | silent
    return verdicts.influence([{"role": role} | row for role in "ab" for row in (redrawn, silence)])


def test_who_is_lazy():
    """Half of an equal share is a quarter of two agents' influence."""
    assert moved(0.25, 0.35, SAME).count("what it says moves the return") == 2
    assert moved(0.1, 0.249, SAME).count("it hardly moves the return (lazy?)") == 2
    assert moved(0.1, 0.25, SAME).count("whether it is lazy is open") == 2
    assert moved(0.1, 0.24, LESS).count("it counts that it speaks, more than what it says") == 2
    assert moved(0.1, 0.3, SAME).count("whether it is lazy is open") == 2
    assert moved(0.1, 0.24, REFUSED).count("whether it is lazy is open") == 2
    assert "a (p) has 20 % of the influence (95 % interval 10 % to 24 %, an equal share is 50 %)" in moved(
        0.1, 0.24, SAME
    )


def test_influence_on_what_does_not_vary():
    said = moved(None, None, REFUSED)
    assert "varies too little" in said
    assert said.endswith("a: cannot be played (no move); b: cannot be played (no move).")


def test_influence_on_few_problems():
    said = moved(None, None, SAME, n=5)
    assert said.startswith("6 problems are the fewest to tell whose choices move it. The team with")


def test_cross_play():
    assert "rely on those they were trained with" in verdicts.cross_play([{"setting": "mean"} | LESS])
    assert "as well with strangers" in verdicts.cross_play([{"setting": "mean"} | SAME])
    assert "better with strangers" in verdicts.cross_play([{"setting": "mean"} | MORE])
    refused = {"setting": "mixed", "role": "b"} | REFUSED
    assert verdicts.cross_play([refused, {"setting": "mean"} | LESS]) == (
        "Mixed teams that could be played, beside both teams' own play: 0.400 less (0.250 to 0.500); b: cannot be "
        "played (no move)."
    )
    assert verdicts.cross_play([refused]) == "No mixed team could be compared: b: cannot be played (no move)."


def test_sections_for_a_run(tmp_path, capsys):
    run = Run(tmp_path, "my run", {}, [])
    rows = [
        {"kind": "team", "setting": "trained", "role": "all", "policy": "ann", "reward": 2.0, "se": None, "n": 1},
        {"kind": "team", "setting": "start", "role": "all", "policy": "ann", "reward": 1.0, "se": None, "n": 1}
        | {"difference": -1.0, "low": None, "high": None},
    ]
    found = {"checkpoint": 4, "problems": 1, "samples": 1, "rows": rows}
    (tmp_path / "diagnostics.json").write_text(json.dumps(found))
    sections = diagnostics.sections(run)
    assert len({section.id for section in sections}) == len(sections) == 6
    first, *rest = sections
    assert (first.id, first.title) == ("diagnostics-my-run-team", "The team")
    assert first.sentence.startswith("Checkpoint 4, 1 held-out problem, 1 episodes of each. The return is")
    assert first.columns == ["setting", "role", "policy", "return", "SE", "difference", "low", "high"]
    assert first.rows == [
        ["trained", "all", "ann", 2.0, None, None, None, None],
        ["start", "all", "ann", 1.0, None, -1.0, None, None],
    ]
    assert "a difference of -1.00, without an interval" in first.sentence
    assert [(section.columns, section.rows) for section in rest] == [([], [])] * 5
    assert "No messages are passed" in rest[2].sentence
    diagnostics.show(sections)
    assert "1.000" in capsys.readouterr().out
