"""What leaves a run: folders that load alone, compute what was trained, and say what they are."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from exported import RECIPES, trained
from micro import character_tokenizer
from peft import PeftModel
from safetensors.torch import load_file, save_file
from toy import toy
from transformers import AutoModelForCausalLM, AutoTokenizer

from coevolve import Team
from coevolve.cli import main
from coevolve.models.load import load_causal_lm, load_tokenizer
from coevolve.runs.evaluated import evaluate_run
from coevolve.teams.export import _Bases, _made, _without_threshold, _word_lists, export
from coevolve.teams.model_card import _call, _members

IDS = torch.arange(7, 27)[None]

OWN = """
from coevolve import Problem

class Mine:
    asks = ("word",)
    train = test = tuple(Problem(f"p{i}", {"word": w, "id": i}) for i, w in enumerate(("cat", "dog", "owl")))

    def prompt(self, p, role, heard):
        return " ".join(["say", p.data["word"], *(turn.text for turn in heard)])

    def reward(self, cases):
        return [[float(len(turn.text)) for turn in case.turns] for case in cases]
"""

OWN_RECIPE = """
task: mine.py:Mine
play: chain
roles: {{first: ann, second: bob}}
cast: {{name: exchange, every: 1}}
policies: {{ann: {{model: {model}}}, bob: {{model: {model}}}}}
algorithm: {{name: cory, eta: 0.1}}
sampling: {{max_new_tokens: [2, 5]}}
steps: 2
batch_size: 3
output_dir: run
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three writers: a full copy, an adapter, and a frozen one."""
    run = tmp_path_factory.mktemp("mixed") / "writers"
    return trained(RECIPES / "magrpo-writing-mini-mixed.yaml", run, "steps=2", "batch_size=2", "members=2")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("quick") / "quick"
    return trained(RECIPES / "quickstart.yaml", run, "steps=2", "batch_size=4", "cast.every=1")


@pytest.fixture(scope="module")
def own(micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the user's own task file, which is gone since."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(OWN_RECIPE.format(model=micro_model))
    return trained(folder / "recipe.yaml", folder / "run")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- weights ---------------------------------------------------------------------------------------------------------


def test_an_agent_loads_alone_and_computes_what_was_trained(quick: Path, tmp_path: Path) -> None:
    team = export(quick, tmp_path / "team")
    for name in ("ann", "bob"):
        kept = AutoModelForCausalLM.from_pretrained(quick / "checkpoint-2" / "agents" / name)
        alone = AutoModelForCausalLM.from_pretrained(team / "agents" / name)
        assert torch.equal(logits(alone), logits(kept))
        tokenizer = AutoTokenizer.from_pretrained(team / "agents" / name)
        assert tokenizer.decode(tokenizer("The soup was").input_ids) == "The soup was"
        assert not list(team.rglob("value_head*"))
    assert (quick / "checkpoint-2" / "agents" / "ann" / "value_head.safetensors").is_file()  # there was one to leave


def test_an_adapter_finds_its_base_in_the_folder(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = export(mixed, tmp_path / "team")
    assert {path.split("/")[1] for path in files(team) if path.startswith("bases/")} == {"coevolve-tiny"}
    monkeypatch.chdir(team)
    named = json.loads(Path("agents/bob/adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == "bases/coevolve-tiny"
    base = AutoModelForCausalLM.from_pretrained(named, dtype=torch.float32)
    before = logits(base)
    assert (logits(PeftModel.from_pretrained(base, "agents/bob")) - before).abs().max() > 1e-3
    frozen = AutoModelForCausalLM.from_pretrained("agents/eve")
    assert torch.equal(logits(frozen), before)


def test_merged_adapters_compute_the_same(mixed: Path, tmp_path: Path) -> None:
    team, merged = export(mixed, tmp_path / "team"), export(mixed, tmp_path / "merged", merge=True)
    assert not [path for path in files(merged) if "adapter" in path or path.startswith("bases/")]
    base = AutoModelForCausalLM.from_pretrained(team / "bases" / "coevolve-tiny", dtype=torch.float32)
    adapted = logits(PeftModel.from_pretrained(base, str(team / "agents" / "bob")))
    plain = AutoModelForCausalLM.from_pretrained(merged / "agents" / "bob")
    torch.testing.assert_close(logits(plain), adapted, rtol=1e-6, atol=2e-5)  # logits are about 12
    assert AutoTokenizer.from_pretrained(merged / "agents" / "bob")("a").input_ids
    # What the team says with and without the adapter apart
    asked = {"text": "The soup was good. I liked the soup.", "opening": "The soup was"}
    said = [[turn.text for turn in Team.load(folder).play(asked, temperature=0).turns] for folder in (team, merged)]
    assert said[0] == said[1]


def test_of_a_base_goes_along_what_a_model_is_made_of(micro_model: str, tmp_path: Path) -> None:
    source = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(micro_model).save_pretrained(source, max_shard_size="40KB")
    character_tokenizer().save_pretrained(source)
    for name in ("LICENSE", "Notice.txt", "README.md", "chat_template.jinja", "merges.txt"):
        (source / name).write_text("")
    wanted = files(source)
    assert len([name for name in wanted if name.endswith(".safetensors")]) > 1
    for name in (".env", "optimizer.pt", "training_args.bin", "notes.txt", "trainer_state.json", "value.safetensors"):
        (source / name).write_text("")
    placed = _Bases(tmp_path).placed(str(source))
    assert (placed, files(tmp_path / "bases" / "base")) == ("./bases/base", wanted)
    load_causal_lm(str(tmp_path / "bases" / "base"))
    load_tokenizer(str(tmp_path / "bases" / "base"))


# --- what it is ------------------------------------------------------------------------------------------------------


def test_the_team_of_the_last_step_trained(quick: Path, tmp_path: Path) -> None:
    about = yaml.safe_load((export(quick, tmp_path / "team") / "team.yaml").read_text())
    assert about["roles"] == {"pioneer": "bob", "observer": "ann"}  # exchanged once
    assert (about["run"], about["step"], about["sampling"]["max_new_tokens"]) == ("quick", 2, 16)
    assert (about["task"], about["play"]) == ({"name": "sentiment"}, {"name": "chain"})
    first, second = about["example"]["told"]
    query = about["example"]["columns"]["query"]
    assert first == {"role": "pioneer", "text": query}
    [sample] = [s for s in map(json.loads, (quick / "samples.jsonl").read_text().splitlines()) if s["step"] == 2][:1]
    heard = sample["turns"][0]["text"]
    assert second["text"] == f'I can make this sentence "{query}{heard}" more positive: {query}'


def test_how_a_policy_is_played_goes_along(quick: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick, tmp_path / "quick")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["policies"]["ann"]["chat"] = False
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    policies = yaml.safe_load((export(run, tmp_path / "team") / "team.yaml").read_text())["policies"]
    assert policies["ann"]["chat"] is False
    assert "chat" not in policies["bob"]  # which says nothing


def test_who_is_seated_by_the_cast_alone_goes_along(quick: Path, tmp_path: Path) -> None:
    """A critic, say, which `roles` does not name."""
    run = shutil.copytree(quick, tmp_path / "quick")
    (tmp_path / "mine.py").write_text("def cast(roles):\n    return lambda step: roles | {'observer': 'bob'}\n")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["roles"], recipe["algorithm"] = {"pioneer": "ann", "observer": "ann"}, {"name": "maac", "critic": "bob"}
    recipe["cast"] = {"name": f"{tmp_path}/mine.py:cast"}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    team = Team.load(export(run, tmp_path / "team", trust_code=True))
    assert [turn.policy for turn in team.play("The soup was").turns] == ["ann", "bob"]


def test_what_the_command_is_asked_for_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("coevolve.teams.export.export", lambda run, output, **how: asked.update(how))
    assert main(["export", "run", "team", "--merge", "--checkpoint", "1"]) == 0
    assert asked == {"step": 1, "merge": True, "trust_code": False}


def test_an_earlier_checkpoint(quick: Path, tmp_path: Path) -> None:
    about = yaml.safe_load((export(quick, tmp_path / "team", step=1) / "team.yaml").read_text())
    assert (about["step"], about["roles"]) == (1, {"pioneer": "ann", "observer": "bob"})
    with pytest.raises(ValueError, match="has no checkpoint of step 7; there are 1, 2"):
        export(quick, tmp_path / "other", step=7)


def front_matter(card: str) -> dict[str, Any]:
    [block] = re.findall(r"\A---\n(.*?)\n---\n", card, re.DOTALL)
    return dict(yaml.safe_load(block))


def test_the_card_says_what_was_measured_and_nothing_else(quick: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick, tmp_path / "quick")
    card = (export(run, tmp_path / "unmeasured") / "README.md").read_text()
    assert "This checkpoint was not evaluated." in card
    assert "| start |" not in card
    about = front_matter(card)
    assert (about["library_name"], "coevolve" in about["tags"]) == ("transformers", True)
    assert "base_model" not in about  # a packaged model is none of the hub
    assert (about["license"], about["pipeline_tag"]) == ("mit", "text-generation")  # that of the packaged model
    assert "model-index" not in about
    evaluate_run(run, problems=3)
    card = (export(run, tmp_path / "measured") / "README.md").read_text()
    rows = json.loads((run / "eval.json").read_text())["rows"]
    lines = [line for line in card.splitlines() if line.startswith(("| start |", "| trained |"))]
    assert len(lines) == len(rows)
    assert f"{rows[0]['reward']:.3f} | {rows[0]['reward_se']:.3f} | {rows[0]['kl']:.2f}" in lines[0]
    assert "not evaluated" in (export(run, tmp_path / "earlier", step=1) / "README.md").read_text()
    [index] = front_matter(card)["model-index"]
    found = {one["name"]: one["value"] for result in index["results"] for one in result["metrics"]}
    paid = {
        (row["role"], row["decoding"]): row["reward"]
        for row in rows
        if (row["weights"], row["setting"]) == ("trained", "team")
    }
    assert found == {f"reward of {role}, {decoding}": value for (role, decoding), value in paid.items()}
    assert len(found) == 4


def test_of_an_evaluation_by_an_older_version_the_card_says_what_it_recorded(quick: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick, tmp_path / "quick")
    found = {"checkpoint": 2, "problems": 4, "rows": []}
    for more, said in (
        ({}, "On 4 held-out problems. reward_se is"),
        ({"temperature": None, "samples": 3}, "On 4 held-out problems, with 3 of each problem. reward_se is"),
    ):
        (run / "eval.json").write_text(json.dumps({**found, **more}))
        assert said in (export(run, tmp_path / f"team{len(more)}") / "README.md").read_text()


def test_a_base_of_the_hub_is_named(quick: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick, tmp_path / "quick")
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("model: coevolve-tiny", "model: someone/some-model-1b"))
    about = front_matter((export(run, tmp_path / "team") / "README.md").read_text())
    assert (about["base_model"], about["base_model_relation"]) == (["someone/some-model-1b"], "finetune")
    assert "license" not in about  # only the hub knows


def test_a_folder_that_is_gone_is_no_model_of_the_hub(quick: Path, tmp_path: Path) -> None:
    """Its name was relative to where the run was trained; few models of the hub have no owner."""
    run = shutil.copytree(quick, tmp_path / "quick")
    recipe = (run / "recipe.yaml").read_text()
    for name in ("my-model", "my--model"):  # the hub has no names of the latter kind
        (run / "recipe.yaml").write_text(recipe.replace("model: coevolve-tiny", f"model: {name}"))
        assert "base_model" not in front_matter((export(run, tmp_path / name) / "README.md").read_text())


def test_the_hub_does_not_license_what_it_does_not_know(quick: Path, tmp_path: Path) -> None:
    """A push names the licence of the hub's models in a card that has none, and there is a model of elsewhere."""
    run = shutil.copytree(quick, tmp_path / "quick")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["policies"]["ann"]["model"] = "someone/some-model-1b"
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    about = front_matter((export(run, tmp_path / "team") / "README.md").read_text())
    assert (about["base_model"], about["license"]) == (["someone/some-model-1b"], "other")


