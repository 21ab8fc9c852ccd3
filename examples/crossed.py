"""Crossed leave-one-out: what every response of a group earns beside every response of the partner.

With ``rounds``, the G members of a problem are G joint responses. Their agents did not hear each other, so all G x G
pairings might have been said, and the task is asked what they would have been paid. Response i of one agent is then
worth its mean over all partners, less the mean of the agent's other responses: unbiased as leave-one-out is, and with
the partners' luck averaged out. Nothing more is sampled, but the task pays G x G cases where it paid G.
"""

from statistics import fmean

from coevolve import Case, PolicySpec, Sampling, Trainer, fixed, mareinforce, rounds
from coevolve.tasks import Game
from coevolve.types import Credit


def crossed() -> Credit:
    """For two agents who speak at once, once. The advantage is in it: use an algorithm without a baseline."""

    def credit(episodes, reward):
        groups: dict[str, list[int]] = {}
        for number, episode in enumerate(episodes):
            if len(episode.turns) != 2:
                raise ValueError(f"crossed: problem {episode.problem.id!r} has {len(episode.turns)} turns; want 2")
            groups.setdefault(episode.problem.id, []).append(number)
        pairs = [(i, j) for group in groups.values() for i in group for j in group]
        cases = [Case(episodes[i].problem, (episodes[i].turns[0], episodes[j].turns[1])) for i, j in pairs]
        paid = {pair: fmean(rewards) for pair, rewards in zip(pairs, reward(cases), strict=True)}
        found = [[0.0, 0.0] for _ in episodes]
        for group in groups.values():
            for seat in (0, 1):
                mean = {i: fmean(paid[(i, j) if seat == 0 else (j, i)] for j in group) for i in group}
                for i in group:
                    others = [mean[k] for k in group if k != i]
                    found[i][seat] = mean[i] - fmean(others) if others else 0.0
        return found

    return credit


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes crossed only
    coin = PolicySpec("coevolve-coin", learning_rate=0.05)
    trainer = Trainer(
        task=Game(game="chicken"), play=rounds(), cast=fixed({"first": "ann", "second": "bob"}),
        policies={"ann": coin, "bob": coin}, algorithm=mareinforce(credit=crossed()),
        sampling=Sampling(max_new_tokens=1), steps=30, batch_size=8, members=4,
    )  # fmt: skip
    trainer.run("runs/crossed")
