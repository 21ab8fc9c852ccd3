"""The decoding loop: all rows of one chunk token by token, in a batch that shrinks as rows end.

Letters: B rows still in the batch, U distinct prompts, R all rows, S positions, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from coevolve import noise
from coevolve.policies.cache import keep_rows, spread
from coevolve.policies.sampling import draw
from coevolve.policies.weights import head, logits, trunk
from coevolve.types import Say

DEAD_SHARE = 8
"""Finished rows leave once they are one in so many."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one row sampled; excess is how much likelier truncation made its tokens, summed over them (nats)."""

    action_ids: list[int]
    logps: list[float]
    finished: bool
    excess: float


@dataclass(slots=True)
class _State:
    """The rows in the batch. row_B: which of all rows each is. mask_BS covers prompt and all tokens to come."""

    row_B: Tensor
    key_B: Tensor
    length_B: Tensor
    mask_BS: Tensor
    seen_BV: Tensor | None
    done_B: Tensor
    cache: DynamicCache
    logits_BV: Tensor

    def compact(self, done: Sequence[bool]) -> None:
        """Drop the finished rows if enough are: the last live rows move into the holes they leave."""
        alive = len(done) - sum(done)
        if (len(done) - alive) * DEAD_SHARE < len(done):
            return
        holes = [b for b in range(alive) if done[b]]
        movers = [b for b in range(alive, len(done)) if not done[b]]
        order_B = torch.arange(alive)
        order_B[holes] = torch.tensor(movers, dtype=torch.long)
        order_B = order_B.to(self.row_B.device)
        for name in ("row_B", "key_B", "length_B", "mask_BS", "seen_BV", "done_B"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[order_B])
        keep_rows(self.cache, order_B, torch.tensor(holes, dtype=torch.long, device=order_B.device))


def decode(causal: Any, says: Sequence[Say], eos: Collection[int], device: torch.device) -> list[Spoken]:
    """Sample all rows; they share one Sampling. Each row's tokens depend on its own prompt and key only."""
    sampling = says[0].sampling
    assert isinstance(sampling.max_new_tokens, int), "a Say has one fixed length"
    steps = sampling.max_new_tokens
    state = _prefill(causal, says, steps, device)
    eos_ = torch.tensor(sorted(eos), dtype=torch.long, device=device)
    ids_RT = torch.zeros((len(says), steps), dtype=torch.long, device=device)
    logp_RT = torch.zeros((len(says), steps), device=device)
    excess_RT = torch.zeros((len(says), steps), device=device)
    for t in range(steps):
        token_B, logp_B, excess_B = draw(state.logits_BV, noise.uniform(state.key_B, t), sampling, state.seen_BV)
        ids_RT[state.row_B, t], logp_RT[state.row_B, t] = token_B, logp_B
        if excess_B is not None:
            excess_RT[state.row_B, t] = excess_B
        if state.seen_BV is not None:
            state.seen_BV.scatter_(1, token_B[:, None], True)
        state.done_B |= torch.isin(token_B, eos_)
        if t + 1 == steps or not _advance(causal, state, ids_RT, t):
            break
    return _collect(ids_RT, logp_RT, excess_RT, eos_)


def _advance(causal: Any, state: _State, ids_RT: Tensor, t: int) -> bool:
    """Feed new token t of the rows that go on; False if none does. One wait for the device: which rows are done."""
    done = state.done_B.tolist()
    if all(done):
        return False
    state.compact(done)
    width = state.mask_BS.shape[1] - ids_RT.shape[1]
    found = trunk(causal)(
        input_ids=ids_RT[state.row_B, t][:, None],
        attention_mask=state.mask_BS[:, : width + t + 1],
        position_ids=(state.length_B + t)[:, None],
        past_key_values=state.cache,
        use_cache=True,
    )
    state.logits_BV = logits(head(causal), found.last_hidden_state[:, -1])
    return True


def _prefill(causal: Any, says: Sequence[Say], steps: int, device: torch.device) -> _State:
    """Distinct prompts once, padded on the left; then one row per say."""
    numbers: dict[tuple[int, ...], int] = {}
    rows_R = [numbers.setdefault(tuple(say.prompt_ids), len(numbers)) for say in says]
    row_R = torch.tensor(rows_R, device=device)
    width = max(len(prompt) for prompt in numbers)
    ids_US = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in numbers], device=device)
    length_U = torch.tensor([len(prompt) for prompt in numbers], device=device)
    mask_US = torch.arange(width, device=device) >= (width - length_U)[:, None]
    found = trunk(causal)(
        input_ids=ids_US,
        attention_mask=mask_US.long(),
        position_ids=(mask_US.long().cumsum(-1) - 1).clamp(min=0),
        past_key_values=DynamicCache(config=causal.config),
        use_cache=True,
    )
    logits_UV = logits(head(causal), found.last_hidden_state[:, -1])
    seen_BV = None
    if says[0].sampling.repetition_penalty != 1.0:
        seen_UV = torch.zeros(logits_UV.shape, dtype=torch.int32, device=device)
        seen_BV = seen_UV.scatter_add_(1, ids_US, mask_US.int()).bool()[row_R]
    mask_BS = torch.nn.functional.pad(mask_US.long(), (0, steps), value=1)[row_R]
    return _State(
        row_B=torch.arange(len(says), device=device),
        key_B=torch.tensor([say.key for say in says], dtype=torch.int64, device=device),
        length_B=length_U[row_R],
        mask_BS=mask_BS,
        seen_BV=seen_BV,
        done_B=torch.zeros(len(says), dtype=torch.bool, device=device),
        cache=spread(found.past_key_values, row_R, steps),
        logits_BV=logits_UV[row_R],
    )


def _collect(ids_RT: Tensor, logp_RT: Tensor, excess_RT: Tensor, eos_: Tensor) -> list[Spoken]:
    """Rows cut after their first end of sequence; what a finished row still sampled in the batch is dropped."""
    end_RT = torch.isin(ids_RT, eos_)
    finished_R = end_RT.any(1)
    length_R = torch.where(finished_R, end_RT.int().argmax(1) + 1, ids_RT.shape[1])
    inside_RT = torch.arange(ids_RT.shape[1], device=ids_RT.device) < length_R[:, None]
    columns = (ids_RT, logp_RT, finished_R, (excess_RT * inside_RT).sum(1), length_R)
    return [
        Spoken(ids[:length], logps[:length], finished, excess)
        for ids, logps, finished, excess, length in zip(*(column.tolist() for column in columns), strict=True)
    ]
