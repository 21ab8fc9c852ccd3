"""The truth, by enumeration: every way an episode can go, its probability, and what it pays.

Nothing here knows plays, credit or losses. The gradient of the expected return is autograd through a finite sum; what
an estimator should give where it is known to differ is a finite sum too (``Moment``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from tabular import MOVES
from torch import Tensor

from coevolve.tasks.games import GAMES

ROLES = ("a", "b")
Pay = tuple[float, float]


class Choice(NamedTuple):
    """An agent, told this, moves so."""

    role: str
    prompt: str
    move: str


class Act(NamedTuple):
    """Choices that are paid together, and the pay of each agent."""

    choices: tuple[Choice, ...]
    pay: Pay


Way = tuple[Act, ...]
Logp = Callable[[Choice], Tensor]
Worth = Callable[[Pay, str], float]


def team(pay: Pay, role: str) -> float:
    return fmean(pay)


def own(pay: Pay, role: str) -> float:
    return pay[ROLES.index(role)]


def both(pay: Pay, role: str) -> float:
    return sum(pay)


WORTHS: dict[str, Worth] = {
    "team_return": team,
    "first_joint": team,
    "own_return": own,
    "own_reward": own,
    "team_sum": both,
    "to_go": both,
    **dict.fromkeys(("crossed", "counterfactual", "difference", "shapley"), team),
}
"""Of an algorithm's credit: what it means to maximise."""


# How an episode of each interaction can go. Prompts are written out as the task should have put them.


def chain(game: str) -> list[Way]:
    """b hears a's move."""
    pays = GAMES[game][""]
    return [
        (Act((Choice("a", "c", x), Choice("b", "c" + x, y)), pays[x + y]),) for x, y in itertools.product(MOVES, MOVES)
    ]


def discussion(game: str) -> list[Way]:
    """Both move, both hear both moves, both move again, and that is paid."""
    ways: list[Way] = []
    for x, y, u, v in itertools.product(MOVES, repeat=4):
        first, second = (
            (Choice("a", "c", x), Choice("b", "c", y)),
            (Choice("a", f"c{x}{y}", u), Choice("b", f"c{x}{y}", v)),
        )
        ways.append((Act((*first, *second), GAMES[game][""][u + v]),))
    return ways


def rounds(game: str, n: int, stop: float = math.inf, before: str = "", told: tuple[str, str] = ("", "")) -> list[Way]:
    """Both move at once, n times; after a turn each agent knows its own move and hears the joint one.

    stop: a mean pay above which nothing follows.
    """
    ways: list[Way] = []
    for x, y in itertools.product(MOVES, MOVES):
        act = Act((Choice("a", "c" + told[0], x), Choice("b", "c" + told[1], y)), GAMES[game][before][x + y])
        if n == 1 or fmean(act.pay) > stop:
            ways.append((act,))
            continue
        after = rounds(game, n - 1, stop, before + x + y, (told[0] + x + x + y, told[1] + y + x + y))
        ways += [(act, *rest) for rest in after]
    return ways


LONGER = ("D", "CD", "CC")
"""Responses of one or two tokens: D ends one, and so does the second."""


def longer_pay(first: str, second: str) -> Pay:
    """A game of responses of several tokens, in which everybody's matters to everybody."""
    i, j = LONGER.index(first), LONGER.index(second)
    return float((2 * i + 3 * i * j) % 7), float((3 * j + i * i * j + 1) % 5)


def longer() -> list[Way]:
    """Both speak at once, one or two tokens each, which are choices behind one another."""
    return [
        (Act((*tokens("a", "c", x), *tokens("b", "c", y)), longer_pay(x, y)),)
        for x, y in itertools.product(LONGER, LONGER)
    ]


def tokens(role: str, prompt: str, response: str) -> tuple[Choice, ...]:
    """A response as the choices it is made of."""
    return tuple(Choice(role, prompt + response[:t], move) for t, move in enumerate(response))


def responses_of(choices: Sequence[Choice], role: str) -> list[list[Choice]]:
    """An agent's choices, those of one response together: a token follows what was said before it."""
    found: list[list[Choice]] = []
    for c in choices:
        if c.role == role and found and c.prompt == found[-1][-1].prompt + found[-1][-1].move:
            found[-1].append(c)
        elif c.role == role:
            found.append([c])
    return found


def prompts(ways: Sequence[Way], role: str) -> list[str]:
    """Everything that an agent can be told."""
    return sorted({c.prompt for way in ways for act in way for c in act.choices if c.role == role})


def chance(acts: Sequence[Act], logp: Logp) -> Tensor:
    """The probability that all these choices are made."""
    return torch.stack([logp(c) for act in acts for c in act.choices]).sum().exp()


