"""Every recipe of the repository trains two steps, shrunk, on the packaged model where its own is not packaged."""

import gzip
import json
from pathlib import Path

import pytest

from coevolve import cli
from coevolve.config import load_recipe

RECIPES = sorted(
    p for p in (Path(__file__).parents[1] / "recipes").glob("*.yaml") if not p.name.startswith("pretrain-")
)


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A folder of film reviews in the format of imdb_*.jsonl.gz; tests/tasks reads the real ones."""
    opinions = ("I loved the pictures", "The plot is dull", "A great cast saves it", "What a waste of an evening")
    rows = [{"id": str(i), "text": f"{opinions[i % 4]} in film {i}. " * 10} for i in range(16)]
    for split in ("train", "test"):
        with gzip.open(tmp_path / f"imdb_{split}.jsonl.gz", "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("COEVOLVE_DATA", str(tmp_path))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains(path, reviews, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(path)
    overrides = ["steps=2", "batch_size=4", "samples=1", "output_dir=out"]
    if recipe.task["name"] == "imdb":
        overrides += [f"policies.{name}.model=coevolve-tiny" for name in recipe.policies]
        overrides += ["task.tokenizer=coevolve-tiny", "task.reward_model=lexicon"]
    assert cli.main(["train", str(path), *overrides]) == 0
    lines = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert set(lines[0]["cast"]) == set(recipe.roles)
    for name in recipe.policies:
        assert lines[1][f"agents/{name}/grad_norm"] > 0
    assert Path("out/checkpoint-2/agents").is_dir()


CONTROLS = {
    "cory-imdb-tiny-no-exchange": {"cast"},
    "cory-imdb-tiny-no-transfer": {"play"},
    "cory-imdb-tiny-observer-own": {"algorithm"},
    "cory-imdb-tiny-normalised": {"algorithm"},
    "cory-imdb-tiny-reset": {"reset_every"},
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_differs_from_its_base_in_one_thing(name):
    base, control = (load_recipe(RECIPES[0].with_name(f"{n}.yaml")).record() for n in ("cory-imdb-tiny", name))
    assert {key for key in base if base[key] != control[key]} == {"output_dir"} | CONTROLS[name]


def test_the_baseline_has_the_same_settings_and_one_agent():
    cory, ppo, twice = (
        load_recipe(RECIPES[0].with_name(f"{n}.yaml")) for n in ("cory-imdb-tiny", "ppo-imdb-tiny", "ppo-imdb-tiny-2x")
    )
    assert (ppo.roles, ppo.policies["ann"]) == ({"pioneer": "ann"}, cory.policies["ann"])
    assert (ppo.batch_size, ppo.sampling, ppo.steps) == (cory.batch_size, cory.sampling, cory.steps)
    assert {k: v for k, v in ppo.algorithm.items() if k != "name"} == {
        k: v for k, v in cory.algorithm.items() if k != "name"
    }
    assert twice.batch_size == 2 * cory.batch_size
