"""An exported team plays as the trainer did, asks for what it needs, and needs nothing else."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from exported import RECIPES, trained

from coevolve import Problem, Sampling, Team
from coevolve.learners.local import LocalLearner
from coevolve.recipe.build import build
from coevolve.recipe.read import load_recipe
from coevolve.rollout import Stage, rollout
from coevolve.runs import checkpoint
from coevolve.tasks.data import FOLDER
from coevolve.teams.export import export
from coevolve.trainer import Trainer

QUERY = "The soup at the harbour cafe was"
OPINION = {"text": "The soup was good. I liked it.", "opening": "The soup"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name of a recipe, *overrides) -> its run and its exported team, made once."""
    known: dict[tuple[str, ...], tuple[Path, Path]] = {}

    def make(name: str, *overrides: str) -> tuple[Path, Path]:
        if (name, *overrides) not in known:
            folder = tmp_path_factory.mktemp("team")
            run = trained(RECIPES / f"{name}.yaml", folder / "run", "steps=2", "batch_size=2", *overrides)
            known[name, *overrides] = run, export(run, folder / "team")
        return known[name, *overrides]

    return make


def as_trained(run: Path) -> Trainer:
    """The run's trainer with the weights of its last checkpoint."""
    trainer = build(load_recipe(run / "recipe.yaml"))
    checkpoint.load(trainer, run / "checkpoint-2")
    return trainer


@pytest.mark.parametrize(
    ("recipe", "overrides", "columns"),
    [
        ("quickstart", ["cast.every=1"], {"query": QUERY}),
        ("cory-sentiment-lora", [], {"query": QUERY}),
        ("cory-sentiment-shared", [], {"query": QUERY}),
        (
            "magrpo-writing-mini-2turns",
            ["members=2"],
            {"text": "The soup was good. I liked it.", "opening": "The soup"},
        ),
        ("magrpo-writing-mini-mixed", ["members=2"], {"text": "The soup was good. I liked it.", "opening": "The soup"}),
        ("cory-arithmetic-tiny", [], {"question": "Tom has 3 apples and buys 4 more. How many has he?"}),
        (
            "magrpo-mini-coop-tiny-2turns",
            ["members=2"],
            {"text": "f(x): add 3, then multiply by 2", "entry": "f", "tests": "assert candidate(1) == 8"},
        ),
    ],
)
def test_it_says_what_the_trainer_would_have_sampled(
    made: Any, recipe: str, overrides: list[str], columns: dict[str, str]
) -> None:
    run, folder = made(recipe, *overrides)
    team, trainer = Team.load(folder), as_trained(run)
    sampling = trainer.sampling.at_length(trainer.sampling.length_range[1])
    for temperature in (1.0, 0.0):
        episode = team.play(columns, seed=5, temperature=temperature)
        how = dataclasses.replace(sampling, temperature=temperature)
        stage = Stage(trainer.cast(1), team.task, trainer.engine, how, 5, "team")
        [expected] = rollout(trainer.play, [episode.problem], stage)
        assert [(t.role, t.policy, t.text) for t in episode.turns] == [
            (t.role, t.policy, t.text) for t in expected.turns
        ]
        assert [list(t.action_ids) for t in episode.turns] == [list(t.action_ids) for t in expected.turns]
        assert [list(t.prompt_ids) for t in episode.turns] == [list(t.prompt_ids) for t in expected.turns]


def test_greedy_is_that_of_the_evaluation(made: Any) -> None:
    run, folder = made("quickstart", "cast.every=1")
    trainer = as_trained(run)
    problem = trainer.task.test[3]
    longest = Sampling(trainer.sampling.length_range[1], temperature=0.0)
    [evaluated] = rollout(
        trainer.play, [problem], Stage(trainer.cast(1), trainer.task, trainer.engine, longest, 0, "evaluate")
    )
    said = Team.load(folder).play(problem.data["query"], temperature=0).turns
    assert [turn.text for turn in said] == [turn.text for turn in evaluated.turns]


def test_seeds_and_options(made: Any) -> None:
    team = Team.load(made("quickstart", "cast.every=1")[1])

    def said(**options: Any) -> list[str]:
        return [turn.text for turn in team.play(QUERY, **options).turns]

    assert said(seed=3) == said(seed=3)
    assert len({tuple(said(seed=seed)) for seed in range(4)}) > 1
    assert said(seed=3, temperature=0) == said(seed=4, temperature=0)
    assert [len(turn.action_ids) for turn in team.play(QUERY, max_new_tokens=2).turns] == [2, 2]
    with pytest.raises(ValueError, match=r"max_new_tokens is 0; want at least 1"):
        said(max_new_tokens=0)


