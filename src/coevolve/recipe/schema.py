"""The schema of a recipe: its keys, their types and defaults, and what must agree between them.

``recipe.read`` has how a file becomes one, ``recipe.build`` how one becomes a Trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from coevolve import checks, defaults
from coevolve.algorithms import ALGORITHMS
from coevolve.models.spec import RecipePolicy
from coevolve.names import check_names, check_run_name, did_you_mean, server_of
from coevolve.settings import Count, CountFromZero, Folder, Workers
from coevolve.types import PolicyName, Role, Sampling

Component = dict[str, Any]
"""The ``name`` and settings of a registered factory, or of the user's own ``file.py:Name``."""


class StrictSampling(Sampling):
    """``Sampling`` in which an unknown key is an error."""

    __pydantic_config__ = ConfigDict(extra="forbid")


def _listed(trackers: Any) -> Any:
    """Return trackers' names as a list, each once and without ``none``; any other value unchanged."""
    named = [trackers] if isinstance(trackers, str) else trackers
    is_list = isinstance(named, list) and all(isinstance(name, str) for name in named)
    return [name for name in dict.fromkeys(named) if name != "none"] if is_list else named


def _with_models(policies: Any) -> Any:
    """Return the policies. Raises ValueError for one without a model: often the name of another, typed wrongly."""
    given = policies if isinstance(policies, Mapping) else {}
    bare = [name for name, one in given.items() if isinstance(one, Mapping) and "model" not in one]
    named = [name for name in given if name not in bare]
    if bare and named:
        raise ValueError(f"{bare[0]} has no model; policies with one: {', '.join(named)}{did_you_mean(bare[0], named)}")
    return policies


class Recipe(BaseModel):
    """One experiment. All keys but ``task``, ``play``, ``roles``, ``policies`` and ``algorithm`` have defaults."""

    model_config = ConfigDict(extra="forbid")

    task: Component
    """The problems, prompts and rewards."""
    play: Component
    """Who speaks when, and hears whom."""
    roles: dict[Role, PolicyName] = Field(min_length=1)
    """The policy that plays each role at step 0; a ``chain`` speaks in the order of the roles."""
    cast: Component = {"name": "fixed"}
    """How the policies of the roles change from step to step."""
    policies: Annotated[dict[PolicyName, RecipePolicy], BeforeValidator(_with_models)] = Field(min_length=1)
    """The models, and how each is trained."""
    algorithm: Component
    """How turns are credited, compared and learnt from."""
    engine: Component | None = None
    """The engine of policies that have none of their own; the local engine if left out."""
    learner: Component | None = None
    """The kind of learner, of which every policy gets one; those of ``learners.build`` if left out."""
    sampling: StrictSampling = StrictSampling(**asdict(defaults.SAMPLING))
    """How turns are sampled in training. Left out, a step's turns have at most a length drawn from 4 to 16 tokens."""
    output_dir: Folder
    """The run's folder."""
    seed: CountFromZero = defaults.SEED
    """Names all random numbers: the same seed gives the same run."""
    steps: Count = defaults.STEPS
    """Steps of the whole run; a step samples, rewards and updates once."""
    batch_size: Count = defaults.BATCH_SIZE
    """Problems a step."""
    members: Count = defaults.MEMBERS
    """Episodes of each problem in a step: the group of group-relative algorithms."""
    reset_every: Count | None = defaults.RESET_EVERY
    """Steps after which optimisers, KL weights and random numbers begin anew, a control of CORY's (``Trainer``)."""
    save_every: Count = defaults.SAVE_EVERY
    """Steps between checkpoints."""
    keep_last: Count = defaults.KEEP_LAST
    """Number of newest checkpoints that are kept."""
    samples: CountFromZero = defaults.SAMPLES
    """Problems a step whose episodes are written to the run, and held-out ones played at the start and checkpoints."""
    report_to: Annotated[list[str], BeforeValidator(_listed)] = []
    """Names of trackers (tensorboard, wandb, trackio, mlflow); a single one, or `none`, need not be a list."""
    callbacks: list[Component] = []
    """Callbacks of the user's own, `file.py:Name`, called at the events of a training."""
    threads: Count | None = None
    """Threads of torch in this process. None: one where the compiled loops compute (their large matrix products use as
    many as torch has by default), torch's default otherwise."""
    workers: Workers = defaults.WORKERS
    """Whether policies on the CPU compute in worker processes, one per core; "auto": where this is faster."""

    @model_validator(mode="after")
    def _roles_match_policies(self) -> Recipe:
        check_run_name(self.output_dir.absolute().name)
        check_roles(self.roles, self.policies)
        if self.learner is not None and (self.threads is not None or self.workers is True):
            raise ValueError("threads and workers are for learners of ours, and `learner` names another; remove them")
        critics = _critics(self.algorithm)
        for name, key in critics.items():
            if name not in self.policies:
                near = did_you_mean(name, self.policies)
                raise ValueError(f"algorithm.{key} names the policy {name!r}, which `policies` does not have{near}")
        if str(self.algorithm.get("name")) in ALGORITHMS:  # another algorithm may train a policy that never speaks
            checks.check_idle(self.policies, [*self.roles.values(), *critics], "`roles`")
        return self

    @property
    def engines(self) -> list[Component]:
        """The engines that the recipe names: the team's and those of single policies."""
        return [one for one in (self.engine, *(spec.engine for spec in self.policies.values())) if one]

    def engine_of(self, spec: RecipePolicy) -> Component:
        """Return the name and settings of the engine that samples a policy: its own, the recipe's, or the local one."""
        return spec.engine or self.engine or {"name": "local"}

    @property
    def silent(self) -> set[PolicyName]:
        """The critics and the judge that play no role: they never speak, so they are published to no server."""
        return _critics(self.algorithm).keys() - self.roles.values()

    @property
    def filled_servers(self) -> set[str]:
        """The addresses of servers that get full weights, of which each holds one set: of one run at a time."""
        full = [spec for name, spec in self.policies.items() if name not in self.silent and spec.weights == "full"]
        engines = map(self.engine_of, full)
        return {server_of(str(engine["url"])) for engine in engines if engine.get("url")}

    def record(self) -> dict[str, Any]:
        """Return the recipe as plain data, as a run directory keeps it and ``load_recipe`` reads it back."""
        return self.model_dump(mode="json")


def _critics(algorithm: Component) -> dict[PolicyName, str]:
    """Return the policies that an algorithm names as critics or judge, with the key that names each.

    They need not play a role.
    """
    if str(algorithm.get("name")) not in ALGORITHMS:
        return {}  # in a user's own algorithm a setting of that name may mean anything
    critic = algorithm.get("critic")
    named = [*(critic.values() if isinstance(critic, Mapping) else [critic]), algorithm.get("judge")]
    keys = ["critic"] * (len(named) - 1) + ["judge"]
    return {name: key for name, key in zip(named, keys, strict=True) if isinstance(name, str)}


def check_roles(roles: Mapping[Role, PolicyName], policies: Iterable[PolicyName]) -> None:
    """Raise ValueError for invalid names, and for a role whose policy does not exist, naming both."""
    check_names("policies", policies)
    check_names("roles", roles)
    for role, policy in roles.items():
        if policy not in policies:
            near = did_you_mean(policy, policies)
            raise ValueError(f"roles.{role} names the policy {policy!r}, which `policies` does not have{near}")
