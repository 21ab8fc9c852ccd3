"""What is compared: protocols on games, and algorithms with what theory says their expected gradient is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exact import (
    Logp,
    Moment,
    Penalty,
    Way,
    best_of_moments,
    chain,
    discussion,
    kl,
    moments,
    nothing,
    reverse_kl,
    rounds,
    sampled,
)

from coevolve import algorithms
from coevolve import plays as protocols
from coevolve.types import Algorithm, Play

BETA = 1.0
STOP = 1.75
"""Of the early stop: above it pay (2, 2) only, the first harvest when both take."""


@dataclass(frozen=True)
class Protocol:
    """A play on a game, its members and the seed of its tables.

    ways: how an episode goes when the team is used. size: turns that are compared. turns: of an agent in an episode,
    None where all groups there can be are too many. expects: what the play samples, if that is not the ways.
    """

    name: str
    game: str
    play: Play
    ways: Sequence[Way]
    members: int
    size: int
    turns: int | None
    seed: int
    expects: Callable[[Sequence[Way], Logp, float], list[Moment]] = moments


def _best_of_two(ways: Sequence[Way], logp: Logp, gamma: float) -> list[Moment]:
    return best_of_moments(ways, logp, 2)


_TWICE = rounds("harvest", 2)
_UNLESS = rounds("harvest", 2, STOP)
_rounds, _tree = protocols.rounds, protocols.tree

# Seeds for which no gradient is close to zero, where it would take many more samples to tell anything.
PROTOCOLS = [
    Protocol("chain", "trust", protocols.chain(), chain("trust"), 4, 4, 1, 23),
    Protocol("rounds(1), harmony", "harmony", _rounds(), rounds("harmony", 1), 4, 4, 1, 8),
    Protocol("rounds(1), chicken", "chicken", _rounds(), rounds("chicken", 1), 4, 4, 1, 15),
    Protocol("tree(1, 3), cross", "chicken", _tree(1, 3, "cross"), rounds("chicken", 1), 1, 3, 3, 15),
    Protocol("rounds(2)", "harvest", _rounds(2, feedback=True), _TWICE, 2, 2, 2, 23),
    Protocol("rounds(2), done", "harvest", _rounds(2, feedback=True, done=STOP), _UNLESS, 2, 2, 2, 16),
    Protocol("tree(2, 2), aligned", "harvest", _tree(2, 2, feedback=True), _TWICE, 1, 2, 6, 23),
    Protocol("tree(2, 2), cross", "harvest", _tree(2, 2, "cross", feedback=True), _TWICE, 1, 2, None, 23),
    Protocol("best_of(2, 2)", "harvest", protocols.best_of(2, 2, feedback=True), _TWICE, 1, 2, 4, 16, _best_of_two),
    Protocol("discussion(1)", "chicken", protocols.discussion(), discussion("chicken"), 2, 2, 2, 17),
]


@dataclass(frozen=True)
class Entry:
    """An algorithm with its options.

    says: its expected gradient in words. baseline: by which that is known; None: only measured. free: known up to its
    length. turns: divided by the turns of an episode. penalty, beta: the KL term; paid: as part of the pay, which the
    baseline sees. credits: the credit of the team's and of the agents' own pay; options: its settings. plays: names
    of the protocols it is for; None: all.
    """

    name: str
    make: Callable[..., Algorithm]
    says: str
    baseline: str | None = None
    free: bool = False
    turns: bool = False
    penalty: Penalty | None = None
    beta: float = 0.0
    paid: bool = False
    gamma: float = 1.0
    credits: Mapping[str, str] = field(default_factory=lambda: {"team": "team_return", "own": "own_return"})
    plays: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def made(self, credit: str) -> Algorithm:
        """The algorithm with the credit of the team's or of the agents' own pay, discounted."""
        name = self.credits[credit]
        options = {**self.options, **({} if self.gamma == 1.0 else {"gamma": self.gamma})}
        spec: Any = {"name": name, **options} if options else name
        return self.make(credit=spec, **self.settings)


def _options() -> list[Entry]:
    """Options on marloo, which is unbiased by itself, so that what is seen is the option's doing."""
    make = algorithms.marloo

    def one(name: str, says: str, baseline: str | None = "loo", **rest: Any) -> Entry:
        return Entry(f"marloo, {name}", make, says, baseline, **rest)

    def held(estimator: str, where: str, says: str, penalty: Penalty) -> Entry:
        settings = {"beta": BETA, "kl": where, "estimator": estimator}
        paid = where == "reward"
        return one(f"{estimator} in {where}", says, penalty=penalty, beta=BETA, paid=paid, settings=settings)

    return [
        one("std: group", "measured", None, settings={"std": "group"}),
        one("std: agent", "direction of g", free=True, settings={"std": "agent"}),
        one(
            "gamma: 0.5",
            "g without γᵗ",
            gamma=0.5,
        ),
        one("clip: 0.2", "g", settings={"clip": 0.2}),
        one("loss_aggregation: turn", "g / turns", turns=True, settings={"loss_aggregation": "turn"}),
        one("loss_aggregation: token", "g / turns", turns=True, settings={"loss_aggregation": "token"}),
        held("k1", "loss", "g, no KL", nothing),
        held("k2", "loss", "g − β k", kl),
        held("k3", "loss", "g − β k′", reverse_kl),
        held("k1", "reward", "g − β k", kl),
        held("k2", "reward", "g − β E[k2 s]", sampled(lambda r: 0.5 * r.square())),
        held("k3", "reward", "g − β E[k3 s]", sampled(lambda r: (-r).exp() - 1 + r)),
    ]


