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
    numbers,
    refused,
    torn,
    trials,
    untouched,
    values,
    words,
)
from hypothesis import example, given
from hypothesis import strategies as st

from coevolve.pretrain.recipe import load as load_pretraining
from coevolve.recipe.build import parts
from coevolve.recipe.read import load_recipe
from coevolve.sweep.grid import grid

TREES: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(RECIPES.glob("*.yaml"))}
TEAMS = {name: tree for name, tree in TREES.items() if "kind" not in tree and "base" not in tree}
MODELS = {name: tree for name, tree in TREES.items() if "kind" in tree}
SMALL = ["quickstart", "posg-chicken-joint", "magrpo-writing-mini-tree", "magrpo-writing-mini-best-of"]
COUNT = st.one_of(st.integers(1, 40), numbers)
PART = st.one_of(st.floats(1e-6, 1.0), numbers)
NAME = st.one_of(components, words)
KEYS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(["seed", "steps", "batch_size", "members", "reset_every", "threads", "save_every"], COUNT),
    **dict.fromkeys(["samples", "play.n", "cast.every", "policies.ann.lora.rank", "policies.ann.micro_tokens"], COUNT),
    **dict.fromkeys(["algorithm.eta", "algorithm.gamma", "algorithm.lam", "sampling.temperature"], PART),
    **dict.fromkeys(["sampling.top_p", "sampling.repetition_penalty", "policies.ann.learning_rate"], PART),
    **dict.fromkeys(["task", "play", "cast", "algorithm", "task.game", "algorithm.credit", "algorithm.std"], NAME),
    **dict.fromkeys(["policies.ann", "policies.ann.model", "policies.bob.weights", "output_dir"], NAME),
    **dict.fromkeys(["report_to", "roles.pioneer", "base", "kind", "task.tokenizer", "policies.ann.device"], NAME),
    **dict.fromkeys(["workers", "play.transfer", "policies.ann.chat", "policies.ann.load_in_4bit"], st.booleans()),
    "sampling.max_new_tokens": st.one_of(st.lists(COUNT, max_size=3), COUNT),
    "policies.ann.betas": st.lists(PART, max_size=3),
}  # fmt: skip
"""Keys that there are, and values that they might take."""


def read(path: Path, overrides: list[str] = []) -> None:  # noqa: B006
    """A recipe up to the point where something is built."""
    recipe = load_recipe(path, overrides)
    made = parts(recipe)
    made.cast(), made.play(), made.algorithm
    yaml.safe_dump(recipe.record())


def names_file(said: str | None, path: Path) -> None:
    """A file that cannot be read is named; a component that cannot be, by its key."""
    keys = ("task", "play", "cast", "algorithm", "rounds", "best_of", "tree", "discussion")
    assert said is None or str(path) in said or said.startswith(keys), said


@trials(350)
@given(st.data())
def test_a_changed_recipe(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.yaml"
    tree = data.draw(changed(TEAMS[data.draw(st.sampled_from(sorted(TEAMS)))]))
    path.write_bytes(dumped(tree, ascii_only=data.draw(st.booleans())))
    with untouched(tmp_path):
        names_file(refused("recipes", lambda: read(path)), path)


@trials(220)
@given(st.data())
def test_a_torn_recipe(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "mine.yaml"
    whole = (RECIPES / f"{data.draw(st.sampled_from(sorted(TEAMS)))}.yaml").read_bytes()
    path.write_bytes(data.draw(st.one_of(torn(whole), files)))
    names_file(refused("torn recipes", lambda: read(path)), path)


@trials(100)
@given(base=st.one_of(words, values), over=st.dictionaries(st.sampled_from(["task", "roles", "policies"]), values))
@example(base="mine.yaml", over={})
@example(base="\n", over={})
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
    """Mostly a key that there is, and often a value that it might take."""
    if draw(st.integers(0, 9)) < 7:
        key = draw(st.sampled_from(sorted(KEYS)))
        return f"{key}={written(draw(KEYS[key]))}"
    key = draw(st.one_of(st.sampled_from(sorted(KEYS)), words, st.lists(words, max_size=4).map(".".join)))
    odd = st.sampled_from(ODD).map(lambda content: content.decode("latin-1"))
    value = draw(st.one_of(words, values.map(written), odd))
    return draw(st.sampled_from([f"{key}={value}"] * 5 + [key, value, f"{key}.{key}={value}", f"={value}"]))


def written(value: Any) -> str:
    """As YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=9**9).removesuffix("\n...\n").strip()


@trials(220)
@given(name=st.sampled_from(SMALL), given=st.lists(overrides(), min_size=1, max_size=2))
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
    if said is not None and not said.startswith("override "):
        names_file(said, path)


@trials(80)
@given(given=st.lists(overrides(), min_size=1, max_size=2))
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
