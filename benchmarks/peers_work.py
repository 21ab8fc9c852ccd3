"""The work that every contender is given: weights, prompts, forced lengths, reward; and the account of what was done.

One step is K problems, each played by N agents G times. Agent a's prompt of problem k is its own; the response of
member g ends after exactly ``lengths(...)[a, k, node, g]`` tokens, the end of sequence included. A node is what shares
a prompt: a problem (one turn), or the problem and then each joint response to it (a tree of two turns).

The vocabulary has one word per id, ``w17`` is 17, so that text and ids are the same thing for everybody. The last id is
the end of sequence, the one before it padding.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SIZES: dict[str, dict[str, int]] = {
    "1M": {"hidden_size": 128, "heads": 4, "kv_heads": 4, "num_hidden_layers": 3, "intermediate_size": 352},
    "10M": {"hidden_size": 320, "heads": 5, "kv_heads": 5, "num_hidden_layers": 7, "intermediate_size": 896},
    "50M": {"hidden_size": 640, "heads": 10, "kv_heads": 2, "num_hidden_layers": 11, "intermediate_size": 1792},
}
"""Qwen2 shapes with tied embeddings; the names are rough, and hold for the small vocabulary."""

LEARNING_RATE = 1e-6
NOTE = 8
"""Words that an agent is told before its second turn, behind its prompt and its own response."""

SHORTEST = 16
"""Ragged lengths reach from tokens / SHORTEST to tokens."""


@dataclass(frozen=True)
class Case:
    """One row of the comparison: N agents, K problems, G members, P prompt and R response tokens, V vocabulary.

    play: of several turns, ``rounds`` (each member goes on alone) or ``tree`` (every joint response has G
    continuations; two turns).
    """

    size: str = "10M"
    agents: int = 2
    problems: int = 4
    members: int = 8
    prompt: int = 64
    tokens: int = 64
    vocabulary: int = 4096
    ragged: bool = True
    turns: int = 1
    play: Literal["rounds", "tree"] = "rounds"

    def __post_init__(self) -> None:
        if self.play == "tree" and self.turns != 2:
            raise ValueError("a tree has two turns here")

    @property
    def nodes(self) -> int:
        """Groups of G responses per agent and problem."""
        return 1 + self.members if self.play == "tree" else self.turns

    @property
    def joints(self) -> int:
        """Joint responses of a step: one response of every agent each."""
        return self.problems * self.nodes * self.members

    @property
    def end(self) -> int:
        return self.vocabulary - 1

    @property
    def pad(self) -> int:
        return self.vocabulary - 2

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(f"agent{a}" for a in range(self.agents))

    def __str__(self) -> str:
        shape = f"{self.size} N={self.agents} K={self.problems} G={self.members} P={self.prompt} R={self.tokens}"
        kind = "ragged" if self.ragged else "fixed"
        turns = f"{self.turns} turns ({self.play})" if self.turns > 1 else "1 turn"
        return f"{shape} V={self.vocabulary} {kind}, {turns}"


def config(case: Case) -> Qwen2Config:
    shape = dict(SIZES[case.size])
    heads, kv_heads = shape.pop("heads"), shape.pop("kv_heads")
    return Qwen2Config(
        **shape, num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=case.vocabulary,
        max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None, eos_token_id=case.end,
        pad_token_id=case.pad,
    )  # fmt: skip


def save_model(case: Case, folder: Path) -> str:
    """The folder of the random model that everybody starts from."""
    torch.manual_seed(0)
    Qwen2ForCausalLM(config(case)).save_pretrained(folder)
    tokenizer(case).save_pretrained(folder)
    return str(folder)


def load_model(folder: str) -> Any:
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)


def tokenizer(case: Case) -> PreTrainedTokenizerFast:
    """A tokenizer of its own, not loaded from the folder: transformers takes any in a Qwen2's folder for Qwen2's."""
    words = [f"w{i}" for i in range(case.vocabulary - 2)]
    core = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*words, "<pad>", "<eos>"])}, unk_token="<pad>")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", unk_token="<pad>", padding_side="left"
    )


def prompts(case: Case) -> list[list[str]]:
    """[agent][problem] -> P words."""
    return [[_words(case, case.prompt, "prompt", a, k) for k in range(case.problems)] for a in range(case.agents)]


def told_next(case: Case, prompt: str, response: str) -> str:
    """What an agent is told before its next turn."""
    return " ".join((prompt, response.strip(), _words(case, NOTE, "note")))


def _words(case: Case, n: int, *names: object) -> str:
    choose = random.Random(repr(names))
    return " ".join(f"w{choose.randrange(case.vocabulary - 2)}" for _ in range(n))


def lengths(case: Case, round: int) -> Tensor:
    """[N, K, nodes, G]: tokens of every response of this round, drawn log-uniformly or all the same."""
    shape = (case.agents, case.problems, case.nodes, case.members)
    if not case.ragged:
        return torch.full(shape, case.tokens)
    low, high = max(1, case.tokens // SHORTEST), case.tokens
    drawn = np.exp(np.random.default_rng(round).uniform(np.log(low), np.log(high + 1), shape))
    return torch.from_numpy(drawn.astype(np.int64)).clamp(low, high)


def worth(responses: Sequence[str]) -> float:
    """The team's reward: a number in [0, 1) that depends on every word and costs nothing."""
    return zlib.crc32("|".join(text.strip() for text in responses).encode()) / 2**32


