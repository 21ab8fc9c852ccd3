"""The decoding loop: all rows of one chunk token by token, in a batch that shrinks as rows end.

Letters: B rows still in the batch, U distinct prompts, R all rows, T new tokens, V vocabulary, W hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coevolve import noise
from coevolve.compute.draw import draw
from coevolve.engines.base import Sample
from coevolve.interfaces import KVCache, Sampler
from coevolve.models.adapters import Adapters
from coevolve.types import Say

ROUND = 4
"""Once the first rows have left the batch, its number of rows is a multiple of this."""


@dataclass(slots=True)
class _State:
    """The rows still in the batch.

    speaker_B: each row's policy, as its index in ``adapters``; rows of one policy are adjacent. row_B: each row's
    index among all rows. length_B: length of its prompt. seen_BV: which tokens its prompt and completion contain.
    """

    adapters: Adapters
    speaker_B: list[int]
    row_B: Tensor
    key_B: Tensor
    length_B: Tensor
    seen_BV: Tensor | None
    done_B: Tensor
    cache: KVCache
    logits_BV: Tensor

    def compact(self, done: Sequence[bool]) -> None:
        """Drop finished rows once there are enough of them: live rows from the end move into their places.

        The rows that stay are a multiple of ROUND, so that few different batch sizes occur.
        """
        alive = len(done) - sum(done)
        kept = -(-alive // ROUND) * ROUND
        if (len(done) - kept) * self.cache.dead_share < len(done):
            return
        order, holes = _closed(done, self.speaker_B, kept)
        self.speaker_B = [self.speaker_B[b] for b in order]
        order_B = torch.tensor(order, device=self.row_B.device)
        for name in ("row_B", "key_B", "length_B", "seen_BV", "done_B"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[order_B])
        self.cache.keep(order_B, torch.tensor(holes, dtype=torch.long, device=order_B.device))
        self.adapters.split(self.speaker_B)


def _closed(done: Sequence[bool], speaker_B: Sequence[int], kept: int) -> tuple[list[int], list[int]]:
    """Choose ``kept`` rows, the live ones and finished ones to fill up, and their new order.

    Returns the row for each place, and the places whose row changes. Rows of one policy stay adjacent, and few rows
    move.
    """
    fill = [b for b, gone in enumerate(done) if gone][: kept - (len(done) - sum(done))]
    rows = sorted([b for b, gone in enumerate(done) if not gone] + fill)
    stay = {b for b in rows if b < kept and speaker_B[b] == speaker_B[rows[b]]}
    movers = iter([b for b in rows if b not in stay])
    holes = [b for b in range(kept) if b not in stay]
    return [b if b in stay else next(movers) for b in range(kept)], holes


def decode(
    sampler: Sampler,
    adapters: Adapters,
    says: Sequence[Say],
    speaker_R: Sequence[int],
    eos: Collection[int],
    device: torch.device,
) -> list[Sample]:
    """Sample all rows, which share one Sampling. Each row's tokens depend on its own prompt, key and policy only.

    speaker_R: each row's policy, as its index in ``adapters``; non-decreasing.
    """
    sampling = says[0].sampling
    assert isinstance(sampling.max_new_tokens, int), "a Say has one fixed length"
    steps = sampling.max_new_tokens
    state = _prefill(sampler, adapters, says, speaker_R, steps, device)
    eos_ = torch.tensor(sorted(eos), dtype=torch.long, device=device)
    ids_RT = torch.zeros((len(says), steps), dtype=torch.long, device=device)
    logp_RT = torch.zeros((len(says), steps), device=device)
    excess_RT = torch.zeros((len(says), steps), device=device)
    on_token = {row: say.on_token for row, say in enumerate(says) if say.on_token is not None}
    for t in range(steps):
        uniform_B = noise.uniform(state.key_B, t)
        token_B, logp_B, excess_B = draw(state.logits_BV, uniform_B, sampling, state.seen_BV)
        ids_RT[state.row_B, t], logp_RT[state.row_B, t] = token_B, logp_B
        if excess_B is not None:
            excess_RT[state.row_B, t] = excess_B
        if state.seen_BV is not None:
            state.seen_BV.scatter_(1, token_B[:, None], True)
        if on_token:
            _tell(on_token, state, token_B)
        state.done_B |= torch.isin(token_B, eos_)
        if t + 1 == steps or not _advance(sampler, state, ids_RT, t):
            break
    return _collect(ids_RT, logp_RT, excess_RT, eos_)


def every(device: torch.device) -> int:
    """Return after how many tokens finished rows are looked for, to leave the batch. On a GPU, to look is to wait for
    all that it has been given: finished rows rather sample up to 15 tokens that nobody uses."""
    return 1 if device.type == "cpu" else 16


def _tell(on_token: Mapping[int, Callable[[int], None]], state: _State, token_B: Tensor) -> None:
    """Pass the new token of each unfinished row to that row's callback, if it has one."""
    for row, token, done in zip(state.row_B.tolist(), token_B.tolist(), state.done_B.tolist(), strict=True):
        if row in on_token and not done:
            on_token[row](token)


