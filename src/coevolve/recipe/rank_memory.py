"""The memory that training on ranks needs, by formulas (``learners.cost``): of each rank, and of the GPUs on which the
trainer's process holds weights. Reads no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coevolve.engines import SERVERS
from coevolve.learners import LEARNERS, by_torchrun, cost
from coevolve.learners.sizes import adapter_size, shape_of, sizes, weightless
from coevolve.models.spec import PolicySpec, RecipePolicy
from coevolve.recipe.memory import counted, megabytes, positions, publish_size, unknown_size
from coevolve.recipe.room import GIB, Fit, Size, Work, learning_work, sampling_work
from coevolve.recipe.schema import Recipe
from coevolve.runtime.cores import cores
from coevolve.types import Algorithm, PolicyName


def on_ranks(recipe: Recipe) -> bool:
    """Return whether the recipe's policies learn on ranks, and not by a learner of the user's own."""
    return recipe.learner is not None and recipe.learner["name"] in LEARNERS


def of_ranks(recipe: Recipe, algorithm: Algorithm) -> list[str]:
    """Return lines about each policy's ranks: where they run, what each needs, what a publish writes; and about
    the cards on which the trainer's process holds weights, and what is free where ranks are on this machine."""
    needs = _needs(recipe, algorithm)
    count, cards = needs.cards.learner["ranks"], needs.cards
    head = f"ranks, {count} for each policy that learns; GiB a rank, of its formulas (docs/guides/cluster.md):"
    fits = cards.fits() if cards.on_this_machine and not needs.unknown else []
    return [head, *needs.lines, *cards.lines(), *(line for fit in fits for line in fit.lines())]


def fits_of_ranks(recipe: Recipe, algorithm: Algorithm) -> list[Fit]:
    """Return what is free on each card of ranks or copies, and on the CPU that they share, and the sizes that are to
    fit there. Raises ValueError for ranks that need not be on this machine, and for a model of unknown size."""
    needs = _needs(recipe, algorithm)
    if not needs.cards.on_this_machine:
        cluster = needs.cards.learner["cluster"]
        raise ValueError(f"learner.cluster is {cluster}, whose ranks may be on other machines")
    for name, why in needs.unknown.items():
        raise unknown_size(name, why)
    return needs.cards.fits()


def _needs(recipe: Recipe, algorithm: Algorithm) -> _Needs:
    """Return what ranks and the trainer's process need."""
    assert recipe.learner is not None
    needs = _Needs(_TrainersCards(recipe.learner))
    for name, spec in recipe.policies.items():
        if spec.elsewhere and not positions(recipe, spec):
            needs.lines.append(f"  {name}: frozen, its weights are not here")
        elif isinstance(made := weightless(spec.model), str):
            needs.lines.append(f"  {name}: size unknown: {made}")
            needs.unknown[name] = made
        elif not spec.trainable:
            parameters, linear = sizes(made)
            own = cost.plan_memory(spec, parameters, reference=False, critic=False, linear=linear)["weights"]
            needs.cards.hold(spec.device, own, sampling_work(name, spec, shape_of(made), positions(recipe, spec)))
            where = f"{own / GIB:.2f} GiB in the trainer's process, which it shares with nobody"
            needs.lines.append(f"  {name}: frozen, {where}; {counted(made, parameters)}")
        else:
            needs.lines += _of_learner(recipe, algorithm, name, made, needs.cards)
    return needs