@pytest.mark.parametrize(
    ("readme", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("no front matter", None),
        ("---\n{[\n---\n", None),
        (None, None),
    ],
)
def test_the_licence_is_that_of_the_model_it_started_from(
    quick: Path, tmp_path: Path, readme: str | None, licence: str | None
) -> None:
    run, start = shutil.copytree(quick, tmp_path / "quick"), tmp_path / "start"
    start.mkdir()
    if readme is not None:
        (start / "README.md").write_text(readme)
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("model: coevolve-tiny", f"model: {start}"))
    about = front_matter((export(run, tmp_path / "team", trust_code=True) / "README.md").read_text())
    assert about.get("license") == licence


@pytest.mark.parametrize("run", ["quick", "mixed"])
def test_the_cards_examples_run(
    run: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(export(request.getfixturevalue(run), tmp_path / "team"))
    snippets = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    assert len(snippets) == {"quick": 2, "mixed": 3}[run]
    for code in snippets:
        exec(compile(code, "card", "exec"), {})
    assert {"quick": "observer: ", "mixed": "full: "}[run] in capsys.readouterr().out


def test_nothing_of_this_machine(mixed: Path, own: Path, micro_model: str, tmp_path: Path) -> None:
    for number, run in enumerate((mixed, own)):
        team = export(run, tmp_path / f"team{number}")
        for path in files(team):
            if path.endswith((".json", ".yaml", ".md", ".py")):
                text = (team / path).read_text()
                assert str(run.parent) not in text
                assert micro_model not in text
                assert str(RECIPES.parent) not in text


# --- the user's own code ---------------------------------------------------------------------------------------------


def test_own_code_goes_along(own: Path, tmp_path: Path) -> None:
    (own.parent / "mine.py").write_text(OWN)
    team = export(own, tmp_path / "team")
    (own.parent / "mine.py").unlink()
    assert (team / "code" / "mine.py").read_text() == OWN
    card = (team / "README.md").read_text()
    assert 'Team.load(".", trust_code=True)' in card
    assert "coevolve chat . --trust-code" in card
    assert yaml.safe_load((team / "team.yaml").read_text())["task"] == {"name": "./code/mine.py:Mine"}
    with pytest.raises(ValueError, match=r"comes with code of its own \(\S+team/code/mine\.py\), which this would"):
        Team.load(team)
    episode = Team.load(team, trust_code=True).play("cat", temperature=0)
    assert [turn.role for turn in episode.turns] == ["first", "second"]
    (own.parent / "mine.py").write_text(OWN)


@pytest.mark.parametrize("done", [-0.2, 3])
def test_a_threshold_is_left_out_since_nobody_is_paid(tmp_path: Path, done: float) -> None:
    recipe, short = RECIPES / "magrpo-writing-mini-2turns.yaml", ("steps=1", "batch_size=1", "members=2")
    team = export(trained(recipe, tmp_path / "run", *short, f"play.done={done}"), tmp_path / "team")
    assert "done" not in yaml.safe_load((team / "team.yaml").read_text())["play"]
    assert len(Team.load(team).play(text="The soup was", opening="The soup").turns) == 4


def test_who_heard_others_to_learn_only_answers_alone(tmp_path: Path) -> None:
    recipe, short = RECIPES / "hindsight-writing-mini.yaml", ("steps=1", "batch_size=1", "members=2")
    run = trained(recipe, tmp_path / "run", *short)
    evaluate_run(run, problems=2)
    folder = export(run, tmp_path / "team")
    assert yaml.safe_load((folder / "team.yaml").read_text())["play"] == {"name": "rounds"}
    team = Team.load(folder)
    turns = team.play(text="The soup was", opening="The soup").turns
    assert [(turn.role, turn.heard) for turn in turns] == [(role, ()) for role in team.roles]
    card = (folder / "README.md").read_text()
    assert "It was trained in `hinted`, where each role answers once more having heard the others;" in card
    assert "On 2 held-out problems" in card and ", in `hinted`. reward_se" in card


def test_the_card_tells_trained_models_from_frozen_partners(mixed: Path, quick: Path, tmp_path: Path) -> None:
    card = (export(mixed, tmp_path / "mixed") / "README.md").read_text()
    assert "A team of 2 language models, trained together beside the frozen partner `eve`, with Coevolve" in card
    assert (
        "A team of 2 language models, trained together with"
        in (export(quick, tmp_path / "q") / "README.md").read_text()
    )
    team = SimpleNamespace(policies=dict.fromkeys(("ann", "eve", "tom")))
    specs = {name: SimpleNamespace(trainable=name == "ann") for name in team.policies}
    said = _members(team, SimpleNamespace(policies=specs))
    assert said == "one language model, trained beside the frozen partners `eve`, `tom`,"


def test_a_taskset_that_cannot_be_made_from_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def taskset():\n    raise OSError('no file tasks.json')\n")
    task = {"name": "verifiers", "taskset": "./code/mine.py:taskset"}
    with pytest.warns(
        UserWarning, match=r"this team will not load: task: task\.taskset.*; put what it reads into code/"
    ):
        assert _made(task, tmp_path) is None


@pytest.mark.parametrize(
    ("asks", "call"),
    [
        (("query",), "'x'"),
        ((), ""),
        (("Question text", "level"), "{'Question text': '...', 'level': 5}"),
        (None, "{'query': 'x', 'level': 5}"),
    ],
)
def test_the_call_on_a_card_works_whatever_columns_are_called(asks: tuple[str, ...] | None, call: str) -> None:
    assert _call(SimpleNamespace(example={"columns": {"query": "x", "level": 5}}), asks) == call


def test_what_a_play_of_its_own_means_by_done_stays() -> None:
    for play in ({"name": "mine.py:play", "done": -1}, {"name": "rounds", "done": "mine.py:done"}, {"name": "chain"}):
        assert _without_threshold(play) == play


def test_code_that_needs_more_than_itself(own: Path, tmp_path: Path) -> None:
    (own.parent / "mine.py").write_text(f"open(__file__ + '.txt')\n{OWN}")
    with pytest.warns(UserWarning, match=r"this team will not load: task: .*mine\.py cannot be imported: FileNotFound"):
        team = export(own, tmp_path / "team", trust_code=True)
    assert "What the roles were told" not in (team / "README.md").read_text()
    assert (team / "agents" / "ann" / "model.safetensors").is_file()
    (own.parent / "mine.py").write_text(OWN)


def test_a_reward_and_its_rows(micro_model: str, tmp_path: Path) -> None:
    """Functions go along, data stay behind, and the team plays without them: who only talks runs no reward."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"word": w}) + "\n" for w in ("cat", "dog", "owl")))
    (tmp_path / "pay.py").write_text("def pay(first, second):\n    return float(len(first))\n")
    recipe = OWN_RECIPE.format(model=micro_model).replace(
        "mine.py:Mine", '{name: rows, data: rows.jsonl, test: 0.4, reward: pay.py:pay, prompts: {first: "say {word}", '
        'second: "{word} {heard}"}}'
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(recipe)
    team = export(trained(tmp_path / "recipe.yaml", tmp_path / "run"), tmp_path / "team")
    assert files(team / "code") == {"pay.py"}
    task = yaml.safe_load((team / "team.yaml").read_text())["task"]
    assert (task["data"], task["reward"]) == ("rows.jsonl", "./code/pay.py:pay")
    assert not list(team.rglob("rows.jsonl"))
    assert "trust" not in (team / "README.md").read_text()  # who only talks needs none
    (team / "code" / "pay.py").write_text("raise SystemExit('was run')\n")
    for trust in (False, True):
        loaded = Team.load(team, trust_code=trust)
        assert loaded.asks == ("word",)
        assert len(loaded.play("bat").turns) == 2


def test_rows_of_a_recipe_stay_behind(micro_model: str, tmp_path: Path) -> None:
    """And what ``team.yaml`` cannot hold is left out of the card, with a warning."""
    rows = "[{word: cat, far: 12345678901234567}, {word: dog, far: 1}, {word: owl, far: 2}]"
    prompts = '{first: "say {word}", second: "{word} {heard}"}'
    task = f"{{name: rows, data: {rows}, test: 0.4, reward: pay.py:pay, prompts: {prompts}}}"
    recipe = OWN_RECIPE.format(model=micro_model).replace("mine.py:Mine", task)
    (tmp_path / "pay.py").write_text("def pay(first, second):\n    return float(len(first))\n")
    (tmp_path / "recipe.yaml").write_text(recipe)
    run = trained(tmp_path / "recipe.yaml", tmp_path / "run")
    team = export(run, tmp_path / "team")
    about = yaml.safe_load((team / "team.yaml").read_text())
    assert about["task"]["data"] == "data.jsonl"
    assert "example" in about
    samples = run / "samples.jsonl"
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    for line in lines:
        line["data"]["far"] = 2**64
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.warns(UserWarning, match=r"the card shows no prompts: team\.yaml cannot hold the example \(.*64 bits"):
        bare = export(run, tmp_path / "bare")
    assert yaml.safe_load((bare / "team.yaml").read_text()) == {k: v for k, v in about.items() if k != "example"}
    assert len(Team.load(bare).play("bat").turns) == 2


def test_a_folder_may_have_a_colon_in_its_name(micro_model: str, tmp_path: Path) -> None:
    """As a time has; own code goes along from there, too."""
    folder = tmp_path / "10:30"
    folder.mkdir()
    (folder / "mine.py").write_text(OWN)
    (folder / "recipe.yaml").write_text(OWN_RECIPE.format(model=micro_model))
    team = export(trained(folder / "recipe.yaml", tmp_path / "run"), tmp_path / "team")
    assert yaml.safe_load((team / "team.yaml").read_text())["task"] == {"name": "./code/mine.py:Mine"}
    assert (team / "code" / "mine.py").read_text() == OWN


def test_several_rewards_and_a_judge_are_not_wanted_either(micro_model: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"word": w}) + "\n" for w in ("cat", "dog", "owl")))
    (tmp_path / "pay.py").write_text("def pay(first):\n    return 1.0\n")
    recipe = OWN_RECIPE.format(model=micro_model).replace(
        "mine.py:Mine", "{name: rows, data: rows.jsonl, test: 0.4, reward: [pay.py:pay, pay.py:pay], reward_weights: "
        '[1, 2], prompts: {first: "say {word}", second: "{word} {heard}"}}',
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(recipe)
    team = export(trained(tmp_path / "recipe.yaml", tmp_path / "run"), tmp_path / "team")
    about = yaml.safe_load((team / "team.yaml").read_text())
    for extra in ({}, {"reward": {"name": "judge", "url": "http://127.0.0.1:9", "prompt": "x"}}):
        (team / "team.yaml").write_text(yaml.safe_dump(about | {"task": about["task"] | extra}))
        assert len(Team.load(team).play("bat").turns) == 2


def test_a_list_of_words_goes_along(tmp_path: Path) -> None:
    (tmp_path / "stop.txt").write_text("the\na\n")
    recipe = OWN_RECIPE.format(model="coevolve-tiny").replace(
        "mine.py:Mine", "{name: writing-mini, roles: [first, second], stop_words: stop.txt}"
    )
    (tmp_path / "recipe.yaml").write_text(recipe)
    team = export(trained(tmp_path / "recipe.yaml", tmp_path / "run"), tmp_path / "team")
    (tmp_path / "stop.txt").unlink()
    assert (team / "code" / "stop.txt").read_text() == "the\na\n"
    assert len(Team.load(team).play(text="The cat sat.", opening="The cat").turns) == 2  # a list needs no trust


# --- what cannot be exported -----------------------------------------------------------------------------------------


def test_a_torn_checkpoint(quick: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick, tmp_path / "quick")
    weights = run / "checkpoint-2" / "agents" / "bob" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"is torn: agents/bob/model\.safetensors is changed"):
        export(run, tmp_path / "team")
    assert not (tmp_path / "team").exists()


@pytest.mark.parametrize(
    ("policy", "file", "said"),
    [
        ("full", "model.safetensors", r"fit its config\.json .*no tensor "),
        ("full", "tokenizer.json", "the folder holds no tokenizer"),
        ("lora", "adapter_model.safetensors", "is not of this policy: no tensor "),
    ],
)
@pytest.mark.parametrize("merge", [False, True])
def test_agents_that_nobody_could_load(
    policy: str, file: str, said: str, merge: bool, mixed: Path, tmp_path: Path
) -> None:
    """Their manifest fits: somebody changed them on purpose, or wrote them so."""
    run = shutil.copytree(mixed, tmp_path / "run")
    checkpoint = run / "checkpoint-2"
    specs = yaml.safe_load((run / "recipe.yaml").read_text())["policies"]
    found = checkpoint / "agents" / next(name for name, spec in specs.items() if spec["weights"] == policy) / file
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    if file.endswith(".safetensors"):
        tensors = load_file(found)
        del tensors[min(tensors)]
        save_file(tensors, found, {"format": "pt"})
        manifest[found.relative_to(checkpoint).as_posix()] = [found.stat().st_size, zlib.crc32(found.read_bytes())]
    else:
        found.unlink()
        del manifest[found.relative_to(checkpoint).as_posix()]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=said):
        export(run, tmp_path / "team", merge=merge, trust_code=True)
    assert not (tmp_path / "team").exists()


def test_an_output_that_is_there(quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "team").mkdir()
    export(quick, tmp_path / "team")  # an empty folder will do
    before = files(tmp_path / "team")
    assert main(["export", str(quick), str(tmp_path / "team")]) == 2
    assert "is there already and not an empty folder" in capsys.readouterr().err
    assert files(tmp_path / "team") == before


def test_what_is_mounted_is_refused_before_anything_is_done(quick: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """It cannot be replaced, though it is empty."""
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "team")
    (tmp_path / "team").mkdir()
    with pytest.raises(ValueError, match="team is mounted, so that nothing can be put in its place; name a new folder"):
        export(quick, tmp_path / "team")
    assert len(list(export(quick, tmp_path / "team" / "mine").iterdir())) > 2


@pytest.mark.parametrize("output", [".", "../here"])
def test_the_current_folder_is_refused_before_anything_is_done(
    output: str, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("coevolve.teams.export._write", lambda *anything: pytest.fail("worked"))
    with pytest.raises(ValueError, match=r"here is the current folder; name a new one in it|^\. is the current folder"):
        export(quick, output)


def test_an_output_may_be_a_link_to_an_empty_folder(quick: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    assert (export(quick, tmp_path / "link") / "team.yaml").samefile(tmp_path / "there" / "team.yaml")


def test_a_crash_leaves_nothing(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*anything: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coevolve.teams.export.write_card", full)
    with pytest.raises(OSError, match="No space left"):
        export(quick, tmp_path / "team")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_once(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str, **rest: Any) -> None:
        raise OSError(28, "No space left on device", "here")

    whole = shutil.copytree

    def tree(*places: Any, copy_function: Any = full, **rest: Any) -> None:
        if len(places) == 2:  # folders in folders are called with all there is
            whole(*places, copy_function=copy_function, **rest)  # links need no room
        else:
            whole(*places)

    monkeypatch.setattr("coevolve.teams.export.shutil.copy2", full)
    monkeypatch.setattr("coevolve.teams.export.shutil.copytree", tree)
    with pytest.raises(OSError, match=r"^could not write \S+team: \[Errno 28\] No space left on device: 'here'$"):
        export(quick, tmp_path / "team")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_python_built(micro_model: str, tmp_path: Path) -> None:
    toy(micro_model, steps=1).run(tmp_path / "run")
    with pytest.raises(ValueError, match=r"^\S+run was trained from Python, .*; the folders checkpoint-N/agents"):
        export(tmp_path / "run", tmp_path / "team")


def test_a_base_in_4_bits_is_not_merged(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")
    four = [f"policies.{name}.{key}" for name in ("ann", "bob") for key in ("weights=lora", "load_in_4bit=true")]
    run = trained(RECIPES / "quickstart.yaml", tmp_path / "run", "steps=1", "batch_size=2", *four)
    with pytest.raises(ValueError, match="policy 'ann': its base is in 4 bits"):
        export(run, tmp_path / "merged", merge=True)
    assert len(Team.load(export(run, tmp_path / "team")).play("The soup was").turns) == 2


def test_a_frozen_policy_in_4_bits_is_its_start_model(tmp_path: Path) -> None:
    """Its checkpoint holds weights in 4 bits, which cannot be loaded again."""
    pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes (coevolve[quant])")
    four = ["policies.ann.weights=lora", "policies.bob.weights=frozen", "policies.bob.load_in_4bit=true"]
    run = trained(RECIPES / "quickstart.yaml", tmp_path / "run", "steps=1", "batch_size=2", *four)
    team = export(run, tmp_path / "team")
    bob = yaml.safe_load((team / "team.yaml").read_text())["policies"]["bob"]
    assert bob == {"model": "./bases/coevolve-tiny", "weights": "frozen", "load_in_4bit": True}
    card = (team / "README.md").read_text()
    assert "[bob](bases/coevolve-tiny)" in card and 'from_pretrained("bases/coevolve-tiny")' in card
    assert len(Team.load(team).play("The soup was").turns) == 2


def test_further_chat_templates_go_along(micro_model: str, tmp_path: Path) -> None:
    """A model may have one for tools beside its usual one; transformers writes it into a folder."""
    model = shutil.copytree(micro_model, tmp_path / "model")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages[0].content }}")
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    lora = [f"policies.{name}={{model: {model}, weights: lora}}" for name in ("ann", "bob")]
    run = trained(RECIPES / "quickstart.yaml", tmp_path / "run", "steps=1", "batch_size=2", *lora)
    merged = export(run, tmp_path / "merged", merge=True)
    apart = export(run, tmp_path / "team")
    for folder in (merged / "agents" / "ann", apart / "agents" / "ann", apart / "bases" / "model"):
        assert (folder / "additional_chat_templates" / "tool_use.jinja").is_file(), folder


def test_an_adapter_of_a_policy_whose_name_peft_does_not_take(tmp_path: Path) -> None:
    policy = "{model: coevolve-tiny, weights: lora}"
    recipe = tmp_path / "named.yaml"
    recipe.write_text(
        f"base: {RECIPES / 'quickstart.yaml'}\nroles: {{pioneer: qwen-1.7b, observer: '0'}}\n"
        f"policies: {{ann: null, bob: null, qwen-1.7b: {policy}, '0': {policy}}}\n"
    )
    run = trained(recipe, tmp_path / "run", "steps=1", "batch_size=2")
    for merge in (True, False):
        team = Team.load(export(run, tmp_path / f"team-{merge}", merge=merge))
        assert [turn.policy for turn in team.play("The soup was").turns] == ["qwen-1.7b", "0"]


def test_an_adapter_on_an_output_layer_that_is_the_embedding_too_is_not_merged(tmp_path: Path) -> None:
    head = [f"policies.{name}.{key}" for name in ("ann", "bob") for key in ("weights=lora", "lora.targets=[lm_head]")]
    run = trained(RECIPES / "quickstart.yaml", tmp_path / "run", "steps=1", "batch_size=2", *head)
    with pytest.raises(ValueError, match="policy 'ann': its adapter is on an output layer that shares its weights"):
        export(run, tmp_path / "merged", merge=True)
    team = export(run, tmp_path / "team")
    for name in ("ann", "bob"):
        assert all(".lora_" in key for key in load_file(team / "agents" / name / "adapter_model.safetensors"))
    assert len(Team.load(team).play("The soup was").turns) == 2


def test_lists_of_words_are_among_what_an_export_would_copy(tmp_path):
    (tmp_path / "my words.txt").touch()
    given = {"name": "tldr", "stop_words": "/there/notes.txt", "more": [str(tmp_path / "my words.txt"), "a note.txt"]}
    assert _word_lists([given, {"name": "chain"}]) == ["/there/notes.txt", str(tmp_path / "my words.txt")]


def test_a_checkpoint_that_a_training_deletes_meanwhile_is_exported_whole(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(quick, tmp_path / "run")
    deleting = lambda target: shutil.rmtree(run / "checkpoint-2") or _Bases(target)  # noqa: E731
    monkeypatch.setattr("coevolve.teams.export._Bases", deleting)
    assert Team.load(export(run, tmp_path / "team", trust_code=True)).play("The soup was").turns


def test_the_card_of_a_run_whose_last_kl_could_not_be_measured(quick: Path, tmp_path: Path) -> None:
    run = shutil.copytree(quick, tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["kl"] = None
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "KL to the start" not in (export(run, tmp_path / "team", trust_code=True) / "README.md").read_text()
    assert "KL to the start" in (export(quick, tmp_path / "other") / "README.md").read_text()


def test_what_is_no_recipe_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (tmp_path, tmp_path / "none.yaml"):
        assert main(["recipes", "show", str(wrong)]) == 2
        assert f"{wrong} is no file; `coevolve recipes` lists" in capsys.readouterr().err
