"""Sizes by the free memory: what is chosen, by numbers worked out by hand, and a training that uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from coevolve import cli
from coevolve.commands.train import _other_sizes
from coevolve.recipe import room
from coevolve.recipe.fit import fitted
from coevolve.recipe.read import load_recipe
from coevolve.recipe.schema import Recipe

QUICKSTART = str(Path(__file__).parents[2] / "recipes" / "quickstart.yaml")
ON_CPU = ["policies.*.device=cpu", "workers=false"]
"""Two policies with full weights of 2,557,632 parameters P and critics of 240, a base model once: 28 P + 24 x 240 =
71,619,456 bytes held; 4 (P + 240) of gradients and 8 x 2048 x 4096 of logits while one learns, so 148,959,808 before
the first token; 140 x 4 layers x 192 = 107,520 a token, and 2 x 4 x 4 x 192 = 6,144 in the KV cache. A step has 64
turns of at most 1,024 tokens."""
RANKS = "learner={name: fsdp, ranks: 2}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def free(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: size)


def quickstart(*changes: str) -> Recipe:
    return load_recipe(QUICKSTART, [*ON_CPU, *changes])


def sizes(recipe: Recipe) -> tuple[int, int, int | None]:
    """micro_tokens of both policies, and max_tokens of the recipe's engine."""
    engine = recipe.engine or {}
    return recipe.policies["ann"].micro_tokens, recipe.policies["bob"].micro_tokens, engine.get("max_tokens")


def test_the_largest_power_of_two_that_fits_and_no_more_than_a_step_has(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 4 << 30)  # (3,865,470,566 - 148,959,808) // 107,520, and (... - 71,619,456) // 6,144
    recipe, lines = fitted(quickstart())
    assert sizes(recipe) == (32_768, 32_768, 65_536)
    has = "device cpu has 4.00 GiB free now"
    step = "fit into 90% of it; a step has 65,536 if no answer changes what is asked, 64 turns of 1,024"
    assert lines == [
        f"policies.ann.micro_tokens is 32,768 (the recipe has 2,048): {has}, 34,565 {step}",
        f"policies.bob.micro_tokens is 32,768 (the recipe has 2,048): {has}, 34,565 {step}",
        f"engine.max_tokens is 65,536 (the recipe has 65,536): {has}, 617,488 fit into 90% of it; it is not raised",
    ]
    assert fitted(recipe)[0].record() == recipe.record()
    for gib in (64, 1024):
        free(monkeypatch, gib << 30)
        assert sizes(fitted(quickstart())[0]) == (65_536, 65_536, 65_536)


def test_sizes_that_are_smaller_than_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 284_977_565)  # nine tenths are 148,959,808 + 1,000 x 107,520, or 71,619,456 + 30,087 x 6,144
    recipe, lines = fitted(quickstart())
    assert sizes(recipe) == (512, 512, 16_384)
    assert "1,000 fit" in lines[0] and "30,087 fit" in lines[2]


def test_too_little_for_a_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 196_094_366)  # nine tenths are 148,959,808 + 256 x 107,520
    assert sizes(fitted(quickstart())[0])[0] == 256
    free(monkeypatch, 196_094_360)
    said = r"policies\.ann\.micro_tokens: device cpu has 0\.18 GiB free now and needs 0\.14 held .* not even 256 fit"
    with pytest.raises(ValueError, match=said):
        fitted(quickstart())


def test_each_learner_and_each_local_engine_is_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 4 << 30)
    own = ["policies.bob.weights=frozen", "policies.bob.engine=local"]
    recipe, lines = fitted(quickstart(*own, "policies.ann.gradient_checkpointing=true"))
    assert recipe.policies["bob"].micro_tokens == 2048
    assert recipe.policies["ann"].micro_tokens == 65_536
    assert recipe.engine == {"name": "local", "max_tokens": 65_536} == recipe.policies["bob"].engine
    assert [line.partition(" is ")[0] for line in lines] == [
        "policies.ann.micro_tokens",
        "engine.max_tokens and policies.bob.engine.max_tokens",
    ]
    server = "policies.bob.engine={name: openai, url: 'http://localhost:1/v1'}"
    assert fitted(quickstart(own[0], server))[1][-1].startswith("engine openai is not sized")


