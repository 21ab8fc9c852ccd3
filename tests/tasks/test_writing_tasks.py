"""The writing tasks: who is told what in each play, what a team is paid, and what it is told to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coevolve.engines.scripted import ScriptedEngine
from coevolve.plays import chain, discussion, rounds, tree
from coevolve.recipe.components import component
from coevolve.rollout import Stage, rollout
from coevolve.tasks import TASKS, Arxiv, Tldr, WritingMini, data
from coevolve.tasks.writing import Writing, split
from coevolve.types import Case, Instruction, Play, Problem, Sampling, Turn

POST = {
    "id": "t3_1",
    "prompt": "SUBREDDIT: r/pets\n\nTITLE: Cat\n\nPOST: My cat ran away {twice}.\n\nTL;DR:",
    "completion": " cat gone",
}
SHOWN = "SUBREDDIT: r/pets\n\nTITLE: Cat\n\nPOST: My cat ran away {twice}."
ABSTRACT = {"article_id": "2510.1", "abstract_text": "We study cats.", "categories": ["cs.AI"]}

# 8 words, 31 characters, 8 different; 14 words, 70 characters, 14 different; see tests/rewards/test_writing.py.
BRIEF = "A red dog ran over my old fence"
LONG = "However, that big red dog also ran across a muddy garden and it barked"
WORTH = 0.5 + 1 + 0.225 / 0.7 + 0.6 + 0.22


def serve(monkeypatch: pytest.MonkeyPatch, *rows: Mapping[str, Any]) -> None:
    """Makes every data set hold these rows."""
    monkeypatch.setattr(data, "rows", lambda name, dataset, split: [dict(row) for row in rows])


@pytest.fixture
def tldr(monkeypatch: pytest.MonkeyPatch) -> Tldr:
    serve(monkeypatch, POST)
    return Tldr()


@pytest.fixture
def arxiv(monkeypatch: pytest.MonkeyPatch) -> Arxiv:
    serve(monkeypatch, ABSTRACT)
    return Arxiv()


def turn(role: str, text: str, problem: Problem | None = None) -> Turn:
    return Turn(role, "llm", problem or Problem("p"), 0, 0, (), (), (), text, True)


def said(task: Writing, **texts: str) -> Case:
    """A case of turns, in the order given."""
    problem = task.train[0]
    return Case(problem, tuple(turn(role, text, problem) for role, text in texts.items()))


def heard_by(task: Writing, play: Play, roles: Sequence[str], says: Mapping[tuple[str, int], str]) -> list[str]:
    """What the engine was asked, in order: the words of each prompt, after "role: "."""
    engine = ScriptedEngine(lambda role, problem, member, round: says[role, round])
    stage = Stage(dict.fromkeys(roles, "llm"), task, engine, Sampling(8))
    rollout(play, task.train[:1], stage)
    asked = [say for call in engine.calls for say in call["llm"]]
    return [f"{say.role}: {engine.read(say.prompt_ids)}" for say in asked]


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_the_first_prompt_ends_as_posts_of_the_data_set_do(tldr: Tldr) -> None:
    short, detailed, writer = (tldr.prompt(tldr.train[0], role, ()) for role in ("short", "detailed", "writer"))
    assert short == f"Write a brief, factual summary of this post.\n\n{SHOWN}\n\nTL;DR:"
    assert detailed == (
        f"Write a detailed summary of this post, with more unique words and some transition words.\n\n{SHOWN}\n\nTL;DR:"
    )
    assert isinstance(writer, str)
    assert "a line --- between" in writer
    assert writer.endswith(f"\n\n{SHOWN}\n\nTL;DR:")
    assert all(type(prompt) is Instruction for prompt in (short, detailed, writer))


def test_the_first_prompt_of_arxiv(arxiv: Arxiv) -> None:
    assert arxiv.prompt(arxiv.train[0], "background", ()) == (
        "Expand this abstract for an introduction: write its background and motivation. Another writer adds method and "
        "implications; do not repeat those.\n\nWe study cats.\n\nBackground and motivation:"
    )
    assert arxiv.prompt(arxiv.train[0], "method", ()) == (
        "Expand this abstract for an introduction: write its method and implications. Another writer adds background "
        "and motivation; do not repeat those.\n\nWe study cats.\n\nMethod and implications:"
    )


def test_parallel_writers_see_nothing_of_each_other(tldr: Tldr) -> None:
    asked = heard_by(tldr, rounds(1), ("short", "detailed"), {("short", 0): BRIEF, ("detailed", 0): LONG})
    shown = " ".join(SHOWN.split())
    assert asked == [
        f"short: Write a brief, factual summary of this post. {shown} TL;DR:",
        "detailed: Write a detailed summary of this post, with more unique words and some transition words. "
        f"{shown} TL;DR:",
    ]


def test_pipeline_the_second_writer_complements_the_first(arxiv: Arxiv) -> None:
    asked = heard_by(
        arxiv, chain(), ("background", "method"), {("background", 0): " Cats are old.", ("method", 0): "x"}
    )
    assert asked[1] == (
        "method: Expand this abstract for an introduction: write its method and implications. Another writer adds "
        "background and motivation; do not repeat those. We study cats. Background and motivation: Cats are old. "
        "Complement it, do not repeat it. Method and implications:"
    )
    assert "Cats are old." not in asked[0]


def test_pipeline_of_tldr_builds_on_the_brief_one(tldr: Tldr) -> None:
    problem = tldr.train[0]
    assert tldr.prompt(problem, "detailed", [turn("short", " Cat left. \n")]) == (
        "Write a detailed summary of this post, with more unique words and some transition words.\n\n"
        f"{SHOWN}\n\nBrief summary: Cat left.\n\nBuild on it: 2 to 3 times as long, with more unique words and some "
        "transition words.\n\nTL;DR:"
    )


def test_discussion_revises_having_read_the_other(tldr: Tldr) -> None:
    script = {("short", 0): "cat left", ("detailed", 0): "a long story", ("short", 1): "s", ("detailed", 1): "d"}
    asked = heard_by(tldr, discussion(1), ("short", "detailed"), script)
    # A second turn continues the exact tokens of the first prompt and action.
    assert asked[2] == (
        f"{asked[0]} cat left Detailed summary: a long story Keep yours brief; the detailed summary builds on it. "
        "Write it again, better. TL;DR:"
    )
    assert asked[3] == (
        f"{asked[1]} a long story Brief summary: cat left Build on it: 2 to 3 times as long, with more unique words "
        "and some transition words. Write it again, better. TL;DR:"
    )


def test_a_further_turn_without_feedback_asks_for_a_revision(tldr: Tldr) -> None:
    script = {(role, n): f"{role}{n}" for role in ("short", "detailed") for n in range(3)}
    asked = heard_by(tldr, rounds(3), ("short", "detailed"), script)
    assert asked[2] == f"{asked[0]} short0 Write it again, better. TL;DR:"
    assert asked[4] == f"{asked[2]} short1 Write it again, better. TL;DR:"  # all of the history, once
    assert asked[5] == f"{asked[3]} detailed1 Write it again, better. TL;DR:"


def test_a_further_turn_with_feedback_hears_its_own_note(tldr: Tldr) -> None:
    script = {("short", 0): BRIEF, ("detailed", 0): "gone", ("short", 1): BRIEF, ("detailed", 1): LONG}
    asked = heard_by(tldr, rounds(2, feedback=True), ("short", "detailed"), script)
    assert asked[3].startswith(f"{asked[1]} gone Your text has 1 words; it should have 8 to 256. ")
    assert asked[3].endswith(" TL;DR:")
    assert "Write it again" not in asked[3]
    assert "fence" not in asked[3]  # the partner's text


def test_a_tree_continues_each_joint(tldr: Tldr) -> None:
    script = {(role, n): f"{role}{n}" for role in ("short", "detailed") for n in range(6)}
    asked = heard_by(tldr, tree(2, 2), ("short", "detailed"), script)
    assert len(asked) == 4 + 8
    assert asked[4] == f"{asked[0]} short0 Write it again, better. TL;DR:"
    assert asked[8] == f"{asked[1]} short1 Write it again, better. TL;DR:"


def test_only_the_last_own_turn_is_continued(tldr: Tldr) -> None:
    first, second = turn("short", "one"), turn("short", "two")
    prompt = tldr.prompt(tldr.train[0], "short", (first, "Old note.", second, "New note."))
    assert prompt == [second, "\n\nNew note.\n\nTL;DR:"]
    assert prompt[0] is second
    assert type(prompt[1]) is Instruction


def test_texts_before_the_first_turn_are_part_of_its_prompt(tldr: Tldr) -> None:
    prompt = tldr.prompt(tldr.train[0], "short", ("Mind the cat.",))
    assert prompt == f"Write a brief, factual summary of this post.\n\n{SHOWN}\n\nMind the cat.\n\nTL;DR:"


def test_unknown_roles(tldr: Tldr) -> None:
    with pytest.raises(ValueError, match=r"no role 'shirt'; did you mean 'short'\?; known: short, detailed, writer"):
        tldr.prompt(tldr.train[0], "shirt", ())
    with pytest.raises(ValueError, match="no role 'pioneer'; known: short, detailed, writer"):
        tldr.prompt(tldr.train[0], "short", [turn("pioneer", "x")])


# --- rewards ---------------------------------------------------------------------------------------------------------


def test_both_turns_earn_the_teams_total(tldr: Tldr) -> None:
    cases = [said(tldr, short=BRIEF, detailed=LONG), said(tldr, short=LONG, detailed=BRIEF)]
    # The other way round the ratio is 31 / 70, below 1.1: level 1 only.
    assert tldr.reward(cases) == [pytest.approx([WORTH, WORTH]), [0.5, 0.5]]
    assert tldr.reward([]) == []


def test_texts_are_compared_by_role_whoever_spoke_first(tldr: Tldr) -> None:
    assert tldr.reward([said(tldr, detailed=LONG, short=BRIEF)]) == [pytest.approx([WORTH, WORTH])]


def test_rivals_are_paid_for_their_share_of_the_words() -> None:
    task, peaceful = WritingMini(rivalry=10.0), WritingMini()
    [[total, _]] = peaceful.reward([said(peaceful, short=BRIEF, detailed=LONG)])
    [[short, detailed]] = task.reward([said(task, short=BRIEF, detailed=LONG)])
    assert (short, detailed) == pytest.approx((total + 10 * (8 / 22 - 0.5), total + 10 * (14 / 22 - 0.5)))
    assert (short + detailed) / 2 == pytest.approx(total)
    assert task.reward([said(task, short="", detailed=""), said(task, writer="a b --- c")]) == [[0.0, 0.0], [0.0]]
    for wrong, why in (({"rivalry": 1.0, "reward": "r.py:f"}, "task.rivalry is of the task's own reward"),
                       ({"rivalry": -1}, "task: rivalry is -1; want at least 0")):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            component({"name": "writing-mini", **wrong}, TASKS, "task")


def test_empty_texts_earn_nothing(tldr: Tldr) -> None:
    assert tldr.reward([said(tldr, short="", detailed=""), said(tldr, writer="")]) == [[0.0, 0.0], [0.0]]
    assert tldr.parts([said(tldr, short="", detailed="")])[0]["length_ratio"] == 0.0


def test_arxiv_has_its_own_thresholds(arxiv: Arxiv) -> None:
    # 130 and 180 words of 4 characters and a space: ratio 1.385, 1 different word each, Jaccard 1, "cats" has no
    # transition word in it.
    background, method = "cats " * 130, "cats " * 180
    assert arxiv.reward([said(arxiv, background=background, method=method)]) == [pytest.approx([2.6, 2.6])]
    assert arxiv.reward([said(arxiv, background=background[:-25], method=method)]) == [[0.0, 0.0]]  # 125 words


def test_a_recipe_changes_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, POST)
    with pytest.raises(ValueError, match=r"task.bands: unknown key wrods; did you mean 'words'"):
        Tldr(bands={"wrods": [3, 40]})
    # 3 and 7 words; 11 and 26 characters; 3 and 7 different; Jaccard 3 / 5; nothing to be found.
    case = Case(Problem("p"), (turn("short", "my cat left"), turn("detailed", "my old cat left my home today")))
    assert Tldr().reward([case]) == [[0.0, 0.0]]
    # Characters 29 / 11 = 2.64; different words: 6 / 3 = 2; content words: 2 shared of 5.
    assert Tldr(bands={"words": [3, 40]}).reward([case]) == [pytest.approx([2.6, 2.6])]


def test_a_case_needs_one_turn_of_each_role(tldr: Tldr) -> None:
    wanted = r"want one turn of each role, short, detailed, or one of writer; were given "
    with pytest.raises(ValueError, match=f"{wanted}short$"):
        tldr.reward([said(tldr, short="x")])
    with pytest.raises(ValueError, match=f"{wanted}short, short$"):
        tldr.reward([Case(Problem("p"), (turn("short", "x"), turn("short", "y")))])
    with pytest.raises(ValueError, match=f"{wanted}none$"):
        tldr.parts([Case(Problem("p"), ())])


def test_parts_are_the_components_and_the_words_of_each(tldr: Tldr) -> None:
    good, bad = tldr.parts([said(tldr, short=BRIEF, detailed=LONG), said(tldr, short=LONG, detailed=BRIEF)])
    assert good == pytest.approx(
        {
            "structure": (1.5 + 0.225 / 0.7) / 2,
            "consistency": 1.0,
            "coherence": 0.55,
            "return": WORTH / 3,
            "ungated_structure": (1.5 + 0.225 / 0.7) / 2,
            "ungated_consistency": 1.0,
            "ungated_coherence": 0.55,
            "ungated_return": WORTH / 3,
            "length_ratio": 70 / 31,
            "unique_ratio": 14 / 8,
            "levels_passed": 4.0,
            "words_1": 8.0,
            "words_2": 14.0,
        }
    )
    assert (bad["return"], bad["consistency"], bad["ungated_consistency"]) == (0.5 / 3, 0.0, 1.0)
    assert bad["levels_passed"] == 1.0  # the second text is the shorter one
    assert (bad["words_1"], bad["words_2"]) == (14.0, 8.0)


def test_the_users_own_reward_has_texts_by_role_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, POST)
    task = Tldr(
        reward=lambda short, detailed, completion: {"short": len(short), "detailed": len(completion + detailed)}
    )
    case = said(task, detailed="", short="four")
    assert task.reward([case]) == [[9.0, 4.0]]  # " cat gone" has nine characters
    assert task.parts([case])[0]["words_1"] == 1.0  # the components stay
    trl = Tldr(reward=lambda completions, **columns: [len(text) for text in completions])
    assert trl.reward([said(trl, writer="abc")]) == [[3.0]]


def test_the_users_own_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, POST)
    task = Tldr(feedback=lambda texts, **columns: {role: f"{len(text)} letters" for role, text in texts.items()})
    case = said(task, short="four", detailed="")
    assert task.feedback(case.problem, case.turns) == ["4 letters", "0 letters"]


def test_the_users_own_reward_from_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def worth(short, detailed):\n    return 0.25 * len(short.split())\n")
    serve(monkeypatch, POST)
    task = component({"name": "tldr", "reward": f"{tmp_path}/mine.py:worth"}, TASKS, "task")
    assert task.reward([said(task, short="a b", detailed="c")]) == [[0.5, 0.5]]


def test_one_policy_alone_is_not_evaluated() -> None:
    assert (Tldr.solo, Arxiv.solo, WritingMini.solo) == (False, False, False)


# --- the single writer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (" One.\n---\nTwo.", "One.", "Two."),
        ("One.\n\n  -----  \n\nTwo.\n---\nThree.", "One.", "Two.\n---\nThree."),
        ("Paragraph 1: One.\n---\nParagraph 2: Two.", "One.", "Two."),
        ("Paragraph 1: One. PARAGRAPH 2: Two.", "One.", "Two."),
        ("One. Paragraph 2: Two. Paragraph 2: Three.", "One.", "Two. Paragraph 2: Three."),
        ("A - B --- C D", "A -", "B --- C D"),  # no line of dashes: 13 characters, the first 4 are "A - "
        ("123456789", "123", "456789"),
        ("12 456 8", "12", "456 8"),  # 8 characters, 2 first
        ("ab", "a", "b"),
        ("a", "a", ""),
        ("", "", ""),
        ("---\nTwo.", "", "Two."),
    ],
)
def test_a_writers_turn_is_split(text: str, first: str, second: str) -> None:
    assert split(text) == (first, second)


def test_a_writer_is_paid_for_its_two_texts(tldr: Tldr) -> None:
    case = said(tldr, writer=f" {BRIEF}\n---\n{LONG}\n")
    assert tldr.reward([case]) == [pytest.approx([WORTH])]
    assert tldr.parts([case])[0]["words_2"] == 14.0
    asked = heard_by(tldr, chain(), ("writer",), {("writer", 0): "one --- two"})
    assert asked[0].startswith("writer: Write two summaries of this post with a line --- between them:")


# --- feedback --------------------------------------------------------------------------------------------------------


def _feedback(task: Writing, **texts: str) -> list[str]:
    case = said(task, **texts)
    return task.feedback(case.problem, case.turns)


def test_feedback_on_a_text_out_of_bounds(tldr: Tldr) -> None:
    # 2 and 8 words; 9 and 31 characters, 3.44 times; 2 and 8 different words; "ran" shared of ran, cats, red, dog, old,
    # fence. Whoever is too short is told nothing else about its length, the other one that it is too long.
    assert _feedback(tldr, short="Cats ran.", detailed=BRIEF) == [
        "Your text has 2 words; it should have 8 to 256.",
        "The detailed text is 3.44 times as long as the short one, and should be 1.6 to 3.2 times: write less. "
        "There are transition words of 0 of 12 kinds; add others, such as furthermore, for example, that is.",
    ]


def test_feedback_on_a_pair_the_wrong_way_round(tldr: Tldr) -> None:
    # 31 / 70 of the characters and 8 / 14 of the different words: each is told its own side of it.
    ratio = "The detailed text is 0.44 times as long as the short one, and should be 1.6 to 3.2 times: write "
    unique = (
        "The detailed text has 0.57 times as many different words as the short one, and should have at least 2 times: "
    )
    links = "There are transition words of 0 of 12 kinds; add others, such as furthermore, for example, that is."
    assert _feedback(tldr, short=LONG, detailed=BRIEF) == [
        f"{ratio}less. {unique}use fewer different words.",
        f"{ratio}more. {unique}use more different words. {links}",
    ]


def test_feedback_on_a_second_text_that_is_too_long(tldr: Tldr) -> None:
    """141 / 31 of the characters: the first writer may mend that, too."""
    ratio = "The detailed text is 4.55 times as long as the short one, and should be 1.6 to 3.2 times: write "
    short, detailed = _feedback(tldr, short=BRIEF, detailed=f"{LONG} {LONG}")
    assert short.startswith(f"{ratio}more. ")
    assert detailed.startswith(f"{ratio}less. ")


def test_feedback_on_shared_words_and_on_nothing_at_all(tldr: Tldr) -> None:
    apart = "He asked us to go home and be well"  # 9 words, 34 characters, 9 different
    # 70 / 34 = 2.06 and 14 / 9 = 1.56. No content word is shared.
    short, detailed = _feedback(tldr, short=apart, detailed=LONG)
    shared = "The short and detailed texts share 0.0% of their content words, and should share 3.0%."
    assert short.endswith(f"use fewer different words. {shared}")
    assert f"use more different words. {shared} There are transition words of 4 of 12 kinds" in detailed
    short, detailed = _feedback(tldr, short="A red dog ran over to my dog", detailed=LONG)  # 8 words, 7 different
    assert short == "Nothing needs to change."
    assert detailed == ("There are transition words of 4 of 12 kinds; add others, such as for example, that is, first.")


def test_feedback_of_arxiv_asks_both_for_transition_words(arxiv: Arxiv) -> None:
    # 130 words of 520 characters and 180 of 720: ratio 1.38. Both have 2 different words. "so" is in both.
    both = "There are transition words of 1 of 12 kinds; add others, such as furthermore, for example, that is."
    assert _feedback(arxiv, background="so cats " * 65, method="so cats " * 90) == [both, both]


def test_feedback_keeps_the_order_of_the_turns_and_no_ones_text(tldr: Tldr) -> None:
    detailed, short = _feedback(tldr, detailed=BRIEF, short="Unspeakable.")
    assert short.startswith(
        "Your text has 1 words; it should have 8 to 256. The short and detailed texts share 0.0% of"
    )
    assert "Unspeakable" not in detailed


def test_feedback_on_a_writer_covers_both_texts(tldr: Tldr) -> None:
    assert _feedback(tldr, writer=f"Cats ran.\n---\n{BRIEF}") == [
        "Text 1: Your text has 2 words; it should have 8 to 256. "
        "Text 2: The detailed text is 3.44 times as long as the short one, and should be 1.6 to 3.2 times: write less. "
        "There are transition words of 0 of 12 kinds; add others, such as furthermore, for example, that is."
    ]
