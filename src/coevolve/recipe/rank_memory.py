"""The memory that training on ranks needs, by formulas (``learners.cost``): of each rank, and of the GPUs on which the
trainer's process holds weights. Reads no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from coevolve.learners import by_torchrun, cost
from coevolve.learners.sizes import adapter_size, shape_of, sizes, weightless
from coevolve.models.spec import PolicySpec
from coevolve.recipe.memory import GIB, counted, megabytes, positions, publish_size, sampling_bytes
from coevolve.recipe.schema import Recipe
from coevolve.types import Algorithm, PolicyName


def of_ranks(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Return lines about each policy's ranks: where they run, what each needs, what a publish writes; and about
    the cards on which the trainer's process holds weights."""
    assert recipe.learner is not None
    cards = _TrainersCards(recipe.learner)
    count = int(recipe.learner["ranks"])
    lines = [f"ranks, {count} for each policy that learns; GiB a rank, of its formulas (docs/guides/cluster.md):"]
    for name, spec in recipe.policies.items():
        if spec.elsewhere and not positions(recipe, spec):
            lines.append(f"  {name}: frozen, its weights are not here")
            continue
        if isinstance(made := weightless(spec.model), str):
            lines.append(f"  {name}: size unknown: {made}")
            continue
        parameters, linear = sizes(made)
        if spec.weights == "frozen":
            own = cost.plan_memory(spec, parameters, reference=False, critic=False, linear=linear)["weights"]
            cards.hold(name, spec.device, own, sampling_bytes(spec, shape_of(made), positions(recipe, spec)))
            where = f"{own / GIB:.2f} GiB in the trainer's process, which it shares with nobody"
            lines.append(f"  {name}: frozen, {where}; {counted(made, parameters)}")
            continue
        shape, sharded, adapter = shape_of(made), spec.weights == "full", adapter_size(made, spec)
        state = cost.plan_memory(spec, parameters, algorithm.reference, algorithm.has_critic(name), linear, adapter)
        parts = cost.of_rank(state, shape, count, spec, not _on_gpus(spec.device, recipe.learner))
        detail = ", ".join(f"{part} {size / GIB:.2f}" for part, size in parts.items())
        how = "weights sharded" if sharded else "the base on each, gradients of the adapter added up"
        copied, start = "", _start(spec, state, parameters)
        cards.add_ranks(name, spec.device, count, parts, start)
        if local := positions(recipe, spec):
            copied = f", read into a copy of {state['weights'] / GIB:.1f} GiB that the local engine samples"
            cards.hold(name, cards.of_copy(spec.device), state["weights"], sampling_bytes(spec, shape, local))
        moments = 2 * state["gradients"]  # as whole tensors in float32
        sent = publish_size(recipe, spec, parameters, adapter)
        lines += [
            f"  {name}: {counted(made, shape.parameters)}, {how}, {_placed(spec.device, count, recipe.learner)}",
            f"    {sum(parts.values()) / GIB:.1f} ({detail}); {start / GIB:.1f} while it is loaded",
            f"    a publish writes {sent}{copied}; a checkpoint {megabytes(moments)} more",
        ]
    return lines + cards.lines()


@dataclass
class _TrainersCard:
    """The bytes on a GPU of the trainer's process: of the weights that it holds, of sampling one policy at a time, and
    of ranks that are there, too (the most that each takes, and what of it stays while policies are sampled)."""

    held: dict[PolicyName, int] = field(default_factory=dict)
    sampling: int = 0
    ranks: dict[PolicyName, tuple[int, int]] = field(default_factory=dict)

    def most(self, *ranks: tuple[int, int]) -> int:
        """Return the most that is needed beside these ranks. All learn at the same time, and none while policies are
        sampled."""
        learning, staying = (sum(rank[i] for rank in ranks) for i in (0, 1))
        return sum(self.held.values()) + max(learning, staying + self.sampling)