def _of_learner(recipe: Recipe, algorithm: Algorithm, name: PolicyName, made: Any, cards: _TrainersCards) -> list[str]:
    """Return lines about a policy that learns on ranks, and add these, and its copy, to the cards. made: its model
    without weights."""
    spec, learner, count = recipe.policies[name], cards.learner, int(cards.learner["ranks"])
    parameters, linear = sizes(made)
    shape, sharded, adapter = shape_of(made), spec.weights == "full", adapter_size(made, spec)
    state = cost.plan_memory(spec, parameters, algorithm.reference, algorithm.has_critic(name), linear, adapter)
    parts = cost.of_rank(state, shape, count, spec, not _on_gpus(spec.device, learner))
    detail = ", ".join(f"{part} {size / GIB:.2f}" for part, size in parts.items())
    how = "weights sharded" if sharded else "the base on each, gradients of the adapter added up"
    reader, start = _server(recipe, spec, parameters), _start(spec, state, parameters)
    stays = sum(parts[part] for part in ("weights", "optimizer", "reference"))
    cards.add_ranks(spec.device, count, _Rank(max(sum(parts.values()), start), stays, learning_work(name, spec, parts)))
    if local := positions(recipe, spec):
        reader = f", read into a copy of {state['weights'] / GIB:.1f} GiB that the local engine samples"
        cards.hold(cards.of_copy(spec.device), state["weights"], sampling_work(name, spec, shape, local))
    moments = 2 * state["gradients"]  # as whole tensors in float32
    sent = publish_size(recipe, spec, parameters, adapter)
    return [
        f"  {name}: {counted(made, shape.parameters)}, {how}, {_placed(spec.device, count, learner)}",
        f"    {sum(parts.values()) / GIB:.1f} ({detail}); {start / GIB:.1f} while it is loaded",
        f"    a publish writes {sent}{reader}; a checkpoint {megabytes(moments)} more",
    ]


@dataclass(frozen=True)
class _Rank:
    """What a rank needs of its card: the most bytes, those that stay while policies are sampled, and its update."""

    most: int
    stays: int
    work: Work


@dataclass
class _TrainersCard:
    """The bytes on a GPU of the trainer's process, or on the CPU: of the weights that this process holds, of sampling
    one policy at a time, and of ranks that are there, too."""

    held: dict[PolicyName, int] = field(default_factory=dict)
    sampled: list[Work] = field(default_factory=list)
    ranks: list[_Rank] = field(default_factory=list)

    @property
    def sampling(self) -> int:
        return max((work.bytes for work in self.sampled), default=0)

    def most(self, *ranks: _Rank) -> int:
        """Return the most that is needed beside these ranks. All learn at the same time, and none while policies are
        sampled."""
        learning, staying = sum(rank.most for rank in ranks), sum(rank.stays for rank in ranks)
        return sum(self.held.values()) + max(learning, staying + self.sampling)

    def fit(self, device: str) -> Fit:
        """Return what is free here, and the sizes that are to fit. What ranks need for no token is there for all, and
        each gets an equal part of what is left."""
        held = sum(self.held.values())
        fixed, stays = (sum(them) for them in ([r.work.fixed for r in self.ranks], [r.stays for r in self.ranks]))
        works = {rank.work.policy: rank.work for rank in self.ranks}
        learning = [Size(w.policy, w.tokens, held + fixed, len(self.ranks) * w.per_token) for w in works.values()]
        return Fit.on(device, learning, [work.size(held + stays) for work in self.sampled], self.most(*self.ranks))


