"""Recipes: strict keys and types, overrides, bases, components, files of the user's own."""

import re
import warnings
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from coevolve.cast import CASTS
from coevolve.names import did_you_mean
from coevolve.plays import PLAYS
from coevolve.recipe.build import parts
from coevolve.recipe.components import component
from coevolve.recipe.inputs import apply_overrides, dump, load_yaml
from coevolve.recipe.read import load_recipe
from coevolve.tasks import TASKS
from coevolve.types import Problem

MINIMAL = """
    task: sentiment
    play: chain
    roles: {pioneer: ann, observer: bob}
    policies: {ann: coevolve-tiny, bob: {model: coevolve-tiny, learning_rate: 1e-4}}
    algorithm: cory
"""


@pytest.fixture
def recipe(tmp_path):
    def write(text=MINIMAL, name="mine.yaml", extra=""):
        path = tmp_path / name
        path.write_text(dedent(text) + dedent(extra))
        return path

    return write


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_short_forms_and_trainer_defaults_are_spelt_out(recipe):
    found = load_recipe(recipe())
    assert found.play == {"name": "chain"}
    assert found.cast == {"name": "fixed"}
    assert found.policies["ann"].model == "coevolve-tiny"
    assert found.policies["bob"].learning_rate == 1e-4  # YAML 1.1 would call this text
    assert (found.steps, found.batch_size, found.save_every) == (100, 64, 20)  # the trainer's
    assert found.output_dir == Path("runs/mine-0")


def test_the_record_of_a_recipe_loads_as_the_same_recipe(recipe, tmp_path):
    found = load_recipe(recipe(extra="sampling: {max_new_tokens: [4, 15]}"), ["seed=3"])
    kept = tmp_path / "kept" / "recipe.yaml"
    kept.parent.mkdir()
    kept.write_text(yaml.safe_dump(found.record()))
    assert load_recipe(kept) == found
    assert found.sampling.max_new_tokens == (4, 15)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "learning_rate=1",
            "; learning_rate is a setting of a policy: policies.*.learning_rate for all, policies.NAME",
        ),
        ("rank=4", "; rank is a setting of a policy's lora: policies.*.lora.rank for all, policies.NAME.lora.rank for"),
        ("max_new_tokens=4", "; max_new_tokens is a setting of sampling: sampling.max_new_tokens; known"),
        ("beta=1", "; beta is a setting of an algorithm: algorithm.beta; known"),
        (
            "cluster=ray://head:10001",
            "no ranks that a cluster could place; say how many each policy has, before it",
        ),
        ("policies.ann.steps=3", "; steps is a setting of the recipe: steps, with nothing before it; known"),
        ("resume=true", "; resume is a setting of the command: --resume; known"),
        ("num_train_epochs=1", "; TRL's num_train_epochs is steps (an epoch is problems / batch_size of them); known"),
        ("policies.ann.lora.r=8", "; peft's r is lora.rank of a policy; known"),
        ("r=8", "unknown key r; known: algorithm"),
        ("policies.bab.learning_rate=1", "bab has no model; policies with one: ann, bob; did you mean 'bob'?"),
        ("batchsize=3", "unknown key batchsize; did you mean 'batch_size'?"),
        ("policies.ann.learning_rat=1", "unknown key policies.ann.learning_rat; did you mean 'learning_rate'?"),
        ("policies.ann.lora.rnk=1", "unknown key policies.ann.lora.rnk; did you mean 'rank'?"),
        ("policies.ann.lora={rank: 16}", "policies.ann: lora is set and weights is left out, which trains all of them"),
        ("sampling={max_new_tokens: 4, temprature: 1}", "sampling.temprature; did you mean 'temperature'?"),
        ("steps=many", "steps: input should be a valid integer, unable to parse string as an integer, found 'many'"),
        ("steps=0", "steps is 0; want at least 1"),
        ("steps=true", "steps: want a number, found True"),
        ("reset_every=true", "reset_every: want a number, found True"),
        ("seed=on", "seed: want a number, found True"),
        ("samples=no", "samples: want a number, found False"),
        ("workers=1", "workers: input should be a valid boolean, found 1"),
        ("steps=1:30", "steps: input should be a valid integer, unable to parse string as an integer, found '1:30'"),
        ("policies.ann.weights=half", "policies.ann.weights is 'half'; want one of full, lora, frozen"),
        (
            "sampling={max_new_tokens: 4, temperature: 1.0e-40}",
            "sampling.temperature is 1e-40; want 0 (greedy) or at least",
        ),
        ("sampling.max_new_tokens=[9, 4]", "sampling: sampling.max_new_tokens is (9, 4); want 1 <= low <= high"),
        ("roles.observer=bobb", "roles.observer names the policy 'bobb', which `policies` does not have; did you mean"),
        ("policies.eve=coevolve-tiny", "policies.eve plays no role"),
        (
            "algorithm={name: maac, critic: bobb}",
            "algorithm.critic names the policy 'bobb', which `policies` does not have",
        ),
        ("roles={}", "roles: dictionary should have at least 1 item"),
        ("task=null", "task: input should be a valid dictionary, found None"),
    ],
)
def test_a_mistake_names_its_key_and_the_nearest_known_one(recipe, override, said):
    path = recipe()
    with pytest.raises(ValueError) as error:
        load_recipe(path, [override])
    assert said in one_line(error)
    assert one_line(error).startswith(f"override '{override[:10]}")


