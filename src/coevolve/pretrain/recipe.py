"""The schema of a pre-training recipe: two kinds, strict keys."""

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coevolve.files import shown
from coevolve.recipe.inputs import apply_overrides, load_yaml, validate
from coevolve.recipe.packaged import beside
from coevolve.settings import Count, CountFromZero, Folder, NotNegative, Positive

Precision = Literal["float32", "bfloat16"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Source(_Strict):
    """One source of the mix. repeat: the number of copies; those of a file are the same, those of a generated source
    are drawn anew."""

    name: str
    repeat: Count = 1


class _Common(_Strict):
    output_dir: Folder | None = None  # default: runs/<recipe>-<seed>
    seed: CountFromZero = 0
    steps: Count
    threads: Count = 1
    dtype: Precision = "float32"  # of the computation; weights and optimiser are float32
    save_dtype: Precision = "float32"
    learning_rate: Positive
    warmup_steps: Count = 50
    weight_decay: NotNegative = 0.1
    batch_size: Count  # sequences
    sequence_length: Annotated[Count, Field(ge=16)] = 256  # tokens
    checkpoint_every: Count = 200  # steps
    log_every: Count = 20  # steps
    start: str | None = None  # a model to continue from, instead of `architecture` and `vocab_size`
    vocab_size: Annotated[Count, Field(ge=300)] | None = None  # bytes and special tokens take the first 259
    architecture: dict[str, Any] | None = None  # `model_type` and keys of that transformers config

    @model_validator(mode="after")
    def _one_beginning(self) -> "_Common":
        scratch = self.architecture is not None and self.vocab_size is not None
        if scratch == (self.start is not None) or (self.start and (self.architecture or self.vocab_size)):
            raise ValueError("give either `start`, or both `architecture` and `vocab_size`")
        return self


class CausalLMRecipe(_Common):
    """A language model trained on packed sequences of the mixed sources."""

    kind: Literal["causal_lm"]
    sources: list[Source] = Field(min_length=1)


class ClassifierRecipe(_Common):
    """A two-label sequence classifier trained on labelled reviews; half of its batches are crops of 8-40 tokens."""

    kind: Literal["classifier"]
    source: Literal["imdb_extra", "opinions"]


Recipe = CausalLMRecipe | ClassifierRecipe
_ENDS = (".yaml", ".yml")
_KINDS: dict[str, type[Recipe]] = {"causal_lm": CausalLMRecipe, "classifier": ClassifierRecipe}


def folder_of(path: Path, recipe: Recipe) -> Path:
    """Return the folder of a recipe's run, which holds its model as `model`."""
    return recipe.output_dir or Path("runs") / f"{path.stem}-{recipe.seed}"


def start_of(path: Path, recipe: Recipe, overrides: list[str]) -> str | None:
    """Return the model, or the recipe of a model, that a recipe starts from; None if it has no `start`.

    A `start` that is a recipe is looked for beside this recipe, then in the working directory (only there if an
    override names it), then among the packaged recipes."""
    start = recipe.start
    if start is None or not start.endswith(_ENDS) or any(one.partition("=")[0].strip() == "start" for one in overrides):
        return start
    elsewhere = not (path.parent / start).is_file() and Path(start).is_file()
    return start if elsewhere else str(beside(start, path.parent))


def check_starts(path: Path, overrides: list[str]) -> None:
    """Raise ValueError for a recipe that starts from itself, directly or through others: its training would wait for
    its own folder for ever."""
    folders = set[Path]()
    while path.is_file():
        recipe = load(path, overrides)
        start, folder = start_of(path, recipe, overrides), folder_of(path, recipe).resolve()
        if folder in folders:
            raise ValueError(
                f"{path}: a model that it starts from is trained in {folder}, too; name another as its start"
            )
        if start is None or not start.endswith(_ENDS):
            return
        folders.add(folder)
        path, overrides = Path(start), []


def load(path: Path, overrides: list[str]) -> Recipe:
    """Load the recipe of a YAML file with `key.sub=value` overrides. Raises ValueError naming the file and the key at
    fault."""
    tree = apply_overrides(load_yaml(path), overrides)
    kind = tree.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        team = "; this is a team's, for `coevolve train` or `coevolve chat`" if "roles" in tree else ""
        raise ValueError(f"{path}: kind is {shown(kind)}; a pre-training recipe has {' or '.join(_KINDS)}{team}")
    return cast(Recipe, validate(_KINDS[kind], tree, str(path)))