def expected(ways: Sequence[Way], logp: Logp, role: str, worth: Worth, gamma: float) -> Tensor:
    """The expected return to an agent: E sum_t gamma^t r_t."""
    return torch.stack(
        [chance(way, logp) * sum(gamma**t * worth(act.pay, role) for t, act in enumerate(way)) for way in ways]
    ).sum()


def kl(choice: Choice, logp: Logp, reference: Logp) -> Tensor:
    """KL(pi || pi_0) where this choice was made."""
    both = [Choice(choice.role, choice.prompt, move) for move in MOVES]
    return torch.stack([logp(c).exp() * (logp(c) - reference(c)) for c in both]).sum()


Penalty = Callable[[Sequence[Choice], Logp, Logp], Tensor]
"""(the tokens of a response, log pi, log pi_0) -> what a KL term takes from the objective; its gradient counts."""


def each(term: Callable[[Choice, Logp, Logp], Tensor]) -> Penalty:
    """A term of the loss at every token."""
    return lambda said, logp, reference: torch.stack([term(c, logp, reference) for c in said]).sum()


def nothing(choice: Choice, logp: Logp, reference: Logp) -> Tensor:
    return 0.0 * logp(choice)


def reverse_kl(choice: Choice, logp: Logp, reference: Logp) -> Tensor:
    """KL(pi_0 || pi)."""
    return kl(choice, reference, logp)


def sampled(estimator: Callable[[Tensor], Tensor]) -> Penalty:
    """What an estimate does as part of the pay: it pushes the probability of the response that was given."""

    def penalty(said: Sequence[Choice], logp: Logp, reference: Logp) -> Tensor:
        taken = torch.stack([estimator(logp(c) - reference(c)) for c in said]).sum().detach()
        return torch.stack([logp(c) for c in said]).sum() * taken

    return penalty


def total_kl(ways: Sequence[Way], logp: Logp, reference: Logp, role: str) -> Tensor:
    """The expected sum of an agent's KL over its choices, as a function of all that leads to them."""
    mine = [(way, [c for act in way for c in act.choices if c.role == role]) for way in ways]
    return torch.stack(
        [chance(way, logp) * sum(kl(c, logp, reference) for c in choices) for way, choices in mine]
    ).sum()


class Moment(NamedTuple):
    """With this probability these choices are made at this stage, and are followed by this discounted pay.

    So the policy gradient is the sum over moments of weight * to_go * grad log pi(choices).
    """

    weight: Tensor
    stage: int
    choices: tuple[Choice, ...]
    to_go: Pay


def moments(ways: Sequence[Way], logp: Logp, gamma: float) -> list[Moment]:
    """Each stage with the pay from there on; the discount starts at the stage itself, so gamma^t is not in it."""
    found = []
    for way in ways:
        weight = chance(way, logp).detach()
        for t, act in enumerate(way):
            later = [gamma**i * torch.tensor(one.pay, dtype=torch.float64) for i, one in enumerate(way[t:])]
            found.append(Moment(weight, t, act.choices, tuple(torch.stack(later).sum(0).tolist())))
    return found


def best_of_moments(ways: Sequence[Way], logp: Logp, k: int) -> list[Moment]:
    """Two turns of which the second follows the best of k first ones, and each is paid by itself."""
    first = list(dict.fromkeys(way[0] for way in ways))
    chances = [chance([act], logp).detach() for act in first]
    best = [torch.zeros((), dtype=torch.float64) for _ in first]
    for drawn in itertools.product(range(len(first)), repeat=k):
        winner = max(drawn, key=lambda i: fmean(first[i].pay))
        best[winner] = best[winner] + math.prod(chances[i] for i in drawn)
    found = [Moment(weight, 0, act.choices, act.pay) for weight, act in zip(chances, first, strict=True)]
    for act, second in ways:
        weight = best[first.index(act)] * chance([second], logp).detach()
        found.append(Moment(weight, 1, second.choices, second.pay))
    return found


def resampled_moments(ways: Sequence[Way], logp: Logp) -> list[Moment]:
    """Two turns: of two responses each, one beside the first of the other; the second turn follows the best pair."""
    first = list(dict.fromkeys(way[0] for way in ways))
    of = {tuple(c.move for c in act.choices): act for act in first}
    chances = {act: chance([act], logp).detach() for act in first}
    best = {act: torch.zeros((), dtype=torch.float64) for act in first}
    for x, y, u, v in itertools.product(MOVES, repeat=4):  # a says x, then u; b says y, then v
        paid = [of[x, y], of[u, y], of[x, v]]
        winner = max(paid, key=lambda act: fmean(act.pay))
        best[winner] = best[winner] + chances[of[x, y]] * chances[of[u, v]]
    found = [Moment(weight, 0, act.choices, act.pay) for act, weight in chances.items()]
    return found + [
        Moment(best[act] * chance([second], logp).detach(), 1, second.choices, second.pay) for act, second in ways
    ]
