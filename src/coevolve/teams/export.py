"""From a checkpoint to a folder that others can use: ``coevolve export``. What it holds is in ``coevolve.teams.team``.

Nothing of the training goes along: no optimiser, no critic, no data, no reward model; and no path of this machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from coevolve import __version__
from coevolve.cast import CASTS
from coevolve.faults import blame
from coevolve.learners.local import VALUE_FILE
from coevolve.models import load as loading
from coevolve.models import names as models
from coevolve.models.exact import weight_files
from coevolve.models.spec import PolicySpec
from coevolve.models.weights import Base, Weights, head
from coevolve.names import run_name
from coevolve.recipe.components import component
from coevolve.recipe.inputs import Dumper
from coevolve.recipe.schema import Recipe, anchored, is_code, names_file
from coevolve.runs import checkpoint
from coevolve.runs.folder import RunDir, plain, read_lines
from coevolve.runs.signature import check_stays
from coevolve.runs.trained import check_whole, checkpoint_of, kept, recipe_of
from coevolve.tasks import TASKS
from coevolve.teams.model_card import called, write_card
from coevolve.teams.team import AGENTS, BASES, CODE, FILE, HERE, asked, described
from coevolve.types import Problem, Prompt, Turn

_ADAPTER = "adapter_config.json"
_BASE_OF_ADAPTER = "base_model_name_or_path"

_WORDS = ".txt"
"""How the name of a list of words ends."""

_OF_A_MODEL = (
    "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "bpe.codes", "dict.txt", "emoji.json", "spiece.model", "spm.model", "sentencepiece*.model", "*.spm", "*.tiktoken",
    "tekken.json", "chat_template*", "readme*", "licen[cs]e*", "notice*",
)  # fmt: skip
"""What goes along of a base beside its weights; folders that a trainer wrote hold optimisers, settings and secrets."""

_PLAYED = ("dtype", "chat", "load_in_4bit")
"""Settings of a policy that matter to who plays it."""

_STOPPING = ("rounds", "tree")
"""Plays that a threshold ends early."""

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(PolicySpec)}


def export(
    run: str | Path, output: str | Path, *, step: int | None = None, merge: bool = False, trust_code: bool = False
) -> Path:
    """Write the team of a run's newest checkpoint, or of the one after ``step`` steps, into ``output``; returns it.

    The cast is that of the last step trained. merge: adapters are added to their bases, so that every agent is a plain
    Hugging Face folder. trust_code: run the code that the run names and copy the models of this machine that it names,
    whoever made it (see ``trained.recipe_of``). The folder appears when it is whole, or not at all. Raises ValueError
    for a folder that is no run or was trained from Python, code that is not trusted, a checkpoint that is missing or
    torn or holds weights that cannot be, an output that is there already or the current folder, and a merge into a base
    in 4 bits or into an output layer that is the input embedding, too, which would not compute what was trained;
    OSError for a full disk.
    """
    directory, output = RunDir(Path(run)), Path(output)
    folder, target = checkpoint_of(directory, step), _place(output)
    recipe = recipe_of(directory, trust_code)
    check_whole(directory, recipe)
    if not trust_code:
        models_here = [spec.model for spec in recipe.policies.values() if spec.model not in models.PACKAGED]
        lists = _word_lists([recipe.task, recipe.play])
        check_stays(directory.path, [*directory.path.glob("*.*"), *folder.rglob("*"), *models_here, *lists])
    beside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with kept(folder) as folder:  # a run that still trains deletes its old ones
            trained = int(checkpoint.verify(folder)["step"])
            _write(beside, directory, recipe, folder, trained, merge)
        os.replace(beside, target)
    except shutil.Error as error:  # lists every file that could not be copied
        raise OSError(f"could not write {output}: {error.args[0][0][2]}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return output


def _place(output: Path) -> Path:
    """Where a team will be. Raises ValueError for what its folder cannot replace."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"{output} is there already and not an empty folder; name another one, or remove it")
    target = output.resolve()
    if target == Path.cwd():  # who stands in it would not see the one that replaces it
        raise ValueError(f"{output} is the current folder; name a new one in it, such as {output / 'team'}")
    return target