def test_a_mistake_of_the_file_is_not_blamed_on_an_override(recipe):
    path = recipe(extra="stepz: 3")
    with pytest.raises(ValueError) as error:
        load_recipe(path, ["seed=1", "steps=2"])
    assert one_line(error).startswith(f"{path}: unknown key stepz")


def test_the_override_at_fault_is_named(recipe):
    with pytest.raises(ValueError, match=r"^override 'batchsize=3': unknown key batchsize"):
        load_recipe(recipe(), ["seed=1", "batchsize=3", "steps=2"])


@pytest.mark.parametrize("override", ["cluster=ray://head:10001", "learner.cluster=ray://head:10001"])
def test_the_ranks_of_a_recipe_go_to_a_cluster_by_one_word(recipe, override):
    found = load_recipe(recipe(extra="learner: {name: fsdp, ranks: 3}"), [override])
    assert found.learner == {"name": "fsdp", "ranks": 3, "cluster": "ray://head:10001"}


def test_a_critic_plays_no_role(recipe):
    found = load_recipe(recipe(), ["policies.eve=coevolve-tiny", "algorithm={name: maac, critic: eve}"])
    assert parts(found).algorithm.critic == ("eve",)
    several = ["policies.eve=coevolve-tiny", "algorithm={name: iac, critic: {ann: eve, bob: ann}}"]
    assert parts(load_recipe(recipe(), several)).algorithm.critic == ("eve", "ann")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "algorithm.learning_rate=1",
            "algorithm: unknown key learning_rate; learning_rate is a setting of a policy: policies.*.learning_rate",
        ),
        ("task.batch_size=4", "task: unknown key batch_size; batch_size is a setting of the recipe: batch_size, with"),
        ("play.temperature=1", "play: unknown key temperature; temperature is a setting of sampling: sampling.temp"),
        ("cast={name: exchange, eta: 1}", "cast: unknown key eta; eta is a setting of an algorithm: algorithm.eta"),
        ("algorithm.beta=1", "algorithm: unknown key beta; did you mean 'eta'?"),
        ("algorithm={name: magrpo, betas: 1}", "policies.NAME.betas for one; or did you mean 'beta'?; known"),
        ("play={name: best_of, n: 1, k: 2, keep_last: 3}", r"keep_last, with nothing before it; known: feedback, k, n"),
        ("task={name: arithmetic, judge: last-number}", "task: unknown key judge; known"),  # of other tasks
        (
            "engine={name: local, dtype: bfloat16}",
            "engine: unknown key dtype; dtype is a setting of a policy: policies",
        ),
        (
            "policies.ann.engine={name: local, steps: 3}",
            "policies.ann.engine: unknown key steps; steps is a setting of",
        ),
        ("algorithm.etta=1", "algorithm: unknown key etta; did you mean 'eta'?"),
        ("algorithm.eta=high", "algorithm: eta: input should be a valid number"),
        ("algorithm.credit=mine", "algorithm.credit: unknown name 'mine'"),
        ("algorithm=ppoo", "algorithm: unknown name 'ppoo'; did you mean 'ppo'?"),
        ("play.transfer=perhaps", "play: transfer: input should be a valid boolean"),
        ("cast={name: exchange, evry: 2}", "cast: unknown key evry; did you mean 'every'?"),
        ("cast={name: fixed, every: 2}", "cast: unknown key every; known: none"),
        ("task=imdb", "task: tokenizer: missing, and without a default"),
        ("task={batch: 3}", "task: want a name, or a mapping with `name`"),
        ("task=nowhere.py:Mine", "no file "),
    ],
)
def test_settings_of_a_component_are_checked_against_its_factory(recipe, override, said):
    found = load_recipe(recipe(), [override])
    with pytest.raises(ValueError) as error:
        parts(found)
    assert said in one_line(error)


