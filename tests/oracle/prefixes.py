"""A table for every prefix of a response of several tokens, and every response there can be.

Letters: B responses, T tokens, V vocabulary.
"""

import itertools

import torch
from lesson_cases import targets_of
from policy_cases import batch_of

from coevolve.types import Outputs

V, ETA = 3, 0.7


class Tables:
    """Logits for every prefix, those of a reference, and a pay for every response."""

    def __init__(self, seed, tokens=3):
        responses = list(itertools.product(range(V), repeat=tokens))
        prefixes = [r for t in range(tokens) for r in itertools.product(range(V), repeat=t)]
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.logits = draw(len(prefixes), V).requires_grad_()
        self.ref = (2 * draw(len(prefixes), V)).log_softmax(-1)
        self.pay_B = draw(len(responses))
        self.state_BT = torch.tensor([[prefixes.index(r[:t]) for t in range(tokens)] for r in responses])
        self.action_BT = torch.tensor(responses)

    def said(self):
        """log pi of every token, and the KL over the vocabulary where it was drawn; both differentiable."""
        logp = self.logits.log_softmax(-1)
        kl = (logp.exp() * (logp - self.ref)).sum(-1)
        return logp[self.state_BT].gather(-1, self.action_BT[..., None])[..., 0], kl[self.state_BT]

    def batch(self):
        """All responses, as sampled by this policy."""
        logp_BT, kl_BT = (x.detach() for x in self.said())
        ref_BT = self.ref[self.state_BT].gather(-1, self.action_BT[..., None])[..., 0]
        made = batch_of([[1]] * len(self.pay_B), self.action_BT.tolist(), 0)
        return made.replace(
            logp_BT=logp_BT, kl_BT=kl_BT, logp_ref_BT=ref_BT, credit_B=self.pay_B, value_BT=torch.zeros_like(kl_BT)
        )

    def truth(self, eta=ETA):
        """The gradient of the expected pay less eta times the expected sum of the KL."""
        logp_BT, kl_BT = self.said()
        total = (logp_BT.sum(1).exp() * (self.pay_B - eta * kl_BT.sum(1))).sum()
        return torch.autograd.grad(total, self.logits)[0]

    def estimates(self, rule, sampled_BT=None):
        """What the package makes of every single response, [B, states, V]. sampled_BT: another sampler's log pi'."""
        batch = self.batch()
        batch = batch if sampled_BT is None else batch.replace(logp_BT=sampled_BT)
        targets, found = targets_of(rule, batch), []
        for b in range(len(self.pay_B)):
            logp_BT, kl_BT = self.said()
            weight_BT = torch.zeros_like(logp_BT)
            weight_BT[b] = 1.0
            out = Outputs(logp_BT, batch.value_BT, torch.zeros_like(kl_BT), kl_BT if rule.objective.kl else None)
            loss, _ = rule.objective.loss(out, batch, targets, weight_BT)
            found.append(torch.autograd.grad(-loss, self.logits)[0])
        return torch.stack(found)

    def mean(self, found, sampled_BT=None):
        """By how probable each response is, to this policy or to the sampler."""
        logp_BT = self.batch().logp_BT if sampled_BT is None else sampled_BT
        return torch.einsum("b,bsv->sv", logp_BT.sum(1).exp(), found)
