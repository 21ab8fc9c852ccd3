"""What is compared: protocols on games, and algorithms with what theory says their expected gradient is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from exact import (
    LONGER,
    Logp,
    Moment,
    Penalty,
    Way,
    best_of_moments,
    chain,
    discussion,
    each,
    kl,
    longer,
    moments,
    nothing,
    resampled_moments,
    reverse_kl,
    rounds,
    sampled,
)
from tabular import MOVES

from coevolve import algorithms
from coevolve import plays as protocols
from coevolve.collate import collate, rows_of
from coevolve.types import Algorithm, Case, Lesson, Play, State, Targets

BETA = 1.0
STOP = 1.75
"""Of the early stop: above it pay (2, 2) only, the first harvest when both take."""


@dataclass(frozen=True)
class Protocol:
    """A play on a game, its members and the seed of its tables.

    ways: how an episode goes when the team is used. size: turns that are compared. turns: of an agent in an episode,
    None where all groups there can be are too many. expects: what the play samples, if that is not the ways. plainly:
    the protocol that goes these ways with nothing said again, if that is another one. responses: all there are.
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
    plainly: str = ""
    responses: Sequence[str] = MOVES


def _best_of_two(ways: Sequence[Way], logp: Logp, gamma: float) -> list[Moment]:
    return best_of_moments(ways, logp, 2)


def _one_resampled(ways: Sequence[Way], logp: Logp, gamma: float) -> list[Moment]:
    return resampled_moments(ways, logp)


_TWICE = rounds("harvest", 2)
_UNLESS = rounds("harvest", 2, STOP)
_rounds, _tree = protocols.rounds, protocols.tree

# Seeds for which no gradient is close to zero, where it would take many more samples to tell anything.
PROTOCOLS = [
    Protocol("chain", "trust", protocols.chain(), chain("trust"), 4, 4, 1, 23),
    Protocol("rounds(1), harmony", "harmony", _rounds(), rounds("harmony", 1), 4, 4, 1, 8),
    Protocol("rounds(1), chicken", "chicken", _rounds(), rounds("chicken", 1), 4, 4, 1, 15),
    Protocol(
        "tree(1, 3), cross",
        "chicken",
        _tree(1, 3, "cross"),
        rounds("chicken", 1),
        1,
        3,
        3,
        15,
        plainly="rounds(1), chicken",
    ),
    Protocol("rounds(2)", "harvest", _rounds(2, feedback=True), _TWICE, 2, 2, 2, 23),
    Protocol("rounds(2), done", "harvest", _rounds(2, feedback=True, done=STOP), _UNLESS, 2, 2, 2, 16),
    Protocol("tree(2, 2), aligned", "harvest", _tree(2, 2, feedback=True), _TWICE, 1, 2, 6, 23, plainly="rounds(2)"),
    Protocol(
        "tree(2, 2), cross", "harvest", _tree(2, 2, "cross", feedback=True), _TWICE, 1, 2, None, 23, plainly="rounds(2)"
    ),
    Protocol(
        "best_of(2, 2)",
        "harvest",
        protocols.best_of(2, 2, feedback=True),
        _TWICE,
        1,
        2,
        4,
        16,
        _best_of_two,
        "rounds(2)",
    ),
    Protocol("discussion(1)", "chicken", protocols.discussion(), discussion("chicken"), 2, 2, 2, 17),
    Protocol(
        "resampled(3)",
        "chicken",
        protocols.resampled(3),
        rounds("chicken", 1),
        1,
        3,
        3,
        15,
        plainly="rounds(1), chicken",
    ),
    Protocol(
        "resampled(2, 2)",
        "harvest",
        protocols.resampled(2, 2, feedback=True),
        _TWICE,
        1,
        2,
        4,
        16,
        _one_resampled,
        "rounds(2)",
    ),
    Protocol("observers(2)", "trust", protocols.observers(2), chain("trust"), 2, 2, 2, 23, plainly="chain"),
    Protocol("rounds(1), longer", "longer", _rounds(), longer(), 3, 3, 1, 3, responses=LONGER),
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
    uniform: bool = False
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
        one("std: team", "direction of g", free=True, settings={"std": "team"}),
        # Known by batches (``test_problems.py``): a batch of all groups at once is none of them.
        one("group: role", "measured", None, free=True, settings={"group": "role"}),
        one("baseline: length", "g", settings={"baseline": "length"}),
        one("baseline: moving", "g", "none", settings={"baseline": "moving"}),
        one(
            "gamma: 0.5",
            "g without γᵗ",
            gamma=0.5,
        ),
        one("clip: 0.2", "g", settings={"clip": 0.2}),
        one("entropy: 0.5", "g + β h", penalty=each(kl), beta=0.5, uniform=True, settings={"entropy": 0.5}),
        one("loss_aggregation: turn", "g / turns", turns=True, settings={"loss_aggregation": "turn"}),
        one("loss_aggregation: token", "g / turns", turns=True, settings={"loss_aggregation": "token"}),
        held("k1", "loss", "g, no KL", each(nothing)),
        held("k2", "loss", "g − β k", each(kl)),
        held("k3", "loss", "g − β k′", each(reverse_kl)),
        held("exact", "loss", "g − β k", each(kl)),
        held("k1", "reward", "g − β k", sampled(lambda r: r)),
        held("k2", "reward", "g − β E[k2 s]", sampled(lambda r: 0.5 * r.square())),
        held("k3", "reward", "g − β E[k3 s]", sampled(lambda r: (-r).exp() - 1 + r)),
    ]