_SUM = {"team": "team_sum", "own": "own_reward"}
_ONE_STAGE = ("chain", "rounds(1), harmony", "rounds(1), chicken")
_TWO_STAGES = ("rounds(2)", "discussion(1)")
_AT_ONCE = ("rounds(1), harmony", "rounds(1), chicken")
_PLAIN = {"eta": 0.0, "whiten": False}


def _credit(name: str, make: Callable[..., Algorithm], says: str, baseline: str | None, **options: Any) -> Entry:
    """A credit of the team's pay for plays where all speak at once."""
    label, credits = f"{make.__name__}, {name}", {"team": name.partition(",")[0]}
    return Entry(label, make, says, baseline, credits=credits, plays=_AT_ONCE, options=options)


# `says`: g is the gradient of what the credit pays, k and k' those of KL(pi || pi_0) and KL(pi_0 || pi) of the turns
# where they are, s the score grad log pi.
ENTRIES = [
    Entry("magrpo", algorithms.magrpo, "(G − 1)/G · g", "mean"),
    Entry("marloo", algorithms.marloo, "g", "loo"),
    Entry("maremax", algorithms.maremax, "measured"),
    Entry("mareinforce", algorithms.mareinforce, "g", "none"),
    *_options(),
    Entry("grpo", algorithms.grpo, "measured", beta=0.04),
    Entry("rloo", algorithms.rloo, "g − β k", "loo", penalty=kl, beta=0.05, paid=True),
    Entry("reinforce", algorithms.reinforce, "g", "none"),
    Entry("ppo, no whitening", algorithms.ppo, "g", "none", credits=_SUM, plays=_ONE_STAGE, settings=_PLAIN),
    Entry(
        "cory", algorithms.cory, "direction of g", "none", free=True, credits=_SUM, plays=_ONE_STAGE,
        settings={"eta": 0.0},
    ),
    Entry(
        "ppo, whiten_rewards", algorithms.ppo, "direction of g", "none", free=True, credits=_SUM, plays=_ONE_STAGE,
        settings={**_PLAIN, "whiten_rewards": True},
    ),
    Entry(
        "ppo, no whitening", algorithms.ppo, "g / turns", "none", turns=True, credits={"team": "team_sum"},
        plays=_TWO_STAGES, settings=_PLAIN,
    ),
    _credit("crossed", algorithms.marloo, "g", "loo"),
    _credit("crossed, 2 shifts", algorithms.marloo, "g", "loo", shifts=2),
    _credit("counterfactual", algorithms.mareinforce, "g", "none"),
    _credit("difference", algorithms.mareinforce, "g", "none", default="D"),
    _credit("shapley", algorithms.mareinforce, "measured", None, default="D"),
    Entry("cory, to_go", algorithms.cory, "measured", credits={"team": "to_go"}, plays=("chain",), settings=_PLAIN),
]  # fmt: skip


def entries(protocol: Protocol) -> list[Entry]:
    return [entry for entry in ENTRIES if entry.plays is None or protocol.name in entry.plays]
