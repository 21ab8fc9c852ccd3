"""Task game and its model: tables of pays, what is told, and a coin of four tokens."""

import pytest
import torch

import coin
from coevolve import LocalEngine, PolicySpec, build_policies
from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.plays import chain, rounds, tree
from coevolve.rollout import Stage, rollout
from coevolve.tasks.games import GAMES, MODEL, Game
from coevolve.types import Case, Problem, Sampling, Turn

P = Problem("p")


def said(role, text):
    return Turn(role, "ann", P, 0, 0, [2], [0], [0.0], text, False)


def joint(moves):
    return said("a", moves[0]), said("b", moves[1])


def paid(game, moves, *before):
    return Game(game=game).reward([Case(P, joint(moves), tuple(map(joint, before)))])[0]


@pytest.mark.parametrize(
    ("game", "want"),
    [
        ("harmony", [[5, 5], [4, 3], [3, 4], [0, 0]]),
        ("chicken", [[5, 5], [1, 6], [6, 1], [0, 0]]),
        ("trust", [[3, 3], [0, 4], [1, 2], [2, 0]]),
    ],
)
def test_what_a_game_pays(game, want):
    assert [paid(game, moves) for moves in ("CC", "CD", "DC", "DD")] == want


def test_capitals_and_small_letters_are_the_same_move():
    assert paid("chicken", "cD") == paid("chicken", "Cd") == [1.0, 6.0]


def test_the_second_harvest_depends_on_the_first():
    firsts = ("CC", "CD", "DC", "DD")
    assert [paid("harvest", moves) for moves in firsts] == [[1, 1], [0, 3], [3, 0], [2, 2]]
    assert [paid("harvest", "CC", first) for first in firsts] == [[5, 5], [2, 1], [1, 2], [0, 0]]
    assert [paid("harvest", "CD", first) for first in firsts] == [[1, 6], [3, 2], [0, 0], [1, 0]]


def test_both_roles_of_every_game_but_trust_are_alike():
    swap = {"": "", "CC": "CC", "CD": "DC", "DC": "CD", "DD": "DD"}
    for game in ("harmony", "chicken", "harvest"):
        for before, pays in GAMES[game].items():
            mirrored = {swap[joint]: pay[::-1] for joint, pay in pays.items()}
            assert GAMES[game][swap[before]] == mirrored, (game, before)


def test_prompts_quote_what_was_heard_in_capitals():
    game = Game(game="harvest")
    assert game.prompt(P, "a", ()) == "c"
    assert game.prompt(P, "a", (said("a", "d"), "DC")) == "cDDC"
    assert game.prompt(P, "b", (said("a", "D"), said("b", "c"))) == "cDC"
    assert game.feedback(P, [said("a", "d"), said("b", "C")]) == ["DC", "DC"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Game(game="poker"), "no game 'poker'; there are harmony, chicken, trust, harvest"),
        (lambda: paid("chicken", ("CD", "C")), "role 'a' said 'CD', no move"),
        (lambda: paid("harvest", "CC", "CC", "CC"), "this game has two turns"),
        (lambda: Game(game="chicken").reward([Case(P, (said("a", "C"),))]), "for two, and 1 act together"),
    ],
)
def test_what_is_no_game_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.fixture(scope="module")
def engine():
    spec = PolicySpec(MODEL)
    return LocalEngine(build_policies({"ann": spec, "bob": spec}, reference=False, critic=False, steps=1, seed=0))


def test_the_model_is_a_coin(engine):
    causal = load_causal_lm(MODEL)
    assert torch.equal(causal(input_ids=torch.tensor([[2, 0, 1, 3]])).logits, torch.zeros(1, 4, 4))
    assert engine.policies["ann"].eos == frozenset()  # nothing ends a turn but its one token
    tokenizer = load_tokenizer(MODEL)
    assert tokenizer("cCDd").input_ids == [2, 0, 1, 3]
    assert tokenizer.decode([2, 0, 1, 3]) == "cCDd"
    assert tokenizer.eos_token_id is tokenizer.bos_token_id is None


def test_the_packaged_model_is_what_its_script_makes(tmp_path):
    coin.make(tmp_path)
    made, packaged = (load_causal_lm(name).state_dict() for name in (str(tmp_path), MODEL))
    assert made.keys() == packaged.keys()
    assert all(torch.allclose(made[name], packaged[name]) for name in made)
    assert (tmp_path / "tokenizer.json").stat().st_size < 2000
    assert (tmp_path / "model.safetensors").stat().st_size < 10_000


@pytest.mark.parametrize(
    ("game", "play", "turns"),
    [
        ("trust", chain(), 2),
        ("harmony", rounds(), 2),
        ("harvest", rounds(2, feedback=True), 4),
        ("harvest", tree(2, 2, "cross", feedback=True), 20),
    ],
)
def test_the_model_plays(engine, game, play, turns):
    task = Game(game=game)
    stage = Stage({"a": "ann", "b": "bob"}, task, engine, Sampling(1))
    episodes = rollout(play, task.train[:4], stage)
    assert [len(episode.turns) for episode in episodes] == [turns] * 4
    for turn in (turn for episode in episodes for turn in episode.turns):
        assert turn.text in set("CDcd")
        assert list(turn.logps) == pytest.approx([-1.386294361])  # log 1/4
    assert len({turn.text for episode in episodes for turn in episode.turns}) > 1
