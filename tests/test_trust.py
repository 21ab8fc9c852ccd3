"""Code that a stranger's run, recipe or team names is run only when asked for; names and paths stay what they are."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from exported import RECIPES, trained
from toy import Lucky, toy

from coevolve import Team, Trainer, chain, cli, cory
from coevolve.names import check_names, check_run_name, inside, run_name
from coevolve.recipe.packaged import packaged
from coevolve.recipe.read import load_recipe
from coevolve.recipe.trust import code_in
from coevolve.runs import signature
from coevolve.runs.folder import RunDir
from coevolve.runs.trained import recipe_of
from coevolve.teams.export import export

TASK = """
import pathlib

from coevolve import Problem

pathlib.Path(__file__).with_name("ran").touch()


class Mine:
    train = test = [Problem(word, {"word": word}) for word in ("cat", "dog", "owl", "hen")]
    asks = ("word",)

    def prompt(self, p, role, heard):
        return p.data["word"]

    def reward(self, cases):
        return [[float(len(turn.text)) for turn in case.turns] for case in cases]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, micro_model: str) -> Path:
    """A folder with ``mine.py``, ``recipe.yaml`` that names it, and ``run`` that this user made of it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "mine.py").write_text(TASK)
    (folder / "recipe.yaml").write_text(
        f"base: {RECIPES / 'quickstart.yaml'}\ntask: mine.py:Mine\nbatch_size: 2\nsampling: {{max_new_tokens: 2}}\n"
        f"policies: {{ann: {{model: {micro_model}}}, bob: {{model: {micro_model}, weights: lora}}}}\n"
    )
    trained(folder / "recipe.yaml", folder / "run", "steps=1")
    return folder


@pytest.fixture
def own(made: Path) -> Path:
    (made / "mine.py").write_text(TASK)
    (made / "ran").unlink(missing_ok=True)
    return made / "run"


def commands(run: Path, out: Path) -> list[list[str]]:
    return [
        ["eval", str(run), "--problems", "1"],
        ["diagnose", str(run), "--problems", "1"],
        ["export", str(run), str(out)],
    ]


def sys_modules_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was imported before would not run again."""
    import sys

    monkeypatch.delitem(sys.modules, f"coevolve_user.{folder / 'mine.py'}", raising=False)


