"""Code as TRL's and verifiers' documentation writes it, run as it stands: what is imported is all that may change.

Each snippet keeps the shape of their interface, names of parameters, what comes in and what goes out; words and numbers
are ours. ``SNIPPETS`` lists them, and where each is from.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from coevolve import ScriptedEngine
from coevolve.plays import rounds, tools
from coevolve.rollout import Stage, rollout
from coevolve.tasks import Rows, Verifiers
from coevolve.types import Sampling

datasets = pytest.importorskip("datasets")
Dataset = datasets.Dataset

CHAT = [{"role": "user", "content": "What is 6 x 7?"}]


def paid(task: Any, *answers: str, play: Any = None) -> list[float]:
    """What members of the first problem are paid for what they say."""
    engine = ScriptedEngine(lambda role, problem, member, number: answers[member].split(" | ")[number])
    stage = Stage({"solver": "ann"}, task, engine, Sampling(64))
    episodes = rollout(play or rounds(), task.train[:1], stage, members=len(answers))
    return [episode.joints[-1].rewards[0] for episode in episodes]


def rows(reward: Any, dataset: Any = None, **settings: Any) -> Rows:
    data = Dataset.from_list([{"prompt": "6 x 7 =", "ground_truth": "42"}]) if dataset is None else dataset
    return Rows(data=data, test=data, prompts={"solver": "{prompt}"}, reward=reward, **settings)


# --- TRL -------------------------------------------------------------------------------------------------------------


def trl_unique_letters() -> list[float]:
    """Quick start: a data set of prompts, and a reward of one argument besides the rest."""
    dataset = Dataset.from_dict({"prompt": ["Name a fish.", "Name a bird."]})

    def reward_num_unique_chars(completions, **kwargs):
        return [len(set(c)) for c in completions]

    return paid(rows(reward_num_unique_chars, dataset), "eel", "tuna")


def trl_longer() -> list[float]:
    """GRPO trainer, "Using a custom reward function": token ids alone."""

    def reward_func(completion_ids, **kwargs):
        return [float(len(ids)) for ids in completion_ids]

    return paid(rows(reward_func), "one", "one two three")


def trl_format() -> list[float]:
    """Likewise: a form, in a conversational data set."""
    dataset = Dataset.from_list([{"prompt": CHAT}])

    def format_reward_func(completions, **kwargs):
        pattern = r"^<think>.*?</think><answer>.*?</answer>$"
        completion_contents = [completion[0]["content"] for completion in completions]
        matches = [re.match(pattern, content) for content in completion_contents]
        return [1.0 if match else 0.0 for match in matches]

    return paid(rows(format_reward_func, dataset), "<think>6</think><answer>42</answer>", "42")


def trl_ground_truth() -> list[float]:
    """Likewise: against a column of the data set."""

    def reward_func(completions, ground_truth, **kwargs):
        matches = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
        contents = [match.group(1) if match else "" for match in matches]
        return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth, strict=True)]

    return paid(rows(reward_func), r"so \boxed{42}", r"so \boxed{41}", "42")


def trl_several_tasks() -> list[float]:
    """Likewise: several rewards, each for rows of its own task, None elsewhere."""
    dataset = Dataset.from_list([{"prompt": "6 x 7 =", "task": "math"}])

    def math_reward_func(prompts, completions, task, **kwargs):
        rewards = []
        for prompt, completion, t in zip(prompts, completions, task, strict=True):
            if t == "math":
                rewards.append(1.0 if prompt == "6 x 7 =" and completion == "42" else -1.0)
            else:
                rewards.append(None)
        return rewards

    def coding_reward_func(prompts, completions, task, **kwargs):
        return [len(c) if t == "coding" else None for c, t in zip(completions, task, strict=True)]

    return paid(rows([math_reward_func, coding_reward_func], dataset), "42", "43")


def trl_weights() -> list[float]:
    """Likewise: ``reward_funcs`` with ``reward_weights``."""

    def right(completions, ground_truth, **kwargs):
        return [float(c == gt) for c, gt in zip(completions, ground_truth, strict=True)]

    def short(completions, **kwargs):
        return [-float(len(c)) for c in completions]

    return paid(rows([right, short], reward_weights=[1.0, 0.5]), "42", "forty")


def trl_async() -> list[float]:
    """Likewise: an async reward."""

    async def async_reward_func(prompts, completions, **kwargs):
        await asyncio.sleep(0.001)
        return [float(len(completion)) for completion in completions]

    return paid(rows(async_reward_func), "42", "four")


def trl_logs() -> list[float]:
    """Likewise: what a reward logs beside what it pays."""

    def accuracy_reward(completions, ground_truth, log_extra=None, log_metric=None, **kwargs):
        rewards = [1.0 if gt in c else 0.0 for c, gt in zip(completions, ground_truth, strict=True)]
        if log_extra:
            log_extra("golden_answer", list(ground_truth))
        if log_metric:
            log_metric("accuracy", sum(rewards) / len(rewards))
        return rewards

    task, logged = rows(accuracy_reward), list[Any]()
    task._reward._remember = lambda case, parts, known: logged.append(parts)
    found = paid(task, "42", "43")
    assert logged == [{"accuracy_reward_accuracy": 0.5}] * 2
    return found


def trl_tools() -> list[float]:
    """GRPO trainer, "Agent training": a tool with type hints and a docstring."""

    def multiply(a: int, b: int) -> int:
        """
        Multiplies two integers.

        Args:
            a: The first factor.
            b: The second factor.

        Returns:
            The product.
        """
        return a * b

    def right(completions, ground_truth, **kwargs):
        return [float(c == gt) for c, gt in zip(completions, ground_truth, strict=True)]

    call = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'
    return paid(rows(right), f"{call} | 42", "41", play=tools([multiply]))


# --- verifiers -------------------------------------------------------------------------------------------------------


def verifiers_correct_answer() -> list[float]:
    """Environments, "Your First Environment": its rows and its reward."""
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": "What is 6 x 7?"}], "answer": "42"},
         {"prompt": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}]
    )  # fmt: skip

    async def correct_answer(completion, answer) -> float:
        response = completion[-1]["content"]
        return 1.0 if answer in response else 0.0

    return paid(rows(correct_answer, dataset), "It is 42.", "It is 13.")


def verifiers_several() -> list[float]:
    """Environments, "Multiple Reward Functions", with what ``info`` holds as JSON."""
    dataset = Dataset.from_list([{"prompt": CHAT, "answer": "42", "info": '{"limit": 5}'}])

    async def check_keywords(completion, info) -> float:
        return float(len(completion[-1]["content"]) <= info["limit"])

    async def length_reward(completion) -> float:
        return 1.0 if len(completion[-1]["content"]) < 4 else 0.0

    return paid(rows([check_keywords, length_reward], dataset, reward_weights=[1.0, 0.1]), "42", "forty", "a lot")


def verifiers_state() -> list[float]:
    """Environments, "Execution Order and State": a reward that reads the state, in which rows' columns are."""
    dataset = Dataset.from_list([{"question": "6 x 7", "answer": "42"}])

    def similar(state, completion, **kwargs) -> float:
        return 1.0 if completion[-1]["content"] == state["answer"] and state["prompt"][0]["role"] == "user" else 0.0

    task = Rows(data=dataset, test=dataset, prompts={"solver": "{question}"}, reward=similar)
    return paid(task, "42", "43")


