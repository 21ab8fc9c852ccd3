"""Task ``pettingzoo``: a game of PettingZoo, whose observations and moves are texts."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coevolve.faults import blame
from coevolve.recipe.components import from_file
from coevolve.settings import Count, CountFromZero, Finite
from coevolve.tasks.roles import unknown_role
from coevolve.types import Case, Instruction, Problem, Prompt, Role, Turn

_INSTALLED = "pettingzoo."


@dataclass
class _Position:
    """The state of a game. next: the agent that moves next and what it sees, None where the game is over. paid: each
    agent's pay so far."""

    next: tuple[Role, str] | None = None
    paid: dict[Role, float] = field(default_factory=dict)


class PettingZoo:
    """Games of a PettingZoo environment, for the play ``refereed``; the environment's agents are the roles.

    env: a function that makes the environment, ``file.py:name``, or a module of PettingZoo
    (``pettingzoo.classic.rps_v2``); agents that move at once are asked one after the other and do not see each other's
    moves. actions: the names of the moves, in the order of their numbers; None for environments whose moves are texts.
    The last name in a turn's text is its move. describe: a function, or ``file.py:name``, of (observation, agent) ->
    what the agent is told; None tells it the ``str`` of the observation. games: how many to train on; held_out: how
    many to hold out; each is the environment reset with a seed of its own.

    A turn is paid what the environment paid its agent in the whole game. An agent that names no legal move ends the
    game, and ``illegal`` is added to its pay. Raises ValueError if there is no such environment or the package is
    missing.

    The moves of a game are all that is kept: it is replayed from its seed whenever it is asked about, so an environment
    that draws random numbers has to take them from the seed of its reset.
    """

    solo = False
    asks: tuple[str, ...] = ()
    seed_column = "seed"
    """The column that an exported team fills with the seed it is played with, where the problem lacks it."""

    def __init__(
        self,
        *,
        env: str | Callable[[], Any],
        actions: list[str] | None = None,
        describe: str | Callable[..., str] | None = None,
        games: Count = 64,
        held_out: Count = 16,
        illegal: Finite = -1.0,
        seed: CountFromZero = 0,
    ) -> None:
        self._make = _maker(env)
        self._describe = from_file(describe, (), "task.describe") if isinstance(describe, str) else describe
        self._actions, self._illegal = actions, illegal
        self.roles: tuple[Role, ...] = self._checked_roles()
        seeds = [seed * (games + held_out) + number for number in range(games + held_out)]
        problems = [Problem(f"game {number}", {"seed": number}) for number in seeds]
        self.train: Sequence[Problem] = problems[:games]
        self.test: Sequence[Problem] = problems[games:]

    def _checked_roles(self) -> tuple[Role, ...]:
        """Return the agents. Raises ValueError where moves are numbers and ``actions`` names not as many."""
        env = self._new()
        for agent in env.possible_agents:
            moves = getattr(env.action_space(agent), "n", None)
            named = None if self._actions is None else len(self._actions)
            if moves is not None and moves != named:
                raise ValueError(f"task.actions: {agent!r} has {moves} moves, and {named or 'none'} of them are named")
        return tuple(env.possible_agents)

    def prompt(self, p: Problem, role: Role, heard: Sequence[Turn | str]) -> Prompt:
        """Return what the agent sees, behind its own last move if it has moved."""
        if role not in self.roles:
            raise unknown_role(role, self.roles)
        told = Instruction("".join(part for part in heard if isinstance(part, str)))
        own = [part for part in heard if isinstance(part, Turn)]
        spliced: list[Turn | str] = [*own[-1:], told]
        return spliced if own else told

    def referee(self, p: Problem, turns: Sequence[Turn]) -> list[tuple[Role, str]]:
        """Return the agent that moves next and what it sees; [] where the game is over."""
        position = self._played(p, turns)
        return [position.next] if position.next else []

    def reward(self, cases: Sequence[Case]) -> list[list[float]]:
        """Return what the environment paid each turn's agent."""
        ended = [(case, self._played(case.problem, case.turns)) for case in cases]
        return [[position.paid[turn.role] for turn in case.turns] for case, position in ended]

    def _played(self, p: Problem, turns: Sequence[Turn]) -> _Position:
        """Replay the game with these moves, from its beginning."""
        env, moves = self._new(), list(turns)
        position = _Position(paid=dict.fromkeys(self.roles, 0.0))
        with blame(f"the environment of problem {p.id!r}"):
            env.reset(seed=int(p.data.get("seed", 0)))
            for agent in env.agent_iter():
                observation, reward, ended, cut, info = env.last()
                position.paid[agent] += float(reward)
                env._cumulative_rewards[agent] = 0.0  # added above, and not every environment clears it
                if ended or cut:
                    env.step(None)
                    continue
                if not moves:
                    position.next = (agent, self._told(observation, agent))
                    break
                move = moves.pop(0)
                if move.role != agent:
                    raise ValueError(f"{agent!r} is to move, and {move.role!r} spoke; use play: refereed")
                action = self._action(move.text, _mask(observation, info))
                if action is None:
                    position.paid[agent] += self._illegal
                    for other in set(env.agents) - {agent}:  # earned already, but reported only at their turn
                        position.paid[other] += float(env._cumulative_rewards[other])
                    break
                env.step(action)
        return position

    def _told(self, observation: Any, agent: Role) -> str:
        if self._describe is not None:
            return str(self._describe(observation, agent))
        seen = observation.get("observation", observation) if isinstance(observation, Mapping) else observation
        return str(seen)

    def _action(self, text: str, mask: Any) -> Any:
        """Return the move that the text names; None if it names none, or one that is not legal now."""
        if self._actions is None:
            return text
        names = sorted(self._actions, key=len, reverse=True)
        said = re.findall("|".join(map(_as_word, names)), text)
        number = self._actions.index(said[-1]) if said else None
        return None if number is None or (mask is not None and not mask[number]) else number

    def _new(self) -> Any:
        with blame("task.env"):
            env = self._make()
            if hasattr(env, "agent_iter"):
                return env
            from pettingzoo.utils import parallel_to_aec

            return parallel_to_aec(env)


