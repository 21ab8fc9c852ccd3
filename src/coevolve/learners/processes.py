"""A learner whose model computes in worker processes, while the loss and the optimiser stay in this process.

A loss needs only a few numbers per token from the model, and the model's backward only their gradients; just these are
sent, so neither the algorithm nor the optimiser has to run in the workers. The rows of a policy are split over the
processes, each of which adds up its weight gradients in memory shared with this process. Letters: B rows, T action
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coevolve.compute.forward import fed
from coevolve.compute.prefix_tree import common, ordered
from coevolve.learners.gate import check_lengths
from coevolve.learners.local import LocalLearner
from coevolve.runtime.pool import LEARNERS_AT_ONCE, Job, Pool, Share, WorkerState
from coevolve.types import Batch, Outputs, PolicyName

_TOKENS = 256
"""The least tokens per process, counted as ``split_rows`` counts them."""


class ProcessLearner(LocalLearner):
    """A learner that runs the forwards and backwards of ``describe`` and ``update`` in the pool's worker processes."""

    pool: Pool

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, pool=pool, **kwargs)
        self._parts: list[Tensor] = []
        pool.add(self)

    @property
    def place(self) -> object:
        """The policy's name: the pool's policies are trained concurrently, ``LEARNERS_AT_ONCE`` at a time."""
        return self.name

    @property
    def about(self) -> str:
        """One line that describes the backend and the worker processes."""
        return f"{super().about}, in {self.pool.most} worker processes"

    def close(self) -> None:
        """End the pool's processes; the next call starts new ones."""
        self.pool.close()

    @property
    def micro_tokens(self) -> int:
        """The tokens per micro-batch over all processes, each of which may work for two policies at once."""
        return self.spec.micro_tokens * self.pool.most // min(LEARNERS_AT_ONCE, len(self.pool.learners) or 1)

    def describe(self, batch: Batch) -> Batch:
        """Return what ``LocalLearner.describe`` returns."""
        check_lengths(self.name, self.context, batch)
        if self.reference is None and self.value_head is None:
            return batch
        parts = split_rows(batch, self.pool.most)
        with self.pool.shared() as ask:
            answers = ask([self._job(describe, batch.select(rows_B)) for rows_B in parts])
        return batch.replace(**{key: _whole(batch, parts, [a[key] for a in answers]) for key in answers[0]})

    def logps(self, batch: Batch) -> Tensor:
        """Return what ``LocalLearner.logps`` returns."""
        parts = split_rows(batch, self.pool.most)
        with self.pool.shared() as ask:
            return _whole(batch, parts, ask([self._job(logps, batch.select(rows_B)) for rows_B in parts]))

    @contextmanager
    def _learning(self, kl: bool) -> Iterator[Callable[[Batch], Outputs]]:
        learnt = [set[int]() for _ in range(self.pool.most)]
        with self.pool.shared() as share:
            buffers = self.pool.buffers.of(self.name, share.seat)
            try:
                yield lambda micro: self._outputs(micro, kl, share, learnt)
            except BaseException:
                with suppress(Exception):  # the processes may have ended
                    share([self._job(forget)] * len(self._parts))
                raise
            _gather(self.parameters, buffers, learnt)

    def _outputs(self, micro: Batch, kl: bool, ask: Share, learnt: Sequence[set[int]]) -> Outputs:
        """Return the micro-batch's outputs, whose backward runs in the processes. learnt: per process, the numbers of
        the parameters that have a gradient so far; extended by the backward."""
        self._parts = parts = split_rows(micro, self.pool.most)
        said = zip(*ask([self._job(outputs, micro.select(rows_B), kl) for rows_B in parts]), strict=True)
        whole = [None if x[0] is None else _whole(micro, parts, x) for x in said]

        def teach(*grads_BT: Tensor | None) -> None:
            jobs = []
            for i, rows_B in enumerate(parts):
                width = int((micro.length_B - micro.start_B)[rows_B].max())
                grads = [None if x is None else x[rows_B, :width] for x in grads_BT]
                jobs.append(self._job(backward, ask.seat, i, learnt[i], grads))
            for numbers, new in zip(learnt, ask(jobs), strict=False):
                numbers |= new

        hook = torch.zeros((), requires_grad=True)
        return Outputs(*_WorkerOutputs.apply(hook, teach, *whole))  # type: ignore[no-untyped-call]

    def _job(self, work: Callable[..., Any], *given: Any) -> Job:
        return Job([self.name], work, (self.name, *given))