def test_a_run_of_ones_own_needs_no_word_even_when_it_was_moved(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(own, tmp_path / "moved")
    for number, run in enumerate((own, moved)):
        for command in commands(run, tmp_path / f"team{number}"):
            sys_modules_without(own.parent, monkeypatch)
            assert cli.main(command) == 0
    assert (own.parent / "ran").exists()


def others(own: Path, to: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, made somebody else's in one of the ways there are."""
    run = shutil.copytree(own, to)
    if how == "unsigned":
        (run / signature.FILE).unlink()
    elif how == "edited":
        with (run / "recipe.yaml").open("a") as file:
            file.write("# nothing\n")
    elif how == "another user":
        monkeypatch.setenv("XDG_STATE_HOME", str(to.parent / "state"))
    elif how == "forged":
        found = json.loads((run / signature.FILE).read_text())
        (run / signature.FILE).write_text(json.dumps(found | {"code": "0" * 64}))
    elif how == "changed file":
        (own.parent / "mine.py").write_text(TASK + "\n")
    else:
        (run / signature.FILE).write_text(how)
    return run


@pytest.mark.parametrize(
    "how",
    ["unsigned", "edited", "another user", "forged", "changed file", "null", "[]", "{", '{"files": 3, "code": 1}'],
)
def test_a_run_of_others_runs_nothing_unasked(
    how: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = others(own, tmp_path / "run", how, monkeypatch)
    sys_modules_without(own.parent, monkeypatch)
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    for command in commands(run, tmp_path / "team"):
        assert cli.main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert str(own.parent / "mine.py") in said
        assert "--trust-code" in said
    assert cli.main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0
    assert not (own.parent / "ran").exists()
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before
    assert not (tmp_path / "team").exists()


def test_trust_runs_it(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = others(own, tmp_path / "run", "unsigned", monkeypatch)
    for command in commands(run, tmp_path / "team"):
        assert cli.main([*command, "--trust-code"]) == 0
    with pytest.raises(ValueError, match=r"team comes with code of its own \(\S+team/code/mine\.py\)"):
        Team.load(tmp_path / "team")
    assert Team.load(tmp_path / "team", trust_code=True).play("cat").turns


def test_a_team_of_others_is_neither_served_nor_talked_to_unasked(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    team = export(own, tmp_path / "team")
    (team / "code" / "ran").unlink(missing_ok=True)
    monkeypatch.setattr("coevolve.teams.serve.until_interrupted", lambda: pytest.fail("it is served"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for command in (["serve", str(team), "--port", "0"], ["chat", str(team)]):
        assert cli.main(command) == 2
        assert "--trust-code" in capsys.readouterr().err
    assert not (team / "code" / "ran").exists()


def test_guests_of_a_diagnosis_are_asked_about_too(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = others(own, tmp_path / "guest", "unsigned", monkeypatch)
    assert cli.main(["diagnose", str(own), "--with", str(run), "--problems", "1"]) == 2
    said = capsys.readouterr().err
    assert "--trust-code" in said
    assert str(run) in said


def test_a_recipe_that_is_evaluated_and_one_that_is_trained(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = str(own.parent / "recipe.yaml")
    for command in ("eval", "advise"):
        assert cli.main([command, recipe, "--problems", "1"]) == 2
        assert "mine.py" in capsys.readouterr().err
    assert cli.main(["eval", recipe, "--problems", "1", "--trust-code"]) == 0
    assert cli.main(["train", recipe, "steps=1", "output_dir=out"]) == 0
    assert cli.main(["eval", "out", "--problems", "1"]) == 0


def test_nothing_is_pre_trained_unasked(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = tmp_path / "evil.yaml"
    evil.write_text(f"{{kind: causal_lm, output_dir: '{tmp_path}/there', steps: 1, learning_rate: 1e-3, batch_size: 1, "
                    "start: coevolve-tiny, sources: [{name: opinions}]}")  # fmt: skip
    for place in ("policies", "task"):
        run = shutil.copytree(own, tmp_path / place)
        recipe = yaml.safe_load((run / "recipe.yaml").read_text())
        recipe["task"] = {"name": "sentiment"}
        if place == "policies":
            recipe["policies"]["ann"]["model"] = str(evil)
        else:
            recipe["task"] = {"name": "imdb", "tokenizer": "x", "reward_model": str(evil)}
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        for command in commands(run, tmp_path / "team"):
            assert cli.main(command) == 2
            assert "evil.yaml" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


def test_what_counts_as_code(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    settings = {
        "name": "a.py:B", "deep": [{"x": ("../b.py:C",)}], "w": "http://c.py:d", "feedback": {"expert": {}},
        "z": "a.txt",
        "model": str(tmp_path / "a.yaml"), "other": "left-behind.yaml", "colon": "d.py:two words",
    }  # fmt: skip
    assert code_in(settings) == sorted(
        ["a.py", "../b.py", "http://c.py", "feedback by an expert", str(tmp_path / "a.yaml"), "d.py"]
    )
    assert code_in({"name": "imdb", "reward_model": "lexicon", "n": 3, "x": None}) == []
    assert code_in({"roles": {"novice": "ann", "expert": "bob"}, "feedback": "levels"}) == []
    assert code_in({"reward_model": str(packaged()["pretrain-imdb-classifier"])}) == []  # nobody else wrote it
    assert not code_in({"model": "a" * 5000 + ".yaml", "m": "\0.yaml"})
    learner = {"name": "fsdp", "ranks": 2, "cluster": "ray://there:10001"}
    assert code_in({"learner": learner}) == ["a Ray cluster at ray://there:10001"]
    for own in ("ray", "torchrun", None):
        assert not code_in({"learner": learner | {"cluster": own}})
    row = {"name": ["a", "b"], "cluster": "north", "text": "x"}  # of somebody's data
    assert not code_in({"task": {"name": "rows", "data": [row]}})
    assert code_in([{"engine": {"start": {}}}, {"engine": {"name": "vllm", "start": {"dtype": "auto"}}}]) == [
        "an engine's server, started with flags of its own"
    ]


@pytest.mark.parametrize("linked", [True, False])
def test_the_key_is_this_users_alone(linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a file system without hard links."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if not linked:
        monkeypatch.setattr(os, "link", lambda one, other: os.stat(tmp_path / "none"))
    first = signature.signature(tmp_path, "text", ({}, {}))
    key = tmp_path / "coevolve" / "key"
    assert key.stat().st_mode & 0o077 == 0
    assert [file.name for file in key.parent.iterdir()] == ["key"]
    assert signature.signature(tmp_path, "text", ({}, {})) == first != signature.signature(tmp_path, "texts", ({}, {}))
    key.write_bytes(b"short")
    assert signature.signature(tmp_path, "text", ({}, {})) is None


def test_a_home_that_cannot_be_written_stops_no_training(
    micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = toy(micro_model, steps=1).run(tmp_path / "run")
    assert (run / "recipe.yaml").is_file()
    assert not (run / signature.FILE).exists()


# --- paths -----------------------------------------------------------------------------------------------------------


def test_nothing_else_of_this_machine_is_exported(
    micro_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a model of the reader's own nor, by a link, any file of his."""
    secret = tmp_path / "secret"
    secret.write_text("private")
    plain = trained(RECIPES / "quickstart.yaml", tmp_path / "plain", "steps=1", "batch_size=2")
    (plain / "checkpoint-1" / "agents" / "ann" / "notes.txt").symlink_to(secret)
    (plain / signature.FILE).unlink()
    with pytest.raises(ValueError, match=r"would have \S+notes\.txt read .* not in it, and nothing shows"):
        export(plain, tmp_path / "team")
    (plain / "checkpoint-1" / "agents" / "ann" / "notes.txt").unlink()
    for name in ("samples.jsonl", "environment.json", "eval.json"):
        kept = (plain / name).read_bytes() if (plain / name).exists() else b"{}"
        (plain / name).unlink(missing_ok=True)
        (plain / name).symlink_to(secret)
        for command in (["report", str(plain)], ["export", str(plain), str(tmp_path / "none")]):
            assert cli.main(command) == 2
            assert rf"{name} read and shown or copied, which is not in it" in capsys.readouterr().err
        (plain / name).unlink()
        (plain / name).write_bytes(kept)
    (plain / "eval.json").unlink()
    assert export(plain, tmp_path / "team")
    recipe = yaml.safe_load((plain / "recipe.yaml").read_text())
    recipe["policies"]["ann"] |= {"model": micro_model, "weights": "lora"}
    (plain / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError, match=r"would have .* copied, which is not in it"):
        export(plain, tmp_path / "team2")


def test_manifests_name_files_of_their_folder(own: Path, tmp_path: Path) -> None:
    for name in ("/etc/hostname", "../../recipe.yaml", "agents/../../x", "a\0b"):
        run = shutil.copytree(own, tmp_path / "run", dirs_exist_ok=True)
        manifest = run / "checkpoint-1" / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {name: [1, 2]}))
        with pytest.raises(ValueError, match="which is not in it"):
            export(run, tmp_path / "team")


@pytest.mark.parametrize("model", ["./../x", "/etc", "../x", "./agents/../../x", "~/x", "a/b/c", "./mine.yaml"])
def test_teams_name_models_of_their_folder(model: str, own: Path, tmp_path: Path) -> None:
    team = export(own, tmp_path / "team")
    about = yaml.safe_load((team / "team.yaml").read_text())
    about["policies"]["ann"]["model"] = model
    (team / "team.yaml").write_text(yaml.safe_dump(about))
    with pytest.raises(ValueError, match=r"policies\.ann\.model is "):
        Team.load(team, trust_code=True)


# --- names -----------------------------------------------------------------------------------------------------------

NAMES = [
    "", ".", "..", ".a", "../../evil", "/etc/x", "a/b", "a\\b", "a b", "a\n", "a\0", "ä", "a" * 65, "\x1b[2J", "[red]",
    "a:b", "a=b",
]  # fmt: skip


def trainer(model: str, policy: str, cast: dict[str, str]) -> Trainer:
    return Trainer(
        task=Lucky(), play=chain(), cast=lambda step: cast, policies={policy: model}, algorithm=cory(eta=0.1)
    )


@pytest.mark.parametrize("name", NAMES)
def test_names_that_cannot_be(name: str, own: Path, micro_model: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policies: the name .* cannot be"):
        check_names("policies", [name])
    recipe = yaml.safe_load((own / "recipe.yaml").read_text())
    for changes in (
        {"policies": {name: recipe["policies"]["ann"]}, "roles": {"a": name}},
        {"roles": {"pioneer": "ann", name: "bob"}},
    ):
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe | changes | {"cast": {"name": "fixed"}}))
        with pytest.raises(ValueError, match=r"the name .* cannot be|is too long or cannot be seen"):
            load_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(ValueError, match=r"policies: the name .* cannot be"):
        trainer(micro_model, name, {"pioneer": name})
    with pytest.raises(ValueError, match=r"roles: the name .* cannot be"):
        trainer(micro_model, "ann", {name: "ann"})


@pytest.mark.parametrize("name", ["a", "ann-2", "_x", "-", "v1.2", "A" * 64, "0"])
def test_names_that_can_be(name: str) -> None:
    check_names("roles", [name])
    check_run_name(name)


def test_names_of_runs(own: Path, tmp_path: Path) -> None:
    check_run_name("cory-eta=0.1-lr=1e-4+2-3")
    for name in ("..", ".x", "a b", "a/b", "\x1b[2J", "a" * 201):
        with pytest.raises(ValueError, match=r"the name .* of a run cannot be"):
            check_run_name(name)
    with pytest.raises(ValueError, match="of a run cannot be"):
        load_recipe(own.parent / "recipe.yaml", [f"output_dir={tmp_path}/a b"])
    assert run_name(tmp_path / "my run (2)\x1b[2J\n# title") == "my-run-2-2J-title"
    assert run_name(Path("/")) == "run"
    check_run_name(run_name(tmp_path / ".=+x"))
    with pytest.raises(ValueError, match=r"the name '3' cannot be"):
        check_names("policies", [3])
    team = export(shutil.copytree(own, tmp_path / "my [red] run"), tmp_path / "team")
    assert yaml.safe_load((team / "team.yaml").read_text())["run"] == "my-red-run"
    about = yaml.safe_load((team / "team.yaml").read_text())
    (team / "team.yaml").write_text(yaml.safe_dump(about | {"run": "a\n# b"}))
    with pytest.raises(ValueError, match="of a run cannot be"):
        Team.load(team, trust_code=True)


def test_what_is_inside(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b.json") == tmp_path / "a" / "b.json"
    for name in ("/a", "../a", "a/../../b", "a/..", "\0"):
        with pytest.raises(ValueError, match="which is not in it"):
            inside(tmp_path, name)


def test_a_signed_run_reads_as_ones_own(own: Path) -> None:
    assert signature.not_own(own) == ""
    assert recipe_of(RunDir(own)).task == {"name": f"{own.parent / 'mine.py'}:Mine"}
    assert isinstance(json.loads((own / signature.FILE).read_text())["files"], dict)
