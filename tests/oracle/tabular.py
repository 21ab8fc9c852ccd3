"""Policies that are tables, one pair of logits per prompt, and the engine that samples from them.

A response is moves one after the other, most often a single one. Letters: S what a move can follow, B rows, T action
tokens, A = 2 moves.
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

    def states_of(self, batch: Batch) -> Tensor:
        """The number of what each token follows, its prompt and what was said before it; [B, T], 0 outside the mask."""
        if batch.mask_BT.shape[1] == 1:
            return self.prompts_of(batch)[:, None]
        states = []
        for ids, start, mask in zip(batch.ids_BS.tolist(), batch.start_B.tolist(), batch.mask_BT.tolist(), strict=True):
            text = "".join(TOKENS[i] for i in ids)
            states.append([self.number[text[: start + t]] if there else 0 for t, there in enumerate(mask)])
        return torch.tensor(states)


class TabularEngine:
    """Answers every say with moves of its policy's table, drawn with the say's own noise as a real engine does.

    responses: what may be said; a response ends where it is one of these.
    """

    def __init__(self, tables: Mapping[str, Table], responses: Sequence[str] = MOVES) -> None:
        self.tables, self.responses = tables, tuple(responses)

    def encode(self, policy: str, prompt: str) -> list[int]:
        return [TOKENS.index(token) for token in prompt]

    @torch.no_grad()
    def generate(self, says: Mapping[str, Sequence[Say]]) -> dict[str, list[Turn]]:
        return {name: self._answer(self.tables[name], asked) for name, asked in says.items()}

    def texts(self, table: Table, says: Sequence[Say], prompts: Sequence[str]) -> list[str]:
        """What is said."""
        keys, texts = torch.tensor([say.key for say in says]), [""] * len(says)
        for t in range(max(map(len, self.responses))):
            states = [table.number.get(prompt + text, 0) for prompt, text in zip(prompts, texts, strict=True)]
            move_B = (noise.uniform(keys, t) >= table.logp_SA[states][:, 0].exp()).long()
            drawn = zip(texts, move_B.tolist(), strict=True)
            texts = [text if text in self.responses else text + MOVES[move] for text, move in drawn]
        return texts

    def _answer(self, table: Table, says: Sequence[Say]) -> list[Turn]:
        prompts = ["".join(TOKENS[i] for i in say.prompt_ids) for say in says]
        logps, turns = table.logp_SA.tolist(), []
        for say, prompt, text in zip(says, prompts, self.texts(table, says, prompts), strict=True):
            ids = [MOVES.index(move) for move in text]
            said = [logps[table.number[prompt + text[:t]]][i] for t, i in enumerate(ids)]
            turns.append(say.answered(ids, said, text, finished=False))
        return turns


class EveryEngine(TabularEngine):
    """Draws nothing: problem number n gets the responses that are n's digits, so that R^k problems get all there are.

    turns: of each agent in an episode, each of which is one digit.
    """

    def __init__(self, tables: Mapping[str, Table], turns: int, responses: Sequence[str] = MOVES) -> None:
        super().__init__(tables, responses)
        self.turns = turns

    def texts(self, table: Table, says: Sequence[Say], prompts: Sequence[str]) -> list[str]:
        roles, base = list(self.tables), len(self.responses)
        digits = [(s.member * len(roles) + roles.index(s.role)) * self.turns + s.round for s in says]
        return [self.responses[int(s.problem.id) // base**k % base] for s, k in zip(says, digits, strict=True)]