@dataclass
class Account:
    """What one step of a contender took and did.

    seconds: of the step; generating: of those, inside its generation. made: [B, T] tokens as they left ``generate``
    (or ragged rows), to be counted after the clock has stopped. trained: tokens of responses in its loss. idle: other
    positions in its loss, which is padding. steps: of its optimisers. phases: what the contender itself says. busy:
    cores that other processes used meanwhile.
    """

    seconds: float = 0.0
    generating: float = 0.0
    made: list[tuple[Sequence[Sequence[int]] | Tensor, Tensor]] = field(default_factory=list)
    generated: int = 0
    trained: int = 0
    idle: int = 0
    steps: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0

    def check(self, case: Case, who: str) -> None:
        """Count what was generated. Raises AssertionError unless every response is as long as it had to be."""
        for rows, length_B in self.made:
            found = [_until(list(map(int, row)), case.end) for row in rows]
            assert found == length_B.tolist(), f"{who}: lengths {found}, not the forced {length_B.tolist()}"
            self.generated += sum(found)
        self.made.clear()


def _until(row: list[int], end: int) -> int:
    """Tokens up to and with the first end; one more than the row has if there is none, so that it cannot pass."""
    return row.index(end) + 1 if end in row else len(row) + 1


class EndsAt:
    """A logits processor of transformers: row b samples the end as its token ``length_B[b]``, and not before."""

    def __init__(self, length_B: Tensor, end: int) -> None:
        self.end, self.start = end, -1
        self.rows_at: dict[int, Tensor] = {
            int(n): (length_B == n).nonzero()[:, 0].to(length_B.device) for n in length_B.unique()
        }

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.start < 0:
            self.start = input_ids.shape[1]
        scores[:, self.end] = -torch.inf
        rows = self.rows_at.get(input_ids.shape[1] - self.start + 1)
        if rows is not None:
            scores[rows] = -torch.inf
            scores[rows, self.end] = 0.0
        return scores


class ForcedGenerate:
    """Stands in for a model's ``generate``: the rows of the n-th call end as the n-th entry of ``waiting`` says."""

    def __init__(self, model: Any, case: Case) -> None:
        self.generate, self.case = model.generate, case
        self.waiting: deque[Tensor] = deque()
        self.account = Account()
        model.generate = self

    def __call__(self, **settings: Any) -> Any:
        from transformers import LogitsProcessorList

        length_B = self.waiting.popleft()
        start = time.perf_counter()
        found = self.generate(**settings, logits_processor=LogitsProcessorList([EndsAt(length_B, self.case.end)]))
        self.account.generating += time.perf_counter() - start
        rows_BS = found if isinstance(found, Tensor) else found.sequences
        self.account.made.append((rows_BS[:, settings["input_ids"].shape[1] :], length_B))
        return found


class OptimiserSteps:
    """Counts the steps of every torch optimiser in this process."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.count += 1


STEPS = OptimiserSteps()


def cores() -> int:
    """Cores that this process may use. Not torch's default, which OMP_NUM_THREADS=1 of a development shell would be."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Load:
    """Cores that other processes keep busy while this one works; nan where there is no /proc."""

    def __init__(self) -> None:
        self.wall, self.others = time.perf_counter(), _others()

    def cores(self) -> float:
        return max(0.0, _others() - self.others) / (time.perf_counter() - self.wall)


def _others() -> float:
    """CPU seconds that all other processes have used since the machine started."""
    try:
        line = Path("/proc/stat").read_text("utf-8").splitlines()[0].split()[1:]
    except OSError:
        return float("nan")
    user, nice, system, _idle, _iowait, irq, soft, *_ = (int(ticks) for ticks in line)
    mine = os.times()
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK") - mine.user - mine.system


def peak_mib() -> dict[str, float]:
    """Resident memory of this process now and at its highest, in MiB; empty where there is no /proc.

    Not ``getrusage``: a child inherits its parent's peak there.
    """
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return {}
    kib = Counter({line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmHWM", "VmRSS"))})
    return {"now": kib["VmRSS"] / 1024, "peak": kib["VmHWM"] / 1024}
