"""Wrong settings, in Python and in a recipe: one line, the same, that names the key."""

import inspect
import math

import pytest
from toy import toy

from coevolve import LoraSpec, PolicySpec, Sampling, chain, cory, fixed, magrpo, ppo, rounds
from coevolve.algorithms import ALGORITHMS
from coevolve.cast import CASTS
from coevolve.credit import CREDITS, to_go
from coevolve.plays import PLAYS
from coevolve.recipe.components import component

REGISTRIES = {"algorithm": ALGORITHMS, "algorithm.credit": CREDITS, "play": PLAYS, "cast": CASTS}
ROLES = {"a": "x", "b": "y"}
LONG = 10**5000
"""More digits than Python prints."""

WRONG = [
    (
        "algorithm",
        "magrpo",
        {"std": "grop"},
        "std is 'grop'; want one of none, group, agent, team; did you mean 'group'?",
    ),
    ("algorithm", "ppo", {"clip": "foo"}, "clip: input should be a valid number"),
    ("algorithm", "ppo", {"gamma": 1.01}, "gamma is 1.01; want at most 1"),
    ("algorithm", "ppo", {"gamma": 2}, "gamma is 2; want at most 1"),
    ("algorithm", "ppo", {"gamma": -0.01}, "gamma is -0.01; want at least 0"),
    ("algorithm", "ppo", {"lam": 1.01}, "lam is 1.01; want at most 1"),
    ("algorithm", "ppo", {"lam": -0.01}, "lam is -0.01; want at least 0"),
    ("algorithm", "ppo", {"eta": -0.1}, "eta is -0.1; want at least 0"),
    ("algorithm", "ppo", {"target_kl": 0}, "target_kl is 0; want above 0"),
    ("algorithm", "ppo", {"horizon": 0}, "horizon is 0; want at least 1"),
    ("algorithm", "ppo", {"clip": 0}, "clip is 0; want above 0"),
    ("algorithm", "ppo", {"value_clip": 0}, "value_clip is 0; want above 0"),
    ("algorithm", "ppo", {"value_coef": -1}, "value_coef is -1; want at least 0"),
    ("algorithm", "ppo", {"score_clip": 0}, "score_clip is 0; want above 0"),
    ("algorithm", "cory", {"epochs": 0}, "epochs is 0; want at least 1"),
    ("algorithm", "cory", {"minibatch": 0}, "minibatch is 0; want at least 1"),
    ("algorithm", "cory", {"epochs": True}, "epochs: want a number, found True"),
    ("algorithm", "cory", {"epochs": LONG}, "epochs: want a number below 2 ** 63, found one of 16610 bits"),
    ("algorithm.credit", "to_go", {"gamma": 1.01}, "gamma is 1.01; want at most 1"),
    ("algorithm.credit", "team_return", {"gamma": -0.01}, "gamma is -0.01; want at least 0"),
    ("algorithm", "rloo", {"beta": -0.01}, "beta is -0.01; want at least 0"),
    ("algorithm", "grpo", {"clip": 0}, "clip is 0; want above 0"),
    ("algorithm", "grpo", {"epochs": 0}, "epochs is 0; want at least 1"),
    ("algorithm", "grpo", {"minibatch": 0}, "minibatch is 0; want at least 1"),
    ("algorithm", "grpo", {"bta": 1}, "unknown key bta; did you mean 'beta'?"),
    ("play", "tree", {"n": 2, "k": 2, "joint": "crossed"}, "joint is 'crossed'; want one of aligned, cross"),
    ("play", "tree", {"n": 0, "k": 2}, "n is 0; want at least 1"),
    ("play", "tree", {"n": 1, "k": 1}, "k is 1; want at least 2"),
    ("play", "tree", {"n": 1}, "k: missing, and without a default"),
    ("play", "tree", {}, "n: missing, and without a default; so is k"),
    ("play", "best_of", {"n": 0, "k": 2}, "n is 0; want at least 1"),
    ("play", "best_of", {"n": 1, "k": 1}, "k is 1; want at least 2"),
    ("play", "best_of", {"n": 2, "k": 2, "weights": [1, 0]}, "weights.1 is 0; want above 0"),
    ("play", "best_of", {"n": 2, "k": 2, "weights": [1.0]}, "weights are [1.0]; want 2, one per turn"),
    ("play", "rounds", {"n": 0}, "n is 0; want at least 1"),
    ("play", "rounds", {"n": 1.5}, "n: input should be a valid integer"),
    ("play", "rounds", {"done": math.inf}, "done is inf; want a finite number"),
    ("play", "discussion", {"n": 0}, "n is 0; want at least 1"),
    ("play", "chain", {"transfer": "perhaps"}, "transfer: input should be a valid boolean"),
    ("cast", "rotate", {"every": 0}, "every is 0; want at least 1"),
    ("cast", "exchange", {"every": 2.5}, "every: input should be a valid integer"),
]


