"""The schema of a pre-training recipe: two kinds, strict keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from coevolve.files import shown
from coevolve.recipe.inputs import apply_overrides, load_yaml
from coevolve.recipe.validate import validate
from coevolve.settings import Count, CountFromZero, Folder, NotNegative, Positive

Precision = Literal["float32", "bfloat16"]

END = "<|endoftext|>"
"""The token between documents, which ends a text in training and in sampling."""

CHECKPOINT, HELD_OUT = "checkpoint.pt", "held_out.json"
"""The files of a run from which a resumed one goes on, and that is written when it ends."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Source(_Strict):
    """One source of the mix."""

    name: str
    repeat: Count = 1


class Common(_Strict):
    """The keys that both kinds have.

    steps: of training, each on batch_size sequences of sequence_length (from 16) tokens. dtype: of the computation;
    weights and optimizer are float32. save_dtype: of the saved weights. learning_rate: after warmup_steps of linear
    warm-up; a cosine then takes it down to a twentieth. checkpoint_every, log_every: in steps. vocab_size (from 300):
    of the tokenizer that is trained with the model; bytes and special tokens take the first 259. architecture:
    ``model_type`` and keys of that transformers config.
    """

    output_dir: Folder | None = None  # `folder_of`
    seed: CountFromZero = 0
    steps: Count
    threads: Count = 1
    dtype: Precision = "float32"
    save_dtype: Precision = "float32"
    learning_rate: Positive
    warmup_steps: Count = 50
    weight_decay: NotNegative = 0.1
    batch_size: Count
    sequence_length: Annotated[Count, Field(ge=16)] = 256
    checkpoint_every: Count = 200
    log_every: Count = 20
    vocab_size: Annotated[Count, Field(ge=300)]
    architecture: dict[str, Any]


class CausalLMRecipe(Common):
    """A language model trained on packed sequences of the mixed sources.

    sources: a list of ``{name: ..., repeat: ...}``; repeat is the number of copies (1 if left out): those of a file are
    the same, those of a generated source are drawn anew."""

    kind: Literal["causal_lm"]
    sources: list[Source] = Field(min_length=1)


class ClassifierRecipe(Common):
    """A two-label sequence classifier trained on labelled reviews; half of its batches are crops of 8-40 tokens."""

    kind: Literal["classifier"]
    source: Literal["imdb_extra", "opinions"]


Recipe = CausalLMRecipe | ClassifierRecipe
_KINDS: dict[str, type[Recipe]] = {"causal_lm": CausalLMRecipe, "classifier": ClassifierRecipe}


def folder_of(path: Path, recipe: Recipe) -> Path:
    """Return the folder of a recipe's run, which holds its model as `model`. The recipe in a run is of that run."""
    is_run = any((path.parent / file).exists() for file in (CHECKPOINT, HELD_OUT))
    own = path.parent if path.name == "recipe.yaml" and is_run else None
    return recipe.output_dir or own or Path("runs") / f"{path.stem}-{recipe.seed}"


def load(path: Path, overrides: list[str]) -> Recipe:
    """Load the recipe of a YAML file with `key.sub=value` overrides. Raises ValueError naming the file and the key at
    fault."""
    tree = apply_overrides(load_yaml(path), overrides)
    kind = tree.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        team = "; this is a team's, for `coevolve train` or `coevolve eval`" if "roles" in tree else ""
        raise ValueError(f"{path}: kind is {shown(kind)}; a pre-training recipe has {' or '.join(_KINDS)}{team}")
    return cast(Recipe, validate(_KINDS[kind], tree, str(path)))
