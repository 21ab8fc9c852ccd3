"""Recipes by name: what comes with the package is what the repository has."""

from pathlib import Path

import pytest

from coevolve import cli
from coevolve.recipe.packaged import about, is_recipe, located, packaged
from coevolve.recipe.schema import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_every_recipe_is_packaged_and_says_what_it_is():
    assert packaged().keys() == {path.stem for path in RECIPES.glob("*.yaml")}
    assert all(about(path) for path in packaged().values())


def test_a_name_is_a_packaged_recipe_and_a_file_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe("quickstart") == load_recipe(RECIPES / "quickstart.yaml")
    assert load_recipe("quickstart").output_dir == Path("runs/quickstart-0")
    Path("quickstart").write_text("mine")
    assert located("quickstart") == Path("quickstart")
    assert located("other.yaml") == Path("other.yaml")
    assert located("folder/quickstart") == Path("folder/quickstart")


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