class _TrainersCards:
    """The GPUs of the trainer's process, and the CPU: frozen policies are there, and the copies that the local engine
    samples. Ranks of this machine are there, too; those of Ray are elsewhere. learner: the recipe's."""

    def __init__(self, learner: Mapping[str, Any]) -> None:
        self.learner, self.torchrun, self.ray = learner, by_torchrun(learner), _by_ray(learner)
        self.cards: dict[int | None, _TrainersCard] = {}
        self.ranks: list[_Rank] = []

    @property
    def on_this_machine(self) -> bool:
        return not self.torchrun and not self.ray

    def of_copy(self, device: str) -> str:
        """Return the device of a policy's copy: ranks with a GPU each leave out its number (``published``)."""
        return device if self.on_this_machine else device.partition(":")[0]

    def hold(self, device: str, weights: int, work: Work) -> None:
        """Add the weights of a policy, which the trainer's process holds and samples on this device."""
        card = self.cards.setdefault(self._number(device), _TrainersCard())
        card.held[work.policy] = weights
        card.sampled.append(work)

    def add_ranks(self, device: str, count: int, rank: _Rank) -> None:
        """Add the ranks of a policy, which are alike."""
        first = self._number(device)
        numbers: Sequence[int | None] = [None] * count if first is None else range(first, first + count)
        if self.torchrun:  # the trainer's process is the first rank of the first policy
            numbers = [None if first is None else 0] * (1 - bool(self.ranks))
        self.ranks += [rank] * (first is not None)
        for number in () if self.ray else numbers:
            self.cards.setdefault(number, _TrainersCard()).ranks.append(rank)

    def _number(self, device: str) -> int | None:
        """Return the number of the GPU that a device is in the trainer's process; None for a CPU."""
        return int(device.partition(":")[2] or 0) if _on_gpus(device, self.learner) else None

    def fits(self) -> list[Fit]:
        """Return what is free on each card and on the CPU, and the sizes that are to fit there."""
        return [card.fit("cpu" if number is None else f"cuda:{number}") for number, card in self.cards.items()]

    def lines(self) -> list[str]:
        """Return a line for each GPU on which the trainer's process holds weights."""
        cards = {number: card for number, card in self.cards.items() if number is not None and card.held}
        return [self._line(number, card) for number, card in sorted(cards.items())]

    def _line(self, number: int, card: _TrainersCard) -> str:
        weights, ranks = sum(card.held.values()), card.ranks
        line = f"  the trainer's cuda:{number}: at most {card.most(*ranks) / GIB:.2f} GiB: "
        line += f"{weights / GIB:.2f} held for {', '.join(card.held)}"
        line += f"; while one is sampled {card.sampling / GIB:.2f}" * bool(card.sampling)
        if ranks:
            most, stays = sum(rank.most for rank in ranks) / GIB, sum(rank.stays for rank in ranks) / GIB
            names = ", ".join(rank.work.policy for rank in ranks)
            line += f"; in ranks of {names} at most {most:.2f}, while policies are sampled {stays:.2f}"
        if self.ray and self.ranks:
            beside = max(card.most(rank) for rank in self.ranks)
            line += f"; keep this card from Ray: beside a rank it needs {beside / GIB:.2f}"
        return line


@dataclass
class _Needs:
    """What ranks and the trainer's process need. lines: about each policy. unknown: policies whose model's size is not
    known, with the reason."""

    cards: _TrainersCards
    lines: list[str] = field(default_factory=list)
    unknown: dict[PolicyName, str] = field(default_factory=dict)


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
    few = f" of {cores()} cores" * (count > cores())
    return f"{count} processes on the CPU of this machine{few}" + (
        f" ({cards}, if it had them)" if kind == "auto" else ""
    )


def _server(recipe: Recipe, spec: RecipePolicy, parameters: int) -> str:
    """Return in words which server reads what a publish of a policy writes, and what its card holds of full weights;
    empty for the local engine and one of the user's own."""
    engine = recipe.engine_of(spec)
    if engine["name"] not in SERVERS:
        return ""
    devices = (engine.get("start") or {}).get("devices")
    if engine.get("url"):
        where = f"at {engine['url']}"
    elif devices is None:
        where = "that is started on the first GPU"
    else:
        cards = f"GPU{'s' * (',' in str(devices))} {devices}"
        where = f"that is started on {cards if str(devices) else 'the CPU'}"
    size = (2 if spec.dtype == "bfloat16" else 4) * parameters / GIB
    held = f", where the weights take {size:.1f} GiB beside the KV cache" * (spec.weights == "full")
    return f", read by the {engine['name']} {where}{held}"


def sampled_on_gpu(recipe: Recipe, name: PolicyName) -> bool:
    """Return whether the local engine samples a policy on a GPU, as far as this machine knows."""
    spec, learner = recipe.policies[name], recipe.learner if on_ranks(recipe) else None
    return name not in recipe.silent and bool(positions(recipe, spec)) and _on_gpus(spec.device, learner)


def _by_ray(learner: Mapping[str, Any] | None) -> bool:
    return learner is not None and not by_torchrun(learner) and learner.get("cluster") is not None


def _on_gpus(device: str, learner: Mapping[str, Any] | None) -> bool:
    """Return whether ranks run on GPUs, or this process does if there are none (None). Where Ray finds a place for
    ``auto``, it is taken to have some."""
    kind = device.partition(":")[0]
    return kind == "cuda" or (kind == "auto" and (_by_ray(learner) or torch.cuda.is_available()))