def said(call):
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("kind", "name", "settings", "want"), WRONG)
def test_python_and_recipe_say_the_same(kind, name, settings, want):
    fixed_ones = {"roles": ROLES} if kind == "cast" else {}
    python = said(lambda: REGISTRIES[kind][name](**fixed_ones, **settings))
    recipe = said(lambda: component({"name": name, **settings}, REGISTRIES[kind], kind, **fixed_ones)())
    assert python.startswith(f"{kind}: {want}")
    assert recipe == python


NEEDED = {
    "tree": {"n": 2, "k": 2}, "best_of": {"n": 2, "k": 2}, "resampled": {"k": 2}, "observers": {"m": 2},
    "misheard": {"rate": 0.5}, "tools": {"functions": [max]},
    "compared": {"by": max}, "marlhf": {"judge": "judge"}, "maac": {"critic": "judge"},
}  # fmt: skip
"""Settings without a default."""

MAKERS = {
    **{name: (maker, NEEDED.get(name, {})) for name, maker in ALGORITHMS.items()},
    **{name: (maker, NEEDED.get(name, {})) for name, maker in PLAYS.items()},
    **{name: (maker, {"roles": ROLES}) for name, maker in CASTS.items()},
    **{name: (maker, NEEDED.get(name, {})) for name, maker in CREDITS.items()},
    "Sampling": (Sampling, {"max_new_tokens": 4}),
    "PolicySpec": (PolicySpec, {"model": "m"}),
    "LoraSpec": (LoraSpec, {}),
}
SETTINGS = [
    (name, parameter)
    for name, (maker, _) in MAKERS.items()
    for parameter in inspect.signature(maker).parameters
    if (name, parameter) != ("LoraSpec", "targets")
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, LONG], ids=["nan", "inf", "-inf", "long"])
@pytest.mark.parametrize(("name", "parameter"), SETTINGS)
def test_no_setting_takes_what_is_no_number(name, parameter, value):
    maker, needed = MAKERS[name]
    if (parameter, value) == ("done", LONG):
        return  # a threshold that nothing reaches
    assert parameter in said(lambda: maker(**{**needed, parameter: value}))


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; want at least 0"),
        ({"top_p": 0}, "top_p is 0; want above 0"),
        ({"top_p": 1.01}, "top_p is 1.01; want at most 1"),
        ({"top_k": -1}, "top_k is -1; want at least 0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; want above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; want at least 1"),
        ({"max_new_tokens": (0, 3)}, "max_new_tokens is (0, 3); want 1 <= low <= high"),
        ({"max_new_tokens": (4, 3)}, "max_new_tokens is (4, 3); want 1 <= low <= high"),
    ],
)
def test_sampling(settings, want):
    message = said(lambda: Sampling(**{"max_new_tokens": 4, **settings}))
    assert message.startswith("sampling")
    assert want in message


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({"learning_rate": 0}, "learning_rate is 0; want above 0"),
        ({"betas": (0.9, 1)}, "betas.1 is 1; want below 1"),
        ({"betas": (-0.1, 0.9)}, "betas.0 is -0.1; want at least 0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; want at least 0"),
        ({"max_grad_norm": 0}, "max_grad_norm is 0; want above 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1; want at least 0"),
        ({"value_learning_rate": 0}, "value_learning_rate is 0; want above 0"),
        ({"micro_tokens": 0}, "micro_tokens is 0; want at least 1"),
        ({"schedule": "cosin"}, "schedule is 'cosin'; want one of constant, linear, cosine; did you mean 'cosine'?"),
        ({"chat": 3}, "chat"),
        ({"lora": {"rank": 0}}, "lora.rank is 0; want at least 1"),
    ],
)
def test_policy(settings, want):
    assert want in said(lambda: PolicySpec(model="m", **settings))