def _advance(sampler: Sampler, state: _State, ids_RT: Tensor, t: int) -> bool:
    """Feed new token t of the rows in the batch to the model; return False if all rows are done. Synchronizes with the
    device where it reads which rows are done."""
    if (t + 1) % every(state.done_B.device) == 0:
        done = state.done_B.tolist()
        if all(done):
            return False
        state.compact(done)
    hidden_BW = state.cache.step(ids_RT[state.row_B, t], state.length_B + t)
    state.logits_BV = sampler.logits(hidden_BW)
    return True


def _prefill(
    sampler: Sampler,
    adapters: Adapters,
    says: Sequence[Say],
    speaker_R: Sequence[int],
    steps: int,
    device: torch.device,
) -> _State:
    """Compute each policy's distinct prompts once, and return the state with one row per say."""
    numbers = dict[tuple[int, tuple[int, ...]], int]()
    pairs = zip(speaker_R, says, strict=True)
    row_R = [numbers.setdefault((speaker, tuple(say.prompt_ids)), len(numbers)) for speaker, say in pairs]
    speaker_U, prompts = zip(*numbers, strict=True)
    cache = sampler.session(prompts, speaker_U, row_R, steps)
    adapters.split(speaker_R)
    logits_UV = sampler.logits(cache.hidden_UW)
    seen_BV = None
    if says[0].sampling.repetition_penalty != 1.0:
        seen_BV = torch.zeros((len(says), logits_UV.shape[1]), dtype=torch.bool, device=device)
        for b, say in enumerate(says):
            seen_BV[b, torch.tensor(say.prompt_ids, device=device)] = True
    return _State(
        adapters=adapters,
        speaker_B=list(speaker_R),
        row_B=torch.arange(len(says), device=device),
        key_B=torch.tensor([say.key for say in says], dtype=torch.int64, device=device),
        length_B=torch.tensor([len(say.prompt_ids) for say in says], device=device),
        seen_BV=seen_BV,
        done_B=torch.zeros(len(says), dtype=torch.bool, device=device),
        cache=cache,
        logits_BV=logits_UV[torch.tensor(row_R, device=device)],
    )


def _collect(ids_RT: Tensor, logp_RT: Tensor, excess_RT: Tensor, eos_: Tensor) -> list[Sample]:
    """Return the rows as samples, cut after their first end of sequence: a finished row that stayed in the batch
    sampled further tokens."""
    end_RT = torch.isin(ids_RT, eos_)
    finished_R = end_RT.any(1)
    length_R = torch.where(finished_R, end_RT.int().argmax(1) + 1, ids_RT.shape[1])
    inside_RT = torch.arange(ids_RT.shape[1], device=ids_RT.device) < length_R[:, None]
    columns = (ids_RT, logp_RT, finished_R, (excess_RT * inside_RT).sum(1), length_R)
    return [
        Sample(ids[:length], logps[:length], finished, excess)
        for ids, logps, finished, excess, length in zip(*(column.tolist() for column in columns), strict=True)
    ]
