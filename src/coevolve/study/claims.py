"""The schema of the claims file: what each claim says, which runs decide it, and how large a difference counts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from coevolve.files import shown
from coevolve.names import check_names, did_you_mean
from coevolve.recipe.inputs import load_yaml
from coevolve.recipe.read import load_recipe
from coevolve.recipe.schema import Recipe
from coevolve.recipe.validate import validate
from coevolve.report.findings.statistics import EXACT
from coevolve.report.wording import and_list
from coevolve.study.measures import check_measure, evaluated
from coevolve.study.results import Evaluated, Settings, settings, shared_settings

Tier = Literal["quick", "full"]
Direction = Literal["more", "less", "equal", "open"]
"""The claimed sign of a difference; open: no claim, the difference is only measured."""
Matching = Literal["responses", "updates", "kl", "nothing"]
Verdict = Literal["confirmed", "refuted", "equal"]

ALPHA = 0.05

_MARGIN = re.compile(r"(\d+(?:\.\d+)?)( %| sd)?")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Margin(_Strict):
    """The smallest difference that counts: in the measure's units, in % of the other arm's value, or in standard
    deviations of the rewards at the start."""

    size: float
    unit: Literal["", " %", " sd"]


def _listed(written: object) -> object:
    return [written] if isinstance(written, str) else written


def _margin(written: object) -> dict[str, Any]:
    """Return the size and the unit of a margin as a claims file has it: ``0.02``, ``10 %``, ``0.1 sd``."""
    text = str(written)
    if not (found := _MARGIN.fullmatch(text)):
        raise ValueError(f"margin {shown(text)}: want a number ('0.02'), a share ('10 %') or deviations ('0.1 sd')")
    return {"size": float(found[1]), "unit": found[2] or ""}


class Arm(_Strict):
    """One side of comparisons: a recipe with overrides. samples: per held-out problem. untrained: only its start
    weights are measured, so it is trained for one step. evaluated_by: the play of the evaluation, if not that of the
    training. evaluation_seed: of the random numbers of all its evaluations, in place of each run's own seed."""

    recipe: str
    overrides: list[str] = []
    samples: PositiveInt = 1
    untrained: bool = False
    evaluated_by: str | None = None
    evaluation_seed: NonNegativeInt | None = None

    @property
    def evaluated(self) -> Evaluated:
        """The settings that its runs are evaluated with."""
        return Evaluated(samples=self.samples, play=self.evaluated_by, seed=self.evaluation_seed)


class Premise(_Strict):
    """A recipe whose start policies must read a reference and verify it: see ``diagnose.premise``."""

    recipe: str
    overrides: list[str] = []