def verifiers_parser() -> list[float]:
    """Components: functions in a Rubric with weights, which ask for its parser by name."""

    class Parser:  # as vf.XMLParser: what stands in the tag
        def parse_answer(self, completion):
            found = re.search(r"<answer>(.*?)</answer>", completion[-1]["content"])
            return found.group(1) if found else None

    class Rubric:  # as vf.Rubric: what its constructor keeps
        def __init__(self, funcs, weights, parser):
            self.funcs, self.weights, self.class_objects = funcs, weights, {"parser": parser}

    def correct_answer(parser, completion, answer):
        response = parser.parse_answer(completion) or ""
        return 1.0 if response.strip() == answer.strip() else 0.0

    def has_tag(completion, **kwargs):
        return float("<answer>" in completion[0]["content"])

    dataset = Dataset.from_list([{"prompt": CHAT, "answer": "42"}])
    rubric = Rubric(funcs=[correct_answer, has_tag], weights=[1.0, 0.2], parser=Parser())
    return paid(rows(rubric, dataset), "<answer> 42 </answer>", "<answer>41</answer>", "42")


def verifiers_single_turn_env() -> list[float]:
    """Environments, "Your First Environment": the environment itself, made by the function that they load."""

    class Rubric:  # as vf.Rubric
        def __init__(self, funcs):
            self.funcs, self.weights, self.class_objects = funcs, [1.0] * len(funcs), {}

    class SingleTurnEnv:  # as vf.SingleTurnEnv: rows of messages, and a rubric
        def __init__(self, dataset, rubric):
            self.dataset, self.rubric = dataset, rubric

        def get_dataset(self):
            return self.dataset

    def load_environment():
        dataset = Dataset.from_list([{"prompt": CHAT, "answer": "42"}])

        async def correct_answer(completion, answer) -> float:
            response = completion[-1]["content"]
            return 1.0 if answer in response else 0.0

        rubric = Rubric(funcs=[correct_answer])
        return SingleTurnEnv(dataset=dataset, rubric=rubric)

    env = load_environment()
    return paid(rows(env.rubric, env.get_dataset()), "It is 42.", "41")


