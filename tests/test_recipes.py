"""Every recipe of the repository trains two steps, shrunk, on the packaged model where its own is not packaged."""

import gzip
import json
import re
from pathlib import Path

import pytest

from coevolve import cli
from coevolve.recipe.read import load_recipe
from coevolve.report import plot

RECIPES = sorted(
    p for p in (Path(__file__).parents[1] / "recipes").glob("*.yaml") if not p.name.startswith("pretrain-")
)
LARGE = re.compile("gpt2|llama2|qwen|smollm2")
"""Models that are not here, whose recipes differ from the tiny ones in little else."""


ADD = {
    "prompt": 'def add(a, b):\n    """The sum of a and b."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}
PROBLEMS = {
    "humaneval": [{"task_id": f"HumanEval/{i}", **ADD} for i in range(164)],
    "coop_humaneval": [{"task_id": f"CoopHumanEval/{i}", **ADD} for i in range(82)],
    "mbpp_sanitized": [
        {"task_id": i, "prompt": "Write a function to add.", "code": "def add(a, b):\n    return a + b",
         "test_imports": [], "test_list": ["assert add(1, 2) == 3"]}
        for i in range(427)
    ],
    "gsm8k_train": [{"question": f"What is {i} + 1?", "answer": f"It is {i + 1}.\n#### {i + 1}"} for i in range(16)],
    "gsm8k_test": [{"question": f"What is {i} + 2?", "answer": f"It is {i + 2}.\n#### {i + 2}"} for i in range(16)],
}  # fmt: skip


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder of reviews, posts, abstracts and problems in the format of the real ones, which tests/tasks reads."""
    files = dict(PROBLEMS)
    opinions = ("I loved the pictures", "The plot is dull", "A great cast saves it", "What a waste of an evening")
    for name in ("imdb_train", "imdb_test", "tldr_reddit2013", "tldr_openai", "arxiv_train", "arxiv_val"):
        column = {"imdb": "text", "tldr": "prompt", "arxiv": "abstract_text"}[name.split("_")[0]]
        files[name] = [{"id": str(i), column: f"{opinions[i % 4]} in film {i}. " * 10} for i in range(16)]
    for name, rows in files.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("COEVOLVE_DATA", str(tmp_path))


def _metrics() -> re.Pattern[str]:
    """Whether a name is in docs/metrics.md, in whose tables a word in capitals stands for another one."""
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text("utf-8")
    team = [name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall("`([^`]+)`", row)]
    same = re.search(r"`agents/NAME/`\. (.*) are those of the team", page)
    assert same
    names = [*team, *(f"agents/NAME/{name}" for name in re.findall("`([^`]+)`", same[1]))]
    return re.compile("|".join(re.sub("[A-Z]+", r"\\w+", name) for name in names))


METRICS = _metrics()

HARD = {"humaneval": "HumanEval", "coophumaneval": "CoopHumanEval", "mbpp": "Mbpp", "gsm8k": "Gsm8k"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if LARGE.search(p.stem) else []) for p in RECIPES],
)
def test_a_recipe_trains(path, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plot, "curves", lambda run: run)  # a third of the time; other tests draw
    recipe = load_recipe(path)
    overrides = ["steps=2", "batch_size=2", "samples=1", "output_dir=out"]
    overrides += ["workers=false"] * (path.stem != "quickstart")  # processes have tests of their own
    if recipe.task["name"] == "imdb":
        overrides += ["task.tokenizer=coevolve-tiny", "task.reward_model=lexicon", "batch_size=4"]
    if recipe.task["name"] in ("tldr", "arxiv", "writing-mini"):
        # Short texts would fail the reward's first levels, and teach nothing.
        overrides += ["sampling.max_new_tokens=8", "task.bands.words=[0, 99]", "task.bands.ratio=[1e-9, 1, 1, 99]"]
    if recipe.task["name"] in HARD:
        settings = {
            **recipe.task,
            "name": f"{Path(__file__).with_name('paid_by_length.py')}:{HARD[recipe.task['name']]}",
        }
        overrides += [f"task={json.dumps(settings)}", "sampling.max_new_tokens=8"]
    if recipe.engine is not None:  # a server, which `make test-server` has
        overrides += ["engine=local"]
    overrides += [f"policies.{name}.engine=null" for name, spec in recipe.policies.items() if spec.engine is not None]
    if any(spec.load_in_4bit for spec in recipe.policies.values()):
        pytest.importorskip("bitsandbytes", reason="load_in_4bit needs the package bitsandbytes (coevolve[quant])")
    if recipe.task["name"] == "gsm8k":  # adapters, in 4 bits too, are trained here as they are
        overrides += [f"policies.{name}.model=coevolve-tiny" for name in recipe.policies]
    elif recipe.task["name"] in ("imdb", "tldr", "arxiv", *HARD):
        for name, spec in recipe.policies.items():
            overrides += [f"policies.{name}={{model: coevolve-tiny, learning_rate: {spec.learning_rate}}}"]
    if recipe.learner:  # on cards that are not here
        overrides += ["learner=null", *(f"policies.{name}.device=cpu" for name in recipe.policies)]
    assert cli.main(["train", str(path), *overrides]) == 0
    lines = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert set(lines[0]["cast"]) == set(recipe.roles)
    for name, spec in recipe.policies.items():
        assert (lines[1].get(f"agents/{name}/grad_norm", 0.0) > 0) == (spec.weights != "frozen")
    assert Path("out/checkpoint-2/agents").is_dir()
    assert [name for name in {**lines[0], **lines[1]} if not METRICS.fullmatch(name)] == []


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


def test_the_baselines_of_a_pretrained_pair_have_its_samples_and_tokens():
    found = [f"{name}-smollm2" for name in ("cory-imdb", "ppo-imdb", "magrpo-tldr", "grpo-tldr")]
    cory, ppo, magrpo, grpo = (load_recipe(RECIPES[0].with_name(f"{name}.yaml")) for name in found)
    assert ppo.batch_size == 2 * cory.batch_size and ppo.sampling == cory.sampling
    assert ppo.policies["ann"] == cory.policies["ann"] and ppo.algorithm["eta"] == cory.algorithm["eta"]
    assert (grpo.batch_size, grpo.members) == (magrpo.batch_size, magrpo.members)
    assert grpo.sampling.max_new_tokens == 2 * magrpo.sampling.max_new_tokens
    assert grpo.policies["ann"] == magrpo.policies["ann"]