class Comparison(_Strict):
    """A comparison: ``arm`` minus ``than`` in a measure, seed by seed. arm, than: names of arms; without ``than``, the
    arm is compared with itself by ``than_measure``. Several arms (for ``hypervolume`` only) are the points of a
    frontier. direction: ``open`` is a question, answered by a number without a verdict. matched: the cost that must be
    equal on both sides."""

    arm: str | list[str]
    than: str | list[str] | None = None
    measure: Annotated[str, AfterValidator(check_measure)]
    than_measure: Annotated[str, AfterValidator(check_measure)] | None = None
    direction: Direction
    margin: Annotated[Margin, BeforeValidator(_margin)]
    matched: Matching

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The arms of both sides."""
        return _list(self.arm), _list(self.arm if self.than is None else self.than)

    @property
    def measures(self) -> tuple[str, str]:
        """The measures of both sides."""
        return self.measure, self.than_measure or self.measure

    def meets(self, arms: Collection[str]) -> bool:
        """Return whether ``than`` consists of these arms only, compared at equal responses."""
        return self.matched == "responses" and set(self.sides[1]) <= set(arms)

    @model_validator(mode="after")
    def _two_sides(self) -> Comparison:
        if self.sides[0] == self.sides[1] and self.measures[0] == self.measures[1]:
            raise ValueError("compares an arm with itself; give `than`, another arm, or `than_measure`")
        if isinstance(self.arm, list) != isinstance(self.than, list) or isinstance(self.arm, list) != (
            self.measure == "hypervolume"
        ):
            raise ValueError("lists of arms are for the measure hypervolume, on both sides")
        if self.measures.count("hypervolume") == 1:
            raise ValueError("hypervolume can only be compared with itself; leave `than_measure` out")
        if isinstance(self.arm, list) and len(self.sides[0]) != len(self.sides[1]):
            raise ValueError("the frontiers have different numbers of arms; more points can only add to one")
        if self.matched == "kl" and not all(one.startswith("end ") for one in self.measures):
            raise ValueError("matched on kl takes a measure of the curve, `end NAME`")
        return self


class Line(_Strict):
    """A line of a figure: the values of one arm, or of several. x, y: metrics of its runs, divided by a number if one
    is given (``turn/1/reward / 4``), or ``responses``."""

    arm: str | list[str]
    x: str
    y: str

    @property
    def arms(self) -> list[str]:
        return _list(self.arm)


class Figure(_Strict):
    """A picture of results. reads: how to read it. draws: the ends of runs, a point per arm; the curve of one arm, its
    mean over seeds; or the runs of one arm, each as a line of its own. lines: name -> line. marks: name -> known points
    that the lines are seen against, x and y, such as the equilibria of a game."""

    title: str
    reads: str
    draws: Literal["ends", "curve", "runs"]
    x: str
    y: str
    lines: dict[str, Line]
    marks: dict[str, list[tuple[float, float]]] = {}

    @model_validator(mode="after")
    def _one_arm_a_line(self) -> Figure:
        if self.draws != "ends" and any(len(line.arms) > 1 for line in self.lines.values()):
            raise ValueError("several arms on a line are for `draws: ends`")
        return self


class Elsewhere(_Strict):
    """The reason why a claim is not decided here, the recipe and command that would decide it, and what that costs."""

    why: str
    recipe: str
    command: str
    cost: str


class Claim(_Strict):
    """A claim of a paper. paper: which one, and where in it. says: the claim in the study's words. number: what the
    paper reports. follows: verdict -> what it means for a user. caveat: changes made after results were in, and
    earlier results, or what its comparisons cannot show. premise: the names of its premises, or one. needs_premise:
    where a premise does not hold, the claim is vacuous. since: a day, UTC, before which finished runs do not count: all
    of them are made anew from then on."""

    paper: str
    says: str
    number: str
    comparisons: list[Comparison] = []
    premise: Annotated[list[str], BeforeValidator(_listed)] = []
    needs_premise: bool = False
    follows: dict[Verdict, str] = {}
    caveat: str | None = None
    since: date | None = None
    elsewhere: Elsewhere | None = None

    @model_validator(mode="after")
    def _decided_somewhere(self) -> Claim:
        if bool(self.comparisons) == (self.elsewhere is not None):
            raise ValueError("want comparisons, or else `elsewhere` with the reason")
        if self.needs_premise and not self.premise:
            raise ValueError("needs_premise without a `premise`")
        return self


class Beyond(_Strict):
    """The claims that arms of this library beat the papers. claims: their ids. rules: a paper's rule, or a common
    variant of it -> the arms that are trained by it. left_out: the id of a claim that is not asked this -> why. note:
    what a reader has to know of these arms."""

    claims: list[str]
    rules: dict[str, list[str]]
    left_out: dict[str, str] = {}
    note: str = ""


class Study(_Strict):
    """The whole file. page: the path of the page; this path and the recipes' are relative to the file. about: what a
    reader of the page has to know of all its runs. sources: what ``paper`` of a claim begins with, for the count of
    decided claims by source. seeds: number of seeds per tier. written: the file's first commit that the history holds,
    with its time. replaced: claims with a comparison of whose sides both had runs before it, made anew since. lost:
    commits, whole, that results name and the history does not hold, so that it cannot show that the claims came
    first."""

    page: str
    about: str = ""
    sources: list[str] = []
    seeds: dict[Tier, PositiveInt] = Field(min_length=2)
    written: Annotated[str, Field(pattern="^[0-9a-f]{40}, .+$")] = ""
    replaced: list[str] = []
    lost: list[Annotated[str, Field(pattern="^[0-9a-f]{40}$")]] = []
    arms: dict[str, Arm]
    premises: dict[str, Premise]
    claims: dict[str, Claim]
    beyond: Beyond | None = None
    figures: dict[str, Figure] = {}

    @model_validator(mode="after")
    def _names_are_there(self) -> Study:
        check_names("study", (*self.arms, *self.premises, *self.claims, *self.figures))
        for id, figure in self.figures.items():
            for arm in (arm for line in figure.lines.values() for arm in line.arms):
                _known(arm, self.arms, f"figures.{id}.lines")
        for id in self.beyond.claims if self.beyond else ():
            _known(id, self.claims, "beyond.claims")
        for id in self.beyond.left_out if self.beyond else ():
            _known(id, self.claims, "beyond.left_out")
        for id in self.replaced:
            _known(id, self.claims, "replaced")
        if self.beyond and (both := [id for id in self.beyond.claims if id in self.beyond.left_out]):
            raise ValueError(f"beyond: {and_list(both)} in `claims` and in `left_out`")
        for arm in (arm for arms in self.beyond.rules.values() for arm in arms) if self.beyond else ():
            _known(arm, self.arms, "beyond.rules")
        for id, claim in self.claims.items():
            for name in claim.premise:
                _known(name, self.premises, f"claims.{id}.premise")
            for one in claim.comparisons:
                for arm in (*one.sides[0], *one.sides[1]):
                    _known(arm, self.arms, f"claims.{id}.comparisons")
        return self

    @model_validator(mode="after")
    def _held_out_results_are_of_one_kind(self) -> Study:
        for id, claim in self.claims.items():
            for one in claim.comparisons:
                arms = list(dict.fromkeys(arm for side in one.sides for arm in side))
                kinds = {(self.arms[arm].samples, self.arms[arm].evaluation_seed) for arm in arms}
                if any(map(evaluated, one.measures)) and len(kinds) > 1:
                    how = "need the same `samples` and `evaluation_seed`, or no two of their runs are a pair"
                    raise ValueError(f"claims.{id}.comparisons: {and_list(arms)} {how}")
        return self

    @model_validator(mode="after")
    def _what_should_beat_a_paper_meets_it(self) -> Study:
        for id in self.beyond.claims if self.beyond else ():
            assert self.beyond is not None
            if not any(one.meets(arms) for one in self.claims[id].comparisons for arms in self.beyond.rules.values()):
                raise ValueError(f"beyond.claims: {id} is compared with no arm of beyond.rules at equal responses")
        return self

    @model_validator(mode="after")
    def _can_be_decided(self) -> Study:
        most, tests = self.seeds["full"], self.tests
        if self.seeds["quick"] > most:
            raise ValueError(
                f"seeds.quick is {self.seeds['quick']}, more than seeds.full, {most}, of which it is a part"
            )
        if most > EXACT:
            raise ValueError(f"seeds.full is {most}; sign-flip tests are exact up to {EXACT}")
        if 2 / 2**most * tests >= ALPHA:
            raise ValueError(f"{most} seeds: no sign-flip test of them can pass Holm's correction for {tests} tests")
        return self

    @property
    def tests(self) -> int:
        """The number of comparisons that claim something, run or not: the family of Holm's correction."""
        return sum(one.direction != "open" for claim in self.claims.values() for one in claim.comparisons)


