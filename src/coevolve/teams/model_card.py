"""The model card of an exported team, made of the files of its run. It holds only what was measured."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from coevolve.models import names as models
from coevolve.models.load import snapshot
from coevolve.models.spec import PolicySpec
from coevolve.plays import PLAYS
from coevolve.recipe.read import names_file
from coevolve.recipe.schema import Recipe
from coevolve.recipe.trust import code_in
from coevolve.report.evaluation import NAMES
from coevolve.report.findings.ends import rise
from coevolve.report.wording import fixed, table_rows
from coevolve.runs import shapes
from coevolve.runs.folder import RunDir, read_lines
from coevolve.tasks import TASKS
from coevolve.teams.team import AGENTS, FILE, HERE, Exported, described, unpaid

_HOW = {
    "max_new_tokens": "at most {} new tokens a turn",
    "temperature": "sampled rows at temperature {:g}",
    "samples": "with {} of each problem",
}
"""Key of ``eval.json`` -> what is said of it; older versions recorded fewer."""

_DIGITS = {"reward": 3, "reward_se": 3, "kl": 2, "length": 1, "eos_rate": 2, "distinct_2": 3}
_STEP = ("batch_size", "members", "seed")
HINTED = "hinted"
"""The play for training only, in place of which a team plays ``rounds``."""

CARD = "README.md"
_PIPELINE = "text-generation"
_OTHER = "other"  # what the hub calls several licences together
_LICENCE = "mit"  # the package's, and so that of the models that come with it
_LONG = 200  # characters from which a column's value is written as "..." in the example of a call


def write_card(folder: Path, run: RunDir, recipe: Recipe, asks: Sequence[str] | None) -> None:
    """Write ``README.md`` into the folder of a team that has its ``team.yaml`` already. asks: as ``Team.asks``."""
    team = described(folder)
    sections = [
        _front_matter(team, run, recipe),
        _what(team, recipe),
        _protocol(team, recipe),
        _loading(team, asks),
        _prompts(team),
        _training(team, run, recipe),
        _measured(team, run, recipe),
        _limits(team),
    ]
    (folder / CARD).write_text("\n\n".join(filter(None, sections)) + "\n", encoding="utf-8")


def on_hub(model: str) -> bool:
    """Return whether a name can only mean a model of the Hugging Face hub, without asking the hub."""
    local = model in models.PACKAGED or models.is_recipe(model) or Path(model).exists()
    known = "/" in model or snapshot(model) is not None  # a bare name may be a folder of where the run was trained
    return not local and known and models.HUB_NAME.fullmatch(model) is not None


def called(model: str) -> str:
    """Return a model's name without its local path."""
    return model if on_hub(model) else Path(model).name.removesuffix(".yaml").removesuffix(".yml")


def common_licence(licences: Iterable[str | None]) -> str | None:
    """Return the licence that all of these are; None if one is unknown or they differ."""
    found = set(licences)
    return found.pop() if len(found) == 1 else None


def _front_matter(team: Exported, run: RunDir, recipe: Recipe) -> str:
    """Return the metadata that the hub reads: start models of the hub, the licence that the start models share, tags
    and metrics."""
    starts = dict.fromkeys(spec.model for name, spec in recipe.policies.items() if name in team.policies)
    bases = [model for model in starts if on_hub(model)]
    alike = common_licence(_licence(model) for model in starts)
    mixed = _OTHER if bases and len(bases) < len(starts) else None  # the hub will know its own models' licences only
    adapters = all(spec.weights == "lora" for spec in team.policies.values())
    relation: dict[str, Any] = {"base_model_relation": "adapter" if adapters else "finetune"} if bases else {}
    about = ModelCardData(
        library_name="transformers",
        pipeline_tag=_PIPELINE,
        license=alike or mixed,
        base_model=bases or None,
        tags=["coevolve", "multi-agent", "reinforcement-learning", _PIPELINE, str(_bare(recipe.algorithm["name"]))],
        model_name=team.run,
        eval_results=_results(team, run) or None,
        **relation,
    )
    return f"---\n{about.to_yaml()}\n---"