def test_settings_are_coerced_and_given():
    cast = component({"name": "rotate", "every": "2"}, CASTS, "cast", roles={"a": "x", "b": "y"})
    assert [cast(step)["a"] for step in range(4)] == ["x", "x", "y", "y"]
    with pytest.raises(ValueError, match="cast: unknown key roles"):  # the recipe has no say in what is fixed
        component({"name": "rotate", "roles": {}}, CASTS, "cast", roles={"a": "x"})


def test_an_override_may_name_a_key_with_dots():
    tree = {"policies": {"qwen-1.7b": {"model": "a"}, "qwen-1": {"model": "b"}}, "roles": {"x.y": "z"}}
    found = apply_overrides(tree, ["policies.qwen-1.7b.model=c", "policies.*.seed=1", "roles.x.y=w", "roles.x.z=v"])
    assert found["policies"] == {"qwen-1.7b": {"model": "c", "seed": 1}, "qwen-1": {"model": "b", "seed": 1}}
    assert found["roles"] == {"x.y": "w", "x": {"z": "v"}}


def test_overrides_are_typed_and_leave_the_original_alone():
    tree = {"a": {"b": 1}}
    assert apply_overrides(tree, ["a.b=[1, x]", "a.c=1e-4", "d.e=true", "f=a=b", "g="]) == {
        "a": {"b": [1, "x"], "c": 1e-4},
        "d": {"e": True},
        "f": "a=b",
        "g": None,
    }
    assert tree == {"a": {"b": 1}}


def test_a_tilde_is_the_home_of_who_trains(recipe, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert load_recipe(recipe(), ["output_dir=~/runs/x"]).output_dir == Path("/home/me/runs/x")
    assert load_recipe(recipe(), ["output_dir=~there/~/x"]).output_dir == Path("~there/~/x")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *[("010", 10), ("-08", -8), ("1:30", "1:30"), ("1:30.5", "1:30.5"), ("0b1", "0b1"), ("1_000", 1000)],
        *[("0o17", 15), ("0x1F", 31), ("1e-4", 1e-4), ("12e45", 12e45), ("1.5", 1.5), ("-.5", -0.5), ("+3", 3)],
        *[("0", 0), ("1.", 1.0)],
    ],
)
def test_numbers_are_those_of_yaml_1_2(written, read):
    assert apply_overrides({}, [f"a={written}"]) == {"a": read}
    assert type(apply_overrides({}, [f"a={written}"])["a"]) is type(read)


