"""The part of a learner on one rank: ``LocalLearner`` on some of the micro-batches, with gradients summed over ranks.

Full weights are sharded (FSDP2: every rank holds a part of each tensor and of its moments, and gathers the rest layer
by layer; on GPUs for each forward and backward, on the CPU, where gathering is slow, once: ``gathers_once``); an
adapter and its base are whole on every rank, and only its gradients are added up. All ranks run the same number of
forwards of about the same size: a rank with fewer micro-batches repeats the first one with a loss of 0. The compiled
loops read weights without calling the layers' hooks, so full weights compute by ``torch``.

FSDP2 averages gradients over ranks, but the loss is a sum, which needs their sum. The factor is applied afterwards,
which is exact for powers of two. (With gloo, ``set_gradient_divide_factor`` would halve the gradients of every layer
but the root.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from coevolve.interfaces import Send
from coevolve.learners.build import loaded
from coevolve.learners.local import VALUE_FILE, LocalLearner
from coevolve.models.load import device_of, without_bars
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import checkpoint_tensors
from coevolve.types import Batch, Outputs, PolicyName

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


class ShardLearner(LocalLearner):
    """The learner on rank ``number`` of ``count``. models: the sharded models, the policy's own and the reference
    and heads: the sharded critic, if the policy has one (both empty unless all weights are trained). intact: whether
    no error has interrupted a forward or backward of sharded models, after which FSDP would silently learn no more."""

    def __init__(self, number: int, count: int, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.number, self.count = number, count
        self.models, self.heads = list[Any](), list[Any]()
        self.intact = True
        if self.spec.weights == "full":
            mesh = init_device_mesh(self.device.type, (count,))
            self.models = [own.base.causal for own in (self.weights, self.reference) if own is not None]
            self.heads = [] if self.value_head is None else [self.value_head]
            for module in (*self.models, *self.heads):
                _shard(module, mesh)
            self.parameters = [*self.weights.parameters(), *self._value_parameters()]
            self.reset_optimizer()

    def facts(self) -> dict[str, Any]:
        """Return what ``ShardedLearner`` reports about the learner: compute, about, context and eos."""
        how = "weights sharded" if self.models else "the base on each, gradients added up"
        about = f"{self.about}, {self.count} ranks on {self.device.type} ({how})"
        return {"compute": self.compute, "about": about, "context": self.context, "eos": self.eos}

    def _shares(self, batch: Batch, together: Literal["row", "peers"]) -> list[tuple[Tensor, bool]]:
        whole = evenly(partial(self._fitting, batch, together), self.micro_tokens, self.count)
        mine = whole[self.number :: self.count]
        short = -(-len(whole) // self.count) - len(mine)
        return [(rows_B, True) for rows_B in mine] + [(whole[0], False)] * short

    def micro_batches(self, batch: Batch, together: Literal["row", "peers"] = "row") -> list[Tensor]:
        """Return this rank's micro-batches, as many as on every other rank."""
        return [rows_B for rows_B, _ in self._shares(batch, together)]

    def described(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the row numbers that this rank has described, and the tensors of ``describe`` for these rows."""
        with self._forward():
            found, before = _whole_in(self.models, lambda: self.describe(batch)).tensors(), batch.tensors()
        return self._mine(batch, {key: x for key, x in found.items() if x is not before.get(key)})

    def scored(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the row numbers that this rank has scored, and their log-probabilities (``logps``)."""
        return self._mine(batch, {"logp_BT": self.logps(batch)})

    def _mine(self, batch: Batch, found: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        self._reshard()
        rows_B = torch.cat(self.micro_batches(batch))
        return rows_B, {key: x[rows_B] for key, x in found.items()}

    def _reshard(self) -> None:
        """Drop the gathered weights that FSDP has kept, which the next optimizer step would leave out of date: those of
        a forward without a backward, and all of them where they are gathered once."""
        for part in (part for module in (*self.models, *self.heads) for part in module.modules()):
            if isinstance(part, FSDPModule):
                part.reshard()

    def outputs(self, micro: Batch, kl: bool = False) -> Outputs:
        """Return the policy's outputs for the action tokens, as ``LocalLearner.outputs`` does."""

        def said() -> tuple[Tensor | None, ...]:
            return tuple(super(ShardLearner, self).outputs(micro, kl))  # in a tuple FSDP finds the tensors to hook

        with self._forward():
            found = _whole_in(self.models if kl else self.models[:1], said)
        # Views, so that ``_through_all`` can ask which of them a loss uses without setting off FSDP's backward hooks.
        return Outputs(*(None if x is None else x.view_as(x) for x in found))  # type: ignore[arg-type]

    @contextmanager
    def _learning(self, kl: bool) -> Iterator[Callable[[Batch], Outputs]]:
        try:
            with super()._learning(kl) as outputs:
                yield outputs
            self.intact = True
        finally:
            self._reshard()
        if not self.models:
            self._fill_up()
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if self.models:
            for grad in grads:
                grad.mul_(self.count)
        else:
            flat = parameters_to_vector(grads)
            distributed.all_reduce(flat)
            vector_to_parameters(flat, grads)

    @contextmanager
    def _forward(self) -> Iterator[None]:
        """Note in ``intact`` whether what runs here was interrupted."""
        self.intact = not self.models
        yield
        self.intact = True

    def is_intact(self) -> bool:
        """Return ``intact``."""
        return self.intact

    def _fill_up(self) -> None:
        """Set a zero gradient on parameters that have a gradient on another rank but none on this one."""
        there = torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.int32, device=self.device)
        distributed.all_reduce(there, distributed.ReduceOp.MAX)
        for parameter, anywhere in zip(self.parameters, there.tolist(), strict=True):
            if anywhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _through_all(self, loss: Tensor, out: Outputs) -> Tensor:
        """Return the loss plus 0 times every output that another rank's loss uses and this rank's does not, since FSDP
        waits for gradients of every rank. Outputs that no rank uses get no gradient, as in one process: with one of 0,
        Adam would still change the parameters by their moments and weight decay."""
        if not self.models:
            return loss
        said = [x for x in out if x is not None and x.requires_grad]
        grads: Sequence[Tensor | None] = [None] * len(said)  # of a loss that uses none of them here
        if loss.requires_grad:
            grads = torch.autograd.grad(loss, said, retain_graph=True, allow_unused=True)
        used = torch.tensor([grad is not None for grad in grads], dtype=torch.int32, device=self.device)
        distributed.all_reduce(used, distributed.ReduceOp.MAX)
        left_out = [
            x.sum() for x, grad, anywhere in zip(said, grads, used.tolist(), strict=True) if anywhere and grad is None
        ]
        self.intact = False  # until the backward, which is next, has ended
        return loss + 0.0 * torch.stack(left_out).sum() if left_out else loss

    def _of_all(self, total: dict[str, Any], *sums: Any) -> tuple[Any, ...]:
        """Return the metrics and sums of all ranks, added up in the order of the ranks, so that all get the same
        result."""
        here = [{key: torch.as_tensor(value).cpu() for key, value in total.items()}, *(x.cpu() for x in sums)]
        ranks: list[Any] = [None] * self.count
        distributed.all_gather_object(ranks, here)
        totals, *others = zip(*ranks, strict=True)
        keys = dict.fromkeys(key for one in totals for key in one)
        joined = {key: reduce(_join_of(key), [one[key] for one in totals if key in one]) for key in keys}
        return joined, *(reduce(torch.add, parts) for parts in others)

    def _norm(self) -> Tensor:
        norm = super()._norm()
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def reset_optimizer(self) -> None:
        """Discard the optimiser's moments and step count."""
        super().reset_optimizer()
        assert self.optimizer is not None
        self.optimizer.register_load_state_dict_pre_hook(self._parted)

    def _parted(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state with its whole moments sharded like their parameters; a hook before the optimiser loads."""
        parted = {
            i: {key: _like(self.parameters[i], value) if key != "step" else value for key, value in one.items()}
            for i, one in state["state"].items()
        }
        return {**state, "state": parted}

    def mark(self, version: int) -> None:
        """Number the weights, as ``Policy.mark``, and return the GPU memory that PyTorch keeps for reuse: an engine,
        perhaps on the same card, samples next."""
        super().mark(version)
        torch.cuda.empty_cache()

    def save_model(self, folder: Path) -> None:
        """Write the model from the parts of all ranks; the first rank writes."""
        state = whole(self.models[0].state_dict(keep_vars=True)) if self.models else None
        if self.number:
            return
        if state is None:
            super().save_model(folder)
            return
        with without_bars():
            self.weights.base.causal.save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)

    def send_model(self, send: Send) -> Any:
        """Have ``send`` send the full weights from the parts of all ranks; the first rank sends, and returns what it
        returns. If it fails, every rank raises its error, so that none is lost."""
        weights = checkpoint_tensors(self.models[0])
        order, failed, gathering = iter(weights.values()), list[Exception | None]([None]), False
        told = None

        def gathered(x: Tensor) -> Tensor:
            nonlocal gathering
            gathering = True
            assert next(order) is x, "all ranks gather in one order"
            found = _full(x)
            gathering = False
            return found

        if not self.number:
            try:
                told = send(weights, gathered)
            except Exception as error:
                if gathering:  # the others are in another place; they are ended
                    raise
                failed = [error]
        for x in order:  # the others wait for it
            _full(x)
        distributed.broadcast_object_list(failed)
        if failed[0] is not None:
            raise failed[0]
        return told

    def save(self, folder: str | Path) -> None:
        """Write the folder of ``LocalLearner.save`` from the parts of all ranks; the first rank writes."""
        folder = Path(folder)
        self.save_model(folder)
        head = {} if self.value_head is None else whole(self.value_head.state_dict(keep_vars=True))
        if head and not self.number:
            save_file(head, folder / VALUE_FILE)

    def save_training_state(self, file: Path) -> None:
        """Write ``LocalLearner.training_state`` to a file, as whole tensors; the first rank writes."""
        state = super().training_state()
        if self.models:  # else every rank has the whole state, perhaps in bitsandbytes' own formats
            state["optimizer"]["state"] = {i: whole(one) for i, one in state["optimizer"]["state"].items()}
        if not self.number:
            self._check_seen(file.parent)
            torch.save(state, file)

    def _check_seen(self, path: Path) -> None:
        """Raise ValueError if this rank's machine does not see the path."""
        if not path.exists():
            raise ValueError(
                f"policy {self.name!r}, rank {self.number}: {path} is not seen on this rank's machine; put TMPDIR on a "
                "disk that all machines share"
            )

    def load_from(self, folder: Path, file: Path) -> None:
        """Restore a checkpoint's folder and training state, written with any number of ranks."""
        self._check_seen(file)
        mapped = bool(self.models)  # an adapter's optimiser would keep tensors mapped from a deleted file
        self.load(folder, torch.load(file, map_location="cpu", weights_only=True, mmap=mapped))


def build(
    name: PolicyName, spec: PolicySpec, own_card: bool, how: Mapping[str, Any], number: int, count: int
) -> ShardLearner:
    """Return the ``ShardLearner`` of this policy for rank ``number`` of ``count``. own_card: whether the rank sees only
    its own GPU. how: reference, critic, steps, seed. Raises ValueError for more ranks than GPUs."""
    device = device_of(spec.device.split(":")[0] if own_card else spec.device)
    if device.type == "cuda":
        device = torch.device("cuda", 0 if own_card else (device.index or 0) + number)
        if device.index >= torch.cuda.device_count():
            raise ValueError(
                f"policy {name!r}: rank {number} would be on {device}, and there are {torch.cuda.device_count()} cards "
                "here; want fewer ranks, or another device to begin with"
            )
        torch.cuda.set_device(device)
    compute = "torch" if spec.weights == "full" and spec.compute == "auto" else spec.compute
    here = dataclasses.replace(spec, device=str(device), compute=compute)
    how = dict(how)
    tokenizer, own, start = loaded({name: here}, how.pop("reference"), how["seed"], None)[name]
    return ShardLearner(number, count, name, here, tokenizer, own, reference=start, **how)


def evenly(fitting: Callable[[int], list[Tensor]], tokens: int, count: int) -> list[Tensor]:
    """Return micro-batches for ``count`` ranks, as even as possible without more rounds than ``tokens`` allows.

    All ranks wait for the slowest at every layer, and micro-batches filled up to ``tokens`` leave a small one, or none,
    for some ranks. Where each rank gets at most one, they are the micro-batches of a single process, so that the sums
    are the same bit for bit.
    """
    parts = fitting(tokens)
    if len(parts) <= count:
        return parts
    allowed, low = -(-len(parts) // count) * count, 1
    while low < tokens:
        middle = (low + tokens) // 2
        low, tokens = (low, middle) if len(fitting(middle)) <= allowed else (middle + 1, tokens)
    return fitting(tokens)


def whole(tensors: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Return the whole tensors on the CPU on the first rank, empty ones elsewhere; shared tensors stay shared. Every
    rank has to call this."""
    copies, first = dict[int, Tensor](), distributed.get_rank() == 0
    for x in tensors.values():
        if id(x) not in copies:
            found = _full(x).detach()
            copies[id(x)] = found.cpu() if first else found.new_empty(0, device="cpu")
    return {key: copies[id(x)] for key, x in tensors.items()}


def _full(x: Tensor) -> Tensor:
    """Return a tensor gathered from all ranks if it is sharded; every rank has to call this."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def _join_of(key: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that joins a metric of two ranks: maximum for names in /max, else the sum."""
    return torch.maximum if key.endswith("/max") else torch.add


def _like(parameter: Tensor, x: Tensor) -> Tensor:
    """Return a whole tensor, sharded like the parameter if that is sharded."""
    return distribute_tensor(x, parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else x


def gathers_once(device_type: str) -> bool:
    """Return whether ranks gather weights once for all micro-batches of an optimiser step (or of a description), and
    hold them until its gradients are there. That takes the memory of whole weights, and is worth it where gathering is
    slow: on the CPU."""
    return device_type == "cpu"


def _shard(module: Any, mesh: DeviceMesh) -> None:
    """Shard every layer of the module, and the rest of it, over the mesh; its ``load_state_dict`` takes whole
    tensors."""
    layers = list(next((part for part in module.modules() if isinstance(part, nn.ModuleList)), ()))
    once = gathers_once(mesh.device_type)
    for layer in layers:  # on a GPU, too, the last layer stays: the backward needs it first
        fully_shard(layer, mesh=mesh, reshard_after_forward=not once and layer is not layers[-1])
    fully_shard(module, mesh=mesh)
    module.set_reshard_after_backward(not once)
    module.inside = lambda work: work()
    register_fsdp_forward_method(module, "inside")

    def parted(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, parameter in module.state_dict(keep_vars=True).items():
            if prefix + name in state:
                state[prefix + name] = _like(parameter, state[prefix + name])

    module.register_load_state_dict_pre_hook(parted)


def _whole_in(models: Sequence[Any], work: Callable[[], Made]) -> Made:
    """Return the result of ``work``, run while these models' weights outside of layers are gathered."""
    if not models:
        return work()
    found: Made = models[0].inside(lambda: _whole_in(models[1:], work))
    return found
