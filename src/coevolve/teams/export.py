"""Export of a checkpoint to a folder that others can use (``coevolve export``); ``coevolve.teams.team`` describes the
folder.

Nothing that only training needs is exported: no optimiser, critic, data or reward model; and no path of this machine.
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
from transformers.utils.hub import CHAT_TEMPLATE_DIR

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
from coevolve.plays import PLAYS
from coevolve.recipe.components import component
from coevolve.recipe.inputs import Dumper
from coevolve.recipe.read import anchored, is_code, names_file
from coevolve.recipe.schema import Recipe
from coevolve.runs import checkpoint
from coevolve.runs.durable import make_folder
from coevolve.runs.folder import RunDir, plain, read_lines
from coevolve.runs.signature import check_stays, rows_in
from coevolve.runs.trained import check_whole, checkpoint_of, kept, recipe_of
from coevolve.tasks import TASKS
from coevolve.teams.model_card import HINTED, called, write_card
from coevolve.teams.team import AGENTS, BASES, CODE, FILE, HERE, asked, described
from coevolve.types import Problem, Prompt, Turn

_ADAPTER = "adapter_config.json"
_BASE_OF_ADAPTER = "base_model_name_or_path"

_WORDS = ".txt"
"""The ending of word list files."""

_OF_A_MODEL = (
    "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "bpe.codes", "dict.txt", "emoji.json", "spiece.model", "spm.model", "sentencepiece*.model", "*.spm", "*.tiktoken",
    "tekken.json", "chat_template*", "readme*", "licen[cs]e*", "notice*",
)  # fmt: skip
"""The files of a base model that are exported with its weights; others are not, as folders that a trainer wrote hold
optimisers, settings and secrets."""

_PLAYED = ("dtype", "chat", "load_in_4bit")
"""Settings of a policy that matter for playing it."""

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(PolicySpec)}


def export(
    run: str | Path, output: str | Path, *, step: int | None = None, merge: bool = False, trust_code: bool = False
) -> Path:
    """Write the team of a run's newest checkpoint, or of the one after ``step`` steps, to ``output`` and return that.

    The cast is that of the last trained step. merge: merge adapters into their base models, so that every agent is a
    plain Hugging Face folder. trust_code: run the code and copy the local models that the run names, whoever made it
    (see ``trained.recipe_of``). The folder appears complete, or not at all. Raises ValueError for a folder that is no
    run or was trained from Python, code that is not trusted, a checkpoint that is missing, torn or has invalid weights,
    an output that exists and is not empty or is the current folder, and a merge that would not compute what was
    trained: into a base in 4 bits, or into an output layer tied to the input embedding; OSError for a full disk.
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
        make_folder(beside)
        with kept(folder) as copy:  # a run that still trains deletes its old checkpoints
            trained = int(checkpoint.verify(copy)["step"])
            _write(beside, directory, recipe, copy, trained, merge)
        os.replace(beside, target)
    except shutil.Error as error:  # it lists every file that could not be copied; report the first
        raise OSError(f"could not write {output}: {error.args[0][0][2]}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return output


def _place(output: Path) -> Path:
    """Return the absolute path of the output. Raises ValueError if it exists and is no empty folder, or if it is the
    current folder."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"{output} is there already and not an empty folder; name another one, or remove it")
    target = output.resolve()
    if os.path.ismount(target):
        raise ValueError(f"{output} is mounted, so that nothing can be put in its place; name a new folder in it")
    if target == Path.cwd():  # it would be replaced, and the user's shell would stay in the old one
        raise ValueError(f"{output} is the current folder; name a new one in it, such as {output / 'team'}")
    return target


def _write(target: Path, run: RunDir, recipe: Recipe, folder: Path, trained: int, merge: bool) -> None:
    bases, cast = _Bases(target), component(recipe.cast, CASTS, "cast", roles=recipe.roles)(max(trained - 1, 0))
    policies = {
        name: _agent(folder / AGENTS / name, target / AGENTS / name, spec, bases, merge)
        for name, spec in recipe.policies.items()
        if name in cast.values()  # others, such as a critic, are not exported
    }
    code = _Code(target)
    settings = code.packed(_without_rows(recipe.task))
    play = _used(recipe.play)
    task = _made(settings, target)
    about = {
        "coevolve": __version__,
        "run": run_name(run.path),
        "step": trained,
        "roles": dict(cast),
        "policies": policies,
        "play": code.packed(_without_threshold(play)),
        "task": settings,
        "sampling": {**recipe.record()["sampling"], "max_new_tokens": recipe.sampling.length_range[1]},
    }
    if task is not None and (example := _example(task, run, trained)):
        about["example"] = example
    _describe(target, about)
    write_card(target, run, recipe, None if task is None else asked(task, play))


def _without_rows(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a task's settings, with the name of a file that is not exported in place of rows in the recipe itself."""
    return {**task, **{key: f"{key}.jsonl" for key in rows_in(task)}}


def _used(play: dict[str, Any]) -> dict[str, Any]:
    """Return the play in which a trained team is used: ``rounds`` for ``hinted``, where roles hear each other to learn
    only."""
    return {"name": "rounds"} if play["name"] == HINTED else play


def _without_threshold(play: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a packaged play's settings without the reward above which it ends: whoever plays a team is paid 0."""
    if play["name"] not in PLAYS or not isinstance(play.get("done"), int | float):
        return play
    return {key: value for key, value in play.items() if key != "done"}


def _describe(target: Path, about: dict[str, Any]) -> None:
    """Write ``team.yaml``; without the example if YAML cannot hold it, as with numbers beyond 64 bits."""
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


class _Dumper(Dumper):
    """A YAML dumper that writes texts of several lines as block scalars."""

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> Any:
        return super().represent_scalar(tag, value, "|" if isinstance(value, str) and "\n" in value else style)


def _agent(source: Path, target: Path, spec: PolicySpec, bases: _Bases, merge: bool) -> dict[str, Any]:
    """Write one agent's folder; return the policy's settings in ``team.yaml``."""
    how = {name: getattr(spec, name) for name in _PLAYED if getattr(spec, name) != _DEFAULTS[name]}
    if not spec.trainable and spec.load_in_4bit:  # its checkpoint holds them in 4 bits, which nobody reads
        return {"model": bases.placed(spec.model), "weights": "frozen", **how}
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
    """Load an adapter onto its base model; return its name there. Raises ValueError if it cannot be loaded."""
    name = f"agent{len(base.peft.peft_config) if base.peft else 0}"  # PEFT takes few names: none with a dot
    base.add(name, spec.lora, 0)
    Weights(base, name).load(source)
    return name


def _merge(source: Path, target: Path, spec: PolicySpec) -> None:
    """Merge an adapter into its base model and write the model, with the tokenizer."""
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
        if file.is_dir():  # of further chat templates
            shutil.copytree(file, target / file.name, dirs_exist_ok=True)
        elif not file.name.startswith("adapter_") and file.name != VALUE_FILE:
            shutil.copy2(file, target)


class _Bases:
    """The base models of adapters, each copied once unless it is a model of the hub."""

    def __init__(self, target: Path) -> None:
        self._target, self._placed, self._loaded = target, dict[str, str](), dict[str, Base]()

    def loaded(self, model: str) -> Base:
        """Return the model, loaded once."""
        if model not in self._loaded:
            self._loaded[model] = Base(loading.load_causal_lm(model))
        return self._loaded[model]

    def placed(self, model: str) -> str:
        """Return the model's name in ``team.yaml``; copy its files the first time unless it is a model of the hub."""
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
        if (templates := source / CHAT_TEMPLATE_DIR).is_dir():
            shutil.copytree(templates, target / CHAT_TEMPLATE_DIR)
        return f"{HERE}{BASES}/{target.name}"


class _Code:
    """The user's Python files and word lists, each copied once, and settings that refer to the copies."""

    def __init__(self, target: Path) -> None:
        self._target, self._copied = target, dict[Path, str]()

    def packed(self, value: Any) -> Any:
        """Return the settings with files as names: Python files and word lists are copied to ``code/``, data files are
        not exported."""
        if isinstance(value, Mapping):
            return {key: self.packed(inner) for key, inner in value.items()}
        if isinstance(value, list):  # as ``recipe.read.anchored`` finds files in lists
            return [self.packed(one) if isinstance(one, Mapping) or is_code(one) else one for one in value]
        if not names_file(value):
            return value
        if value.endswith(_WORDS):  # copied, as the task reads it when it is built
            return self._copy(Path(value))
        if not is_code(value):
            return Path(value).name
        file, _, attribute = value.rpartition(":")
        return f"{self._copy(Path(file))}:{attribute}"

    def _copy(self, file: Path) -> str:
        if file not in self._copied:
            target = _free(self._target / CODE / file.name)
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(file, target)
            self._copied[file] = f"{HERE}{CODE}/{target.name}"
        return self._copied[file]


def _word_lists(value: Any) -> list[str]:
    """Return the word list files in these settings, which an export would copy."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return [found for one in inner for found in _word_lists(one)]
    return [value] if names_file(value) and value.endswith(_WORDS) else []


def _free(path: Path) -> Path:
    """Return the path, or the first of ``name-2``, ``name-3``, ... that does not exist."""
    tried = path
    number = 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried


def _made(settings: Any, target: Path) -> Any:
    """Build the task from the exported folder; None, with a warning, if it cannot be built from it."""
    try:
        with blame("task"):
            task = component(anchored(settings, target), TASKS, "task")
            getattr(task, "asks", None)  # ``verifiers`` makes its taskset to know them, as it will when it is loaded
            return task
    except ValueError as error:
        warnings.warn(f"this team will not load: {error}; put what it reads into {CODE}/ of the export", stacklevel=2)
        return None


def _example(task: Any, run: RunDir, trained: int) -> dict[str, Any] | None:
    """Return the first held-out problem that the run recorded at this checkpoint, with the roles' prompts on it.

    None if it recorded none; None, with a warning, if the task cannot make the prompts from the record.
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
    """Yield each role's first prompt, and its first one that continues an own turn, made from the recorded turns."""
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
    """Return a prompt as text: messages with their roles, a turn as its text."""
    if isinstance(prompt, str):
        return str(prompt)
    pieces = []
    for part in prompt:
        if isinstance(part, Mapping):
            pieces.append(f"{part['role']}: {part['content']}\n")
        else:
            pieces.append(part.text if isinstance(part, Turn) else str(part))
    return "".join(pieces)
