"""Our batched sampling against transformers' ``generate`` on identical work, in one process, alternating.

    python benchmarks/decode.py            # prints medians over rounds and the ratio, one line a shape

Same weights (coevolve-tiny), prompts and number of new tokens; nobody may stop early. ``generate`` gets its best case,
one call for all prompts, padded on the left. What ours does beside: keeps log-probabilities, draws by named noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from coevolve import LocalEngine, PolicySpec, Problem, Sampling, build_policies, noise
from coevolve.types import Say

ROUNDS = 5
SHAPES = ((256, 1, 16, 2, 8), (128, 1, 16, 4, 30), (128, 8, 64, 32, 64))
"""rows, members per prompt, new tokens, shortest and longest prompt."""


def main() -> None:
    torch.manual_seed(0)
    spec = PolicySpec(model="coevolve-tiny")
    policies = build_policies({"a": spec}, reference=False, critic=False, steps=1, seed=0)
    policies["a"].eos = frozenset()
    print(f"threads {torch.get_num_threads()}, {ROUNDS} rounds, medians in ms")
    for rows, members, new, low, high in SHAPES:
        prompts = [
            torch.randint(10, 4000, (noise.integer(low, high, "prompt", i),)).tolist() for i in range(rows // members)
        ]
        says = [
            Say("r", "a", Problem(str(i)), m, 0, prompt, Sampling(new), noise.key(i, m))
            for i, prompt in enumerate(prompts)
            for m in range(members)
        ]
        contenders = {"ours": _ours(LocalEngine(policies), says), "generate": _theirs(policies["a"], says, new)}
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        ours, theirs = (statistics.median(seconds[name]) * 1000 for name in contenders)
        shape = f"rows {rows} members {members} new {new} prompt {low}-{high}"
        print(f"{shape}: ours {ours:.0f} generate {theirs:.0f} ratio {theirs / ours:.2f}")


def _ours(engine: LocalEngine, says: list[Say]) -> Callable[[], object]:
    return lambda: engine.generate({"a": says})


def _theirs(policy: object, says: list[Say], new: int) -> Callable[[], object]:
    model = policy.weights.base.causal  # type: ignore[attr-defined]
    width = max(len(say.prompt_ids) for say in says)
    ids = torch.tensor([[0] * (width - len(say.prompt_ids)) + list(say.prompt_ids) for say in says])
    mask = torch.tensor([[0] * (width - len(say.prompt_ids)) + [1] * len(say.prompt_ids) for say in says])
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": new, "min_new_tokens": new}

    @torch.inference_mode()
    def run() -> object:
        return model.generate(input_ids=ids, attention_mask=mask, pad_token_id=0, **settings)

    return run


if __name__ == "__main__":
    main()
