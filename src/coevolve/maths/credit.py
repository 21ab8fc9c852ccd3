"""What a turn is held responsible for: functions of one episode's rewards, one number per turn."""

from __future__ import annotations

from coevolve.types import Credit, Episode


def _paid(episode: Episode) -> list[float]:
    """Rewards in spoken order; a turn nobody scored was paid 0."""
    return [turn.reward or 0.0 for turn in episode.turns]


def own(episode: Episode) -> list[float]:
    """Each turn its own reward: independent learners."""
    return _paid(episode)


def team_sum(episode: Episode) -> list[float]:
    """Every turn the sum over the team (CORY's collective reward, arXiv 2410.06101, section 3)."""
    return [sum(_paid(episode))] * len(episode.turns)


def team_mean(episode: Episode) -> list[float]:
    """Every turn the mean over the team: team_sum on the scale of one reward."""
    return [sum(_paid(episode)) / len(episode.turns)] * len(episode.turns)


def to_go(gamma: float = 1.0) -> Credit:
    """Each turn its own reward and those of the turns after it, discounted by gamma per turn.

    In a chain nothing a later role does changes an earlier reward, so this has the same expected gradient as team_sum
    and less variance: CORY's observer is paid r2 alone, the pioneer r1 + r2.
    """

    def credit(episode: Episode) -> list[float]:
        total, returns = 0.0, []
        for reward in reversed(_paid(episode)):
            total = reward + gamma * total
            returns.append(total)
        return returns[::-1]

    return credit