def _bare(settings: Any) -> Any:
    """Return settings with files as their names, without their local paths."""
    if isinstance(settings, Mapping):
        return {key: _bare(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [_bare(value) for value in settings]
    return Path(settings).name if names_file(settings) else settings


def _licence(model: str) -> str | None:
    """Return the licence in a start model's own card, if the model is on this machine."""
    if model in models.PACKAGED:
        return _LICENCE
    card = Path(model) / CARD
    try:
        return ModelCard.load(card, ignore_metadata_errors=True).data.license if card.is_file() else None
    except (ValueError, yaml.YAMLError):  # a README.md that is no model card
        return None


def _results(team: Exported, run: RunDir) -> list[EvalResult]:
    """Return the team's rewards at this checkpoint, if it was evaluated."""
    task = str(team.task["name"]).removeprefix(HERE)
    return [
        EvalResult(
            task_type=_PIPELINE, dataset_type=task, dataset_name=task, dataset_split="test", metric_type="reward",
            metric_name=f"reward of {row['role']}, {row['decoding']}", metric_value=row["reward"],
        )
        for row in _evaluated(team, run).get("rows", [])
        if (row["weights"], row["setting"]) == ("trained", "team") and row.get("reward") is not None
    ]  # fmt: skip


def _what(team: Exported, recipe: Recipe) -> str:
    start = recipe.policies
    rows = [
        (role, _linked(policy, team.policies[policy]), called(start[policy].model), start[policy].weights)
        for role, policy in team.roles.items()
    ]
    return (
        f"# {team.run}\n\nA team of {_members(team, recipe)} with Coevolve {team.coevolve}: {team.step} steps of "
        f"`{_bare(recipe.algorithm['name'])}` on the task {_component(team.task, TASKS)}\n\n"
        f"{_table(('role', 'policy', 'started from', 'weights'), rows)}"
    )


def _members(team: Exported, recipe: Recipe) -> str:
    """Return how many models were trained, and the names of the frozen ones that they were trained with."""
    frozen = [f"`{name}`" for name in team.policies if not recipe.policies[name].trainable]
    count = len(team.policies) - len(frozen)
    many = "one language model" if count == 1 else f"{count} language models, trained together"
    if not frozen:
        return many
    alone = ", trained" if count == 1 else ""
    return f"{many}{alone} beside the frozen partner{'s' if len(frozen) > 1 else ''} {', '.join(frozen)},"


def _linked(policy: str, spec: PolicySpec) -> str:
    """Return the policy's name as a link to its folder, if it is in the export."""
    folder = _folder(policy, spec)
    return f"[{policy}]({folder.removeprefix(HERE)})" if folder.startswith(HERE) else policy


def _folder(policy: str, spec: PolicySpec) -> str:
    """Return the policy's own folder in the export, or the model that it is."""
    return f"{HERE}{AGENTS}/{policy}" if spec.weights == "lora" else spec.model


def _protocol(team: Exported, recipe: Recipe) -> str:
    settings = {key: value for key, value in team.play.items() if key != "name"}
    given = f" Settings: `{json.dumps(settings)}`." if settings else ""
    sampling = team.sampling
    hinted = (
        f" It was trained in `{HINTED}`, where each role answers once more having heard the others; as a team, each "
        "answers once, alone."
    )
    return (
        f"## Protocol\n\n{_component(team.play, PLAYS)}{given}{hinted if recipe.play['name'] == HINTED else ''}"
        f"\n\nTrained at temperature {sampling.temperature:g}, "
        f"with at most {sampling.length_range[1]} new tokens a turn. All of it is in [{FILE}]({FILE})."
    )


def _component(settings: Mapping[str, Any], registry: Mapping[str, Callable[..., Any]]) -> str:
    """Return a task's or play's name with the first line of its module's docstring; its name alone if it is the user's
    own."""
    name = str(settings["name"])
    if name not in registry:
        return f"`{name.removeprefix(HERE)}`."
    about = (sys.modules[registry[name].__module__].__doc__ or "").splitlines()[0]
    return f"`{name}`: {about.removeprefix(f'Task ``{name}``: ')}"


def _loading(team: Exported, asks: Sequence[str] | None) -> str:
    own = code_in([unpaid(team.task), team.play])
    trust, option = (", trust_code=True", " --trust-code") if own else ("", "")
    kinds = {
        spec.weights: _alone(_folder(name, spec).removeprefix(HERE), spec)
        for name, spec in reversed(team.policies.items())
    }
    alone = "\n\n".join(f"```python\n{code}\n```" for code in reversed(kinds.values()))
    return f"""\
## How to load it

The team, with Coevolve, where this folder is the current one:

```python
from coevolve import Team

for turn in Team.load("."{trust}).play({_call(team, asks)}).turns:
    print(f"{{turn.role}}: {{turn.text}}")
```

In a terminal: `coevolve chat .{option}`. One agent, without Coevolve:

{alone}"""


def _call(team: Exported, asks: Sequence[str] | None) -> str:
    """Return the arguments of ``play`` for the example, as Python code."""
    columns = team.example["columns"] if team.example else {}
    given = {name: columns.get(name, "...") for name in (columns if asks is None else asks)}
    short = {name: value if len(str(value)) < _LONG else "..." for name, value in given.items()}
    if asks is not None and len(asks) == 1:
        return repr(short[asks[0]])
    return repr(short) if short else ""  # a mapping, as a column's name may be no name of Python


def _alone(folder: str, spec: PolicySpec) -> str:
    if spec.weights != "lora":
        return f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForCausalLM.from_pretrained("{folder}")"""
    where = spec.model.removeprefix(HERE)
    base = (
        f'"{Path(where).parent.as_posix()}", gguf_file="{Path(where).name}"' if models.is_gguf(where) else f'"{where}"'
    )
    return f"""\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
base = AutoModelForCausalLM.from_pretrained({base}, dtype="float32")
model = PeftModel.from_pretrained(base, "{folder}")"""


def _prompts(team: Exported) -> str:
    if team.example is None:
        return ""
    told = "\n\n".join(f"**{one['role']}**\n\n{_fenced(one['text'])}" for one in team.example["told"])
    return f"## What the roles were told\n\nOn one held-out problem, in the order in which they spoke:\n\n{told}"


def _fenced(text: str) -> str:
    """Return text as a Markdown code block, with a fence longer than any back-ticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _training(team: Exported, run: RunDir, recipe: Recipe) -> str:
    lines = [line for line in read_lines(run.metrics) if line["step"] < team.step]
    kl = lines[-1].get("kl") if lines else None  # null if it could not be measured
    file = run.path / "environment.json"
    here = shapes.read(file) if file.is_file() else {}
    facts = {
        "algorithm": json.dumps(_bare(recipe.algorithm)),
        **{name.replace("_", " "): getattr(recipe, name) for name in _STEP},
        "learning rate": ", ".join(
            f"{name} {spec.learning_rate:g}" for name, spec in recipe.policies.items() if spec.trainable
        ),
        "training": rise(lines) if lines else "",
        "KL to the start": "" if kl is None else f"{kl:.3g} nats a turn at the last step",
        "machine": ", ".join(f"{name} {value}" for name, value in _machine(here)),
    }
    return f"## Training\n\n{_table(('', ''), [(name, value) for name, value in facts.items() if value != ''])}"


def _machine(here: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield from ((name, here[name]) for name in ("device", "python") if name in here)
    yield from ((name, version) for name, version in here.get("versions", {}).items() if name != "coevolve")


def _evaluated(team: Exported, run: RunDir) -> Mapping[str, Any]:
    """Return the results of `coevolve eval` for this checkpoint; empty if it was not evaluated."""
    file = run.path / "eval.json"
    found = shapes.read(file) if file.is_file() else {}
    return found if found.get("checkpoint") == team.step else {}


def _measured(team: Exported, run: RunDir, recipe: Recipe) -> str:
    if not (found := _evaluated(team, run)):
        how = "`coevolve eval RUN` measures the team, and each policy alone; an export made after it shows the table."
        if recipe.play["name"] == HINTED:
            how = "`coevolve eval RUN --play rounds` measures and prints the team as it is used."
        return f"## Measured\n\nThis checkpoint was not evaluated. {how}"
    rows = [
        [*(str(row[name]) for name in NAMES), *(fixed(row.get(name), digits) for name, digits in _DIGITS.items())]
        for row in found["rows"]
    ]
    said = [text.format(found[key]) for key, text in _HOW.items() if found.get(key) is not None]
    if recipe.play["name"] == HINTED:
        said.append(f"in `{HINTED}`")
    head = ", ".join([f"On {found['problems']} held-out problems", *said])
    head += ". reward_se is over problems, kl in nats a turn, length in tokens."
    return f"## Measured\n\n{head}\n\n{_table((*NAMES, *_DIGITS), rows)}"


def _limits(team: Exported) -> str:
    return """\
## Limits

- The agents were trained on one task, in these roles and with these prompts; what they do elsewhere was not measured,
  except where the table above says so.
- Trained for a reward, they may have found ways to it that nobody wanted. Read what they say.
- When it is played nobody is paid: a protocol that chooses by reward goes on from its first response, and none ends
  early by a threshold.
- A model is no better than what it started from: its licence and its limits hold for these weights too."""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return table_rows(map(_cell, line) for line in (head, ["---"] * len(head), *rows))


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
