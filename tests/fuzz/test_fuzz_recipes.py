"""Any recipe, override and pre-training recipe is taken, or refused in one line that says what is wrong where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import (
    ODD,
    RECIPES,
    changed,
    command,
    components,
    dumped,
    files,
    refused,
    torn,
    trials,
    untouched,
    values,
    words,
)
from hypothesis import example, given
from hypothesis import strategies as st

from coevolve.config import load_recipe, parts
from coevolve.pretrain.recipe import load as load_pretraining
from coevolve.sweep.grid import grid

TREES: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(RECIPES.glob("*.yaml"))}
TEAMS = {name: tree for name, tree in TREES.items() if "kind" not in tree and "base" not in tree}
MODELS = {name: tree for name, tree in TREES.items() if "kind" in tree}
SMALL = ["quickstart", "posg-chicken-joint", "magrpo-writing-mini-tree", "magrpo-writing-mini-best-of"]
KEYS = [
    "task", "task.name", "task.game", "play", "play.name", "play.n", "play.transfer", "roles", "roles.pioneer", "cast",
    "cast.every", "policies", "policies.ann", "policies.ann.model", "policies.ann.lora.rank", "policies.ann.betas",
    "policies.ann.learning_rate", "algorithm", "algorithm.eta", "algorithm.credit", "sampling", "sampling.temperature",
    "sampling.max_new_tokens", "sampling.top_p", "seed", "steps", "batch_size", "members", "reset_every", "output_dir",
    "report_to", "threads", "workers", "base", "kind", "save_every", "samples",
]  # fmt: skip


def read(path: Path, overrides: list[str] = []) -> None:  # noqa: B006
    """A recipe up to the point where something is built."""
    recipe = load_recipe(path, overrides)
    made = parts(recipe)
    made.cast(), made.play(), made.algorithm()
    yaml.safe_dump(recipe.record())


def names_file(said: str | None, path: Path) -> None:
    """A file that cannot be read is named; a component that cannot be, by its key."""
    keys = ("task", "play", "cast", "algorithm", "rounds", "best_of", "tree", "discussion")
    assert said is None or str(path) in said or said.startswith(keys), said


@trials(500)
@given(st.data())
def test_a_changed_recipe(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.yaml"
    tree = data.draw(changed(TEAMS[data.draw(st.sampled_from(sorted(TEAMS)))]))
    path.write_bytes(dumped(tree, ascii_only=data.draw(st.booleans())))
    with untouched(tmp_path):
        names_file(refused("recipes", lambda: read(path)), path)


@trials(300)
@given(st.data())
def test_a_torn_recipe(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.yaml"
    whole = (RECIPES / f"{data.draw(st.sampled_from(sorted(TEAMS)))}.yaml").read_bytes()
    path.write_bytes(data.draw(st.one_of(torn(whole), files)))
    names_file(refused("torn recipes", lambda: read(path)), path)


@trials(100)
@given(base=st.one_of(words, values), over=st.dictionaries(st.sampled_from(["task", "roles", "policies"]), values))
@example(base="mine.yaml", over={})
@example(base=["mine.yaml"], over={})
@example(base="a" * 5000, over={})
def test_a_base(tmp_path: Path, base: Any, over: dict[str, Any]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(dumped({"base": base, **over}, ascii_only=True))
    assert refused("bases", lambda: read(path))


@trials(60)
@given(over=st.dictionaries(st.sampled_from([*TREES["quickstart"], "cast", "base"]), values, max_size=3))
def test_what_is_laid_over_a_base(tmp_path: Path, over: dict[str, Any]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(dumped({**over, "base": str(RECIPES / "quickstart.yaml")}, ascii_only=True))
    refused("bases", lambda: read(path))


@st.composite
def overrides(draw: st.DrawFn) -> str:
    key = draw(st.one_of(st.sampled_from(KEYS), words, st.lists(words, max_size=4).map(".".join)))
    value = draw(st.one_of(components, words, values.map(lambda v: yaml.safe_dump(v, default_flow_style=True, width=9**9)),
                           st.sampled_from(ODD).map(lambda b: b.decode("latin-1"))))  # fmt: skip
    return draw(st.sampled_from([f"{key}={value}"] * 9 + [key, value, f"{key}.{key}={value}", f"={value}"]))


@trials(400)
@given(name=st.sampled_from(SMALL), given=st.lists(overrides(), min_size=1, max_size=3))
@example(name="quickstart", given=["a." * 20_000 + "b=1"])
@example(name="quickstart", given=["algorithm=cory", "algorithm.eta=1"])
@example(name="quickstart", given=["sampling.top_p=1.5"])
@example(name="quickstart", given=["sampling.temperature=.inf"])
@example(name="quickstart", given=["steps=" + "9" * 5000])
@example(name="quickstart", given=["steps=0x" + "f" * 6000])
@example(name="quickstart", given=["task=[" + "[" * 10_000])
def test_overrides(name: str, given: list[str]) -> None:
    path = RECIPES / f"{name}.yaml"
    said = refused("overrides", lambda: read(path, given))
    assert said is None or "override" in said or str(path) in said or said.split(":")[0] in said


@trials(80)
@given(given=st.lists(overrides(), min_size=1, max_size=3))
@example(given=["seed=0.." + "9" * 5000])
@example(given=["a]: [b=1"])
@example(given=["seed=a]: [b"])
@example(given=["seed=" + "[" * 10_000])
@example(given=["seed=&a 1,*a"])
def test_sweeps(tmp_path: Path, given: list[str]) -> None:
    with untouched(tmp_path):
        refused("sweeps", lambda: grid(RECIPES / "posg-chicken-joint.yaml", given, tmp_path / "out"))


@trials(120)
@given(st.data())
def test_a_pretraining_recipe(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.yaml"
    tree = MODELS[data.draw(st.sampled_from(sorted(MODELS)))]
    path.write_bytes(data.draw(st.one_of(changed(tree).map(lambda t: dumped(t, ascii_only=True)), torn(dumped(tree)))))
    names_file(refused("pre-training recipes", lambda: load_pretraining(path, [])), path)


@trials(60)
@given(st.data())
def test_a_dry_run(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.yaml"
    tree = data.draw(changed(TEAMS[data.draw(st.sampled_from(SMALL[:2]))], most=2))
    path.write_bytes(dumped(tree, ascii_only=True))
    with untouched(tmp_path):
        command("dry runs", ["train", "--dry-run", str(path)])


@pytest.mark.parametrize("argv", [["train"], ["sweep", "--dry-run"], ["eval"], ["pretrain"]])
@pytest.mark.parametrize("content", ODD)
def test_a_file_that_is_no_recipe(tmp_path: Path, argv: list[str], content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with untouched(tmp_path):
        said = command("files that are no recipe", [*argv, str(path)])
    assert said and str(path) in said