@pytest.mark.parametrize("text", ["1e-4", "12e45", "010", "0o17", "1:30", "1_000", "yes", "null", "a: b", "1.5", "x"])
def test_a_text_that_looks_like_a_number_is_written_as_text(text, tmp_path):
    tree = {"task": {"name": text, "n": 3, "rate": 1e-4}}
    (tmp_path / "a.yaml").write_text(dump(tree))
    assert load_yaml(tmp_path / "a.yaml") == tree
    assert yaml.safe_load(dump(tree)) == tree  # by a reader of YAML 1.1, too


def test_a_text_of_any_alphabet_is_written_as_it_is(tmp_path):
    """Escapes are three times as long, and a file of settings has a limit."""
    tree = {"say": ["Скажи это ещё раз", "再说一遍", "\u2028\x85\ufeff\U0001f642 \x07"]}
    (tmp_path / "r.yaml").write_text(dump(tree), "utf-8")
    assert load_yaml(tmp_path / "r.yaml") == tree
    assert "再说一遍" in dump(tree)


def test_a_star_is_every_key_that_is_there():
    tree = {"policies": {"ann": {"lora": {}}, "bob": {"lora": {"rank": 8}}}, "steps": 3}
    assert apply_overrides(
        tree, ["policies.*.lora.rank=4", "policies.*.weights=lora", "policies.ann.weights=full"]
    ) == {
        "policies": {"ann": {"lora": {"rank": 4}, "weights": "full"}, "bob": {"lora": {"rank": 4}, "weights": "lora"}},
        "steps": 3,
    }
    assert apply_overrides({"a": {"b": {"x": 1}, "c": {"x": 2, "y": 3}}}, ["a.*.*=9"]) == {
        "a": {"b": {"x": 9}, "c": {"x": 9, "y": 9}}
    }


def test_a_star_below_a_key_that_is_none_is_told_with_the_nearest():
    with pytest.raises(ValueError, match=r"polices has no keys that \* could stand for; did you mean 'policies'\?$"):
        apply_overrides({"policies": {"ann": {}}}, ["polices.*.model=x"])


@pytest.mark.parametrize(("word", "near"), [("polcies", "; did you mean 'policies'?"), ("foo", ""), ("nope", "")])
def test_only_what_is_near_is_meant(word, near):
    """A guess at what is as near as any other word misleads."""
    assert did_you_mean(word, ["policies", "to_go", "compute"]) == near