def _write(target: Path, run: RunDir, recipe: Recipe, folder: Path, trained: int, merge: bool) -> None:
    _warn_of_end(recipe.play)
    bases = _Bases(target)
    policies = {
        name: _agent(folder / AGENTS / name, target / AGENTS / name, spec, bases, merge)
        for name, spec in recipe.policies.items()
        if name in recipe.roles.values()  # a critic that never speaks stays behind
    }
    code = _Code(target)
    settings = code.packed(_without_rows(recipe.task))
    task = _made(settings, target)
    about = {
        "coevolve": __version__,
        "run": run_name(run.path),
        "step": trained,
        "roles": dict(component(recipe.cast, CASTS, "cast", roles=recipe.roles)(max(trained - 1, 0))),
        "policies": policies,
        "play": code.packed(recipe.play),
        "task": settings,
        "sampling": {**recipe.record()["sampling"], "max_new_tokens": recipe.sampling.length_range[1]},
    }
    if task is not None and (example := _example(task, run, trained)):
        about["example"] = example
    _describe(target, about)
    write_card(target, run, recipe, None if task is None else asked(task, recipe.play))


def _without_rows(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a task, with a file that is left behind in place of rows that stand in the recipe."""
    data = ("data", "test") if task["name"] == "rows" else ()
    return {key: f"{key}.jsonl" if key in data and isinstance(value, list) else value for key, value in task.items()}


def _describe(target: Path, about: dict[str, Any]) -> None:
    """Write ``team.yaml``, without the example where that holds what such files cannot, as numbers beyond 64 bits."""
    for left in (about, {key: value for key, value in about.items() if key != "example"}):
        text = yaml.dump(plain(left), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
        (target / FILE).write_text(text, encoding="utf-8")
        try:
            described(target)
            return
        except ValueError as error:
            if "example" not in left:
                raise
            why = str(error).removeprefix(f"{target / FILE}").lstrip(":, ")
            warnings.warn(f"the card shows no prompts: {FILE} cannot hold the example ({why})", stacklevel=2)


def _warn_of_end(play: Mapping[str, Any]) -> None:
    """Of a threshold that the rewards of a team which is played, 0, are above, in a play that would go on."""
    done, goes_on = play.get("done"), play["name"] in _STOPPING and play.get("n", 1) > 1
    if goes_on and isinstance(done, int | float) and done < 0:
        warnings.warn(
            f"this team will stop after its first turn: play.done is {done}, and whoever plays it is paid 0; for all "
            f"of its turns take done out of the play in {FILE}",
            stacklevel=2,
        )


class _Dumper(Dumper):
    """Texts of several lines are written as such."""

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> Any:
        return super().represent_scalar(tag, value, "|" if isinstance(value, str) and "\n" in value else style)


def _agent(source: Path, target: Path, spec: PolicySpec, bases: _Bases, merge: bool) -> dict[str, Any]:
    """Write one agent's folder; returns what ``team.yaml`` says about the policy."""
    how = {name: getattr(spec, name) for name in _PLAYED if getattr(spec, name) != _DEFAULTS[name]}
    whole = {"model": f"{HERE}{AGENTS}/{target.name}", "weights": "frozen", **how}
    if spec.weights != "lora":
        loading.check_vocabulary(loading.load_tokenizer(str(source)), loading.load_causal_lm(str(source)), str(source))
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(VALUE_FILE))
        return whole
    if merge:
        if spec.load_in_4bit:
            raise ValueError(
                f"policy {target.name!r}: its base is in 4 bits, and merged into the weights before that it would "
                "compute something else than was trained; export without --merge"
            )
        _merge(source, target, spec)
        return whole
    _loaded(source, bases.loaded(spec.model), spec)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(VALUE_FILE))
    base = bases.placed(spec.model)
    config = json.loads((target / _ADAPTER).read_text("utf-8"))
    config[_BASE_OF_ADAPTER] = base.removeprefix(HERE)
    (target / _ADAPTER).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return {"model": base, "weights": "lora", "lora": dataclasses.asdict(spec.lora), **how}


def _loaded(source: Path, base: Base, spec: PolicySpec) -> str:
    """Put an adapter on its base; returns what it is called there. Raises ValueError for one that nobody could load."""
    name = source.name
    base.add(name, spec.lora, 0)
    Weights(base, name).load(source)
    return name


def _merge(source: Path, target: Path, spec: PolicySpec) -> None:
    """The adapter's product added to its base, as one model; beside it the tokenizer."""
    base = Base(loading.load_causal_lm(spec.model))
    name = _loaded(source, base, spec)
    top, embedding = head(base.causal), base.causal.get_input_embeddings()
    if hasattr(top, "base_layer") and top.weight is embedding.weight:
        raise ValueError(
            f"policy {target.name!r}: its adapter is on an output layer that shares its weights with the input "
            "embedding, and merged into both it would compute something else than was trained; export without --merge"
        )
    base.peft.merge_and_unload(adapter_names=[name]).save_pretrained(target)
    for file in source.iterdir():
        if not file.name.startswith("adapter_") and file.name != VALUE_FILE:
            shutil.copy2(file, target)


