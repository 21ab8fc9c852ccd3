"""The slots of a sweep: how many runs at once, with how many threads each, on which GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coevolve.recipe.schema import Recipe

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ANY = frozenset({"auto", "cuda"})
"""Values of ``device`` with which a run chooses among the visible devices."""


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time. threads: the most it may use; gpu: the only visible GPU, None for all of them."""

    threads: int
    gpu: str | None = None

    def threads_of(self, recipe: Recipe) -> int:
        """Return a run's number of threads: what its recipe asks for (1 if it does not), at most the slot's."""
        return min(recipe.threads or 1, self.threads)

    def environment(self, recipe: Recipe) -> dict[str, str]:
        """Return the environment variables that are set for the run's process."""
        threads = {"OMP_NUM_THREADS": str(self.threads_of(recipe))} if recipe.learner is None else {}
        return threads if self.gpu is None else threads | {_VISIBLE: self.gpu}


def slots(recipes: Sequence[Recipe], left: int, jobs: int | None, cores: int, gpus: Sequence[str]) -> list[Slot]:
    """Return a slot for each run that trains at the same time, with the threads and GPUs divided among them.

    recipes: of all runs. left: how many of them are to be made; these get no more threads than if all runs were made.
    jobs: runs at once; None is one per GPU, or as many as the cores have threads for, but one where policies name a GPU
    (``cuda:1``), which all runs would use, where a ``learner`` has processes and GPUs of its own, or where all runs
    would use one server or its GPUs (``_one_server``). Threads are cut where all of them together exceed the cores.
    Raises ValueError for less than one job.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; want at least 1")
    if jobs is not None and min(jobs, left) > 1 and (shared := _shared(recipes)):
        raise ValueError(
            f"jobs is {jobs}, and several runs put full weights onto the server at {shared}, which has one set; say 1"
        )
    devices = {spec.device for recipe in recipes for spec in recipe.policies.values()}
    # A learner chooses its processes and GPUs itself.
    all_of_it = any(recipe.learner is not None or _one_server(recipe) for recipe in recipes)
    spread = list(gpus) if devices & _ANY and devices <= _ANY | {"cpu"} and not all_of_it else []
    wanted = max((recipe.threads or 1 for recipe in recipes), default=1)
    one_gpu = any(device.startswith("cuda:") for device in devices)
    most = jobs or (1 if one_gpu or all_of_it else len(spread) or max(1, cores // wanted))
    threads = max(1, min(wanted, cores // max(1, min(most, len(recipes)))))
    return [Slot(threads, spread[i % len(spread)] if spread else None) for i in range(max(1, min(most, left)))]


def _shared(recipes: Sequence[Recipe]) -> str:
    """Return the address of a server that several of these runs fill with full weights; empty if there is none."""
    counted = Counter(url for recipe in recipes for url in recipe.filled_servers)
    return next((url for url, count in counted.items() if count > 1), "")


def _one_server(recipe: Recipe) -> bool:
    """Return whether two runs of this recipe would get in each other's way at their servers: by full weights at one
    address, or on the same GPUs or port."""
    return bool(recipe.filled_servers) or any(
        {"devices", "port"} & set(one.get("start") or ()) for one in recipe.engines
    )


def visible(environment: Mapping[str, str], count: int) -> list[str]:
    """Return the names, as in ``CUDA_VISIBLE_DEVICES``, of the ``count`` GPUs that this process sees."""
    named = environment.get(_VISIBLE)
    return [name.strip() for name in named.split(",")][:count] if named else [str(i) for i in range(count)]
