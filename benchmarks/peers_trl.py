"""TRL's GRPOTrainer: one model that does the work of all our agents, on all their prompts.

It is driven by its own ``train``, a few optimiser steps at a time, and timed by a callback from the beginning of the
training loop to the end of the last step, so that setting up the loop is not counted. Everything that costs time and
is not the work is off: checkpointing, reference model, clipping, logging, saving, evaluation.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from typing import Any

import torch
from datasets import Dataset
from peers_account import STEPS, Account, ForcedGenerate
from peers_work import LEARNING_RATE, Case, lengths, load_model, prompts, tokenizer, worth
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Trl:
    """One optimiser step per agent of ours, each on that agent's K prompts x G members, as one generation.

    One generation for the prompts of all agents would need the log-probabilities of the sampler for the second step,
    and so a forward more. batch: rows per forward and backward; None tries a few and keeps the fastest.
    """

    def __init__(self, case: Case, folder: str, batch: int | None = None) -> None:
        if case.turns > 1:
            raise ValueError("GRPOTrainer has no second turn in which members of a group have prompts of their own")
        self.case = case
        self.model = load_model(folder)
        self.forced = ForcedGenerate(self.model, case)
        self.batch = batch or self._fastest()
        self.trainer = self._trainer(self.batch)

    def step(self, round: int) -> Account:
        self.forced.account = account = Account()
        self.forced.waiting.extend(length_KG.flatten() for length_KG in lengths(self.case, round)[:, :, 0])
        before = STEPS.count
        self.trainer.train()
        clock = self.trainer.clock
        account.seconds, account.steps = clock.end - clock.start, STEPS.count - before
        account.trained, self.trainer.trained = self.trainer.trained, 0
        return account

    def _fastest(self) -> int:
        """Rows at a time: one group, a few, or all rows of a step, whichever took least in the better of two steps."""
        rows, group = self.case.problems * self.case.members, self.case.members
        candidates = sorted({group, 4 * group, rows} & {n for n in range(group, rows + 1) if rows % n == 0})
        seconds: dict[int, float] = {}
        if len(candidates) > 1:
            for i, batch in enumerate((candidates[0], *candidates, *candidates)):
                self.trainer = self._trainer(batch)
                took = self.step(0).seconds
                if i:  # the first step warms up
                    seconds[batch] = min(took, seconds.get(batch, took))
        return min(seconds, key=seconds.__getitem__, default=group)

    def _trainer(self, batch: int) -> Any:
        case, rows = self.case, self.case.problems * self.case.members
        args = GRPOConfig(
            output_dir=tempfile.gettempdir(), use_cpu=True, bf16=False, learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant", max_steps=case.agents, per_device_train_batch_size=batch,
            gradient_accumulation_steps=rows // batch, num_generations=case.members,
            max_completion_length=case.tokens, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, num_iterations=1,
            scale_rewards="none", shuffle_dataset=False, gradient_checkpointing=False, max_grad_norm=0.0,
            logging_strategy="no", save_strategy="no", eval_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        items = [{"prompt": prompt} for by_problem in prompts(case) for prompt in by_problem]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _Counted(
                self.model, reward_funcs=_reward, args=args, train_dataset=Dataset.from_list(items),
                processing_class=tokenizer(case), callbacks=[clock := Clock()], clock=clock,
            )  # fmt: skip
        made.remove_callback(PrinterCallback)
        return made


class Clock(TrainerCallback):
    """Seconds at the beginning of the loop and at the end of the latest step."""

    start = end = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.end = time.perf_counter()


class _Counted(GRPOTrainer):
    """Also counts the tokens in its loss."""

    def __init__(self, *args: Any, clock: Clock, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.clock, self.trained = clock, 0

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.trained += int(inputs["completion_mask"].sum())
        return super()._compute_loss(model, inputs)


def _reward(completions: list[str], **_: Any) -> list[float]:
    return [worth([text]) for text in completions]
