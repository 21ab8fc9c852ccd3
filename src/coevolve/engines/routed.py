"""Several engines behind one interface: each policy is sampled by its own engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue

from coevolve.faults import closed_after
from coevolve.interfaces import Engine, Overlapping, Published, context
from coevolve.runtime.placement import side_by_side
from coevolve.types import Asked, PolicyName, Say, Turn


class RoutedEngine:
    """An engine that passes each policy's says to that policy's engine; the engines sample in parallel.

    Local engines on the same device sample one after the other. own: the engine of each policy that has its own;
    several policies may share one. others: the engine of all other policies.
    """

    def __init__(self, own: Mapping[PolicyName, Engine], others: Engine) -> None:
        self.own, self.others = dict(own), others
        self.all = list({id(one): one for one in (others, *own.values())}.values())
        """Each engine once."""
        most = self.staleness
        for one in self.all:
            if hasattr(one, "staleness"):
                with suppress(AttributeError):  # a custom engine's may be read-only
                    # All engines sample while weights change if one does, so no server may be restarted meanwhile.
                    one.staleness = most
        self.in_use: list[Engine] = []
        """The engines that were given weights: the others are never called."""

    def of(self, policy: PolicyName) -> Engine:
        """The engine that samples this policy."""
        return self.own.get(policy, self.others)

    @property
    def about(self) -> str:
        """One line for logs: each engine, and the policies it samples; without the others' if there are no others."""
        named = {id(one): [name for name in self.own if self.own[name] is one] for one in self.all}
        used = [one for one in self.all if one in self.in_use] or self.all  # before a publish it is not known
        return "; ".join(f"{_about(one)} for {', '.join(named[id(one)]) or 'the others'}" for one in used)

    def publish(self, news: Sequence[Published]) -> None:
        """Publish to each engine the policies that it samples; engines without any are not called."""
        for engine in self.all:
            if mine := [new for new in news if self.of(new.name) is engine]:
                engine.publish(mine)
                if engine not in self.in_use:
                    self.in_use.append(engine)

    def encode(self, policy: PolicyName, prompt: Asked) -> Sequence[int]:
        """Return the token ids of a prompt."""
        return self.of(policy).encode(policy, prompt)

    def context(self, policy: PolicyName) -> int | None:
        """Return the context length of a policy's model; None if its engine does not say."""
        return context(self.of(policy), policy)

    def generate(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Turn]]:
        """Sample one turn per say, in the order given."""

        def there(names: Sequence[PolicyName]) -> Mapping[PolicyName, list[Turn]]:
            return self.of(names[0]).generate({name: says[name] for name in names})

        return side_by_side({name: self.of(name) for name in says}, list(says), there, id)

    @property
    def staleness(self) -> int:
        """The largest staleness of all engines."""
        return max(getattr(one, "staleness", 0) for one in self.all)

    @property
    def overlapped(self) -> Overlapping | None:
        """The overlapped sampling (``interfaces.Overlapping``) if every engine in use has it; else None, and turns are
        sampled in lockstep."""
        able = all(getattr(one, "overlapped", None) is not None for one in self.in_use)
        return self._overlapped if able and self.in_use else None

    @contextmanager
    def _overlapped(
        self, inbox: SimpleQueue[Callable[[], None]]
    ) -> Iterator[Callable[[Say, Callable[[Turn], None]], None]]:
        with ExitStack() as stack:
            asks = {id(one): stack.enter_context(one.overlapped(inbox)) for one in self.in_use}  # type: ignore[attr-defined]
            yield lambda say, then: asks[id(self.of(say.policy))](say, then)

    def rest(self) -> None:
        """Let every engine give back memory while the learners work."""
        for engine in self.all:
            engine.rest()

    def close(self) -> None:
        """Close all engines, even if closing one of them fails."""
        with closed_after(self.all):
            pass


def _about(engine: Engine) -> str:
    return str(getattr(engine, "about", type(engine).__name__))