class _TrainersCards:
    """The GPUs of the trainer's process: frozen policies are there, and the copies that the local engine samples. Those
    of Ray's ranks are others. learner: the recipe's."""

    def __init__(self, learner: Mapping[str, Any]) -> None:
        self.learner, self.torchrun, self.ray = learner, by_torchrun(learner), _by_ray(learner)
        self.cards: dict[int, _TrainersCard] = {}
        self.ranks: dict[PolicyName, tuple[int, int]] = {}

    def of_copy(self, device: str) -> str:
        """Return the device of a policy's copy: ranks with a GPU each leave out its number (``published``)."""
        return device.partition(":")[0] if self.ray or self.torchrun else device

    def hold(self, name: PolicyName, device: str, weights: int, sampling: int) -> None:
        """Add the weights of a policy, which the trainer's process holds on this device."""
        if (number := self._number(device)) is not None:
            card = self.cards.setdefault(number, _TrainersCard())
            card.held[name], card.sampling = weights, max(card.sampling, sampling)

    def add_ranks(self, name: PolicyName, device: str, count: int, parts: Mapping[str, int], start: int) -> None:
        """Add the ranks of a policy. parts: the bytes of one that learns. start: of one that is loaded."""
        if (first := self._number(device)) is None:
            return
        needs = max(sum(parts.values()), start), sum(parts[part] for part in ("weights", "optimizer", "reference"))
        if self.torchrun:  # the trainer's process is the first rank of the first policy
            first, count = 0, 1 - bool(self.ranks)
        self.ranks[name] = needs
        for number in () if self.ray else range(first, first + count):
            self.cards.setdefault(number, _TrainersCard()).ranks[name] = needs

    def _number(self, device: str) -> int | None:
        """Return the number of the GPU that a device is in the trainer's process; None for a CPU."""
        return int(device.partition(":")[2] or 0) if _on_gpus(device, self.learner) else None

    def lines(self) -> list[str]:
        """Return a line for each GPU on which the trainer's process holds weights."""
        return [self._line(number, card) for number, card in sorted(self.cards.items()) if card.held]

    def _line(self, number: int, card: _TrainersCard) -> str:
        weights, ranks = sum(card.held.values()), card.ranks.values()
        line = f"  the trainer's cuda:{number}: at most {card.most(*ranks) / GIB:.2f} GiB: "
        line += f"{weights / GIB:.2f} held for {', '.join(card.held)}"
        line += f"; while one is sampled {card.sampling / GIB:.2f}" * bool(card.sampling)
        if ranks:
            most, stays = (sum(sizes) / GIB for sizes in zip(*ranks, strict=True))
            line += f"; in ranks of {', '.join(card.ranks)} at most {most:.2f}, while policies are sampled {stays:.2f}"
        if self.ray and self.ranks:
            beside = max(card.most(rank) for rank in self.ranks.values())
            line += f"; keep this card from Ray: beside a rank it needs {beside / GIB:.2f}"
        return line


def _start(spec: PolicySpec, state: Mapping[str, int], parameters: int) -> int:
    """Return the bytes that a rank needs to load the whole model (float32 or 4 bits), before it shards or rounds it."""
    return state["weights"] if spec.load_in_4bit else 4 * parameters * (1 + bool(state["reference"]))


def _placed(device: str, count: int, learner: Mapping[str, Any]) -> str:
    """Return where a policy's ranks are, in words."""
    if by_torchrun(learner):
        return f"{count} of the processes that torchrun starts"
    if (cluster := learner.get("cluster")) is not None:
        return f"{count} x 1 {'card' if _on_gpus(device, learner) else 'core'} where the cluster {cluster} has room"
    kind, _, first = device.partition(":")
    cards = f"cuda:{int(first or 0)} to cuda:{int(first or 0) + count - 1} of this machine"
    if _on_gpus(device, learner):
        return cards
    return f"{count} processes on the CPU of this machine" + (f" ({cards}, if it had them)" if kind == "auto" else "")


def _by_ray(learner: Mapping[str, Any]) -> bool:
    return not by_torchrun(learner) and learner.get("cluster") is not None


def _on_gpus(device: str, learner: Mapping[str, Any]) -> bool:
    """Return whether ranks run on GPUs. Where Ray finds a place for ``auto``, it is taken to have some."""
    kind = device.partition(":")[0]
    return kind == "cuda" or (kind == "auto" and (_by_ray(learner) or torch.cuda.is_available()))