@pytest.mark.parametrize(
    ("credit", "want"),
    [
        ("own", "algorithm.credit: unknown name 'own'; known: compared, counterfactual, crossed, difference,"),
        ({"name": "to_go", "gamma": 2}, "algorithm.credit: gamma is 2; want at most 1"),
        ({"name": "to_go", "gama": 1}, "algorithm.credit: unknown key gama; did you mean 'gamma'?"),
        (to_go, "algorithm.credit is the function to_go; call it: to_go(...)"),
    ],
)
def test_credit(credit, want):
    for make in (ppo, magrpo):
        assert said(lambda make=make: make(credit=credit)).startswith(want)


def test_lora():
    assert said(lambda: LoraSpec(rank=0)) == "lora: rank is 0; want at least 1"
    assert said(lambda: LoraSpec(alpha=0)) == "lora: alpha is 0; want at least 1"
    assert "targets" in said(lambda: LoraSpec(targets=[]))


def test_ranges_include_their_ends():
    assert ppo(gamma=0, lam=0, eta=0, value_coef=0, epochs=1, minibatch=1).settings["lam"] == 0.0
    assert ppo(target_kl=1, horizon=1).settings["horizon"] == 1
    assert ppo(gamma=1, lam=1).settings["gamma"] == 1.0
    assert magrpo(beta=0).settings["beta"] == 0.0
    assert Sampling(1, temperature=0, top_p=1, top_k=0).max_new_tokens == 1
    assert Sampling([2, 2]).length_range == (2, 2)
    assert PolicySpec("m", betas=[0, 0.5], warmup_steps=0, weight_decay=0, micro_tokens=1).betas == (0.0, 0.5)
    assert LoraSpec(rank=1, alpha=1).rank == 1


def test_a_call_that_python_would_not_take_is_one_line_too():
    assert said(lambda: rounds(2, n=3)) == "play: multiple values for argument 'n'"
    assert said(lambda: chain(True, 1)) == "play: too many positional arguments"
    assert said(lambda: magrpo("group")) == said(lambda: cory(3)) == "algorithm: too many positional arguments"
    assert said(lambda: fixed({})).startswith("cast: roles: dictionary should have at least 1 item")
    assert said(lambda: fixed({"a": 1})).startswith("cast: roles.a: input should be a valid string")


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({"steps": 0}, "trainer: steps is 0; want at least 1"),
        ({"batch_size": 1.5}, "trainer: batch_size: input should be a valid integer"),
        ({"members": True}, "trainer: members: want a number, found True"),
        ({"seed": -1}, "trainer: seed is -1; want at least 0"),
        ({"batch_size": 10**13}, "a step would be of 20,000,000,000,000 turns at least (batch_size x members x roles)"),
        ({"steps": 10**18, "members": 10**9}, "a step would be of 16,000,000,000 turns at least"),
        ({"reset_every": 0}, "trainer: reset_every is 0; want at least 1"),
        ({"algorithm": cory}, "trainer: algorithm is the function cory; call it: cory(...)"),
        ({"play": chain}, "trainer: play is the function chain; call it: chain(...)"),
        ({"play": None}, "trainer: play is None; want an async function"),
        ({"algorithm": "cory"}, "trainer: algorithm is 'cory'; want an Algorithm"),
        ({"sampling": 16}, "trainer: sampling is 16; want a Sampling"),
        ({"cast": {"pioneer": "ann"}}, "trainer: cast is {'pioneer': 'ann'}; want a function of the step"),
    ],
)
def test_trainer(settings, want):
    assert said(lambda: toy("nobody loads this", **settings)).startswith(want)


