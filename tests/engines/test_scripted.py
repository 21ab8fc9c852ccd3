"""The scripted engine: what it says, what it remembers, and that its ids are stable."""

from __future__ import annotations

import pytest

from coevolve.engines.scripted import ScriptedEngine
from coevolve.types import Problem, Sampling, Say


def say(engine: ScriptedEngine, role: str, text: str, round_: int = 0) -> Say:
    return Say(role, "a", Problem("p"), 0, round_, engine.encode("a", text), Sampling(4), 1)


def test_turns_follow_the_script_and_calls_are_kept() -> None:
    engine = ScriptedEngine(lambda role, problem, member, round_: f"{role} says {problem} {member} {round_}")
    first, second = say(engine, "pioneer", "the film"), say(engine, "observer", "the other film", 2)
    turns = engine.generate({"a": [first, second]})["a"]
    assert [t.text for t in turns] == ["pioneer says p 0 0", "observer says p 0 2"]
    assert all(t.finished and t.action_ids[-1] == 0 and len(t.logps) == len(t.action_ids) == 6 for t in turns)
    assert engine.calls == [{"a": [first, second]}]
    assert engine.read(turns[1].prompt_ids) == "the other film"


def test_a_turn_is_spliced_and_ids_are_the_same_everywhere() -> None:
    engine = ScriptedEngine({("r", "p", 0, 0): "well done"})
    (turn,) = engine.generate({"a": [say(engine, "r", "go on")]})["a"]
    assert engine.read(engine.encode("a", [turn, "and more"])) == "go on well done and more"
    assert ScriptedEngine({}).encode("b", "go on") == engine.encode("a", "go on")
    assert engine.read(engine.encode("a", [{"role": "user", "content": "hi there"}])) == "user: hi there"


def test_a_turn_the_script_lacks_is_an_error() -> None:
    engine = ScriptedEngine({})
    with pytest.raises(KeyError, match="observer"):
        engine.generate({"a": [say(engine, "observer", "x")]})
