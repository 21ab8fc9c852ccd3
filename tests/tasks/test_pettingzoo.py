"""Games of PettingZoo: who moves, what it sees, what it is paid, and what goes wrong."""

from __future__ import annotations

import importlib
import sys
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from coevolve import Team
from coevolve.engines.scripted import ScriptedEngine
from coevolve.models.spec import PolicySpec
from coevolve.plays import refereed
from coevolve.recipe.build import build
from coevolve.recipe.components import from_file
from coevolve.recipe.read import load_recipe
from coevolve.rollout import Stage, rollout
from coevolve.tasks import PettingZoo, Rows
from coevolve.teams.team import _policies
from coevolve.types import Case, Sampling, Turn

pettingzoo = pytest.importorskip("pettingzoo")
from gymnasium.spaces import Discrete, Text  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
Follow = from_file(f"{EXAMPLES / 'follow_game.py'}:Follow", (), "x")


class Auction(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Two bid a text at once, twice; the longer one is paid 1. The second time they see both bids."""

    possible_agents = ["ann", "bob"]  # noqa: RUF012
    metadata = {"name": "auction"}  # noqa: RUF012

    def observation_space(self, agent):
        return Text(100)

    def action_space(self, agent):
        return Text(100)

    def reset(self, seed=None, options=None):
        self.agents, self.round, self.seed = list(self.possible_agents), 0, seed
        return dict.fromkeys(self.agents, f"bid, game {seed}"), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.round += 1
        most = max(map(len, actions.values()))
        paid = {agent: float(len(bid) == most) for agent, bid in actions.items()}
        seen = dict.fromkeys(self.agents, " and ".join(actions.values()))
        over = dict.fromkeys(self.agents, self.round == 2)
        infos = {agent: {} for agent in self.agents}
        if self.round == 2:
            self.agents = []
        return seen, paid, over, dict.fromkeys(over, False), infos


class Salaried(Auction):
    """A round is paid 3 to each, whatever is moved; there are four."""

    def action_space(self, agent):
        return Discrete(2)

    def step(self, actions):
        self.round += 1
        over = dict.fromkeys(self.agents, self.round == 4)
        infos, paid = {agent: {} for agent in self.agents}, dict.fromkeys(self.agents, 3.0)
        return dict.fromkeys(self.agents, "go on"), paid, over, dict.fromkeys(over, False), infos


class Masked(Follow):  # type: ignore[misc,valid-type]
    """The follower may say D alone."""

    def observe(self, agent):
        return {"observation": self.moves, "action_mask": [int(agent == "leader"), 1]}


class Waged(Follow):  # type: ignore[misc,valid-type]
    """The leader is paid 7 for moving at all."""

    def step(self, action):
        self.rewards = {"leader": 0.0 if self.moves else 7.0, "follower": 0.0}
        super().step(action)


def played(task: Any, says: dict[str, list[str]]) -> Any:
    engine = ScriptedEngine(lambda role, problem, member, number: says[role][number])
    [episode] = rollout(refereed(), task.train[:1], Stage(dict.fromkeys(says, "llm"), task, engine, Sampling(8)))
    return episode, engine


def test_a_game_of_moves() -> None:
    task = PettingZoo(env=Follow, actions=["C", "D"])
    episode, engine = played(task, {"leader": ["so C"], "follower": ["C or D, C"]})
    assert [(t.role, t.heard, t.reward) for t in episode.turns] == [("leader", ("c",), 5.0), ("follower", ("cC",), 4.0)]
    assert [engine.read(say.prompt_ids) for call in engine.calls for say in call["llm"]] == ["c", "cC"]
    assert played(task, {"leader": ["D"], "follower": ["C"]})[0].joints[0].rewards == (0.0, 0.0)


def test_a_move_is_a_word_of_its_own() -> None:
    task = PettingZoo(env=Follow, actions=["hit", "C"])
    assert [task._action(text, None) for text in ("C, Chit", "a white lie", "(hit)", "C or hit.")] == [1, None, 0, 0]
    together = PettingZoo(env=Follow, actions=["上", "+"])
    assert [together._action(text, None) for text in ("我走上去。", "x+1")] == [0, 1]


def test_agents_that_move_at_once_do_not_see_each_other() -> None:
    task = PettingZoo(env=Auction, seed=3, games=2, held_out=1)
    episode, engine = played(task, {"ann": ["aa", "a"], "bob": ["b", "bbb"]})
    told = "bid, game 9"
    seen = [(turn.role, turn.heard[-1]) for turn in episode.turns]
    assert seen == [("ann", told), ("bob", told), ("ann", "aa and b"), ("bob", "aa and b")]
    assert episode.turns[2].heard[0] is episode.turns[0]
    assert [t.reward for t in episode.turns] == [1.0, 1.0, 1.0, 1.0]  # each won once, and every turn is paid the game
    assert engine.read(engine.calls[2]["llm"][0].prompt_ids) == "bid, game 9 aa aa and b"


def test_who_says_no_legal_move_ends_the_game() -> None:
    task = PettingZoo(env=Masked, actions=["C", "D"], illegal=-2.0)
    assert played(task, {"leader": ["what?"], "follower": []})[0].joints[0].rewards == (-2.0,)
    assert played(task, {"leader": ["C"], "follower": ["C"]})[0].joints[0].rewards == (0.0, -2.0)
    assert played(task, {"leader": ["D"], "follower": ["D"]})[0].joints[0].rewards == (4.0, 4.0)


def test_who_says_no_legal_move_takes_nothing_from_the_others() -> None:
    """What somebody had earned, and would have been told at his turn."""
    task = PettingZoo(env=Waged, actions=["C", "D"], illegal=-2.0)
    assert played(task, {"leader": ["C"], "follower": ["what?"]})[0].joints[0].rewards == (7.0, -2.0)


def test_what_was_told_once_is_not_paid_again() -> None:
    """Of those who move at once, of whom the second says nothing legal: the first had been told of its round."""
    task = PettingZoo(env=Salaried, actions=["C", "D"], illegal=-2.0)
    rewards = played(task, {"ann": ["C", "C"], "bob": ["C", "what?"]})[0].joints[0].rewards
    assert dict(zip("ab", rewards[:2], strict=True)) == {"a": 3.0, "b": 3.0 - 2.0}


def test_observations_may_be_described() -> None:
    def describe(observation, agent):
        return f"{agent}: {observation['observation'] or 'begin'}"

    task = PettingZoo(env=Masked, actions=["C", "D"], describe=describe)
    assert task.referee(task.train[0], []) == [("leader", "leader: begin")]
    assert PettingZoo(env=Masked, actions=["C", "D"]).referee(task.train[0], []) == [("leader", "")]


def test_games_are_told_apart_by_their_seeds() -> None:
    task = PettingZoo(env=Auction, games=3, held_out=2)
    assert [p.data["seed"] for p in (*task.train, *task.test)] == [0, 1, 2, 3, 4]
    assert task.referee(task.test[0], [])[0][1] == "bid, game 3"


def test_a_team_plays_the_game_of_its_seed(micro_model: str) -> None:
    task = PettingZoo(env=Auction, games=3, held_out=2)
    team = Team(
        task=task,
        play=refereed(),
        roles={"ann": "llm", "bob": "llm"},
        policies=_policies(Path(), {"llm": PolicySpec(model=micro_model)}, "cpu"),
        sampling=Sampling(2),
        asks=task.asks,
    )

    def told(problem: dict[str, int], seed: int) -> str:
        return str(team.play(problem, seed=seed).turns[0].heard[-1])

    assert [told({}, 0), told({}, 7), told({"seed": 5}, 7)] == ["bid, game 0", "bid, game 7", "bid, game 5"]


def test_the_example_learns() -> None:
    with closing(build(load_recipe(EXAMPLES / "follow_game.yaml", ["workers=false", "threads=1"]))) as trainer:
        paid = [trainer.step(i)["reward"] for i in range(30)]
    assert paid[0] < 3.2
    assert fmean(paid[-3:]) > 3.8


def message(call: Any) -> str:
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_of_its_name_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pettingzoo").mkdir()
    for name in ("__init__", "mine"):
        (tmp_path / "pettingzoo" / f"{name}.py").write_text("raise RuntimeError('it was run')")
    for name in [name for name in sys.modules if name.split(".")[0] == "pettingzoo"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    one = tmp_path / "pettingzoo.py"
    one.write_text("raise RuntimeError('it was run')")
    (tmp_path / "pettingzoo").rename(tmp_path / "away")
    assert message(lambda: PettingZoo(env="pettingzoo.mine")).startswith(f"{one} would be run")
    (tmp_path / "away").rename(tmp_path / "pettingzoo")
    importlib.invalidate_caches()
    said = message(lambda: PettingZoo(env="pettingzoo.mine"))
    assert said == f"{tmp_path / 'pettingzoo'} would be run for the package of that name; start from another folder"


def test_mistakes() -> None:
    assert message(lambda: PettingZoo(env="pettingzoo.classic.none_v1")).startswith(
        "task.env pettingzoo.classic.none_v1: No module named"
    )
    assert message(lambda: PettingZoo(env="pettingzoo.utils")) == (
        "task.env pettingzoo.utils has no `env`; name a module such as pettingzoo.classic.rps_v2"
    )
    assert message(lambda: PettingZoo(env="os")).startswith("task.env: unknown name 'os'")
    assert message(lambda: PettingZoo(env=Follow)) == ("task.actions: 'leader' has 2 moves, and none of them are named")
    assert "has 2 moves, and 3 of them are named" in message(lambda: PettingZoo(env=Follow, actions=["C", "D", "E"]))
    task = PettingZoo(env=Follow, actions=["C", "D"])
    turn = Turn("follower", "llm", task.train[0], 0, 0, (), (), (), "C", True)
    assert message(lambda: task.reward([Case(task.train[0], (turn,))])) == (
        "the environment of problem 'game 0': 'leader' is to move, and 'follower' spoke; use play: refereed"
    )
    assert "no role 'leder'; did you mean 'leader'?" in message(lambda: task.prompt(task.train[0], "leder", ()))
    rows = Rows(data=[{"a": 1}], test=[{"a": 1}], prompts={"x": "{a}"}, reward=lambda x: 1.0)
    stage = Stage({"x": "llm"}, rows, ScriptedEngine(lambda *_: "a"), Sampling(8))
    assert "the play asks who speaks next; Rows has no `referee`" in message(
        lambda: rollout(refereed(), rows.train, stage)
    )
    stage = Stage({"leader": "llm"}, task, ScriptedEngine(lambda *_: "C"), Sampling(8))
    assert "the play asks for role 'follower'" in message(lambda: rollout(refereed(), task.train[:1], stage))
