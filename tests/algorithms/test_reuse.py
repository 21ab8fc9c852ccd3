"""Settings by which a batch is used again, and how far a policy may move in it: every algorithm hands them on."""

import math

import pytest
import torch
from lesson_cases import lesson, paid, spoke

from coevolve import Outputs
from coevolve.algorithms import ALGORITHMS
from coevolve.types import Targets

NAMED = {"maac": {"critic": "judge"}, "marlhf": {"judge": "judge"}}
WITHIN = {"marlhf"}
"""Whose settings are those of the algorithm that it is given."""
UNCLIPPED = {"madpo", "trpo"}
"""Which have no ratio, or one that is held by a KL."""
DETACHED = {"cispo": {0.5: [1.5, 1.4], 0.2: [1.2, 1.2]}}
"""Whose ratio is a weight without a gradient: the clip bounds it, and the log-probability keeps its own."""


def given(name, **settings):
    own = NAMED.get(name, {})
    return ALGORITHMS[name](**own, **({"agents": {"name": "magrpo", **settings}} if name in WITHIN else settings))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_passes_and_mini_batches_are_those_of_the_objective(name):
    clip = {} if name in UNCLIPPED else {"clip": 0.2}
    objective = given(name, epochs=3, minibatch=5, **clip).objective
    assert (objective.epochs, objective.minibatch) == (3, 5)
    if name != "trpo":  # which has nothing to hold a policy by in a batch's only step
        once = given(name, epochs=1, minibatch=None, **clip).objective
        assert (once.epochs, once.minibatch) == (1, None)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in UNCLIPPED])
@pytest.mark.parametrize(("clip", "slopes"), [(0.5, [0.0, 1.4]), (0.2, [0.0, 0.0])])
def test_a_clip_takes_the_gradient_beyond_it_away(name, clip, slopes):
    """Ratios of 2 and 1.4 under an advantage of 1: neither has a gradient beyond 1 + clip."""
    rule, after = given(name, clip=clip), torch.tensor([[math.log(2)], [math.log(1.4)]])
    made = lesson(given("magrpo"), [paid((1.0,), spoke("x", "ann", "C", member=m)) for m in range(2)])
    zero_BT = torch.zeros(2, 1)
    batch = made.batches["ann"].replace(value_BT=zero_BT, kl_BT=zero_BT, logp_ref_BT=zero_BT)
    parts = [x.clone().requires_grad_() for x in (after, zero_BT, zero_BT, zero_BT)]
    aims = Targets(torch.ones(2, 1), return_BT=zero_BT)
    loss, _ = rule.objective.loss(Outputs(*parts), batch, aims, torch.ones(2, 1))
    want = DETACHED.get(name, {}).get(clip, slopes)
    assert torch.autograd.grad(-loss, parts[0])[0][:, 0].tolist() == pytest.approx(want)