@pytest.mark.parametrize("settings", [{"save_every": 0}, {"keep_last": 0}, {"samples": -1}])
def test_run(micro_model, tmp_path, settings):
    [name] = settings
    assert said(lambda: toy(micro_model).run(tmp_path, **settings)).startswith(f"run: {name} is ")
    assert not any(tmp_path.iterdir())


GROUPS = {
    "baseline": "mean", "std": "none", "group": "peers", "decay": 0.95,
    "credit": "team_return", "clip": None, "epochs": 1, "minibatch": None,
    "loss_aggregation": "sequence", "beta": 0.0, "kl": "loss", "estimator": "k3", "ratio": "token", "entropy": 0.0,
    "drop_flat": False, "resample": 0, "mismatch": "none",
}  # fmt: skip
CRITICS = {
    "value": "v", "credit": "team_return", "gamma": 1.0, "lam": 0.0, "whiten": True, "value_coef": 1.2,
    "value_clip": None, "value_norm": False, "clip": None, "epochs": 1, "minibatch": None,
}  # fmt: skip
DEFAULTS = {
    "magrpo": GROUPS,
    "marloo": GROUPS | {"baseline": "loo"},
    "maremax": GROUPS | {"baseline": "max"},
    "mareinforce": GROUPS | {"baseline": "none"},
    "grpo": GROUPS | {"std": "group", "clip": 0.2, "loss_aggregation": "turn", "beta": 0.04},
    "dr_grpo": GROUPS | {"clip": 0.2},
    "dapo": GROUPS
    | {"std": "group", "clip": (0.2, 0.28), "loss_aggregation": "token", "drop_flat": True, "resample": 3},
    "gspo": GROUPS | {"std": "group", "clip": (3e-4, 4e-4), "ratio": "turn", "loss_aggregation": "turn"},
    "cispo": GROUPS | {"std": "group", "clip": (1.0, 4.0), "ratio": "detached", "loss_aggregation": "token"},
    "rloo": GROUPS | {"baseline": "loo", "beta": 0.05, "kl": "reward", "estimator": "k1"},
    "reinforce": GROUPS | {"baseline": "none"},
    "hindsight": {
        "cap": 1.0,
        "credit": "own_reward",
        "clip": None,
        "epochs": 1,
        "minibatch": None,
        "beta": 0.0,
    },
    "madpo": {
        "beta": 0.1,
        "margin": "joint",
        "pairs": 1,
        "reference": True,
        "credit": "team_return",
        "epochs": 1,
        "minibatch": None,
    },
    "marlhf": {"agents": "magrpo", "warmup": 0, "pairs": None},
    "iac": CRITICS | {"critic": None, "value_clip": 0.2},
    "maac": CRITICS,
    "chain": {"transfer": True},
    "rounds": {"n": 1, "feedback": False, "done": None},
    "tree": {"joint": "aligned", "feedback": False, "done": None},
    "best_of": {"feedback": False, "weights": None},
    "discussion": {"n": 1},
    "resampled": {"n": 1, "feedback": False},
    "observers": {},
    "hinted": {},
    "misheard": {},
    "own_reward": {},
    "team_sum": {},
    "team_mean": {},
    "to_go": {"gamma": 1.0},
    "own_return": {"gamma": 1.0},
    "team_return": {"gamma": 1.0},
    "first_joint": {},
    "compared": {},
    "fixed": {},
    "rotate": {"every": 5},
    "exchange": {"every": 5},
    "Sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
    "LoraSpec": {"rank": 16, "alpha": 16, "targets": "all-linear"},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_what_the_docs_say(name):
    parameters = inspect.signature(MAKERS[name][0]).parameters.values()
    assert {p.name: p.default for p in parameters if p.default is not p.empty} == DEFAULTS[name]
