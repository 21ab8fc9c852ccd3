"""The file of claims, read strictly: what each says, by which runs it is decided, and how large a difference counts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

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
from coevolve.names import check_names
from coevolve.recipe.inputs import did_you_mean, load_yaml, validate
from coevolve.recipe.schema import Recipe, load_recipe
from coevolve.report.findings.statistics import EXACT
from coevolve.report.wording import and_list
from coevolve.study.measures import check_measure, evaluated
from coevolve.study.results import Evaluated, Settings, said, settings

Tier = Literal["quick", "full"]
Direction = Literal["more", "less", "equal", "open"]
"""What is claimed of a difference; open: nothing, it is measured."""
Matching = Literal["responses", "updates", "kl", "nothing"]
Verdict = Literal["confirmed", "refuted", "equal"]

ALPHA = 0.05

_MARGIN = re.compile(r"(\d+(?:\.\d+)?)( %| sd)?")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Margin(_Strict):
    """A difference that counts: in the measure's units, in % of the other arm, or in sd of the start's rewards."""

    size: float
    unit: Literal["", " %", " sd"]

    def __str__(self) -> str:
        return f"{self.size:g}{self.unit}"


def _margin(text: str) -> str:
    if not _MARGIN.fullmatch(text):
        raise ValueError(f"margin {shown(text)}: want a number ('0.02'), a share ('10 %') or deviations ('0.1 sd')")
    return text


class Arm(_Strict):
    """One side of comparisons: a recipe with overrides. samples: of each held-out problem. untrained: its start weights
    are what counts, so it is trained for one step only. evaluated_by: another play than that of the training.
    evaluation_seed: of the random numbers that all its runs are evaluated by, in place of each run's own."""

    recipe: str
    overrides: list[str] = []
    samples: PositiveInt = 1
    untrained: bool = False
    evaluated_by: str | None = None
    evaluation_seed: NonNegativeInt | None = None

    @property
    def evaluated(self) -> Evaluated:
        """How its runs are evaluated."""
        return Evaluated(samples=self.samples, play=self.evaluated_by, seed=self.evaluation_seed)


class Premise(_Strict):
    """A recipe whose start policies must read a reference and verify it: see ``diagnose.premise``."""

    recipe: str
    overrides: list[str] = []