def test_ranks_of_this_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks, 473,055,616 bytes before the first token: (3,865,470,566 - 473,055,616) // (4 x 107,520) = 7,887."""
    free(monkeypatch, 4 << 30)
    ranks = load_recipe(QUICKSTART, ["policies.*.device=cpu", RANKS])
    recipe, lines = fitted(ranks)
    assert sizes(recipe) == (2048, 2048, 65_536)  # as it was: with larger micro-batches a rank may have none
    assert "7,887 fit" in lines[0] and lines[0].endswith("it is not raised")
    free(monkeypatch, 1_003_484_018)  # nine tenths are 473,055,616 + 1,000 x 430,080
    recipe, lines = fitted(ranks)
    assert sizes(recipe)[:2] == (512, 512) and "1,000 fit" in lines[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["learner={name: fsdp, ranks: 2, cluster: ray}"], "learner.cluster is ray, whose ranks may be on other"),
        (["learner={name: fsdp, ranks: 2, cluster: torchrun}"], "learner.cluster is torchrun, whose ranks may be on"),
        (["policies.*.device=cuda:7"], "there is no device cuda:7 on this machine"),
        (["policies.*.model=nobody/knows"], "policies.ann: the size of its model is not known"),
    ],
)
def test_what_is_not_known_is_refused(changes: list[str], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=f"^{why}.*leave it out and write") as error:
        fitted(load_recipe(QUICKSTART, changes))
    assert "\n" not in str(error.value)


def test_a_device_that_does_not_say_what_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, None)
    with pytest.raises(ValueError, match="device cpu does not say how much of its memory is free; "):
        fitted(quickstart())


def test_a_learner_of_the_users_own_is_not_sized(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(name, spec, reference, critic, steps, seed): ...\n")
    recipe = load_recipe(QUICKSTART, [f"learner={tmp_path / 'mine.py'}:mine"])
    found, [line] = fitted(recipe)
    assert found == recipe and "mine.py:mine is your own" in line


def test_what_is_not_known_of_a_step_is_left_to_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """``hindsight`` adds rows to those of the turns."""
    free(monkeypatch, 64 << 30)
    recipe, lines = fitted(quickstart("algorithm=hindsight", "members=4"))
    assert sizes(recipe)[0] == 524_288 and sizes(recipe)[2] == 65_536
    assert lines[0].endswith("how many a step has is not known")


def test_a_training_has_the_sizes_in_its_recipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its numbers are those of the same recipe with the sizes written into it; a resume chooses anew, and says so."""
    free(monkeypatch, 200_000_000)  # (180,000,000 - 148,959,808) // 107,520 = 288, (... - 71,619,456) // 6,144 = 17,640
    small = [*ON_CPU, "steps=1", "batch_size=24", "samples=1"]
    assert cli.main(["train", QUICKSTART, *small, "--fit-memory", "output_dir=fit"]) == 0
    assert "policies.ann.micro_tokens is 256 (the recipe has 2,048)" in capsys.readouterr().out
    tree = yaml.safe_load(Path("fit/recipe.yaml").read_text())
    assert [one["micro_tokens"] for one in tree["policies"].values()] == [256, 256]
    assert tree["engine"] == {"name": "local", "max_tokens": 16_384}
    by_hand = ["policies.*.micro_tokens=256", "engine={name: local, max_tokens: 16384}", "output_dir=hand"]
    assert cli.main(["train", QUICKSTART, *small, *by_hand]) == 0
    assert numbers("fit") == numbers("hand")
    free(monkeypatch, 4 << 30)
    capsys.readouterr()
    assert cli.main(["train", QUICKSTART, *small, "steps=2", "--fit-memory", "--resume", "output_dir=fit"]) == 0
    assert "micro_tokens of ann was 256 in the run: sums are rounded otherwise" in capsys.readouterr().out
    tree = yaml.safe_load(Path("fit/recipe.yaml").read_text())
    assert tree["policies"]["ann"]["micro_tokens"] == 32_768  # of 24 turns of 1,024
    assert tree["engine"]["max_tokens"] == 65_536  # the recipe's
    assert _other_sizes(Path("fit"), load_recipe("fit/recipe.yaml", ["engine=null"])) == []


def numbers(run: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    assert lines and "reward" in lines[0]
    return [{key: value for key, value in line.items() if not key.startswith(("time", "tokens_per"))} for line in lines]


def test_a_dry_run_plans_with_the_fitted_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free(monkeypatch, 4 << 30)
    assert cli.main(["train", QUICKSTART, *ON_CPU, "--dry-run", "--fit-memory"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# policies.ann.micro_tokens is 32,768 (the recipe has 2,048)")
    assert yaml.safe_load(said)["policies"]["bob"]["micro_tokens"] == 32_768