class _WorkerOutputs(torch.autograd.Function):
    """Outputs of the worker processes, whose gradients are passed to ``teach``. The hook requires a gradient, so that
    autograd calls ``backward``."""

    @staticmethod
    def forward(ctx: Any, hook: Tensor, teach: Callable[..., None], *said: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.teach = teach
        ctx.set_materialize_grads(False)
        return tuple(None if x is None else x.clone() for x in said)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        ctx.teach(*grads)
        return (None,) * (2 + len(grads))


def split_rows(batch: Batch, most: int) -> list[Tensor]:
    """Return row numbers in at most ``most`` parts of about equal work. Rows are sorted by prefix and then cut, so that
    few prefixes are in two parts.

    The work of a row is the number of its tokens that it does not share with the row before, plus its action tokens
    once more, for their logits.
    """
    rows, tokens_B = fed(batch), batch.mask_BT.sum(1).tolist()
    order = ordered(rows)
    shared_B = [0, *(common(rows[a], rows[b]) for a, b in pairwise(order))]
    work_B = np.array([len(rows[b]) - shared + tokens_B[b] for b, shared in zip(order, shared_B, strict=True)])
    count = max(1, min(most, int(work_B.sum()) // _TOKENS))
    middle_B = work_B.cumsum() - work_B / 2
    part_B = (middle_B * count / work_B.sum()).astype(int)
    parts = [sorted(np.array(order)[part_B == part].tolist()) for part in range(count)]
    return [torch.tensor(part) for part in parts if part]


def _whole(batch: Batch, parts: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
    """Put the parts' rows back at their places, [B, T]; 0 elsewhere."""
    whole_BT = torch.zeros(batch.mask_BT.shape)
    for rows_B, part_BT in zip(parts, found, strict=True):
        whole_BT[rows_B, : part_BT.shape[1]] = part_BT
    return whole_BT


def _views(buffer: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return one view of the buffer per parameter, for its gradient."""
    ends = accumulate((p.numel() for p in parameters), initial=0)
    return [buffer[a:b].view(p.shape) for (a, b), p in zip(pairwise(ends), parameters, strict=True)]


def _gather(parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor], learnt: Sequence[set[int]]) -> None:
    """Set the parameters' gradients to the sums over all processes, held in the first buffer, which is the policy's
    own. A parameter without a gradient in any process gets None."""
    views = [_views(buffer, parameters) for buffer in buffers]
    for number, parameter in enumerate(parameters):
        found = [view[number] for view, numbers in zip(views, learnt, strict=True) if number in numbers]
        if found and number not in learnt[0]:
            found = [views[0][number].copy_(found[0]), *found[1:]]
        for more in found[1:]:
            found[0].add_(more)
        parameter.grad = found[0] if found else None


def describe(state: WorkerState, name: PolicyName, batch: Batch) -> dict[str, Tensor]:
    """In a worker: return the tensors that ``describe`` adds to the batch."""
    state.outputs.pop(name, None)
    found, before = state.policies[name].describe(batch).tensors(), batch.tensors()
    return {key: value for key, value in found.items() if value is not before.get(key)}


def logps(state: WorkerState, name: PolicyName, batch: Batch) -> Tensor:
    """In a worker: return the log-probabilities of the action tokens."""
    state.outputs.pop(name, None)
    found: Tensor = state.policies[name].logps(batch)
    return found


def outputs(state: WorkerState, name: PolicyName, micro: Batch, kl: bool = False) -> tuple[Tensor | None, ...]:
    """In a worker: return the policy's outputs for the action tokens, detached, and keep them for ``backward``."""
    policy = state.policies[name]
    state.outputs.pop(name, None)
    for parameter in policy.parameters:
        parameter.requires_grad_()
        parameter.grad = None  # a backward that failed may have left one
    state.outputs[name] = out = policy.outputs(micro, kl)
    return tuple(None if x is None else x.detach() for x in out)


def forget(state: WorkerState, name: PolicyName) -> None:
    """In a worker: drop the kept outputs, which will have no backward."""
    state.outputs.pop(name, None)


def backward(
    state: WorkerState, name: PolicyName, seat: int, number: int, learnt: set[int], grads_BT: Sequence[Tensor | None]
) -> set[int]:
    """In a worker: run the backward of the kept outputs and add the gradients to the worker's buffer.

    learnt: the numbers of the parameters whose gradients are in the buffer already. Returns them with the new ones.
    """
    out = state.outputs.pop(name)
    said = zip(out, grads_BT, strict=True)
    told, grads = zip(*((x, grad) for x, grad in said if grad is not None), strict=True)
    parameters = state.policies[name].parameters
    with state.policies[name].weights.active():  # layers that are recomputed (checkpointing) need the adapter
        torch.autograd.backward(told, grads)
    views = _views(state.buffers.of(name, seat)[number], parameters)
    for i, (view, parameter) in enumerate(zip(views, parameters, strict=True)):
        if parameter.grad is not None:
            (view.add_ if i in learnt else view.copy_)(parameter.grad)
            learnt.add(i)
            parameter.grad = None
    return learnt
