"""Our side of the comparison: ``Trainer.step`` with the lengths of all turns forced."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from peers_account import STEPS, Account
from peers_work import LEARNING_RATE, Case, lengths, prompts, tokenizer, told_next, worth
from torch import Tensor

from coevolve import LocalEngine, LocalLearner, PolicySpec, Problem, Sampling, Trainer, build_policies, magrpo, noise
from coevolve.cast import fixed
from coevolve.engines.local import sample_there
from coevolve.plays import rounds, tree
from coevolve.runtime.pool import Job, WorkerState
from coevolve.types import Batch, Play, Say, Turn
from coevolve.types import Case as Judged

TOP = 1 - 2**-24
"""The largest uniform number: sampling by inverse CDF, it draws the last id of the vocabulary, the end of sequence."""

SPARED = 16
"""Mean shares of the vocabulary at the top of the CDF that no other number reaches: the end has one of about 1 / V."""


class Ours:
    """Our trainer on a case. settings: further fields of every policy's spec."""

    def __init__(self, case: Case, folder: str, **settings: Any) -> None:
        self.case = case
        specs = {role: PolicySpec(model=folder, learning_rate=LEARNING_RATE, **settings) for role in case.roles}
        policies = build_policies(specs, reference=False, critic=False, steps=1, seed=0, workers=True)
        for policy in policies.values():
            policy.tokenizer = tokenizer(case)
            policy.eos = frozenset({case.end}) if case.model is None else frozenset()
        self.engine = ForcedEngine(policies, case)
        self.account, self.trained = Account(), list[int]()
        rule = magrpo()
        self.aggregation = rule.objective.loss_aggregation
        objective = dataclasses.replace(rule.objective, loss_aggregation=self._watched)
        self.trainer = Trainer(
            task=Words(case),
            play=play(case),
            cast=fixed({role: role for role in case.roles}),
            policies=policies,
            algorithm=dataclasses.replace(rule, objective=objective),
            sampling=Sampling(max_new_tokens=case.tokens),
            batch_size=case.problems,
            members=1 if case.play == "tree" else case.members,
            engine=self.engine,
        )

    def step(self, round: int) -> Account:
        self.account, self.trained = Account(), []
        self.engine.lengths.copy_(lengths(self.case, round))
        before, start = STEPS.count, time.perf_counter()
        metrics = self.trainer.step(round)
        self.account.seconds, self.account.steps = time.perf_counter() - start, STEPS.count - before
        self.account.trained = sum(self.trained)
        self.account.phases = {key[5:]: value for key, value in metrics.items() if key.startswith("time/")}
        self.account.generating = self.account.phases["generate"]
        for episode in self.trainer.episodes:
            turns = episode.turns
            length_B = torch.tensor([length(turn, self.case, self.engine.lengths) for turn in turns])
            self.account.made.append(([self._ended(turn.action_ids) for turn in turns], length_B))
        return self.account

    def _ended(self, ids: Sequence[int]) -> Sequence[int]:
        """Of real weights nothing but its length ends a turn, and its last token counts as the end."""
        return ids if self.case.model is None else [*ids[:-1], self.case.end]

    def _watched(self, batch: Batch) -> Tensor:
        """The algorithm's weights of a mini-batch, whose tokens are counted."""
        self.trained.append(int(batch.mask_BT.sum()))  # policies learn in several threads
        return self.aggregation(batch)


def play(case: Case) -> Play:
    def note(p: Problem, turns: Sequence[Turn]) -> list[str]:
        return [""] * len(turns)  # the task's prompt adds the same words for everybody

    if case.play == "tree":
        return tree(case.turns, case.members, feedback=note)
    return rounds(case.turns, feedback=note)


class Words:
    """The problems as a task: text of words that are ids."""

    def __init__(self, case: Case) -> None:
        self.case = case
        by_agent = prompts(case)
        self.train = self.test = [
            Problem(str(k), {role: by_agent[a][k] for a, role in enumerate(case.roles)}) for k in range(case.problems)
        ]

    def prompt(self, p: Problem, role: str, heard: Sequence[Turn | str]) -> str:
        """The prompt, and of every earlier turn what was said and the note on it."""
        text: str = p.data[role]
        for part in heard:
            if isinstance(part, Turn):
                text = told_next(self.case, text, part.text)
        return text

    def reward(self, cases: Sequence[Judged]) -> list[list[float]]:
        return [[worth([turn.text for turn in case.turns])] * len(case.turns) for case in cases]


class ForcedEngine(LocalEngine):
    """The library's engine, a process per policy; only the uniform numbers that it draws tokens with are replaced."""

    def __init__(self, policies: Mapping[str, LocalLearner], case: Case) -> None:
        super().__init__(policies)
        self.case, self.lengths = case, lengths(case, 0)

    def _job(self, says: Mapping[str, Sequence[Say]], part: Mapping[str, range]) -> Job:
        job = super()._job(says, part)
        return dataclasses.replace(job, given=(self.case, self.lengths, *job.given), work=forced_there)

    def generate(self, says: Mapping[str, Sequence[Say]]) -> Mapping[str, list[Turn]]:
        with forced_lengths(self.case, self.lengths, says):
            return super().generate(says)


def length(say: Say | Turn, case: Case, lengths: Tensor) -> int:
    """How many tokens this turn has to have."""
    node, member = divmod(say.round, case.members) if case.play == "tree" else (say.round, say.member)
    return int(lengths[case.roles.index(say.role), int(say.problem.id), node, member])


def forced_there(state: WorkerState, case: Case, lengths: Tensor, says: Any, max_tokens: int) -> Any:
    """The same in a worker."""
    with forced_lengths(case, lengths, says):
        return sample_there(state, says, max_tokens)


def forced_lengths(case: Case, lengths: Tensor, says: Mapping[str, Sequence[Say]]) -> AbstractContextManager[None]:
    """While it lasts, turns end as this table says."""
    return forced_ends(
        {say.key: length(say, case, lengths) for asked in says.values() for say in asked}, case.vocabulary
    )


@contextmanager
def forced_ends(wanted: Mapping[int, int], vocabulary: int) -> Iterator[None]:
    """While it lasts, the row with this key draws the last id of the vocabulary as its n-th token, and not before."""
    honest = noise.uniform
    keys = torch.tensor(sorted(wanted))
    last = torch.tensor([wanted[key] - 1 for key in sorted(wanted)])

    def uniform(key_B: Tensor, position: int | Tensor) -> Tensor:
        row_B = torch.searchsorted(keys.to(key_B.device), key_B)
        ends_B = last.to(key_B.device)[row_B.clamp(max=len(keys) - 1)] == position
        return torch.where(ends_B, TOP, honest(key_B, position) * (1 - SPARED / vocabulary))

    noise.uniform = uniform
    try:
        yield
    finally:
        noise.uniform = honest
