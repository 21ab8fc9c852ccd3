"""Two ranks of FSDP2 against two local worker processes: update, publish, start-up, with the same rows.

    python benchmarks/learners.py                    # 10M, 128 rows, three rounds
    python benchmarks/learners.py --size 1M --rows 32 --rounds 1

"processes" is what a recipe gets without `learner`; "processes, torch" the same without compiled loops, which sharded
weights cannot have; "fsdp" and "fsdp lora" are two ranks of `learner: {name: fsdp, ranks: 2}`, and "fsdp on ray" are
two that a Ray cluster of this machine places (`cluster: ray`), left out if ray is not installed. Contenders take turns
round by round; ratios are of medians, to the processes that compute by torch. Sampling is of as many rows by those
processes, and "of a step" what an update takes longer than theirs, as a share of their sampling and update together. A
publish is to the local engine: a folder is written, and read by the copy that is sampled (of a learner in this process
nothing has to move). Bytes are of the weights in that folder, beside those that a dry run predicts
(`coevolve.learners.cost`). Ray is started before, which is not in any start-up.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # see peers.py
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_USAGE_STATS_ENABLED": "0"}

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers_report import markdown, quiet
from peers_work import SIZES, Case, save_model

from coevolve import LocalEngine, PolicySpec, Targets, build_policies, magrpo
from coevolve.learners import cost, fsdp
from coevolve.learners.sizes import adapter_size, sizes, weightless
from coevolve.types import Batch, Problem, Sampling, Say

RANKS = 2
HOW: dict[str, Any] = {"reference": False, "critic": False, "steps": 100, "seed": 0}


def ours(spec: PolicySpec) -> Any:
    return build_policies({"ann": spec}, **HOW, workers=True)["ann"]


def sharded(spec: PolicySpec, cluster: str | None = None) -> Any:
    return fsdp("ann", spec, **HOW, ranks=RANKS, cluster=cluster)


def ray_started() -> Any:
    """The module ray with a new cluster of this machine alone, or None. The ranks have a core each by Ray's count, even
    where the machine has fewer."""
    try:
        import ray
    except ImportError:
        print("fsdp on ray is left out: ray is not installed (pip install 'coevolve[cluster]')")
        return None
    ray.init(address="local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
    return ray


def contenders(folder: str, ray: bool) -> dict[str, Any]:
    spec = partial(PolicySpec, folder, learning_rate=1e-6, device="cpu")
    placed = {"fsdp on ray": partial(sharded, spec(), cluster="ray")} if ray else {}
    return {
        "processes": partial(ours, spec()),
        "processes, torch": partial(ours, spec(compute="torch")),
        "fsdp": partial(sharded, spec()),
        **placed,
        "processes lora, torch": partial(ours, spec(weights="lora", compute="torch")),
        "fsdp lora, torch": partial(sharded, spec(weights="lora", compute="torch")),
    }


def rows(count: int, prompt: int, tokens: int, vocabulary: int, seed: int) -> tuple[Batch, Targets]:
    """Groups of eight rows with one prompt, all responses of one length."""
    random = torch.Generator().manual_seed(seed)
    ids_BS = torch.randint(0, vocabulary, (count, prompt + tokens), generator=random)
    ids_BS[:, :prompt] = ids_BS[torch.arange(count) // 8 * 8, :prompt]
    mask_BT, zero_B, number_B = torch.ones(count, tokens, dtype=torch.bool), torch.zeros(count), torch.arange(count)
    batch = Batch(
        ids_BS=ids_BS, start_B=torch.full((count,), prompt), length_B=torch.full((count,), prompt + tokens),
        action_BT=ids_BS[:, prompt:].clone(), mask_BT=mask_BT, logp_BT=torch.zeros(count, tokens), credit_B=zero_B,
        reward_B=zero_B, peers_B=number_B // 8, temperature_B=zero_B + 1, weight_B=zero_B + 1,
        role_B=torch.zeros_like(number_B), episode_B=number_B, joint_B=number_B, extra_B=zero_B.bool(), roles=("one",),
    )  # fmt: skip
    return batch, Targets(torch.randn(count, tokens, generator=random))


def seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def written(learner: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        learner.save_model(Path(folder))
        return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))


def predicted(spec: PolicySpec) -> int:
    made = weightless(spec.model)
    return cost.published(spec, sizes(made)[0], adapter_size(made, spec))


class Contender:
    """A learner with an engine of its own, and what it took: seconds of its start with the first publish and update, of
    the other updates, of publishes, and of sampling."""

    def __init__(self, make: Any, case: Case) -> None:
        self.case, self.updates, self.publishes, self.samplings = case, list[float](), list[float](), list[float]()
        start = time.perf_counter()
        self.learner, self.engine = make(), LocalEngine()
        self.engine.publish([self.learner.published(0)])
        self.begun = time.perf_counter() - start

    def step(self, round: int, count: int) -> None:
        batch, targets = rows(count, self.case.prompt, self.case.tokens, self.case.vocabulary, round)
        says = [self.say(ids_S, number) for number, ids_S in enumerate(batch.ids_BS[:, : self.case.prompt].tolist())]
        sampled = seconds(lambda: self.engine.generate({"ann": says}))
        spent = seconds(lambda: self.learner.update(batch, targets, magrpo().objective, round))
        sent = seconds(lambda: self.engine.publish([self.learner.published(round)]))
        if round:
            self.updates.append(spent)
            self.publishes.append(sent)
            self.samplings.append(sampled)
        else:  # starts processes, loads the engine's copy, and compiles
            self.begun += spent

    def say(self, ids_S: list[int], number: int) -> Say:
        return Say("one", "ann", Problem("p"), number % 8, 0, ids_S, Sampling(self.case.tokens), key=number)

    def line(self, name: str, like: Contender) -> list[str]:
        update, publish, theirs = median(self.updates), median(self.publishes), median(like.updates)
        more = (update - theirs) / (theirs + median(like.samplings))
        return [
            name, f"{update:.2f}", f"{update / theirs:.2f}", f"{median(like.samplings):.2f}", f"{more:.0%}",
            f"{publish * 1e3:.0f}", f"{written(self.learner) / 1e6:.2f}", f"{predicted(self.learner.spec) / 1e6:.2f}",
            f"{self.begun - update:.1f}",
        ]  # fmt: skip


HEADER = (
    "contender",
    "update, s",
    "times the processes'",
    "their sampling, s",
    "of a step",
    "publish, ms",
    "MB",
    "MB, predicted",
    "start-up, s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="10M")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    quiet()
    torch.set_num_threads(1)
    case = Case(size=asked.size)
    ray = ray_started()
    with tempfile.TemporaryDirectory() as folder:
        chosen = contenders(save_model(case, Path(folder)), ray is not None)
        made = {name: Contender(make, case) for name, make in chosen.items()}
        for round in range(asked.rounds + 1):
            for one in made.values():
                one.step(round, asked.rows)
        like = {name: made["processes lora, torch" if "lora" in name else "processes, torch"] for name in made}
        print(f"load average {os.getloadavg()[0]:.1f}")
        print(markdown(HEADER, [one.line(name, like[name]) for name, one in made.items()]))
        for one in made.values():
            one.learner.close()
    if ray is not None:
        ray.shutdown()


if __name__ == "__main__":
    main()
