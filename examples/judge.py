"""A role that the task does not know: two write, a judge reads both texts, and both write again with its verdict."""

from coevolve import Instruction, Roles, score, together
from coevolve.tasks import WritingMini
from coevolve.types import Play, Problem


class Judged:
    """writing-mini, which also writes the judge's prompt. All else is that task's; the judge is never paid."""

    solo = False  # an evaluation tries nobody alone

    def __init__(self, *, judge: str = "judge"):
        self.inner, self.judge = WritingMini(), judge
        self.train, self.test = self.inner.train, self.inner.test
        self.reward, self.parts = self.inner.reward, self.inner.parts

    def prompt(self, p, role, heard):
        if role != self.judge:
            return self.inner.prompt(p, role, heard)
        return Instruction("\n".join(f"{turn.role}: {turn.text}" for turn in heard) + "\nverdict:")


def judged() -> Play:
    """The last role is the judge."""

    async def play(p: Problem, team: Roles) -> None:
        *writers, judge = team
        drafts = await together(*(team[writer]() for writer in writers))
        await score(team, drafts)
        verdict = await team[judge](*drafts)
        said = f"The judge said: {verdict.text}"  # a text: the inner task knows no turn of a judge
        again = await together(*(team[w](draft, said) for w, draft in zip(writers, drafts, strict=True)))
        await score(team, again, after=drafts)  # the writers' turns alone: the task pays no other role

    return play