def _as_word(name: str) -> str:
    """Return a pattern of a move that is no part of a longer word; scripts without spaces have no such edges."""
    word = "[A-Za-z0-9_]"
    before = f"(?<!{word})" if re.match(word, name[:1]) else ""
    behind = f"(?!{word})" if re.match(word, name[-1:]) else ""
    return before + re.escape(name) + behind


def _mask(observation: Any, info: Any) -> Any:
    """Return which moves are legal, None where the environment does not say."""
    places = (one.get("action_mask") for one in (observation, info) if isinstance(one, Mapping))
    return next((mask for mask in places if mask is not None), None)


def _check_installed() -> None:
    """Raise ValueError if Python would import code in the current folder (a team's, say) in place of the package."""
    spec = importlib.util.find_spec(_INSTALLED.rstrip("."))
    found = {Path(place).absolute() for place in (spec and spec.submodule_search_locations) or ()}
    if spec and spec.origin:
        found.add(Path(spec.origin).absolute())
    here = Path.cwd() / _INSTALLED.rstrip(".")
    if own := found & {here, here.with_suffix(".py")}:
        raise ValueError(f"{own.pop()} would be run for the package of that name; start from another folder")


def _maker(env: str | Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes the environment. Only PettingZoo's installed modules are allowed: recipes may be others'."""
    if not isinstance(env, str):
        return env
    if not env.startswith(_INSTALLED):
        made: Callable[[], Any] = from_file(env, [f"{_INSTALLED}..."], "task.env")
        return made
    _check_installed()
    try:
        module = importlib.import_module(env)
    except ImportError as error:
        missing = str(error).splitlines()[0]
        raise ValueError(f"task.env {env}: {missing}; pip install 'coevolve[games]', or what it names") from error
    if not callable(getattr(module, "env", None)):
        raise ValueError(f"task.env {env} has no `env`; name a module such as pettingzoo.classic.rps_v2")
    return module.env  # type: ignore[no-any-return]