def test_many_at_once_say_what_they_say_alone(made: Any) -> None:
    team = Team.load(made("quickstart", "cast.every=1")[1])
    other = "To me the film on television seemed"
    together = [[t.text for t in e.turns] for e in team.play_many([QUERY, {"query": other}, QUERY], seed=2)]
    alone = [[t.text for t in team.play(query, seed=2).turns] for query in (QUERY, other)]
    assert together[:2] == alone
    assert together[2] != together[0]  # a second sample


def test_problems_that_begin_alike_have_random_numbers_of_their_own(made: Any) -> None:
    team = Team.load(made("quickstart", "cast.every=1")[1])
    ids = [team._problem({"query": f"I saw this film at the cinema with friends and {said} it"}).id for said in "ab"]
    assert len(set(ids)) == 2 and all(len(id) < 60 for id in ids)
    assert team._problem({"query": QUERY}).id == QUERY
    odd = [team._problem({"query": QUERY, "more": {1: object(), "b": (2, {(3, 4): last})}}).id for last in (5, 5, 6)]
    assert odd[0] == odd[1] != odd[2]


def test_nobody_is_paid_and_nobody_learns(made: Any) -> None:
    team = Team.load(made("cory-sentiment-lora")[1])
    episode = team.play(QUERY)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0]
    for policy in team.policies.values():
        assert isinstance(policy, LocalLearner)
        assert policy.reference is None
        assert policy.value_head is None
    assert len({id(policy.weights.base) for policy in team.policies.values()}) == 1  # two adapters, one base


def test_columns_by_name(made: Any) -> None:
    team = Team.load(made("magrpo-writing-mini-2turns", "members=2")[1])
    assert team.asks == ("text", "opening")
    assert team.play(text="The soup was good.", opening="The soup").problem.data["opening"] == "The soup"
    with pytest.raises(ValueError, match=r"^no column opening, which WritingMini asks for; were given text$"):
        team.play(text="The soup was good.")
    with pytest.raises(ValueError, match=r"a text alone .*Mini; team\.play\({'text': \.\.\., 'opening': \.\.\.}\)$"):
        team.play("The soup was good.")


def test_a_column_may_have_any_name(made: Any) -> None:
    team = Team.load(made("quickstart", "cast.every=1")[1])
    team.asks = ("query", "problem")
    columns = {"query": QUERY, "problem": "2+2?"}
    assert team.play(query=QUERY, problem="2+2?", max_new_tokens=1).problem.data == columns
    columns |= {"Question text": "x", "seed": "5"}
    assert team.play(columns, max_new_tokens=1).problem.data == columns


def test_feedback_asks_for_more(made: Any) -> None:
    team = Team.load(made("magrpo-mini-coop-tiny-2turns", "members=2")[1])
    assert team.asks == ("text", "entry", "tests")
    with pytest.raises(ValueError, match="no column tests, which MiniCoop asks for; were given text, entry"):
        team.play(text="f(x): add 3", entry="f")
    episode = team.play(text="f(x): add 3", entry="f", tests="assert candidate(1) == 4", seed=1)
    assert len(episode.turns) == 4
    assert all(isinstance(turn.heard[-1], str) and turn.heard[-1] for turn in episode.turns[2:])


def test_a_game_asks_for_nothing(made: Any) -> None:
    team = Team.load(made("posg-chicken-joint")[1])
    assert team.asks == ()
    assert all(turn.text.upper() in ("C", "D") for turn in team.play().turns)


def test_a_prompt_that_is_too_long(made: Any) -> None:
    team = Team.load(made("quickstart", "cast.every=1")[1])
    with pytest.raises(ValueError, match=r"exceed the model's context of 1024"):
        team.play("soup " * 2000)
    assert len(team.play(QUERY).turns) == 2