@dataclass(frozen=True)
class Book:
    """A study and the file that it was read from."""

    file: Path
    study: Study

    @property
    def results(self) -> Path:
        return self.file.parent / "results"

    @property
    def page(self) -> Path:
        return self.file.parent / self.study.page

    def recipe(self, arm: str, seed: int, output: Path) -> Recipe:
        """Return the recipe of an arm with this seed and output directory. Raises ValueError, naming the arm, for an
        invalid recipe."""
        found = self.study.arms[arm]
        overrides = [*found.overrides, *(["steps=1"] if found.untrained else []), f"seed={seed}"]
        try:
            recipe = load_recipe(self.file.parent / found.recipe, overrides)
        except ValueError as error:
            raise ValueError(f"{self.file}: arms.{arm}: {error}") from error
        return recipe.model_copy(update={"output_dir": output})

    def first(self, arm: str) -> Recipe:
        """Return the recipe of an arm, with seed 0 and no place for its output, read once. Raises ValueError as
        ``recipe`` does."""
        if arm not in self._first:
            self._first[arm] = self.recipe(arm, 0, Path())
        return self._first[arm]

    @cached_property
    def _first(self) -> dict[str, Recipe]:
        return {}

    def settings(self, arm: str) -> Settings:
        """Return the settings that an arm's results must have been made with."""
        return settings(shared_settings(self.first(arm)), self.study.arms[arm].evaluated)

    def arms_of(self, claim: str) -> list[str]:
        """Return the arms that decide a claim, each once, in the order in which they are compared."""
        comparisons = self.study.claims[claim].comparisons
        return list(dict.fromkeys(arm for one in comparisons for side in one.sides for arm in side))


def read(file: Path) -> Book:
    """Read the study in a file. Raises ValueError for any mistake in it, with one line that names the key."""
    return Book(file, validate(Study, load_yaml(file), str(file)))


def _list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _known(name: str, known: Mapping[str, object], where: str) -> None:
    if name not in known:
        raise ValueError(f"{where}: no {shown(name)}{did_you_mean(name, known)}")