def _judged(**settings: Any) -> Algorithm:
    """MARLHF whose judge is right: it says what the team is paid."""
    rule = algorithms.marlhf(judge="judge", agents=algorithms.marloo(**settings))

    def advantage(lesson: Lesson, state: State) -> tuple[Mapping[str, Targets], State]:
        assert rule.rows is not None
        judge = collate(rule.rows(lesson.episodes, rows_of(lesson.episodes, rule.credit, _nobody)), "judge")
        judge = judge.replace(value_BT=judge.credit_B[:, None], extra_B=torch.ones_like(judge.extra_B))
        return rule.advantage(Lesson(lesson.episodes, {**lesson.batches, "judge": judge}), state)

    return replace(rule, advantage=advantage, settings={**rule.settings, "credit": settings["credit"]})


def _nobody(cases: Sequence[Case]) -> list[list[float]]:
    raise AssertionError("this credit asks the task for nothing")


_SUM = {"team": "team_sum", "own": "own_reward"}
_ONE_STAGE = ("chain", "rounds(1), harmony", "rounds(1), chicken")
_TWO_STAGES = ("rounds(2)", "discussion(1)")
_AT_ONCE = ("rounds(1), harmony", "rounds(1), chicken")
_PLAIN = {"eta": 0.0, "whiten": False}


def _credit(name: str, make: Callable[..., Algorithm], says: str, baseline: str | None, **options: Any) -> Entry:
    """A credit of the team's pay for plays where all speak at once."""
    label, credits = f"{make.__name__}, {name}", {"team": name.partition(",")[0]}
    return Entry(label, make, says, baseline, credits=credits, plays=_AT_ONCE, options=options)


def _penalised(penalty: str, says: str, gradient: Penalty) -> Entry:
    """PPO's KL penalty, in each of its kinds."""
    return Entry(
        f"ppo, penalty: {penalty}", algorithms.ppo, says, "none", penalty=gradient, beta=BETA, credits=_SUM,
        plays=_ONE_STAGE, settings={"eta": BETA, "whiten": False, "penalty": penalty},
    )  # fmt: skip


# `says`: g is the gradient of what the credit pays, k and k' those of KL(pi || pi_0) and KL(pi_0 || pi) of the turns
# where they are, h that of the entropy there, s the score grad log pi.
ENTRIES = [
    Entry("magrpo", algorithms.magrpo, "(G − 1)/G · g", "mean"),
    Entry("marloo", algorithms.marloo, "g", "loo"),
    Entry("maremax", algorithms.maremax, "measured"),
    Entry("mareinforce", algorithms.mareinforce, "g", "none"),
    *_options(),
    Entry("grpo", algorithms.grpo, "measured", beta=0.04),
    Entry("rloo", algorithms.rloo, "g − β k", "loo", penalty=sampled(lambda r: r), beta=0.05, paid=True),
    Entry("reinforce", algorithms.reinforce, "g", "none"),
    Entry("dr_grpo", algorithms.dr_grpo, "(G − 1)/G · g", "mean"),
    Entry("dapo", algorithms.dapo, "measured", free=True),
    Entry("gspo", algorithms.gspo, "measured"),
    Entry("cispo", algorithms.cispo, "measured"),
    Entry(
        "a2c", algorithms.a2c, "g", "none", credits=_SUM, plays=_ONE_STAGE, settings={"eta": 0.0, "entropy": 0.0},
    ),
    Entry(
        "reinforce_pp", algorithms.reinforce_pp, "direction of g", "none", free=True, credits=_SUM, plays=_ONE_STAGE,
        settings={"eta": 0.0},
    ),
    Entry("trpo", algorithms.trpo, "direction of g", "none", free=True, credits=_SUM, plays=_ONE_STAGE,
          settings={"eta": 0.0}),
    Entry("happo", algorithms.happo, "direction of g", "none", free=True, credits=_SUM, plays=_ONE_STAGE,
          settings={"eta": 0.0}),
    _penalised("full", "g, no KL", each(nothing)),
    _penalised("sampled", "g − β k", each(kl)),
    _penalised("exact", "g − β k", each(kl)),
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
    Entry(
        "marloo, first_joint", algorithms.marloo, "g", "loo", credits={"team": "first_joint"},
        plays=("resampled(3)", "resampled(2, 2)"),
    ),
    _credit("shapley", algorithms.mareinforce, "measured", None, default="D"),
    Entry("marlhf, a judge who is right", _judged, "g", "loo", credits={"team": "team_return"}, plays=_ONE_STAGE),
    Entry("cory, to_go", algorithms.cory, "measured", credits={"team": "to_go"}, plays=("chain",), settings=_PLAIN),
]  # fmt: skip


