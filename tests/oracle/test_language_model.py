"""The same with real language models: sampling engine, collate, annotate and the very update of the trainer.

Letters: N groups, B rows, W distinct (prompt, token) pairs, P weights. A row's gradient is its loss's slope by its
log-probability times the gradient of that log-probability, so all groups' gradients, and with them the sampling error,
come from one gradient per pair. Their mean must be what ``update`` hands to the optimiser.
"""

import copy

import pytest
import torch
from cases import PROTOCOLS
from compare import LIMIT, distance
from exact import ROLES, WORTHS, chance, expected
from lesson_cases import collated
from policy_cases import handed_over
from sample import slopes, targets_of
from tabular import TOKENS

from coevolve import LocalEngine, PolicySpec, build_policies
from coevolve.algorithms import cory, magrpo, mareinforce, marloo
from coevolve.rollout import Stage, rollout
from coevolve.tasks.games import MODEL, Game
from coevolve.types import Problem, Sampling

GROUPS, MEMBERS = 300, 4
BETA = 0.5
BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}
CAST = {role: role for role in ROLES}


@pytest.fixture(scope="module")
def policies():
    """Two policies that differ, far from even; the reference is the packaged coin. Updates change nothing."""
    spec = PolicySpec(MODEL, learning_rate=1e-30)
    made = build_policies(dict.fromkeys(ROLES, spec), reference=True, critic=True, steps=1, seed=0)
    generator = torch.Generator().manual_seed(4)
    for policy in made.values():
        with torch.no_grad():
            for weight in policy.weights.parameters():
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return made


@pytest.fixture(scope="module")
def episodes(policies):
    kept = {}

    def play(name):
        if name not in kept:
            protocol = BY_NAME[name]
            stage = Stage(CAST, Game(game=protocol.game), LocalEngine(policies), Sampling(1))
            problems = [Problem(str(i)) for i in range(GROUPS)]
            kept[name] = rollout(protocol.play, problems, stage, members=1 if protocol.members == 1 else MEMBERS)
        return kept[name]

    return play


def token_logps(policy, prompt):
    """log pi of all four tokens, by a plain forward of the transformers model."""
    causal = policy.weights.base.causal
    ids = torch.tensor([[TOKENS.index(token) for token in prompt]])
    return causal(input_ids=ids).logits[0, -1].log_softmax(-1)


def gradient(scalar, policy):
    """By all weights of the policy's model, in one line, [P]."""
    found = torch.autograd.grad(scalar, policy.weights.parameters(), retain_graph=True, allow_unused=True)
    return torch.cat([
        (torch.zeros_like(w) if g is None else g).flatten()
        for g, w in zip(found, policy.weights.parameters(), strict=True)
    ])  # fmt: skip


def objective(protocol, policies, role, worth, beta):
    """The exact expected return, less the KL of a first move; C and c are the same move."""
    kept = {}

    def logp(choice):
        place = (choice.role, choice.prompt)
        if place not in kept:
            kept[place] = token_logps(policies[choice.role], choice.prompt)
        return kept[place][["CD".index(choice.move), "cd".index(choice.move.lower()) + 2]].logsumexp(0)

    assert sum(chance(way, logp) for way in protocol.ways).item() == pytest.approx(1.0, abs=1e-5)
    total = expected(protocol.ways, logp, role, worth, 1.0)
    logp_V = token_logps(policies[role], "c")
    return total - beta * (logp_V.exp() * (logp_V - torch.tensor(0.25).log())).sum()


def by_group(policy, batch, algorithm, groups_B):
    """The gradient of every group, [N, P]."""
    said = [("".join(TOKENS[i] for i in ids[:start]), ids[start]) for ids, start in zip(
        batch.ids_BS.tolist(), batch.start_B.tolist(), strict=True)]  # fmt: skip
    pairs = sorted(set(said))
    gradient_WP = torch.stack([gradient(token_logps(policy, prompt)[token], policy) for prompt, token in pairs])
    pair_B = torch.tensor([pairs.index(one) for one in said])
    slope_B = slopes(algorithm, batch, []).sum(1)
    cells = torch.bincount(groups_B * len(pairs) + pair_B, slope_B, GROUPS * len(pairs)).view(GROUPS, -1)
    return GROUPS * cells @ gradient_WP.double()


CASES = [
    ("chain", marloo(), 1.0, 0.0),
    ("chain", cory(eta=0.0, whiten=False, epochs=1), 1.0, 0.0),
    ("rounds(1), chicken", marloo(beta=BETA, kl="loss", estimator="k2"), 1.0, BETA),
    ("rounds(1), chicken", marloo(beta=BETA, kl="reward", estimator="k1"), 1.0, BETA),
    ("rounds(2)", marloo(credit="own_return"), 1.0, 0.0),
    ("rounds(2)", magrpo(), 3 / 4, 0.0),
    ("tree(2, 2), cross", mareinforce(clip=0.2), 1.0, 0.0),
    ("discussion(1)", marloo(), 1.0, 0.0),
]


@pytest.mark.parametrize(("name", "algorithm", "factor", "beta"), CASES, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("role", ROLES)
def test_an_update_follows_the_exact_gradient(policies, episodes, name, algorithm, factor, beta, role):
    policy, played = policies[role], episodes(name)
    batch = policy.describe(collated(played, algorithm.credit, role))
    targets = targets_of(algorithm, batch, played)
    before = copy.deepcopy(policy.weights.base.causal.state_dict())
    found = handed_over(policy, lambda: policy.update(batch, targets, algorithm.objective, 0))
    assert all(torch.equal(value, before[key]) for key, value in policy.weights.base.causal.state_dict().items())
    taken_P = -torch.cat([found[weight].flatten() for weight in policy.weights.parameters()]).double()

    groups_B = torch.tensor([int(t.problem.id) for e in played for t in e.turns if t.policy == role])
    found_NP = by_group(policy, batch, algorithm, groups_B)
    assert torch.allclose(found_NP.mean(0), taken_P, rtol=1e-3, atol=1e-4)

    worth = WORTHS[algorithm.settings["credit"]]
    want_P = factor * gradient(objective(BY_NAME[name], policies, role, worth, beta), policy).double()
    error_P = found_NP.std(0) / GROUPS**0.5
    assert distance(taken_P, want_P, error_P.clamp(min=1e-6)) < LIMIT
    assert distance(taken_P, 0 * want_P, error_P.clamp(min=1e-6)) > LIMIT  # or it could not have failed
