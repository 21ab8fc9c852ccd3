"""A protocol of your own: who speaks when, and who hears what. It is a coroutine that awaits turns and pay."""

from coevolve import PolicySpec, Roles, Sampling, Trainer, fixed, magrpo, score, together
from coevolve.tasks import Sentiment
from coevolve.types import Play, Problem


def panel(best: bool = True) -> Play:
    """All roles but the last write a draft, without hearing each other; the last one hears the best of them, or all."""

    async def play(p: Problem, team: Roles) -> None:
        *authors, editor = team
        drafts = await together(*(team[author]() for author in authors))
        await score(team, drafts)
        heard = [max(drafts, key=lambda turn: turn.reward)] if best else drafts
        final = await team[editor](*heard)
        await score(team, [final], after=drafts)  # the drafts answer for what the editor makes of them

    return play


if __name__ == "__main__":  # run as a program; a recipe imports the file and takes panel only
    start = PolicySpec("coevolve-tiny", learning_rate=3e-4)
    trainer = Trainer(
        task=Sentiment(),
        play=panel(),
        cast=fixed({"left": "ann", "right": "ben", "editor": "cleo"}),
        policies={"ann": start, "ben": start, "cleo": start},
        algorithm=magrpo(),
        sampling=Sampling(max_new_tokens=12),
        steps=30,
        batch_size=16,
        members=4,  # of one problem are compared with each other
    )
    trainer.run("runs/own-protocol")