def _tokenwise(name: str, make: Callable[..., Algorithm], says: str, baseline: str | None = None, **rest: Any) -> Entry:
    """A rule that may tell responses of other lengths apart."""
    return Entry(name, make, says, baseline, plays=("rounds(1), longer",), **rest)


def _longer() -> list[Entry]:
    """What can differ between responses of one token and of several: how tokens are weighed, and the KL."""
    one, marloo, held = _tokenwise, algorithms.marloo, {"penalty": sampled(lambda r: r), "paid": True}
    plain: dict[str, Any] = {"free": True, "credits": {"team": "team_sum", "own": "own_reward"}}
    return [
        one("magrpo", algorithms.magrpo, "(G − 1)/G · g", "mean"),
        one("marloo", marloo, "g", "loo"),
        one("maremax", algorithms.maremax, "measured"),
        one("mareinforce", algorithms.mareinforce, "g", "none"),
        one("marloo, std: group", marloo, "measured", settings={"std": "group"}),
        one("marloo, std: agent", marloo, "direction of g", "loo", free=True, settings={"std": "agent"}),
        one("marloo, clip: 0.2", marloo, "g", "loo", settings={"clip": 0.2}),
        one("marloo, baseline: length", marloo, "g", "loo", settings={"baseline": "length"}),
        one("marloo, baseline: moving", marloo, "g", "none", settings={"baseline": "moving"}),
        one("marloo, loss_aggregation: turn", marloo, "measured", free=True, settings={"loss_aggregation": "turn"}),
        one("marloo, loss_aggregation: token", marloo, "direction of g", "loo", free=True,
            settings={"loss_aggregation": "token"}),
        one("marloo, k2 in loss", marloo, "g − β k", "loo", penalty=each(kl), beta=BETA,
            settings={"beta": BETA, "estimator": "k2"}),
        one("marloo, exact in loss", marloo, "g − β k", "loo", penalty=each(kl), beta=BETA,
            settings={"beta": BETA, "estimator": "exact"}),
        one("marloo, entropy: 0.5", marloo, "g + β h", "loo", penalty=each(kl), beta=0.5, uniform=True,
            settings={"entropy": 0.5}),
        one("marloo, k1 in reward", marloo, "g − β k", "loo", beta=BETA, **held,
            settings={"beta": BETA, "kl": "reward", "estimator": "k1"}),
        one("grpo", algorithms.grpo, "measured", beta=0.04),
        one("rloo", algorithms.rloo, "g − β k", "loo", beta=0.05, **held),
        one("reinforce", algorithms.reinforce, "g", "none"),
        one("dr_grpo", algorithms.dr_grpo, "(G − 1)/G · g", "mean"),
        one("dapo", algorithms.dapo, "measured", free=True),
        one("gspo", algorithms.gspo, "measured", free=True),
        one("cispo", algorithms.cispo, "measured", free=True),
        one("a2c", algorithms.a2c, "direction of g", "none", **plain, settings={"eta": 0.0, "entropy": 0.0}),
        one("reinforce_pp", algorithms.reinforce_pp, "direction of g", "none", **plain, settings={"eta": 0.0}),
        one("ppo, lam: 1", algorithms.ppo, "direction of g", "none", **plain, settings={**_PLAIN, "lam": 1.0}),
        one("ppo", algorithms.ppo, "measured", **plain, settings=_PLAIN),
        one("cory", algorithms.cory, "measured", **plain, settings={"eta": 0.0}),
        one("marlhf, a judge who is right", _judged, "g", "loo", credits={"team": "team_return"}),
    ]  # fmt: skip


def entries(protocol: Protocol) -> list[Entry]:
    """What is compared there; where responses have several tokens, what that can matter to."""
    if len(protocol.responses) > len(MOVES):
        return _longer()
    return [entry for entry in ENTRIES if entry.plays is None or protocol.name in entry.plays]
