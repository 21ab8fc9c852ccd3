"""The trainer's side of a learner on several ranks (processes, GPUs, machines); ``shard`` is the side of each rank.

The whole batch is sent to every rank, and each takes its share. Weights and moments, which are large, are passed in
folders and files that the first rank writes: with several machines, on a disk that all of them see.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coevolve.faults import RanksError
from coevolve.interfaces import Published, Send
from coevolve.learners import shard
from coevolve.learners.gate import check_lengths
from coevolve.models.load import device_of, load_tokenizer
from coevolve.models.spec import PolicySpec
from coevolve.runtime.launched import TorchrunRanks
from coevolve.runtime.ranks import Ranks, SpawnedRanks, packed
from coevolve.types import Batch, Metrics, Objective, PolicyName, Targets

StartRanks = Callable[[PolicyName], Ranks]


class ShardedLearner:
    """A policy that is trained on ranks, which ``start`` starts. how: reference, critic, steps, seed.

    Once its ranks are lost or closed, only ``load`` starts new ones, since the trained weights are lost with them. They
    are closed, too, after an error in the middle of a forward or backward of full weights.
    """

    trainable = True

    def __init__(self, name: PolicyName, spec: PolicySpec, start: StartRanks, **how: Any) -> None:
        self.name, self.spec, self.start, self.how = name, spec, start, how
        self.tokenizer = load_tokenizer(spec.model)
        self.place = object()  # unique: trained beside all other policies
        self.version = 0
        self.ranks: Ranks | None = None
        self._begin()

    def _begin(self) -> None:
        ranks = self.start(self.name)
        try:
            device = ranks.device if self.spec.device == "auto" else self.spec.device
            spec = dataclasses.replace(self.spec, device=device)
            self.facts = ranks.start(partial(shard.build, self.name, spec, ranks.own_card, self.how))
        except BaseException:
            ranks.close()
            raise
        self.ranks, self.own_card = ranks, ranks.own_card

    def _ask(self, when: str, what: str, *given: Any) -> list[Any]:
        if self.ranks is None:
            raise ValueError(
                f"policy {self.name!r}: its ranks were ended, and with them its weights; load a checkpoint"
            )
        try:
            return self.ranks.ask(when, what, *given)
        except Exception:
            with suppress(RanksError):  # NCCL ends ranks some time after they have failed
                if not self.ranks.ended and not all(self.ranks.ask(when, "is_intact")):
                    self.ranks.close()
            raise
        finally:
            if self.ranks.ended:
                self.ranks = None

    @property
    def compute(self) -> str:
        """The name of the ranks' backend."""
        return str(self.facts["compute"])

    @property
    def about(self) -> str:
        """One line that describes the backend and the ranks."""
        return str(self.facts["about"])

    def describe(self, batch: Batch) -> Batch:
        """Return what ``LocalLearner.describe`` returns; each rank computes some rows."""
        check_lengths(self.name, self.facts["context"], batch)
        if not (self.how["reference"] or self.how["critic"]):
            return batch
        return batch.replace(**self._of_rows("described", batch))

    def logps(self, batch: Batch) -> torch.Tensor:
        """Return what ``LocalLearner.logps`` returns; each rank computes some rows."""
        return self._of_rows("scored", batch)["logp_BT"]

    def _of_rows(self, what: str, batch: Batch) -> dict[str, torch.Tensor]:
        """Ask every rank for its rows and return the tensors of all rows, [B, T] each."""
        found: dict[str, torch.Tensor] = {}
        for rows_B, columns in self._ask(f"at version {self.version}", what, batch):
            for key, x_RT in columns.items():
                found.setdefault(key, torch.zeros(batch.mask_BT.shape))[rows_B] = x_RT
        return found

    def check_objective(self, objective: Objective) -> None:
        """Raise ValueError if the objective cannot be sent to the ranks."""
        packed((objective,), "update", "its objective")

    def update(self, batch: Batch, targets: Targets, objective: Objective, step: int) -> Metrics:
        """Train as ``LocalLearner.update`` does. If the loss or the gate fails, no rank has taken that optimiser step;
        if ranks are lost, some may have, and only a checkpoint counts."""
        metrics: Metrics = self._ask(
            f"of step {step}, version {self.version}", "update", batch, targets, objective, step
        )[0]
        return metrics

    def published(self, version: int) -> Published:
        """Return the current weights for engines, and number them as this version."""
        self._ask(f"of version {version}", "mark", version)
        self.version = version
        context, eos, spec = self.facts["context"], self.facts["eos"], self.spec
        if self.own_card:  # the number does not count the GPUs of this process, where a local engine keeps its copy
            spec = dataclasses.replace(spec, device=spec.device.partition(":")[0])
        given = spec, self.tokenizer, context, eos, self.save_model
        return Published(self.name, version, *given, send=self.send_model)

    def save_model(self, folder: Path) -> None:
        """Have the first rank write a folder that transformers or peft can load."""
        self._saved("save_model", Path(folder))

    def send_model(self, send: Send) -> Any:
        """Have the first rank send the full weights, of which every rank has a part, to a server, and return what
        ``send`` returns."""
        return self._ask(f"at version {self.version}", "send_model", send)[0]

    def save(self, folder: Path) -> None:
        """Have the first rank write the folder of ``LocalLearner.save``."""
        self._saved("save", Path(folder))

    def _saved(self, what: str, target: Path) -> None:
        """Have the first rank write a folder or file. Raises ValueError if this machine does not see it."""
        self._ask(f"at version {self.version}", what, target.absolute())
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            raise ValueError(
                f"policy {self.name!r}: its first rank wrote {target} on another machine, where this one does not see "
                "it; put output_dir, and TMPDIR, on a disk that all machines share"
            )

    def training_state(self) -> dict[str, Any]:
        """Return the optimiser state as whole tensors, mapped from a file and read on use."""
        with _beside() as folder:
            file = Path(folder) / "state.pt"
            self._saved("save_training_state", file)
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            return state

    def load(self, folder: Path, training_state: dict[str, Any]) -> None:
        """Restore a checkpoint on the ranks, which are started again if they were lost."""
        if self.ranks is None:
            self._begin()
        with _beside() as beside:
            file = Path(beside) / "state.pt"
            torch.save(training_state, file)
            self._ask("of a checkpoint", "load_from", Path(folder).absolute(), file)

    def reset_optimizer(self) -> None:
        """Discard the optimiser's moments and step count."""
        self._ask(f"at version {self.version}", "reset_optimizer")

    def close(self) -> None:
        """End the ranks' processes."""
        if self.ranks is not None:
            self.ranks.close()
            self.ranks = None


def _beside() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for a file that may still be mapped when the folder is deleted: on NFS such a file
    stays until it is unmapped, and the folder with it, so errors of the clean-up are ignored."""
    return tempfile.TemporaryDirectory(prefix="coevolve-", ignore_cleanup_errors=True)


def starter(device: str, ranks: int, cluster: str | None, launched: bool, seconds: float) -> StartRanks:
    """Return a function that starts ``ranks`` ranks for a policy whose spec names this device: on this machine, in the
    processes that torchrun has launched, or on a Ray cluster."""
    named = device.split(":")[0]  # the number counts the machine's GPUs, and a process may see only one of them
    if launched or cluster is None:
        kind_of = TorchrunRanks if launched else SpawnedRanks
        return lambda name: kind_of(name, ranks, device_of(named).type, seconds)
    from coevolve.runtime.cluster import RayRanks, has_cards  # which imports ray

    kind = named if device != "auto" else "cuda" if has_cards(cluster, seconds) else "cpu"
    return lambda name: RayRanks(name, ranks, kind, seconds, cluster)