class _Bases:
    """The models that adapters sit on, each copied once unless it is one of the hub."""

    def __init__(self, target: Path) -> None:
        self._target, self._placed, self._loaded = target, dict[str, str](), dict[str, Base]()

    def loaded(self, model: str) -> Base:
        """It, in memory."""
        if model not in self._loaded:
            self._loaded[model] = Base(loading.load_causal_lm(model))
        return self._loaded[model]

    def placed(self, model: str) -> str:
        """What ``team.yaml`` calls it."""
        if model not in self._placed:
            where = models.resolve(model)
            self._placed[model] = where if isinstance(where, str) else self._copied(where, called(model))
        return self._placed[model]

    def _copied(self, source: Path, name: str) -> str:
        target = _free(self._target / BASES / name)
        target.mkdir(parents=True)
        if source.is_file():  # a GGUF
            shutil.copy2(source, target)
            return f"{HERE}{BASES}/{target.name}/{source.name}"
        weights = weight_files(source)
        for file in source.iterdir():
            if file in weights or (file.is_file() and any(fnmatch(file.name.lower(), one) for one in _OF_A_MODEL)):
                shutil.copy2(file, target)
        return f"{HERE}{BASES}/{target.name}"


class _Code:
    """The user's Python files and word lists, each copied once, and settings that find them there."""

    def __init__(self, target: Path) -> None:
        self._target, self._copied = target, dict[Path, str]()

    def packed(self, value: Any) -> Any:
        """The settings with files by their names: Python's and lists of words in ``code/``, data left behind."""
        if isinstance(value, Mapping):
            return {key: self.packed(inner) for key, inner in value.items()}
        if isinstance(value, list):  # as ``recipe.schema.anchored`` finds files in lists
            return [self.packed(one) if isinstance(one, Mapping) or is_code(one) else one for one in value]
        if not names_file(value):
            return value
        if value.endswith(_WORDS):  # which the task reads when it is made
            return self._copy(Path(value))
        file, colon, attribute = value.rpartition(":")
        return f"{self._copy(Path(file))}:{attribute}" if colon else Path(value).name

    def _copy(self, file: Path) -> str:
        if file not in self._copied:
            target = _free(self._target / CODE / file.name)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(file, target)
            self._copied[file] = f"{HERE}{CODE}/{target.name}"
        return self._copied[file]


def _word_lists(value: Any) -> list[str]:
    """The files of words in these settings, which an export would copy."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return [found for one in inner for found in _word_lists(one)]
    return [value] if names_file(value) and value.endswith(_WORDS) else []


def _free(path: Path) -> Path:
    """The path, or the first of ``name-2``, ``name-3``, ... that is not taken."""
    tried = path
    number = 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried


def _made(settings: Any, target: Path) -> Any:
    """The task as the exported folder makes it; None, with a warning, if that is not enough to make it of."""
    try:
        with blame("task"):
            return component(anchored(settings, target), TASKS, "task")
    except ValueError as error:
        warnings.warn(f"this team will not load: {error}; put what it reads into {CODE}/ of the export", stacklevel=2)
        return None


def _example(task: Any, run: RunDir, trained: int) -> dict[str, Any] | None:
    """The first held-out problem that the run wrote down at this checkpoint, and what roles were told on it.

    None if it wrote none down; with a warning also where the task makes no prompt of what was written down.
    """
    record = next((one for one in read_lines(run.samples) if one["step"] == trained), None)
    if record is None:
        return None
    try:
        with blame("task"):
            return {"columns": record["data"], "told": list(_told(task, record))}
    except ValueError as error:
        warnings.warn(f"the card shows no prompts: {error}", stacklevel=2)
        return None


def _told(task: Any, record: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Each role's first prompt, and the first that goes on from a turn of its own, from what it heard then."""
    problem = Problem(record["problem"], record["data"])
    turns: list[Turn] = []
    seen = set()
    for one in record["turns"]:
        role = one["role"]
        heard = [turns[part] if isinstance(part, int) else part for part in one["heard"]]
        again = any(isinstance(part, Turn) and part.role == role for part in heard)
        if (role, again) not in seen:
            seen.add((role, again))
            yield {"role": role, "text": _rendered(task.prompt(problem, role, heard))}
        turns.append(Turn(role, one["policy"], problem, 0, one["round"], (), (), (), one["text"], one["finished"]))


def _rendered(prompt: Prompt) -> str:
    """A prompt as text: messages with who says them, an own turn as what it said."""
    if isinstance(prompt, str):
        return str(prompt)
    pieces = []
    for part in prompt:
        if isinstance(part, Mapping):
            pieces.append(f"{part['role']}: {part['content']}\n")
        else:
            pieces.append(part.text if isinstance(part, Turn) else str(part))
    return "".join(pieces)
