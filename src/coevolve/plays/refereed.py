"""Games: the task says which roles move next and what they see, until the game is over."""

from __future__ import annotations

from coevolve.play import Roles, do, score, together
from coevolve.settings import checked_call
from coevolve.types import Play, Problem, Turn


@checked_call("play")
def refereed() -> Play:
    """Let the roles speak that the task's ``referee`` names, several at once without hearing each other; a role hears
    its own last turn and the referee's text. All turns are scored together at the end: a turn gets its role's result.
    """

    async def play(p: Problem, team: Roles) -> None:
        said: list[Turn] = []
        last: dict[str, Turn] = {}
        while asked := await do(team.referee, p, tuple(said)):
            heard = [((last[role],) if role in last else (), told) for role, told in asked]
            moves = await together(
                *(team[role](*own, told) for (role, _), (own, told) in zip(asked, heard, strict=True))
            )
            said += moves
            last |= {move.role: move for move in moves}
        await score(team, said)

    return play