@pytest.mark.parametrize(
    "override",
    ["steps", "=3", "a..b=3", "steps=[1", "task.name.deep=1", "nobody.*=1", "task.name.*=1", "task.*.deep=1"],
)
def test_a_bad_override_is_named(override):
    with pytest.raises(ValueError) as error:
        apply_overrides({"task": {"name": "sentiment"}}, [override])
    assert f"override {override!r}" in one_line(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2", ", line 2: not YAML"),
        ("a: 1\nb: 2\na: 3", ", line 3: not YAML: the key 'a' is there twice"),
        ("a: {1: 2}", ", line 1: not YAML: the key 1 is no text"),
        ("- a", "want keys and values, found list"),
        ("", "want keys and values, found nothing"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, text, said):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        load_yaml(path)
    assert one_line(error).startswith(str(path))
    assert said in one_line(error)


def test_a_missing_file_is_named_with_its_neighbour(recipe):
    path = recipe()
    with pytest.raises(ValueError, match=r"no file .*mein\.yaml; did you mean .*mine\.yaml"):
        load_yaml(path.with_name("mein.yaml"))


def test_a_recipe_is_laid_over_its_base(recipe):
    recipe(name="base.yaml", extra="cast: {name: exchange, every: 5}\nbatch_size: 8")
    path = recipe("base: base.yaml\ncast: fixed\npolicies: {ann: {learning_rate: 1.0}}", "child.yaml")
    found = load_recipe(path, ["batch_size=4"])
    assert found.cast == {"name": "fixed"}  # another name: its settings are not those of the base
    assert (found.policies["ann"].model, found.policies["ann"].learning_rate) == ("coevolve-tiny", 1.0)
    assert found.batch_size == 4
    assert found.output_dir == Path("runs/child-0")


def test_a_role_or_a_policy_may_be_called_name(recipe):
    """Of components alone, such as a policy's engine, another name drops the settings of the base."""
    roles = "{name: name, critic: bob, editor: name}"
    bob = "{model: m, weights: frozen, engine: {name: openai, url: 'http://there/v1'}}"
    base = f"task: sentiment\nplay: chain\nroles: {roles}\npolicies: {{name: coevolve-tiny, bob: {bob}}}\n"
    recipe(f"{base}algorithm: cory\n", "base.yaml")
    over = "policies: {name: {learning_rate: 1.0}, bob: {engine: vllm}}"
    found = load_recipe(recipe(f"base: base.yaml\nroles: {{name: bob}}\n{over}", "child.yaml"))
    assert found.roles == {"name": "bob", "critic": "bob", "editor": "name"}
    assert (found.policies["name"].model, found.policies["name"].learning_rate) == ("coevolve-tiny", 1.0)
    assert found.policies["bob"].engine == {"name": "vllm"}


@pytest.mark.parametrize("weights", ["full", "frozen"])
def test_weights_that_are_said_may_leave_the_adapter_of_the_base_out(recipe, weights):
    base = MINIMAL.replace("ann: coevolve-tiny", "ann: {model: coevolve-tiny, weights: lora, lora: {rank: 4}}")
    recipe(base, "base.yaml")
    path = recipe(f"base: base.yaml\npolicies: {{ann: {{weights: {weights}}}}}", "child.yaml")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = load_recipe(path)
    assert found.policies["ann"].weights == weights
    said = ["policy of coevolve-tiny: weights is full and lora is set, which is not used; say weights: lora if an"]
    assert [str(one.message).removesuffix(" adapter is to be trained") for one in told] == said * (weights == "full")


def test_null_removes_what_the_base_has(recipe):
    recipe(name="base.yaml")
    path = recipe("base: base.yaml\nroles: {observer: null}\npolicies: {bob: null}\nalgorithm: ppo", "child.yaml")
    found = load_recipe(path)
    assert found.roles == {"pioneer": "ann"}
    assert list(found.policies) == ["ann"]


def test_one_level_of_bases_is_the_limit(recipe):
    recipe(name="base.yaml", extra="base: other.yaml")
    with pytest.raises(ValueError, match="has a base itself"):
        load_recipe(recipe("base: base.yaml", "child.yaml"))


def test_files_are_relative_to_the_recipe_and_overrides_to_the_caller(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    found = load_recipe(recipe(), ["policies.ann.model=there/lm.yaml"])
    assert found.policies["ann"].model == "/there/lm.yaml"
    path = recipe(MINIMAL.replace("task: sentiment", "task: {name: 'my.py:Mine', reward_model: a/b.yaml}"))
    task = load_recipe(path).task
    assert task == {"name": f"{tmp_path}/my.py:Mine", "reward_model": f"{tmp_path}/a/b.yaml"}


MINE = """
from coevolve import score
from coevolve.types import Problem

class Mine:
    def __init__(self, *, size: int = 2) -> None:
        self.train = self.test = tuple(Problem(str(i)) for i in range(size))
    def prompt(self, p, role, heard):
        return "the"
    def reward(self, cases):
        return [[1.0 for _ in case.turns] for case in cases]

async def play(p, team):
    await score(team, [await team[role]() for role in team])

def maker(times: int):
    return play

TASK = Mine()
"""


def test_a_users_own_file_gives_a_class_a_maker_a_play_or_an_object(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    assert len(component({"name": f"{file}:Mine", "size": 3}, TASKS, "task").train) == 3
    assert component(f"{file}:TASK", TASKS, "task").train[0] == Problem("0")
    play = component(f"{file}:play", PLAYS, "play")
    assert component({"name": f"{file}:maker", "times": 2}, PLAYS, "play") is play
    with pytest.raises(ValueError, match="is the play itself and takes no settings; found times"):
        component({"name": f"{file}:play", "times": 2}, PLAYS, "play")
    with pytest.raises(ValueError, match="unknown key sice; did you mean 'size'"):
        component({"name": f"{file}:Mine", "sice": 2}, TASKS, "task")
    with pytest.raises(ValueError, match="has no 'mine'; did you mean 'Mine'"):
        component(f"{file}:mine", TASKS, "task")


def test_a_users_file_may_import_types_for_checkers_alone(tmp_path):
    """And its cast need not ask for the roles."""
    file = tmp_path / "typed.py"
    file.write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from coevolve.types import Play\n\n\n"
        "def maker(n: int = 2, like: Play | None = None) -> Play:\n    async def play(p, team):\n        pass\n\n"
        "    return play\n\n\ndef cast(every: int = 3) -> Cast:\n    return lambda step: {'a': every}\n"
    )
    assert callable(component({"name": f"{file}:maker", "n": 3}, PLAYS, "play"))
    with pytest.raises(ValueError, match="play: n: input should be a valid integer"):
        component({"name": f"{file}:maker", "n": "many"}, PLAYS, "play")
    assert component({"name": f"{file}:cast", "every": 4}, CASTS, "cast", roles={"a": "x"})(0) == {"a": 4}


def test_a_users_file_that_does_not_import_is_named(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import nothing_of_this_name")
    with pytest.raises(ValueError, match=r"broken\.py cannot be imported: ModuleNotFoundError"):
        component(f"{file}:Mine", TASKS, "task")


def test_a_setting_of_several_types_is_named_without_them():
    with pytest.raises(ValueError, match=r"^play: done: input should be a valid number"):
        component({"name": "rounds", "done": "soon"}, PLAYS, "play")
    with pytest.raises(ValueError, match=r"^play: feedback: input should be a valid boolean"):
        component({"name": "rounds", "feedback": "fb.py:note"}, PLAYS, "play")


def test_an_algorithm_that_is_none_is_told(recipe, tmp_path):
    """A function of the user's own that forgot to return one."""
    (tmp_path / "mine.py").write_text("def mine():\n    pass\n")
    with pytest.raises(
        ValueError, match=r"algorithm .*mine\.py:mine returned None; want an Algorithm, such as replace"
    ):
        parts(load_recipe(recipe(), [f"algorithm={tmp_path / 'mine.py'}:mine"]))


def test_a_guess_does_not_look_at_capitals():
    assert did_you_mean("GRPO", ["grpo", "cory"]) == "; did you mean 'grpo'?"


@pytest.mark.parametrize(
    ("bob", "engine", "match"),
    [
        (
            "{model: coevolve-tiny}",
            "{name: vllm}",
            "policy 'ann' has full weights, of which a server holds one set; give",
        ),
        ("{model: coevolve-sums}", "{name: sglang, url: h}", "has coevolve-tiny, coevolve-sums; .*: policies.X.engine"),
    ],
)
def test_a_team_that_one_server_cannot_hold_is_refused_before_anything_is_loaded(recipe, bob, engine, match):
    rest = "task: sentiment\nplay: chain\nroles: {{a: ann, b: bob}}\nalgorithm: cory\n"
    team = rest + "policies: {{ann: {}, bob: {}}}\nengine: {}\n"
    with pytest.raises(ValueError, match=match):
        parts(load_recipe(recipe(team.format("coevolve-tiny", bob, engine))))
    parts(load_recipe(recipe(team.format("coevolve-tiny", bob.replace("}", ", engine: vllm}"), engine))))
    parts(load_recipe(recipe(team.format("coevolve-tiny", bob, "local"))))
    adapter = "{model: coevolve-tiny, weights: lora}"
    parts(load_recipe(recipe(team.format(adapter, adapter, engine))))


TEAM = "task: sentiment\nplay: chain\nroles: {a: ann, b: bob}\nalgorithm: cory\npolicies: {ann: %s, bob: %s}\n"


def test_policies_at_one_address_are_one_team_whoever_names_it(recipe):
    """Else a frozen partner would speak with its partner's weights."""
    here = "engine: {name: vllm, url: 'http://there:8000'}"
    full, frozen = (
        f"{{model: coevolve-tiny, {here}}}",
        "{model: coevolve-tiny, weights: frozen, engine: {name: vllm, url: 'http://there:8000/'}}",
    )
    for team in (
        TEAM % (full, frozen),
        TEAM % (full, full),
        TEAM % (full, "{model: coevolve-tiny, weights: frozen}") + here,
    ):
        with pytest.raises(
            ValueError, match="policy 'ann' has full weights, of which a server holds one set; give each"
        ):
            parts(load_recipe(recipe(team)))
    adapter = f"{{model: coevolve-tiny, weights: lora, {here}}}"
    parts(load_recipe(recipe(TEAM % (adapter, frozen))))
    parts(load_recipe(recipe(TEAM % (full, frozen.replace("8000", "8001")))))
    with pytest.raises(ValueError, match="policy 'ann' has full weights"):
        parts(load_recipe(recipe(TEAM % (full, frozen.replace("vllm", "openai")))))
    two = ("coevolve-tiny", "coevolve-sums")
    there = "engine: {name: openai, url: 'http://there', model: "
    partners = [f"{{model: {name}, weights: frozen, {there}{name}}}}}" for name in two]
    parts(load_recipe(recipe(TEAM % tuple(partners))))


def test_a_critic_that_never_speaks_needs_no_server(recipe):
    adapter = "{model: coevolve-tiny, weights: lora}"
    team = TEAM.replace("chain", "rounds").replace("cory", "{name: maac, critic: eve}") % (adapter, adapter)
    parts(load_recipe(recipe(team.replace("bob: {", "eve: coevolve-sums, bob: {") + "engine: vllm\n")))


def test_a_name_alone_keeps_the_settings_of_what_is_called_so(recipe):
    path = recipe(MINIMAL.replace("algorithm: cory", "algorithm: {name: cory, eta: 0.7}"))
    assert load_recipe(path, ["algorithm=cory"]).algorithm == {"name": "cory", "eta": 0.7}
    assert load_recipe(path, ["algorithm={name: cory}"]).algorithm == {"name": "cory"}
    assert load_recipe(path, ["algorithm=magrpo"]).algorithm == {"name": "magrpo"}
    found = load_recipe(path, ["policies.bob=coevolve-sums"]).policies["bob"]
    assert (found.model, found.learning_rate) == ("coevolve-sums", 1e-4)
    assert load_recipe(path, ["policies.bob={model: coevolve-sums}"]).policies["bob"].learning_rate != 1e-4


def test_an_override_that_undoes_another_is_refused(recipe):
    path = recipe()
    assert load_recipe(path, ["algorithm=ppo", "algorithm.eta=0.5"]).algorithm == {"name": "ppo", "eta": 0.5}
    assert load_recipe(path, ["algorithm.eta=0.5", "algorithm=cory"]).algorithm["eta"] == 0.5
    with pytest.raises(
        ValueError, match=r"'algorithm=ppo': it replaces all of algorithm, also what algorithm\.eta=0\.5"
    ):
        load_recipe(path, ["algorithm.eta=0.5", "algorithm=ppo"])
    for undone in ("policies.bob.learning_rate=1", "policies.*.learning_rate=1", "policies.bob.lora={rank: 3}"):
        with pytest.raises(ValueError, match=f"replaces all of policies.bob, also what {re.escape(undone)} set before"):
            load_recipe(path, [undone, "policies.bob={model: coevolve-tiny}"])
    more = load_recipe(path, ["policies.bob.learning_rate=1", "policies.bob={model: coevolve-tiny, learning_rate: 2}"])
    assert more.policies["bob"].learning_rate == 2
    assert load_recipe(path, ["algorithm.credit={name: to_go}", "algorithm.credit=null"])