def test_no_data_no_reward_model_no_tokenizer(
    micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What film reviews were trained with is gone, and the team plays."""
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        lines = [{"text": f"A film number {i} that was shown. " * 20, "id": f"r{i}"} for i in range(4)]
        packed = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())
        (tmp_path / "data" / f"imdb_{split}.jsonl.gz").write_bytes(packed)
    monkeypatch.setenv(FOLDER, str(tmp_path / "data"))
    tokenizer = shutil.copytree(micro_model, tmp_path / "tokenizer")
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(
            {
                "base": str(RECIPES / "quickstart.yaml"),
                "task": {"name": "imdb", "tokenizer": str(tokenizer), "reward_model": "lexicon"},
                "policies": {name: {"model": micro_model} for name in ("ann", "bob")},
            }
        )
    )
    run = trained(tmp_path / "recipe.yaml", tmp_path / "run", "steps=2", "batch_size=2")
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tokenizer)
    monkeypatch.delenv(FOLDER)
    team = export(run, tmp_path / "team")
    shutil.rmtree(run)
    assert len(Team.load(team).play("a film").turns) == 2
    about = yaml.safe_load((team / "team.yaml").read_text())
    about["task"]["reward_model"] = "nobody/no-such-model"
    (team / "team.yaml").write_text(yaml.safe_dump(about))
    assert len(Team.load(team).play("a film").turns) == 2


def test_a_task_that_does_not_say_what_it_asks_for(made: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(made("quickstart", "cast.every=1")[1], tmp_path / "team")
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text(
        "class Mine:\n    train = test = ()\n    reward = None\n\n"
        "    def prompt(self, p, role, heard):\n        return p.data['word']\n"
    )
    about = yaml.safe_load((folder / "team.yaml").read_text())
    (folder / "team.yaml").write_text(
        yaml.safe_dump(about | {"task": {"name": "./code/mine.py:Mine"}}, sort_keys=False)
    )
    team = Team.load(folder, trust_code=True)
    assert team.play(word="soup").problem == Problem("soup", {"word": "soup"})
    with pytest.raises(ValueError, match=r'the task Mine does not say .* asks = \("column",\)'):
        team.play("soup")
    with pytest.raises(ValueError, match="the prompt of role 'pioneer' on problem 'soup': raised KeyError: 'word'"):
        team.play(wrod="soup")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", {"name": "code/mine.py:Mine"}),
        ("task", {"name": "rows", "data": "x", "prompts": {}, "reward": "lexicon", "feedback": "/etc/code.py:note"}),
        ("play", {"name": "code/mine.py:two words"}),
        ("task", {"name": "mini-coop", "feedback": {"expert": {"model": "m", "base_url": "http://localhost:1"}}}),
    ],
)
def test_no_code_is_run_without_trust(made: Any, tmp_path: Path, name: str, value: Any) -> None:
    folder = shutil.copytree(made("quickstart", "cast.every=1")[1], tmp_path / "team")
    about = yaml.safe_load((folder / "team.yaml").read_text())
    (folder / "team.yaml").write_text(yaml.safe_dump(about | {name: value}))
    with pytest.raises(ValueError, match=r"comes with code of its own \(.*(\.py|an expert)\), .* trust_code=True"):
        Team.load(folder)


def test_folders_that_are_no_team(made: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"is no team: it has no team\.yaml; make one of a run with `coevolve export RUN FOLDER`"
    ):
        Team.load(tmp_path)
    folder = shutil.copytree(made("quickstart", "cast.every=1")[1], tmp_path / "team")
    shutil.rmtree(folder / "agents" / "ann")
    with pytest.raises(ValueError, match=r"agents/ann"):
        Team.load(folder)
    about = yaml.safe_load((folder / "team.yaml").read_text())
    for wrong, said in (
        ({"roels": {}}, r"team\.yaml: unknown key roels; did you mean 'roles'"),
        ({"roles": {"pioneer": "anna"}}, r"roles\.pioneer names the policy 'anna', .* did you mean 'ann'"),
    ):
        (folder / "team.yaml").write_text(yaml.safe_dump(about | wrong))
        with pytest.raises(ValueError, match=said):
            Team.load(folder)


def test_a_team_pretrains_nothing(made: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(made("quickstart", "cast.every=1")[1], tmp_path / "team")
    (folder / "mine.yaml").write_text(
        f"{{kind: causal_lm, output_dir: '{tmp_path}/there', steps: 1, learning_rate: 1e-3, batch_size: 1, "
        "start: coevolve-tiny, sources: [{name: opinions}]}"
    )
    about = yaml.safe_load((folder / "team.yaml").read_text())
    about["policies"]["ann"]["model"] = "./mine.yaml"
    (folder / "team.yaml").write_text(yaml.safe_dump(about))
    with pytest.raises(ValueError, match=r"policies\.ann\.model is the recipe \./mine\.yaml; want a folder"):
        Team.load(folder)
    assert not (tmp_path / "there").exists()
