"""Callbacks: objects whose methods are called at a training's events, by TRL's names and with its arguments.

``on_train_begin, on_step_begin, on_step_end, on_log, on_evaluate, on_save, on_train_end``: a callback has any of these
methods, each ``(args, state, control, **kwargs)``; a ``transformers.TrainerCallback`` is one. Every event is given the
``trainer`` by keyword; on_log also ``logs``, the step's metrics; on_evaluate ``metrics`` and ``samples``, the dialogues
on held-out problems as in ``samples.jsonl``; on_save ``checkpoint``, its folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevolve.faults import blame
from coevolve.files import shown

EVENTS = (
    "on_train_begin",
    "on_step_begin",
    "on_step_end",
    "on_log",
    "on_evaluate",
    "on_save",
    "on_train_end",
)


@dataclass(frozen=True)
class Arguments:
    """The settings of a training that ``transformers.TrainingArguments`` has too, by its names."""

    output_dir: str
    max_steps: int
    save_steps: int
    seed: int
    logging_steps: int = 1


@dataclass
class State:
    """The progress of a training. global_step: steps learnt."""

    global_step: int
    max_steps: int
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True


@dataclass
class Control:
    """Flags that a callback may set. should_training_stop: end the training after this step, with a checkpoint that
    --resume goes on from; set before the first step, no step is made and no checkpoint. should_save: write a checkpoint
    after this step."""

    should_training_stop: bool = False
    should_save: bool = False


class CallbackHandler:
    """The callbacks of one training, and the calls of their methods at its events."""

    def __init__(self, callbacks: Sequence[Any], args: Arguments, start: int, **kwargs: Any) -> None:
        self.state, self.control = State(start, args.max_steps), Control()
        self._callbacks, self._args, self._kwargs = callbacks, args, kwargs

    def __call__(self, event: str, **more: Any) -> None:
        """Call this event's method of every callback.

        Raises ValueError naming the callback that failed, the event, and the line of the user's file.
        """
        for callback in self._callbacks:
            if (told := getattr(callback, event, None)) is not None:
                with blame(f"the callback {name_of(callback)}, {event}, after step {self.state.global_step}"):
                    told(self._args, self.state, self.control, **self._kwargs, **more)

    def stepped(self, logs: Mapping[str, Any]) -> None:
        """Count a step as learnt and call on_step_end and on_log."""
        self.state.global_step += 1
        self("on_step_end")
        self("on_log", logs=dict(logs))

    def evaluated(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Call on_evaluate, if held-out problems were played."""
        if samples:
            self("on_evaluate", metrics=_mean(samples), samples=samples)

    def saved(self, checkpoint: Path) -> None:
        """Call on_save for a written checkpoint and clear ``should_save``."""
        self.control.should_save = False
        self("on_save", checkpoint=checkpoint)


def name_of(callback: Any) -> str:
    """Return the name of a callback for messages."""
    return str(getattr(callback, "name", type(callback).__name__))


def check_callbacks(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the callbacks as a tuple. Raises ValueError for anything but a list of them, for a class, and for an
    object without any event's method."""
    if not isinstance(callbacks, Sequence):
        raise ValueError(f"callbacks: want a list of them, found {shown(callbacks)}")
    for callback in callbacks:
        if inspect.isclass(callback):
            raise ValueError(f"callbacks: {callback.__name__} is a class; make one of it: {callback.__name__}()")
        if not any(callable(getattr(callback, event, None)) for event in EVENTS):
            raise ValueError(f"callbacks: {name_of(callback)} has no event; want some of {', '.join(EVENTS)}")
    return tuple(callbacks)


def _mean(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean reward of the turns on held-out problems; empty if the task rewarded none."""
    rewards = [turn["reward"] for sample in samples for turn in sample["turns"] if turn["reward"] is not None]
    return {"eval_reward": sum(rewards) / len(rewards)} if rewards else {}
