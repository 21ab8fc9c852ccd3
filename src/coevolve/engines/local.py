"""Batched sampling on this machine: the turns of each base model in batches, the devices in parallel."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from coevolve import defaults
from coevolve.compute.backend import choose
from coevolve.engines.base import BaseEngine, Sample
from coevolve.engines.decode import decode
from coevolve.engines.on_gpus import slow_on_gpus
from coevolve.faults import during
from coevolve.interfaces import Published
from coevolve.models.load import device_of
from coevolve.models.narrow import narrow
from coevolve.models.policy import DTYPES, Policy
from coevolve.models.weights import Base, Weights, check_model, load_base, need_4bit
from coevolve.runtime.placement import side_by_side, use_one_thread
from coevolve.runtime.pool import Job, Pool, WorkerState
from coevolve.types import PolicyName, Problem, Say

_ROWS = 32
"""The fewest rows worth a process of their own: each process reads all weights at every token."""

_PADDING = 64
"""A prompt of more tokens than this plus 1.5 times the shortest prompt of a chunk begins the next chunk."""

_IN_USE: dict[torch.device, AbstractContextManager[bool]] = {}
"""By device: the lock that the engine sampling on it holds."""


class LocalEngine(BaseEngine):
    """The engine that samples on this machine: policies whose weights are in this process are sampled with them, here
    or in their pool's worker processes; other policies from copies of their weights, updated at every publish.

    policies: published at once. max_tokens: positions (prompt padding and new tokens included) decoded at
    a time, by each process if there are several; it bounds the memory of the KV cache. In a pool, the rows of a base
    model are split over the processes as far as there are cores and rows for it; results differ in rounding only.
    On each device one engine samples at a time, whichever thread calls it: other engines wait.
    Raises ValueError for a policy whose tokenizer lacks the chat template, or its keywords, that its spec asks for.
    """

    def __init__(
        self, policies: Mapping[PolicyName, Policy] = MappingProxyType({}), *, max_tokens: int = defaults.MAX_TOKENS
    ):
        super().__init__()
        self.policies: dict[PolicyName, Policy] = {}
        self.copies: dict[PolicyName, Policy] = {}
        self.max_tokens = max_tokens
        self.publish([policy.published(policy.version) for policy in policies.values()])

    def publish(self, news: Sequence[Published]) -> None:
        """Sample these weights from now on, as in ``BaseEngine``; update copies of policies that are not here."""
        super().publish(news)
        for new in news:
            if new.policy is None:
                self.copies[new.name] = _renewed(self.copies.get(new.name), new)
            self.policies[new.name] = new.policy or self.copies[new.name]

    @property
    def about(self) -> str:
        """One line for logs: the engine, the copies that it holds, and which policies it samples on GPUs."""
        told = [f"a copy of {name}: {policy.backend.about}" for name, policy in self.copies.items()]
        if slow := slow_on_gpus(name for name, policy in self.policies.items() if policy.device.type == "cuda"):
            told.append(slow)
        return f"LocalEngine ({'; '.join(told)})" if told else "LocalEngine"

    def sample(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Sample]]:
        """Sample one completion per say, the devices in parallel."""
        return side_by_side(self.policies, says, lambda names: self._on_device(names, says), lambda p: p.device)

    def rest(self) -> None:
        """Return the GPU memory that PyTorch keeps for reuse to processes that learn on the same card."""
        if self.copies:
            torch.cuda.empty_cache()

    def _on_device(
        self, names: Sequence[PolicyName], says: Mapping[PolicyName, Sequence[Say]]
    ) -> dict[PolicyName, list[Sample]]:
        """Sample the policies on one device, one base model after the other, or in worker processes."""
        # A base model computes with the adapters that were set last, and a pool's processes answer any caller: two
        # engines that use one of these at the same time would both get wrong samples.
        with _alone(self.policies[names[0]].device), during(f"policies {', '.join(names)}"):
            return self._by_base(names, says)

    def _by_base(
        self, names: Sequence[PolicyName], says: Mapping[PolicyName, Sequence[Say]]
    ) -> dict[PolicyName, list[Sample]]:
        bases, found = self._bases(names), dict[PolicyName, list[Sample]]()
        for pool in dict.fromkeys(pool for pool in (self.policies[name].pool for name in names) if pool is not None):
            members = [base for base in bases if all(self.policies[name].pool is pool for name in base)]
            found |= self._in_processes(pool, members, says)
        for base in bases:
            if not found.keys() >= set(base):
                found |= sample_base(self.policies, {name: says[name] for name in base}, self.max_tokens)
        return found

    def _in_processes(
        self, pool: Pool, bases: Sequence[Sequence[PolicyName]], says: Mapping[PolicyName, Sequence[Say]]
    ) -> dict[PolicyName, list[Sample]]:
        """Sample these groups of policies in the pool's processes; return nothing if the rows fill only one process."""
        rows = [{name: len(says[name]) for name in base} for base in bases if any(says[name] for name in base)]
        parts = [part for base in rows for part in _parts(base, pool.most // len(rows))]
        if len(parts) < 2:
            return {}
        found: dict[PolicyName, list[Sample]] = {}
        for sampled in pool([self._job(says, part) for part in parts]):
            for name, some in sampled.items():  # parts of one policy come in order
                found.setdefault(name, []).extend(some)
        return found

    def _job(self, says: Mapping[PolicyName, Sequence[Say]], part: Mapping[PolicyName, range]) -> Job:
        """Return the job that samples these rows; it leaves out the problems' data, which a worker does not use, and
        the callbacks ``on_token``, which belong to this process."""
        asked = {
            name: [
                dataclasses.replace(says[name][row], problem=Problem(says[name][row].problem.id), on_token=None)
                for row in some
            ]
            for name, some in part.items()
        }
        return Job([name for name, some in asked.items() if some], sample_there, (asked, self.max_tokens))

    def _bases(self, names: Sequence[PolicyName]) -> list[list[PolicyName]]:
        """Group the policies by the base model that they share."""
        groups: dict[int, list[PolicyName]] = {}
        for name in names:
            groups.setdefault(id(self.policies[name].weights.base), []).append(name)
        return list(groups.values())


def _alone(device: torch.device) -> AbstractContextManager[bool]:
    """Return the lock that keeps other threads from sampling on this device."""
    return _IN_USE.setdefault(device, threading.RLock())


def _parts(rows: Mapping[PolicyName, int], most: int) -> list[dict[PolicyName, range]]:
    """Split the policies' rows, in order, into at most ``most`` parts; return each part's range of rows per policy."""
    total = sum(rows.values())
    count = max(1, min(most, total // _ROWS))
    cuts = [total * i // count for i in range(count + 1)]
    first = dict(zip(rows, itertools.accumulate(rows.values(), initial=0), strict=False))
    return [
        {name: range(*(min(max(cut - first[name], 0), n) for cut in ends)) for name, n in rows.items()}
        for ends in itertools.pairwise(cuts)
    ]


def sample_there(state: WorkerState, says: Mapping[PolicyName, Sequence[Say]], max_tokens: int) -> Any:
    """Run ``sample_base`` in a worker."""
    return sample_base(state.policies, says, max_tokens)


def sample_base(
    policies: Mapping[PolicyName, Policy], says: Mapping[PolicyName, Sequence[Say]], max_tokens: int
) -> dict[PolicyName, list[Sample]]:
    """Sample policies of one base model, in this process or in a worker: one sample per say, in the order given."""
    groups: dict[object, list[PolicyName]] = {}
    for name in says:
        policy = policies[name]
        together = (policy.spec.dtype, policy.eos) if policy.weights.base.groupable() else name
        groups.setdefault(together, []).append(name)
    found: dict[PolicyName, list[Sample]] = {}
    for names in groups.values():
        found |= _sampled({name: policies[name] for name in names}, says, max_tokens)
    return {name: found[name] for name in says}


def _sampled(
    team: Mapping[PolicyName, Policy], says: Mapping[PolicyName, Sequence[Say]], max_tokens: int
) -> dict[PolicyName, list[Sample]]:
    """Sample the rows of all these policies in the same batches, each row with its policy's adapter."""
    first = next(iter(team.values()))
    asked = [(i, say) for i, name in enumerate(team) for say in says[name]]
    found: dict[int, Sample] = {}
    # In inference_mode, which is faster for small models, autocast rounds trained weights again at every token.
    mode = torch.inference_mode if first.dtype == torch.float32 else torch.no_grad
    with (
        mode(),
        first.weights.base.speaking([policy.weights.adapter for policy in team.values()]) as adapters,
        first.computing(),
    ):
        sampler = first.backend.sampler(adapters, first.dtype)
        for chunk in chunks([say for _, say in asked], max_tokens):
            rows = sorted(chunk)  # rows of one policy are adjacent, as ``decode`` requires
            speakers, together = zip(*(asked[row] for row in rows), strict=True)
            samples = decode(sampler, adapters, together, speakers, first.eos, first.device)
            found |= zip(rows, samples, strict=True)
    inorder = iter([found[row] for row in range(len(asked))])
    return {name: [next(inorder) for _ in says[name]] for name in team}


def chunks(says: Sequence[Say], max_tokens: int) -> list[list[int]]:
    """Group the indices of the says that are decoded together: with the same Sampling, prompts of similar length, and
    at most max_tokens positions (a say that alone has more is a group)."""
    groups: list[list[int]] = []
    order = sorted(range(len(says)), key=lambda i: (repr(says[i].sampling), len(says[i].prompt_ids)))
    for i in order:
        if groups:
            shortest = says[groups[-1][0]]
            width = len(says[i].prompt_ids) + says[i].sampling.length_range[1]
            if (
                shortest.sampling == says[i].sampling
                and (len(groups[-1]) + 1) * width <= max_tokens
                and len(says[i].prompt_ids) <= 1.5 * len(shortest.prompt_ids) + _PADDING
            ):
                groups[-1].append(i)
                continue
        groups.append([i])
    return groups


def _renewed(before: Policy | None, news: Published) -> Policy:
    """Return a copy of the policy with the published weights: ``before``, updated, or a newly loaded one with a base
    model of its own."""
    copy = before if before is not None and before.spec == news.spec else _loaded(news)
    if news.spec.trainable:
        with tempfile.TemporaryDirectory(prefix="coevolve-") as folder:
            news.save(Path(folder))
            copy.weights.load(Path(folder))
    return copy


def _loaded(news: Published) -> Policy:
    """Load the policy of a spec with its initial weights."""
    spec = news.spec
    if spec.load_in_4bit:
        need_4bit(news.name)
    base = Base(load_base(spec.model, device_of(spec.device), DTYPES[spec.dtype] if spec.load_in_4bit else None))
    check_model(base.causal, spec.model)
    base.backend = choose(base, spec.compute, spec.model)
    if base.backend.name == "cpu":  # with other backends the learners have set the number of threads
        use_one_thread()
    if spec.weights != "full":
        base.causal.requires_grad_(False)
    if spec.weights == "lora":
        base.add("agent", spec.lora, seed=0)
    if spec.weights != "full" and DTYPES[spec.dtype] == torch.bfloat16 and not spec.load_in_4bit:
        narrow(base.causal)
    return Policy(news.name, spec, news.tokenizer, Weights(base, "agent" if spec.weights == "lora" else None))
