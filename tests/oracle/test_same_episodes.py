"""Plays that are a chain where nothing of theirs happens: the same episodes, so the same gradient as ``chain``.

``misheard`` changes digits, of which a move has none; ``tools`` where nobody calls; ``refereed`` where the referee asks
one after the other and tells what was said. All groups of two members there can be in ``trust``, by every algorithm.
"""

import pytest
from tabular import EveryEngine, Table

from coevolve.plays import chain, misheard, refereed, tools
from coevolve.rollout import Stage, rollout
from coevolve.tasks.games import Game
from coevolve.types import Problem, Sampling, WithTools

ROLES = ("a", "b")
MEMBERS = 2


class Refereed(Game):
    """``trust`` as its referee has it."""

    def referee(self, p, turns):
        return [("a", "")] if not turns else [("b", turns[0].text)] if len(turns) == 1 else []


class Told(EveryEngine):
    """Does not hear of tools."""

    def encode(self, policy, prompt):
        return super().encode(policy, prompt.prompt if isinstance(prompt, WithTools) else prompt)


def weather(city: str) -> str:
    """What it is like.

    Args:
        city: where.
    """
    raise AssertionError("nobody calls")


PLAYS = {"misheard": misheard(0.5), "tools": tools([weather]), "refereed": refereed()}


def episodes(play, game):
    tables = {role: Table(["c", "cC", "cD"], 7 + i) for i, role in enumerate(ROLES)}
    stage = Stage({role: role for role in ROLES}, game, Told(tables, 1), Sampling(1))
    problems = [Problem(str(i)) for i in range(2 ** (MEMBERS * len(ROLES)))]
    return rollout(play, problems, stage, members=MEMBERS)


def facts(found):
    """All that credits, advantages and losses are made of."""
    return [
        (
            e.problem.id,
            e.member,
            [(t.role, list(t.prompt_ids), t.action_ids, t.logps, t.reward, t.peers, t.weight) for t in e.turns],
            [([t.text for t in j.turns], j.rewards, j.after, j.answered) for j in e.joints],
        )
        for e in found
    ]


@pytest.mark.parametrize("name", PLAYS)
def test_it_is_a_chain(name):
    game = Game(game="trust")
    there = episodes(PLAYS[name], Refereed(game="trust") if name == "refereed" else game)
    assert facts(there) == facts(episodes(chain(), game))
    assert len({str(one) for one in facts(there)}) == len(there)
