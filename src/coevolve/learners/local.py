"""A learner in this process: it computes what a batch lacks (``describe``) and trains on it (``update``).

Letters: B rows, T action tokens, N the action tokens of all rows in one line, W hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from coevolve.compute import forward
from coevolve.compute.backend import about
from coevolve.compute.checkpointing import checkpointing
from coevolve.compute.logprobs import log_softmax, pieces
from coevolve.interfaces import Reference
from coevolve.learners.gate import Gap, check_lengths, check_versions, sampled_first
from coevolve.learners.loss import loss_of, token_weights
from coevolve.learners.optim import adamw, check_state, load_state, lr_factor, saved, set_rates
from coevolve.maths import kl
from coevolve.maths.loss_aggregation import TINY
from coevolve.maths.minibatches import mini_batches
from coevolve.models.exact import check_same, read
from coevolve.models.policy import Policy
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import Weights, head
from coevolve.runtime.pool import Pool
from coevolve.types import Batch, Metrics, Objective, Outputs, Targets

VALUE_FILE = "value_head.safetensors"


class LocalLearner(Policy):
    """A policy with its optimiser and, where the algorithm needs them, a reference model and a critic.

    trainable: False if frozen. micro_tokens: tokens per forward and backward.
    """

    def __init__(
        self,
        name: str,
        spec: PolicySpec,
        tokenizer: Any,
        weights: Weights,
        *,
        reference: Weights | None,
        critic: bool,
        steps: int,
        seed: int,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(name, spec, tokenizer, weights, pool)
        self.steps, self.seed = steps, seed
        self.trainable = spec.trainable
        self.reference = reference if self.trainable else None
        self.value_head = _value_head(head(weights.base.causal)) if critic and self.trainable else None
        self.parameters = [*self.weights.parameters(), *self._value_parameters()] if self.trainable else []
        self.optimizer = self._adamw() if self.trainable else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.spec.model!r}, {self.spec.weights}, {self.device})"

    def _value_parameters(self) -> list[nn.Parameter]:
        return [] if self.value_head is None else list(self.value_head.parameters())

    def _adamw(self) -> torch.optim.Optimizer:
        return adamw(self.weights.parameters(), self.spec, self._value_parameters())

    @property
    def place(self) -> object:
        """The device that the policy is trained on: policies with different places are trained concurrently."""
        return self.device

    @property
    def compute(self) -> str:
        """The backend's name as written in recipes."""
        return self.backend.name

    @property
    def about(self) -> str:
        """One line that describes the backend."""
        return about(self.backend, self.dtype)

    @property
    def micro_tokens(self) -> int:
        return self.spec.micro_tokens

    def micro_batches(self, batch: Batch, together: Literal["row", "peers"] = "row") -> list[Tensor]:
        """Return the batch's row numbers in groups of at most ``micro_tokens`` tokens, or of one row or set of peers
        that has more. together: see ``Objective``."""
        return self._fitting(batch, together, self.micro_tokens)

    def _fitting(self, batch: Batch, together: Literal["row", "peers"], tokens: int) -> list[Tensor]:
        """Return the batch's row numbers in groups of at most ``tokens`` tokens."""
        if together == "peers":
            return forward.whole_groups(batch, tokens)
        return forward.micro_batches(batch, tokens, self.backend.uses_prefix_tree)

    @torch.no_grad()
    def describe(self, batch: Batch) -> Batch:
        """Return the batch with kl_BT and logp_ref_BT added if there is a reference, and value_BT if there is a critic.

        All are on the CPU, at each row's temperature, 0 outside the mask. With neither, the batch is returned as is.
        Raises ValueError for a row longer than the model's context.
        """
        check_lengths(self.name, self.context, batch)
        if self.reference is None and self.value_head is None:
            return batch
        found: dict[str, Tensor] = {}
        value = None if self.value_head is None else self.value
        for rows_B in self.micro_batches(batch):
            micro = batch.select(rows_B)
            for name, x_N in _described(self, self.reference, value, micro).items():
                whole_BT = found.setdefault(name, torch.zeros(batch.mask_BT.shape))
                whole_BT[rows_B, : micro.mask_BT.shape[1]] = forward.to_BT(x_N.cpu(), micro.mask_BT)
        return batch.replace(**found)

    @torch.no_grad()
    def logps(self, batch: Batch) -> Tensor:
        """Return the log-probabilities of the action tokens under the current weights, [B, T], on the CPU; 0 outside
        the mask."""
        found_BT = torch.zeros(batch.mask_BT.shape)
        for rows_B in self.micro_batches(batch):
            micro = batch.select(rows_B)
            found_BT[rows_B, : micro.mask_BT.shape[1]] = self.outputs(micro).logp_BT.cpu()
        return found_BT

    def update(self, batch: Batch, targets: Targets, objective: Objective, step: int) -> Metrics:
        """Train on the batch: for every epoch of the objective, one optimiser step per mini-batch.

        Returns the loss's metrics and grad_norm, averaged over the mini-batches that have them; updates, the number of
        optimiser steps; lr; entropy, nats per sampled token, in the first epoch (with several mini-batches, the later
        ones are measured after earlier steps); and drift, the mean absolute difference per token between the first
        mini-batch's log-probabilities and those at sampling, which is rounding alone. Raises ValueError before the
        weights change if turns were sampled by other weights (``learners.gate``; where the objective allows the version
        before, drift includes the last update), and for a loss or gradient that is not finite, without that step.
        """
        assert self.optimizer is not None, f"policy {self.name} is frozen and cannot be updated"
        before = self.version_before if objective.staleness else None
        check_versions(f"policy {self.name!r}, step {step}", self.version, batch, before)
        factor = lr_factor(self.spec, step, self.steps)
        set_rates(self.optimizer, self.spec, factor)
        seen, entropy = list[Metrics](), 0.0
        for epoch in range(objective.epochs):
            names = ("minibatch", self.seed, self.name, step, epoch)
            found = mini_batches(batch.peers_B, objective.minibatch, objective.together, *names)
            for rows_B in found if epoch else sampled_first(found, batch.extra_B):
                mini = batch.select(rows_B)
                aims = targets.select(rows_B, mini.mask_BT.shape[1])
                seen.append(self._learn(mini, aims, objective, step, gate=not seen))
                entropy += seen[-1].pop("entropy") * (epoch == 0)
        drift, *_ = [metrics.pop("drift") for metrics in seen]  # the weights have changed before later mini-batches
        said = {} if bool(batch.extra_B.all()) else {"entropy": entropy / _sampled(batch)}
        return _over_steps(seen) | {
            **said,
            "drift": drift,
            "lr": self.spec.learning_rate * factor,
            "updates": len(seen),
        }

    def _learn(self, mini: Batch, targets: Targets, objective: Objective, step: int, gate: bool) -> Metrics:
        """Take one optimiser step on a mini-batch, its gradient accumulated over micro-batches. gate: whether to check
        its log-probabilities against the sampler's (``learners.gate``)."""
        assert self.optimizer is not None
        where = f"policy {self.name!r}, step {step}"
        weight_BT = token_weights(objective, mini, where)
        tally = _Tally(weight_BT.sum(), Gap(self.version), gate, self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with self._learning(objective.kl) as outputs:
            for rows_B, counts in self._shares(mini, objective.together):
                micro = mini.select(rows_B)
                actions = micro.mask_BT.shape[1]
                aims = targets.select(rows_B, actions).to(self.device)
                placed, weight = micro.to(self.device), weight_BT[rows_B, :actions].to(self.device)
                out = outputs(micro)
                loss, metrics = loss_of(objective, out, placed, aims, weight, where)
                self._through_all(loss if counts else 0.0 * loss, out).backward()  # type: ignore[no-untyped-call]
                if counts:
                    tally.add(placed, out, {"loss": loss.detach(), **metrics})
        total, entropy, drift, tally.gap.sums = self._of_all(tally.metrics, tally.entropy, tally.drift, tally.gap.sums)
        if gate:
            tally.gap.check(where, self.spec.dtype, mini)
        return self._step(total, step) | {"entropy": float(entropy), "drift": float(drift / _sampled(mini))}

    def _shares(self, batch: Batch, together: Literal["row", "peers"]) -> list[tuple[Tensor, bool]]:
        """Return this process's micro-batches, each with whether it counts (False: it only keeps ranks in step)."""
        return [(rows_B, True) for rows_B in self.micro_batches(batch, together)]

    def _through_all(self, loss: Tensor, out: Outputs) -> Tensor:
        """Return the loss, extended with the gradients that other ranks wait for; here there are no others."""
        return loss

    def _of_all(self, total: dict[str, Any], *sums: Any) -> tuple[Any, ...]:
        """Return the metrics and sums added up over all ranks; here this process is the only one."""
        return total, *sums

    def _norm(self) -> Tensor:
        """Return the norm of the gradient over all parameters."""
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    @contextlib.contextmanager
    def _learning(self, kl: bool) -> Iterator[Callable[[Batch], Outputs]]:
        """Yield a function that returns differentiable outputs (with kl_BT if ``kl``); on exit the parameters have
        their gradients."""
        with self.weights.active():
            yield partial(self.outputs, kl=kl)

    def outputs(self, micro: Batch, kl: bool = False) -> Outputs:
        """Return the policy's outputs for the action tokens, differentiable, on its device. kl: kl_BT as well."""
        action_N, temperature_N = forward.actions(micro, self.device)
        reference = self._compared_with(micro) if kl else None
        with self.active() as causal:
            with checkpointing(causal, self.spec.gradient_checkpointing):
                hidden_NW = self.backend.hidden(micro)
            found = self.backend.logprobs(hidden_NW, action_N, temperature_N, reference)
        mask_BT = micro.mask_BT.to(self.device)
        value_BT = None if self.value_head is None else forward.to_BT(self.value(hidden_NW), mask_BT)
        logp_BT, *rest = (forward.to_BT(x_N, mask_BT) for x_N in found)
        return Outputs(logp_BT, value_BT, *rest)

    @torch.no_grad()
    def _compared_with(self, micro: Batch) -> Reference:
        """Return the reference's hidden states for the batch's action tokens, and its LM head."""
        assert self.reference is not None, f"policy {self.name} has no reference to be compared with"
        reference = self.reference
        with reference.active(), self.computing():
            hidden_NW = reference.base.backend.hidden(micro)
        by_head = reference.base.backend.lm_head(self.dtype)

        def logits(hidden_NW: Tensor) -> Tensor:
            with torch.no_grad(), reference.active():  # the head may have an adapter, off here
                return by_head(hidden_NW)

        return Reference(hidden_NW, logits)

    def value(self, hidden_NW: Tensor) -> Tensor:
        """Return the critic's estimate before each action token, [N], from the hidden states that predict them."""
        assert self.value_head is not None, f"policy {self.name} has no critic"
        value_N: Tensor = self.value_head(hidden_NW.float())[:, 0]
        return value_N

    def _step(self, total: dict[str, Any], step: int) -> Metrics:
        """Take the optimiser step and return the metrics. Raises ValueError if loss or gradient is not finite."""
        assert self.optimizer is not None
        norm = self._norm()
        metrics = {key: float(value) for key, value in total.items()} | {"grad_norm": float(norm)}
        if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
            self.optimizer.zero_grad(set_to_none=True)
            raise ValueError(
                f"policy {self.name!r}, step {step}: the loss is {metrics['loss']} and its gradient's norm "
                f"{metrics['grad_norm']}; this optimiser step was not taken; lower the learning rate, set "
                "max_grad_norm, or look at the rewards of this step"
            )
        if self.spec.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.spec.max_grad_norm, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # frees memory for other policies on the device
        return metrics

    def reset_optimizer(self) -> None:
        """Discard the optimiser's moments and step count."""
        assert self.trainable, f"policy {self.name} is frozen and has no optimiser"
        self.optimizer = self._adamw()

    def save(self, folder: str | Path) -> None:
        """Write a folder that transformers (full, frozen) or peft (lora) can load, with tokenizer and value head."""
        folder = Path(folder)
        self.save_model(folder)
        if self.value_head is not None:
            save_file({k: v.cpu() for k, v in self.value_head.state_dict().items()}, folder / VALUE_FILE)

    def close(self) -> None:
        """Do nothing: this learner has no processes of its own."""

    def bare(self) -> LocalLearner:
        """Return a copy for another process, without tokenizer, optimiser and worker pool."""
        made = LocalLearner.__new__(LocalLearner)
        made.__dict__ |= self.__dict__ | {"tokenizer": None, "optimizer": None, "pool": None}
        return made

    def training_state(self) -> dict[str, Any]:
        """Return what a resumed run needs beyond the folder of ``save``: the optimiser state, and a digest of the
        reference (empty if frozen)."""
        if self.optimizer is None:
            return {}
        start = {} if self.reference is None else self.reference.base.beginnings()
        return {"optimizer": saved(self.optimizer), "reference": start}

    def load(self, folder: str | Path, training_state: dict[str, Any]) -> None:
        """Restore weights, value head and optimiser from a checkpoint, bit for bit; a frozen policy only warns if the
        weights differ."""
        folder = Path(folder)
        if not self.trainable:
            if other := self.weights.unlike(folder):
                warnings.warn(
                    f"the frozen policy {self.name!r} has other weights in the checkpoint than {self.spec.model} now "
                    f"({other}); what follows is played with those of now",
                    stacklevel=3,
                )
            return
        assert self.optimizer is not None
        check_state(training_state, self.parameters, self.spec.optimizer, folder)
        head = read(folder / VALUE_FILE) if self.value_head is not None else {}
        if self.value_head is not None:
            check_same(head, self.value_head.state_dict(), folder / VALUE_FILE)
        self.weights.load(folder)  # after all other checks: a checkpoint that is refused changes nothing
        if self.value_head is not None:
            self.value_head.load_state_dict(head)
        load_state(self.optimizer, training_state["optimizer"])
        start = None if self.reference is None else self.reference.base
        own = start is self.weights.base  # an adapter's, in whose folder it is noted
        if start is not None and not own and start.has_changed(since=training_state.get("reference", {})):
            warnings.warn(
                f"policy {self.name!r} was kept near a start model with other weights than {self.spec.model} has now; "
                "its KL is to those of now",
                stacklevel=3,
            )


@torch.no_grad()
def _described(
    policy: Policy, reference: Weights | None, value: Callable[[Tensor], Tensor] | None, micro: Batch
) -> dict[str, Tensor]:
    """Return per action token, [N] each: kl_BT and logp_ref_BT with a reference; value_BT with a critic (``value``).

    The logits are made for one piece of the tokens at a time.
    """
    action_N, temperature_N = forward.actions(micro, policy.device)
    with policy.active() as causal:
        hidden_NW = policy.backend.hidden(micro)
        layer = head(causal)
    found = {} if value is None else {"value_BT": value(hidden_NW)}
    if reference is None:
        return found
    with reference.active() as causal, policy.computing():
        ref_NW, ref_layer = reference.base.backend.hidden(micro), head(causal)
    logits = policy.backend.lm_head(policy.dtype)
    same = ref_layer is layer  # then one copy of its weights serves both
    ref_logits = logits if same else reference.base.backend.lm_head(policy.dtype)
    parts = []
    for p in pieces(len(action_N), layer.weight.shape[0], hidden_NW.device):
        with policy.active():  # policy and reference may be one model with and without its adapter
            logp_NV = log_softmax(logits, hidden_NW[p], temperature_N[p])
        with reference.active():
            ref_NV = log_softmax(ref_logits, ref_NW[p], temperature_N[p])
        parts.append((kl.full(logp_NV, ref_NV), ref_NV.gather(-1, action_N[p, None])[:, 0]))
    kl_N, logp_ref_N = (torch.cat(made) for made in zip(*parts, strict=True))
    return found | {"kl_BT": kl_N, "logp_ref_BT": logp_ref_N}


def _value_head(beside: Any) -> nn.Linear:
    """Return a critic, initialised to 0, that takes the same hidden states as the LM head."""
    width, device = beside.weight.shape[-1], beside.weight.device
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, 1, device=device)  # type: ignore[no-untyped-call]
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class _Tally:
    """The sums over the micro-batches of one optimiser step. whole: the total weight of their tokens. gate: whether
    gap and drift, the differences to the sampler's log-probabilities, are summed."""

    def __init__(self, whole: Tensor, gap: Gap, gate: bool, device: torch.device) -> None:
        self.whole, self.gap, self.gate = whole.clamp(min=TINY), gap, gate
        self.metrics: dict[str, Any] = {}
        self.entropy = self.drift = torch.zeros((), device=device)

    def add(self, micro: Batch, out: Outputs, metrics: Mapping[str, Tensor]) -> None:
        """Add one micro-batch, on the device of its outputs."""
        assert out.entropy_BT is not None
        for key, value in metrics.items():
            self.metrics[key] = _joined(key, self.metrics.get(key), value, self.whole)
        unsampled_BT = ~micro.mask_BT | micro.extra_B[:, None]
        self.entropy = self.entropy + out.entropy_BT.detach().masked_fill(unsampled_BT, 0.0).sum()
        if self.gate:
            logp_BT = out.logp_BT.detach()
            self.drift = self.drift + (logp_BT - micro.logp_BT).masked_fill(unsampled_BT, 0.0).abs().sum()
            self.gap.add(micro, logp_BT)


def _joined(key: str, before: Any, value: Tensor, whole: Tensor) -> Any:
    """Return a metric with one more micro-batch added. whole: the total weight of all micro-batches."""
    if key.endswith("/max"):
        return value if before is None else torch.maximum(*map(torch.as_tensor, (before, value)))
    return (0.0 if before is None else before) + (value if key.startswith("loss") else value / whole)


def _over_steps(steps: Sequence[Metrics]) -> Metrics:
    """Return each metric's mean (maximum for names in /max) over the mini-batches that have it."""
    found: dict[str, list[float]] = {}
    for metrics in steps:
        for key, value in metrics.items():
            found.setdefault(key, []).append(value)
    return {key: max(some) if key.endswith("/max") else sum(some) / len(some) for key, some in found.items()}


def _sampled(batch: Batch) -> int:
    """Return the number of tokens in rows that the algorithm did not add; 1 if there are none."""
    return max(1, int(batch.mask_BT[~batch.extra_B].sum()))