class Comparison(_Strict):
    """arm - than in a measure, seed by seed. arm, than: names of arms; than is the arm itself where than_measure
    differs. Several arms (of ``hypervolume`` alone) are the points of a frontier. direction: ``open`` is a question,
    which gets a number and no verdict. matched: on what both sides spent."""

    arm: str | list[str]
    than: str | list[str] | None = None
    measure: Annotated[str, AfterValidator(check_measure)]
    than_measure: Annotated[str, AfterValidator(check_measure)] | None = None
    direction: Direction
    margin: Annotated[str, BeforeValidator(str), AfterValidator(_margin)]
    matched: Matching

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The arms of both sides."""
        return _list(self.arm), _list(self.arm if self.than is None else self.than)

    @property
    def measures(self) -> tuple[str, str]:
        """What is measured of both sides."""
        return self.measure, self.than_measure or self.measure

    def meets(self, arms: Collection[str]) -> bool:
        """Whether it is a comparison with some of these, at equal responses."""
        return self.matched == "responses" and set(self.sides[1]) <= set(arms)

    @property
    def counts(self) -> Margin:
        """The margin, read."""
        found = _MARGIN.fullmatch(self.margin)
        assert found
        return Margin.model_validate({"size": float(found[1]), "unit": found[2] or ""})

    @model_validator(mode="after")
    def _two_sides(self) -> Comparison:
        if self.sides[0] == self.sides[1] and self.measures[0] == self.measures[1]:
            raise ValueError("compares an arm with itself; give `than`, another arm, or `than_measure`")
        if isinstance(self.arm, list) != isinstance(self.than, list) or isinstance(self.arm, list) != (
            self.measure == "hypervolume"
        ):
            raise ValueError("lists of arms are for the measure hypervolume, on both sides")
        if isinstance(self.arm, list) and len(self.sides[0]) != len(self.sides[1]):
            raise ValueError("the frontiers have different numbers of arms; more points can only add to one")
        if self.matched == "kl" and not all(one.startswith("end ") for one in self.measures):
            raise ValueError("matched on kl takes a measure of the curve, `end NAME`")
        return self


class Line(_Strict):
    """Of a figure: what one arm, or each of several, came to. x, y: metrics of its runs, divided by a number if
    they say one (``turn/1/reward / 4``), or ``responses``."""

    arm: str | list[str]
    x: str
    y: str

    @property
    def arms(self) -> list[str]:
        return _list(self.arm)


class Figure(_Strict):
    """A picture made of results. reads: how it is to be read. draws: the ends of runs, a point for each arm; the curve
    of one arm, its mean over seeds; or the runs of one arm, each its own line. lines: by name."""

    title: str
    reads: str
    draws: Literal["ends", "curve", "runs"]
    x: str
    y: str
    lines: dict[str, Line]

    @model_validator(mode="after")
    def _one_arm_a_line(self) -> Figure:
        if self.draws != "ends" and any(len(line.arms) > 1 for line in self.lines.values()):
            raise ValueError("several arms on a line are for `draws: ends`")
        return self


class Elsewhere(_Strict):
    """Why a claim is not decided here, by which recipe it would be, and the command for it."""

    why: str
    recipe: str
    command: str


class Claim(_Strict):
    """paper: which, and where in it. says: what, in our words. number: what the paper reports. follows: verdict -> what
    it means for a user, written before any run. caveat: what of it was changed after results were in, or what its
    comparisons cannot show. needs_premise: without it the claim is vacuous."""

    paper: str
    says: str
    number: str
    comparisons: list[Comparison] = []
    premise: str | None = None
    needs_premise: bool = False
    follows: dict[Verdict, str] = {}
    caveat: str | None = None
    elsewhere: Elsewhere | None = None

    @model_validator(mode="after")
    def _decided_somewhere(self) -> Claim:
        if bool(self.comparisons) == (self.elsewhere is not None):
            raise ValueError("want comparisons, or else `elsewhere` with the reason")
        if self.needs_premise and self.premise is None:
            raise ValueError("needs_premise without a `premise`")
        return self


class Beyond(_Strict):
    """What should beat the papers. claims: that say so. rules: paper -> the arms that are trained by its own rule."""

    claims: list[str]
    rules: dict[str, list[str]]


class Study(_Strict):
    """The whole file. page: where the page goes; it and recipes are relative to the file. seeds: how many, by tier."""

    page: str
    seeds: dict[Tier, PositiveInt] = Field(min_length=2)
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
        for arm in (arm for arms in self.beyond.rules.values() for arm in arms) if self.beyond else ():
            _known(arm, self.arms, "beyond.rules")
        for id, claim in self.claims.items():
            if claim.premise is not None:
                _known(claim.premise, self.premises, f"claims.{id}.premise")
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
        """How many comparisons claim something, done or not: the family of Holm's correction."""
        return sum(one.direction != "open" for claim in self.claims.values() for one in claim.comparisons)


@dataclass(frozen=True)
class Book:
    """A study and where it lies."""

    file: Path
    study: Study

    @property
    def results(self) -> Path:
        return self.file.parent / "results"

    @property
    def page(self) -> Path:
        return self.file.parent / self.study.page

    def recipe(self, arm: str, seed: int, output: Path) -> Recipe:
        """The run of an arm and a seed, in this folder. Raises ValueError naming the arm for what is no recipe."""
        found = self.study.arms[arm]
        overrides = [*found.overrides, *(["steps=1"] if found.untrained else []), f"seed={seed}"]
        try:
            recipe = load_recipe(self.file.parent / found.recipe, overrides)
        except ValueError as error:
            raise ValueError(f"{self.file}: arms.{arm}: {error}") from error
        return recipe.model_copy(update={"output_dir": output})

    def settings(self, arm: str) -> Settings:
        """What an arm's results have to be results of."""
        return settings(said(self.recipe(arm, 0, Path())), self.study.arms[arm].evaluated)

    def arms_of(self, claim: str) -> list[str]:
        """The arms that decide a claim, each once, in the order in which they are compared."""
        comparisons = self.study.claims[claim].comparisons
        return list(dict.fromkeys(arm for one in comparisons for side in one.sides for arm in side))


def read(file: Path) -> Book:
    """The study in a file. Raises ValueError of one line, which names the key, for any mistake in it."""
    return Book(file, validate(Study, load_yaml(file), str(file)))


def _list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _known(name: str, known: Mapping[str, object], where: str) -> None:
    if name not in known:
        raise ValueError(f"{where}: no {shown(name)}{did_you_mean(name, known)}")
