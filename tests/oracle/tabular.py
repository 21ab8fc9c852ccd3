"""Policies that are tables, one pair of logits per prompt, and the engine that samples from them.

Letters: S prompts, B rows, T action tokens, A = 2 moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coevolve import noise
from coevolve.types import Batch, Say, Turn

MOVES = "CD"
TOKENS = "CDcd"
"""As in the packaged model; a table says capitals only."""


class Table:
    """One agent's logits_SA and the log-probabilities of its reference, random, the reference further from even.

    No move of the agent is less likely than 0.12, so that every prompt is met often.
    """

    def __init__(self, prompts: Sequence[str], seed: int) -> None:
        self.prompts = list(prompts)
        self.number = {prompt: number for number, prompt in enumerate(self.prompts)}
        generator = torch.Generator().manual_seed(seed)
        random_2SA = 2 * torch.rand(2, len(prompts), 2, generator=generator, dtype=torch.float64) - 1
        self.logits_SA = random_2SA[0].clone().requires_grad_()
        self.reference_SA = (2 * random_2SA[1]).log_softmax(-1)

    @property
    def logp_SA(self) -> Tensor:
        return self.logits_SA.log_softmax(-1)

    def prompts_of(self, batch: Batch) -> Tensor:
        """The number of each row's prompt; shape B."""
        starts = zip(batch.ids_BS.tolist(), batch.start_B.tolist(), strict=True)
        return torch.tensor([self.number["".join(TOKENS[i] for i in ids[:start])] for ids, start in starts])


class TabularEngine:
    """Answers every say with one token of its policy's table, drawn with the say's own noise as a real engine does."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables = tables

    def encode(self, policy: str, prompt: str) -> list[int]:
        return [TOKENS.index(token) for token in prompt]

    @torch.no_grad()
    def generate(self, says: Mapping[str, Sequence[Say]]) -> dict[str, list[Turn]]:
        return {name: self._answer(self.tables[name], asked) for name, asked in says.items()}

    def moves(self, says: Sequence[Say], logp_BA: Tensor) -> Tensor:
        """What is said: the number of each move, [B]."""
        uniform_B = noise.uniform(torch.tensor([say.key for say in says]), 0)
        return (uniform_B >= logp_BA[:, 0].exp()).long()

    def _answer(self, table: Table, says: Sequence[Say]) -> list[Turn]:
        rows = [table.number["".join(TOKENS[i] for i in say.prompt_ids)] for say in says]
        logp_BA = table.logp_SA[rows]
        move_B = self.moves(says, logp_BA)
        logp_B = logp_BA.gather(1, move_B[:, None])[:, 0]
        drawn = zip(says, move_B.tolist(), logp_B.tolist(), strict=True)
        return [say.answered([move], [logp], MOVES[move], finished=False) for say, move, logp in drawn]


class EveryEngine(TabularEngine):
    """Draws nothing: problem number n gets the moves that are n's binary digits, so 2^k problems get all there are.

    turns: of each agent in an episode, each of which is one digit.
    """

    def __init__(self, tables: Mapping[str, Table], turns: int) -> None:
        super().__init__(tables)
        self.turns = turns

    def moves(self, says: Sequence[Say], logp_BA: Tensor) -> Tensor:
        roles = list(self.tables)
        digits = [(s.member * len(roles) + roles.index(s.role)) * self.turns + s.round for s in says]
        return torch.tensor([int(s.problem.id) >> digit & 1 for s, digit in zip(says, digits, strict=True)])
