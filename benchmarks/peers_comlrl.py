"""CoMLRL's MAGRPOTrainer, driven by its own ``train``: one epoch over the K problems of a step, one at a time.

Its rollout buffer holds all nodes of a step, so that every agent updates once (once per turn where there are two: it
splits its buffer by turn). No evaluation, no logging. Generation is its calls of ``generate``, one per agent and node.
"""

from __future__ import annotations

import os

os.environ["WANDB_MODE"] = "disabled"

import time
from typing import Any

from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from peers_account import STEPS, Account, ForcedGenerate
from peers_work import LEARNING_RATE, Case, lengths, load_model, prompts, tokenizer, told_next, worth


class Comlrl:
    """Two or more agents, each with its own model and optimiser."""

    def __init__(self, case: Case, folder: str) -> None:
        if case.turns > 1 and case.play != "tree":
            raise ValueError("MAGRPOTrainer plays several turns as a tree only")
        self.case, self.trained, self.idle = case, 0, 0
        self.models = [load_model(folder) for _ in case.roles]
        self.forced = [ForcedGenerate(model, case) for model in self.models]
        self.trainer = self._trainer()

    def step(self, round: int) -> Account:
        account = Account()
        for forced, length_KNG in zip(self.forced, lengths(self.case, round), strict=True):
            forced.account = account
            forced.waiting.extend(length_KNG.flatten(0, 1))
        self.trained = self.idle = 0
        before, start = STEPS.count, time.perf_counter()
        self.trainer.train()
        account.seconds, account.steps = time.perf_counter() - start, STEPS.count - before
        account.trained, account.idle = self.trained, self.idle
        return account

    def _trainer(self) -> Any:
        case = self.case
        args = MAGRPOConfig(
            num_train_epochs=1, num_agents=case.agents, num_generations=case.members, max_new_tokens=case.tokens,
            temperature=1.0, top_p=1.0, top_k=0, num_turns=case.turns, early_termination_threshold=None,
            external_prompt_passthrough=True, eval_interval=0, rollout_buffer_size=case.problems * case.nodes,
            advantage_normalization=False, agent_learning_rate=LEARNING_RATE, agent_devices="cpu",
        )  # fmt: skip
        by_agent = prompts(case)
        items = [{"prompts": [by_agent[a][k] for a in range(case.agents)]} for k in range(case.problems)]
        trainer = MAGRPOTrainer(
            agents=self.models, num_agents=case.agents, tokenizer=[tokenizer(case) for _ in case.roles], args=args,
            train_dataset=items, reward_func=_reward, external_transition=self._transition,
            formatters=[_formatter(a) for a in range(case.agents)],
        )  # fmt: skip
        trainer.verbose = False
        trainer._compute_loss_with_gradients = self._counted(trainer._compute_loss_with_gradients)
        return trainer

    def _transition(self, prompt_history_per_agent: Any, agent_completions: Any, **_: Any) -> list[str]:
        """Each agent's next prompt: its own first one, its response, the note."""
        told = zip(prompt_history_per_agent, agent_completions, strict=True)
        return [told_next(self.case, history[-1], response) for history, response in told]

    def _counted(self, loss: Any) -> Any:
        """Its loss, which also counts what is in it: all positions of the padded rows but the last one."""

        def counted(agent: Any, data: Any, returns: Any) -> Any:
            for row in data["completion_input_ids"][0]:
                own = row.tolist().index(self.case.end) + 1
                self.trained += min(own, len(row) - 1)
                self.idle += max(0, len(row) - 1 - own)
            return loss(agent, data, returns)

        return counted


def _formatter(agent: int) -> Any:
    return lambda item: item["prompts"][agent]


def _reward(*completions: list[str]) -> list[float]:
    return [worth(texts) for texts in zip(*completions, strict=True)]
