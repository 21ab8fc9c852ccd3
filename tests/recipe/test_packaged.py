"""Recipes by name: what comes with the package is what the repository has."""

from pathlib import Path

import pytest
import yaml

from coevolve import cli
from coevolve.recipe.packaged import about, is_recipe, located, packaged
from coevolve.recipe.read import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_every_recipe_is_packaged_and_says_what_it_is():
    assert packaged().keys() == {path.stem for path in RECIPES.glob("*.yaml")}
    assert all(about(path) for path in packaged().values())


def test_a_name_is_a_packaged_recipe_and_a_file_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe("quickstart") == load_recipe(RECIPES / "quickstart.yaml")
    assert load_recipe("quickstart").output_dir == Path("runs/quickstart-0")
    Path("quickstart").mkdir()
    assert load_recipe("quickstart") == load_recipe(RECIPES / "quickstart.yaml")
    Path("quickstart").rmdir()
    Path("quickstart").write_text("mine")
    assert located("quickstart") == Path("quickstart")
    assert located("other.yaml") == Path("other.yaml")
    assert located("folder/quickstart") == Path("folder/quickstart")


def test_the_folder_of_a_run(tmp_path, monkeypatch):
    """Also of one that has the name of a packaged recipe, unless it is the packaged one that is named."""
    monkeypatch.chdir(tmp_path)
    for folder in (Path("runs/quickstart"), Path("mine"), Path("quickstart")):
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text("")
    with pytest.raises(ValueError, match=r"^mine is a folder; the recipe in it is mine.recipe\.yaml$"):
        located("mine")
    with pytest.raises(ValueError, match="is a folder; the recipe in it is"):
        located("runs/quickstart")
    assert located("quickstart") == RECIPES / "quickstart.yaml"


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match=r"no file quikstart, and no recipe .* did you mean 'quickstart'\?"):
        located("quikstart")


def test_what_takes_a_run_takes_a_packaged_recipe_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/quickstart").mkdir(parents=True)
    assert all(map(is_recipe, (Path("quickstart"), Path("a/b.yaml"), Path("magrpo-tldr-qwen3-1.7b"))))
    assert not any(map(is_recipe, (Path("runs/quickstart"), Path("nobody"))))
    Path("quickstart").mkdir()
    assert not is_recipe(Path("quickstart"))


def test_they_are_listed_and_shown(capsys):
    assert cli.main(["recipes"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(packaged())
    assert any(line.startswith("quickstart ") and "CORY in minutes on a laptop" in line for line in listed)
    assert cli.main(["recipes", "show", "quickstart"]) == 0
    assert capsys.readouterr().out == (RECIPES / "quickstart.yaml").read_text("utf-8")
    assert cli.main(["recipes", "show"]) == 2
    assert "show which one?" in capsys.readouterr().err


@pytest.mark.parametrize("name", packaged())
def test_every_packaged_name_is_found(name):
    """With a dot in it, too: .7b is no suffix."""
    assert located(name) == packaged()[name]


def test_every_recipe_can_be_copied_and_changed(tmp_path, monkeypatch):
    """What it names beside it, a base or a model's recipe, is that of the package."""
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "mine.yaml"
    for name in packaged():
        if not name.startswith("pretrain-"):
            copy.write_text(packaged()[name].read_text("utf-8"))
            mine, ours = load_recipe(copy), load_recipe(name)
            assert mine == ours.model_copy(update={"output_dir": mine.output_dir}), name
            copy.write_text(yaml.safe_dump(mine.record()))  # as a run has it
            assert load_recipe(copy) == mine, name


def test_a_file_beside_a_recipe_goes_before_that_of_the_package(tmp_path):
    (tmp_path / "quickstart.yaml").write_text((RECIPES / "posg-chicken-joint.yaml").read_text("utf-8"))
    (tmp_path / "pretrain-imdb-lm.yaml").touch()
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: quickstart.yaml\ntask: {name: game, more: pretrain-imdb-lm.yaml}")
    found = load_recipe(mine)
    assert found.task["name"] == "game"
    assert found.task["more"] == f"{tmp_path}/pretrain-imdb-lm.yaml"


def test_a_base_that_is_nowhere_is_told_as_that(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: quikstart.yaml")
    said = r"mine\.yaml: its base quikstart\.yaml is not there, .* package; did you mean 'quickstart\.yaml'\?$"
    with pytest.raises(ValueError, match=said):
        load_recipe(mine)
    (tmp_path / "quickstar.yaml").touch()
    mine.write_text("base: quicksta.yaml")
    with pytest.raises(ValueError, match=r"did you mean 'quickstar\.yaml'"):
        load_recipe(mine)
    mine.write_text("base: folder/quickstart.yaml")  # another one
    with pytest.raises(ValueError, match=r"its base folder/quickstart\.yaml is not there"):
        load_recipe(mine)
