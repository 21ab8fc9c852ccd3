"""A rank's share of a learner: ``LocalLearner`` on some of the micro-batches, with gradients that are of all ranks.

Full weights are sharded (FSDP2: every rank has a part of each tensor and of its moments, and borrows the rest layer by
layer); an adapter is there on every rank, with its base, and only its gradients are added up. All ranks make as many
forwards, about as large: one that is short of micro-batches repeats the first with a loss of 0. Compiled loops read
weights behind the layers' hooks, so full weights compute by ``torch``.

FSDP2 averages gradients over ranks where a loss that is a sum wants their sum. The factor is put on afterwards, which
is exact for powers of two. (``set_gradient_divide_factor`` would, with gloo, halve those of every layer but the root.)
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

from coevolve.learners.build import loaded
from coevolve.learners.local import VALUE_FILE, LocalLearner
from coevolve.models.load import device_of, without_bars
from coevolve.models.spec import PolicySpec
from coevolve.types import Batch, Outputs, PolicyName

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


class Shard(LocalLearner):
    """The share of rank ``number`` of ``count``. models: those whose tensors lie in parts, its own and the reference;
    heads: the critic, likewise."""

    def __init__(self, number: int, count: int, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.number, self.count = number, count
        self.models, self.heads = list[Any](), list[Any]()
        if self.spec.weights == "full":
            mesh = init_device_mesh(self.device.type, (count,))
            self.models = [own.base.causal for own in (self.weights, self.reference) if own is not None]
            self.heads = [] if self.value_head is None else [self.value_head]
            for module in (*self.models, *self.heads):
                _shard(module, mesh)
            self.parameters = [*self.weights.parameters(), *self._value_parameters()]
            self.reset_optimizer()

    def facts(self) -> dict[str, Any]:
        """What the controller says of the learner."""
        how = "weights sharded" if self.models else "the base on each, gradients added up"
        about = f"{self.about}, {self.count} ranks on {self.device.type} ({how})"
        return {"compute": self.compute, "about": about, "context": self.context, "eos": self.eos}

    def _shares(self, batch: Batch, together: Literal["row", "peers"]) -> list[tuple[Tensor, bool]]:
        whole = evenly(partial(self._fitting, batch, together), self.micro_tokens, self.count)
        mine = whole[self.number :: self.count]
        short = -(-len(whole) // self.count) - len(mine)
        return [(rows_B, True) for rows_B in mine] + [(whole[0], False)] * short

    def micro_batches(self, batch: Batch, together: Literal["row", "peers"] = "row") -> list[Tensor]:
        """This rank's, as many as every other's."""
        return [rows_B for rows_B, _ in self._shares(batch, together)]

    def described(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The rows that this rank described, and what it found of them."""
        found, before = _whole_in(self.models, lambda: self.describe(batch)).tensors(), batch.tensors()
        return self._mine(batch, {key: x for key, x in found.items() if x is not before.get(key)})

    def scored(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Likewise of ``logps``."""
        return self._mine(batch, {"logp_BT": self.logps(batch)})

    def _mine(self, batch: Batch, found: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        for part in (part for module in (*self.models, *self.heads) for part in module.modules()):
            if isinstance(part, FSDPModule):
                part.reshard()  # without a backward it would stay whole, and as it is now
        rows_B = torch.cat(self.micro_batches(batch))
        return rows_B, {key: x[rows_B] for key, x in found.items()}

    def outputs(self, micro: Batch, kl: bool = False) -> Outputs:
        """What the policy says about the actions, as ``LocalLearner``'s."""

        def said() -> tuple[Tensor | None, ...]:
            out = super(Shard, self).outputs(micro, kl)
            return out.logp_BT, out.value_BT, out.entropy_BT, out.kl_BT  # a tuple, where FSDP finds what has a gradient

        found = _whole_in(self.models if kl else self.models[:1], said)
        # Views: to ask what a loss uses of them is not yet the backward that FSDP's hooks wait for.
        return Outputs(*(None if x is None else x.view_as(x) for x in found))  # type: ignore[arg-type]

    @contextmanager
    def _learning(self, kl: bool) -> Iterator[Callable[[Batch], Outputs]]:
        with super()._learning(kl) as outputs:
            yield outputs
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

    def _fill_up(self) -> None:
        """Give what another rank's loss has a gradient for one of 0, where this rank's left it out."""
        there = torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.int32, device=self.device)
        distributed.all_reduce(there, distributed.ReduceOp.MAX)
        for parameter, anywhere in zip(self.parameters, there.tolist(), strict=True):
            if anywhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _through_all(self, loss: Tensor, out: Outputs) -> Tensor:
        """With a gradient of 0 for what this rank's rows leave out and another rank's use: FSDP waits for that of every
        rank. What nobody uses has none, as in one process, or Adam would move it by its moments and decay."""
        if not self.models:
            return loss
        every = (out.logp_BT, out.value_BT, out.entropy_BT, out.kl_BT)
        said = [x for x in every if x is not None and x.requires_grad]
        grads = torch.autograd.grad(loss, said, retain_graph=True, allow_unused=True)
        used = torch.tensor([grad is not None for grad in grads], dtype=torch.int32, device=self.device)
        distributed.all_reduce(used, distributed.ReduceOp.MAX)
        left_out = [
            x.sum() for x, grad, anywhere in zip(said, grads, used.tolist(), strict=True) if anywhere and grad is None
        ]
        return loss + 0.0 * torch.stack(left_out).sum() if left_out else loss

    def _of_all(self, total: dict[str, Any], *sums: Any) -> tuple[Any, ...]:
        """Added up in the order of the ranks, which every rank finds alike."""
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
        """Forget the optimiser's moments and step count."""
        super().reset_optimizer()
        assert self.optimizer is not None
        self.optimizer.register_load_state_dict_pre_hook(self._parted)

    def _parted(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Whole moments, as the parameters lie."""
        parted = {
            i: {key: _like(self.parameters[i], value) if key != "step" else value for key, value in one.items()}
            for i, one in state["state"].items()
        }
        return {**state, "state": parted}

    def save_model(self, folder: Path) -> None:
        """Written by the first rank, from the parts of all."""
        state = whole(self.models[0].state_dict(keep_vars=True)) if self.models else None
        if self.number:
            return
        if state is None:
            super().save_model(folder)
            return
        with without_bars():
            self.weights.base.causal.save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)

    def save(self, folder: str | Path) -> None:
        """As ``LocalLearner``, from the parts of all."""
        folder = Path(folder)
        self.save_model(folder)
        head = {} if self.value_head is None else whole(self.value_head.state_dict(keep_vars=True))
        if head and not self.number:
            save_file(head, folder / VALUE_FILE)

    def save_training_state(self, file: Path) -> None:
        """What ``LocalLearner.training_state`` has, as whole tensors, in a file."""
        state = super().training_state()
        if self.models:  # else every rank has all, in forms of the optimiser's own (bitsandbytes')
            state["optimizer"]["state"] = {i: whole(one) for i, one in state["optimizer"]["state"].items()}
        if not self.number:
            self._check_seen(file.parent)
            torch.save(state, file)

    def _check_seen(self, path: Path) -> None:
        """Raises ValueError for what lies on a disk that this rank's machine does not see."""
        if not path.exists():
            raise ValueError(
                f"policy {self.name!r}, rank {self.number}: {path} is not seen on this rank's machine; put TMPDIR on a "
                "disk that all machines share"
            )

    def load_from(self, folder: Path, file: Path) -> None:
        """Continue as the learner that wrote them, with however many ranks."""
        self._check_seen(file)
        mapped = bool(self.models)  # an adapter's is small, and its optimiser would go on with a file that is gone
        self.load(folder, torch.load(file, map_location="cpu", weights_only=True, mmap=mapped))


def build(name: PolicyName, spec: PolicySpec, own_card: bool, how: Mapping[str, Any], number: int, count: int) -> Shard:
    """A rank's share of this policy. own_card: its card is the only one that it sees. how: reference, critic, steps,
    seed. Raises ValueError for more ranks than cards."""
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
    return Shard(number, count, name, here, tokenizer, own, reference=start, **how)


def evenly(fitting: Callable[[int], list[Tensor]], tokens: int, count: int) -> list[Tensor]:
    """Micro-batches in as many rounds of ``count`` as those of ``tokens`` take, the largest as small as it can be.

    All ranks wait for the slowest at every layer, and those filled to the brim leave a small one, or none, for some.
    Where each rank has one at most they stay those of one process, whose sums are then the same bit for bit.
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
    """The whole tensors on the CPU, on the first rank; those that are one stay one. Every rank has to call it."""
    copies, first = dict[int, Tensor](), distributed.get_rank() == 0
    for x in tensors.values():
        if id(x) not in copies:
            found = x.full_tensor().detach() if isinstance(x, DTensor) else x.detach()
            copies[id(x)] = found.cpu() if first else found.new_empty(0, device="cpu")
    return {key: copies[id(x)] for key, x in tensors.items()}


def _join_of(key: str) -> Callable[[Tensor, Tensor], Tensor]:
    """How a metric of some ranks and of others becomes one: as that of micro-batches does."""
    return torch.maximum if key.endswith("/max") else torch.add


def _like(parameter: Tensor, x: Tensor) -> Tensor:
    """A whole tensor, in parts where the parameter is."""
    return distribute_tensor(x, parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else x


def _shard(module: Any, mesh: DeviceMesh) -> None:
    """Put the tensors of every layer and the rest of the module in parts; states that it loads are whole."""
    layers = list(next((part for part in module.modules() if isinstance(part, nn.ModuleList)), ()))
    for layer in layers:  # the last one is the first that the backward needs
        fully_shard(layer, mesh=mesh, reshard_after_forward=layer is not layers[-1])
    fully_shard(module, mesh=mesh)
    module.inside = lambda work: work()
    register_fsdp_forward_method(module, "inside")

    def parted(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, parameter in module.state_dict(keep_vars=True).items():
            if prefix + name in state:
                state[prefix + name] = _like(parameter, state[prefix + name])

    module.register_load_state_dict_pre_hook(parted)


def _whole_in(models: Sequence[Any], work: Callable[[], Made]) -> Made:
    """What work finds while the weights of these models outside of layers are whole."""
    if not models:
        return work()
    found: Made = models[0].inside(lambda: _whole_in(models[1:], work))
    return found
