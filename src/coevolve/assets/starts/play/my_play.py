"""A play: who speaks when, and who hears what. Named in my_play.yaml."""

from coevolve import Problem, Roles, score, together
from coevolve.types import Play


def my_play(drafts: int = 2) -> Play:
    """All roles but the last write drafts, without hearing each other; the last one hears the best draft and answers.

    Keyword arguments are keys of the recipe: play: {name: my_play.py:my_play, drafts: 3}
    """

    async def play(p: Problem, team: Roles) -> None:
        *writers, editor = team  # the recipe's roles, in order

        # await team[role](*heard) samples one turn. Turns that are awaited together are sampled in one batch.
        found = await together(*(team[writer]() for writer in writers for _ in range(drafts)))

        # await score(team, turns) lets the task reward these turns as one joint; turns to learn from must be scored.
        await together(*(score(team, [draft], after=()) for draft in found))  # each alone; after=(): a first joint

        best = max(found, key=lambda draft: draft.reward)
        final = await team[editor](best)
        await score(team, [final], after=[best])  # the best draft's return includes the final reward

    return play