def verifiers_taskset() -> list[float]:
    """Building environments, 0.4: a taskset, whose tasks have their data, a weighted reward and a metric."""
    vf = pytest.importorskip("verifiers.v1", reason="verifiers 0.4 wants openai below 3, so `dev` is without it")

    class ReverseData(vf.TaskData):
        answer: str

    class ReverseTask(vf.Task[ReverseData]):
        @vf.reward(weight=2.0)
        async def exact(self, trace) -> float:
            return float(trace.last_reply == self.data.answer)

        @vf.reward
        async def last_letter(self, task, trace) -> float:
            return float(trace.last_reply[-1:] == task.answer[-1:])

        @vf.metric
        async def length(self, trace) -> float:
            return float(len(trace.last_reply))

    class ReverseTaskset(vf.Taskset[ReverseTask, vf.TasksetConfig]):
        def load(self):
            for text in ("abc", "abc"):
                prompt = f"Reverse: {text}"
                data = ReverseData(prompt=prompt, system_prompt="Answer alone.", answer=text[::-1])
                yield ReverseTask(data, self.config.task)

    return paid(Verifiers(taskset=lambda: ReverseTaskset(vf.TasksetConfig()), test=0.5), "cba", "bca", "abc")


SNIPPETS = {
    trl_unique_letters: [2.0, 4.0],
    trl_longer: [2.0, 4.0],  # with the end of sequence
    trl_format: [1.0, 0.0],
    trl_ground_truth: [1.0, 0.0, 0.0],
    trl_several_tasks: [1.0, -1.0],
    trl_weights: [0.0, -2.5],
    trl_async: [2.0, 4.0],
    trl_logs: [1.0, 0.0],
    trl_tools: [1.0, 0.0],
    verifiers_correct_answer: [1.0, 0.0],
    verifiers_several: [1.1, 1.0, 1.0],
    verifiers_state: [1.0, 0.0],
    verifiers_parser: [1.2, 0.2, 0.0],
    verifiers_single_turn_env: [1.0, 0.0],
    verifiers_taskset: [3.0, 1.0, 0.0],
}
"""Each with what it pays the answers that it is given."""


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.__name__)
def test_it_runs_as_it_stands(snippet: Any) -> None:
    assert snippet() == pytest.approx(SNIPPETS[snippet])


def test_messages_of_a_row_are_told_as_messages() -> None:
    task = rows(lambda solver: 0.0, Dataset.from_list([{"prompt": CHAT}]))
    assert task.prompt(task.train[0], "solver", ()) == CHAT
    with pytest.raises(ValueError, match="column 'prompt', which prompts"):
        len(Rows(data=[{"prompt": CHAT}], test=0.5, prompts={"solver": "Say: {prompt}"}, reward=lambda solver: 0).train)
