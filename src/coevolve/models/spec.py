"""The settings of one policy in a recipe. Their defaults are defined here and nowhere else."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from coevolve.files import shown
from coevolve.settings import BelowOne, Count, CountFromZero, NotNegative, Positive, check_fields

_OURS = frozenset(
    {"messages", "conversation", "add_generation_prompt", "continue_final_message", "tokenize", "return_dict"}
)
"""Keywords of a chat template that a recipe may not set."""

_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu)(:\d{1,3})?")

Compute = Literal["auto", "reference", "torch", "cpu"]
"""The backends (``compute.backend``), and "auto", the rule that chooses one."""


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank adapters (arXiv 2106.09685): rank, alpha (scale is alpha / rank), and the modules they sit on."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    rank: Count = 16
    alpha: Count = 16
    targets: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"] = "all-linear"

    def __post_init__(self) -> None:
        check_fields(self, "lora")


@dataclass(frozen=True)
class PolicySpec:
    """One policy: its model, which of its weights are trained, how, and on which device.

    model: a name for ``models.load``. weights: "full" trains a copy of its own, "lora" an adapter on a base that all
    lora policies of the same model share, "frozen" nothing. learning_rate, betas, weight_decay: AdamW.
    value_learning_rate: of a value head, if there is one (None: learning_rate); the head starts at 0, so it may need a
    much higher rate than pre-trained weights. max_grad_norm: clip the gradient's norm (None: measure only). schedule:
    of the learning rate over the run's steps, after warmup_steps of linear warm-up. device: "auto" is the first GPU, or
    the CPU. dtype: of the computation; trained weights are always float32, others are held in the computation's dtype
    (``models.narrow``). micro_tokens: about how many tokens per forward and backward, in each process if there are
    several, common prefixes of rows counted once (padding included for models that cannot share them, see
    docs/performance.md); more is faster as long as memory lasts. gradient_checkpointing: keep only the input of every
    layer and compute the rest again for the gradient, for long texts: about a third more time. chat: whether a task's
    instructions are messages of the model's chat template: None if it has one, False never, True always (an error
    without one), or always with these keywords for it, such as ``{enable_thinking: false}``. load_in_4bit: hold the
    linear layers of the base in 4 bits (QLoRA, arXiv 2305.14314: NF4, double quantisation) and compute with them in
    ``dtype``; only for lora and frozen. optimizer: AdamW with moments in float32, or in 8 bits (arXiv 2110.02861;
    "paged": in memory that a GPU lends out) by bitsandbytes, a quarter of the bytes; tensors of less than 4,096 numbers
    keep float32. compute: the backend, "auto" by the rule of ``compute.backend``; "reference" is slow and plain, to
    compare with.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str
    weights: Literal["full", "lora", "frozen"] = "full"
    lora: LoraSpec = field(default_factory=LoraSpec)
    learning_rate: Positive = 1.41e-5
    value_learning_rate: Positive | None = None
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive | None = None
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: CountFromZero = 0
    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    micro_tokens: Count = 2048
    gradient_checkpointing: bool = False
    chat: bool | dict[str, Any] | None = None
    load_in_4bit: bool = False
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    compute: Compute = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.chat, bool | dict | None):
            raise ValueError(f"chat is {shown(self.chat)}; want true, false, none, or keywords for the chat template")
        check_fields(self, "policy")
        object.__setattr__(self, "model", os.path.expanduser(self.model))
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(f"device {shown(self.device)} is unknown; use auto, cpu, cuda, or cuda:1")
        if self.load_in_4bit and self.weights == "full":
            raise ValueError("load_in_4bit with weights: full; 4-bit weights cannot be trained, so say weights: lora")
        if self.weights == "full" and self.lora != LoraSpec():
            # No error: a recipe may override a base that sets lora, and a sweep may compare the two.
            warnings.warn(
                f"policy of {self.model}: weights is full and lora is set, which is not used; say weights: lora if an "
                "adapter is to be trained",
                stacklevel=3,
            )
        if isinstance(self.chat, dict) and (ours := _OURS & set(self.chat)):
            raise ValueError(f"chat.{min(ours)} cannot be set; chat holds what the template itself reads")

    @property
    def trainable(self) -> bool:
        """False if frozen."""
        return self.weights != "frozen"


@dataclass(frozen=True)
class RecipePolicy(PolicySpec):
    """A policy in a recipe, which may have an engine of its own. engine: a component; None is the recipe's engine.

    The weights of a frozen policy with its own engine are not loaded in this process: that engine holds them.
    """

    engine: dict[str, Any] | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _weights_are_said(cls, given: Any, made_of: Callable[[Any], Any]) -> Any:
        made = made_of(given)  # which reports wrong keys and settings first
        if isinstance(given, Mapping) and "lora" in given and "weights" not in given:
            raise ValueError("lora is set and weights is left out, which trains all of them; say weights: lora")
        return made

    @property
    def elsewhere(self) -> bool:
        """Whether only the policy's engine holds its weights."""
        return not self.trainable and self.engine is not None


def asked_of(compute: Compute, threads: int | None) -> Compute:
    """Return the backend to ask for: "auto" becomes "torch" if several PyTorch threads are wanted, since the compiled
    loops need a single one.

    Raises ValueError for "cpu" with several threads.
    """
    several = threads is not None and threads > 1
    if compute == "cpu" and several:
        raise ValueError(
            f"compute is cpu, which wants one thread of PyTorch a process, and threads is {threads}; remove one of them"
        )
    return "torch" if compute == "auto" and several else compute
