"""Sampling by an inference server over HTTP: vLLM, SGLang or, for frozen policies only, any OpenAI-compatible server.

Weights are sent as folders that the server reads: each adapter under a new name, full weights in place of the old ones
(or without the disk, ``engines.transfer``). A route's success does not prove that the server samples these weights; the
gate before the next update checks it (``learners.gate``).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch

from coevolve import defaults
from coevolve.engines import arrival, greeting
from coevolve.engines.base import BaseEngine, Sample
from coevolve.engines.flight import Flight, Inbox
from coevolve.engines.one_server import check_one_server
from coevolve.engines.routes import VLLM, Routes
from coevolve.engines.started import (
    ALIVE,
    Flags,
    answers,
    check_devices,
    check_started,
    kv_cache_flag,
    last_words,
    serve,
)
from coevolve.engines.transfer import ROUTES as TRANSFER
from coevolve.engines.transfer import Nccl, Transfer, Way, check_transfer
from coevolve.faults import RanksError, ShortageError
from coevolve.interfaces import Published
from coevolve.models import names as models
from coevolve.runtime.child import Child
from coevolve.runtime.requests import FailedError, NotFoundError, base_of, cut, requests, run, sent
from coevolve.types import PolicyName, Say, Turn

T = TypeVar("T")

_PAUSE = 0.1
"""Seconds until a request is sent again to a server that answered ``success: false``."""


class ServerEngine(BaseEngine):
    """The engine that samples with a server: token ids in, token ids and log-probabilities out, the requests of all
    policies in flight together.

    url: of a running server; without one, ``vllm serve`` is started for this team, and ended with it. start: further
    flags for that, and ``devices``, the GPUs that it sees. folder: where weights are written, on a disk that the server
    sees (None: a temporary folder). model: the server's name of its base model (None: the first one it lists). seconds:
    the deadline of a start, of each request of a publish and of a batch of turns. staleness: 1 samples a step while the
    one before is learnt from (``interfaces.Engine``). transfer: how full weights are sent: by "disk", "nccl" or "ipc"
    (``engines.transfer``). A server started on CPUs has a KV cache of a quarter of the free memory, 4 GiB at most,
    unless ``start`` has its size. One started with ``enable-sleep-mode`` sleeps while the learners work.

    Raises ValueError for a malformed url, for a url together with ``start``, and for malformed devices.
    """

    def __init__(
        self,
        routes: Routes = VLLM,
        *,
        url: str | None = None,
        start: Flags | None = None,
        folder: Path | None = None,
        model: str | None = None,
        seconds: float = defaults.SERVER_SECONDS,
        staleness: int = 0,
        transfer: Literal["disk"] | Way = defaults.TRANSFER,
    ) -> None:
        super().__init__()
        if url is not None and start is not None:
            raise ValueError(
                "`url` names a server that runs, and `start` has flags for one of ours; remove one of them"
            )
        self.sleeps = any((start or {}).get(key) is True for key in ("enable-sleep-mode", "enable_sleep_mode"))
        """Whether the server gives its GPU memory back while the learners work."""
        check_devices(start or {})
        self.routes, self.start, self.folder, self.model = routes, start, folder, model
        self.url = None if url is None else base_of(url)
        self.seconds, self.ours, self.scores, self.staleness = seconds, url is None, routes.scores, staleness
        self.transfer = transfer
        self.child: Child | None = None
        self.about = routes.name
        """One line for logs: the kind of server, and where it is."""
        self._cache: dict[str, int] | None = None  # the flag for its KV cache, chosen when it is first started
        self._base: str | None = None  # the server's name of its base model
        self._longest: int | None = None  # its limit for prompt and turn (max_model_len); None where it does not say
        self._begun = self._revived = self._asleep = False
        self._keeps_log = False  # of a child that is dying
        self._broken = False  # a transfer failed halfway: vLLM would count what had arrived to the next one
        self._nonce, self._attempts = secrets.token_hex(4), itertools.count()
        self._there: dict[PolicyName, tuple[str | None, Path]] = {}
        """By policy: the server's name of its adapter (None for full weights), and the folder of its weights."""
        self._replaced: list[tuple[str | None, Path]] = []  # replaced by those, and not removed yet
        self._room: Path | None = None
        self._answers: dict[PolicyName, arrival.Answer] = {}

    def publish(self, news: Sequence[Published]) -> None:
        """Have the server sample these weights from now on; start it first if need be.

        Raises ValueError as ``BaseEngine.publish`` does, for a team that one server cannot hold, and for a server that
        lacks a route, naming it."""
        super().publish(news)
        team = list(self.published.values())
        if self.sleeps and self.staleness:
            raise ValueError(
                "with staleness servers sample while the learners work, and start.enable-sleep-mode has one sleep "
                "then; remove one of them"
            )
        _check_team(self.routes, team)
        if self.transfer != "disk":
            check_transfer(self.transfer, team)
        if self.ours:
            check_started(team, self.start or {})
        self._revived = False
        self._kept_up(lambda: self._publish(news))
        self._revived = False

    def context(self, policy: PolicyName) -> int:
        """Return the context length of a policy's model, or the server's ``max_model_len`` if that is smaller."""
        model = super().context(policy)
        return model if self._longest is None else min(model, self._longest)

    def check_context(self, say: Say) -> None:
        """Raise ValueError for a prompt that leaves no room for the new tokens in the model's context, or in that of
        the server, which might cut the turn short."""
        prompt, new = len(say.prompt_ids), say.sampling.length_range[1]
        if self._longest is not None and prompt + new > self._longest:
            raise ValueError(
                f"{say.where}: a prompt of {prompt} tokens and {new} new ones exceed the max_model_len of "
                f"{self._longest} of {self.about}; start the server with a larger one, shorten the task's prompts, or "
                "lower sampling.max_new_tokens"
            )
        super().check_context(say)

    def sample(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Sample]]:
        """Sample one completion per say. A failed request is repeated once: the same key gives the same turn."""
        for say in itertools.chain(*says.values()):
            self.check_sampling(say)
        self._be_there()
        return self._kept_up(lambda: run(self._sweep(says)))

    @contextmanager
    def overlapped(self, inbox: Inbox) -> Iterator[Callable[[Say, Callable[[Turn], None]], None]]:
        """Sample turns one by one (``interfaces.Overlapping``): each is answered as soon as it is sampled, and has a
        deadline of its own."""
        self._be_there()
        flight = Flight(self, inbox)
        try:
            yield flight.ask
        finally:
            flight.end()

    def _be_there(self) -> None:
        if not self._begun:  # closed before, and used again
            self._publish([])
        self._kept_up(self._wake)

    def _wake(self) -> None:
        if self._asleep:
            torch.cuda.empty_cache()  # of what a learner in this process has freed, and the server takes
            run(self._posted({self.routes.wake: {}}, f"{self._team}, waking their server"))
            self._asleep = False

    def check_sampling(self, say: Say) -> None:
        """Raise ValueError for sampling that this server does otherwise, or from which a policy cannot learn."""
        if 0 < say.sampling.temperature < self.routes.coldest:
            raise ValueError(
                f"policy {say.policy!r}: sampling.temperature is {say.sampling.temperature:g}, and {self.routes.name} "
                f"would sample at {self.routes.coldest:g}; say that, or 0"
            )
        learns = self.published[say.policy].spec.trainable
        if learns and self.scores and say.sampling.truncated:
            raise ValueError(
                f"policy {say.policy!r}: with top_k, top_p or repetition_penalty {self.routes.name} gives "
                "log-probabilities of the cut distribution, which nobody can learn from; remove them from "
                "`sampling`, or sample with the local engine"
            )

    def rest(self) -> None:
        """Note that the step is sampled: a server of this engine that dies in the next step may be restarted again.
        One with a sleep mode gives its GPU memory back until it is needed."""
        self._revived = False
        if self._begun and self.sleeps and not self._asleep:
            self._asleep = True  # also if it says so too late
            try:
                run(self._posted({self.routes.sleep: {}}, f"{self._team}, sending their server to sleep"))
            except OSError as error:  # if it died, the next publish starts it again
                logging.getLogger(__name__).warning("%s; it may be awake", error)

    def close(self) -> None:
        """End the server if this engine started it; else remove this engine's adapters from it."""
        self._end(keep_log=False)

    def _end(self, keep_log: bool) -> None:
        self._replaced += self._there.values()
        if self.child is not None:
            self.child.close(keep_log or self._keeps_log)
        elif self._begun:
            with suppress(OSError, ValueError):
                run(self._forget(ALIVE))
        for left in (self._room, *(folder for _, folder in self._replaced)):
            if left is not None:
                shutil.rmtree(left, ignore_errors=True)
        self.child, self._begun, self._room, self._there, self._replaced = None, False, None, {}, []
        self._answers = {}
        self._asleep = self._broken = self._keeps_log = False

    def _kept_up(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, repeated if the server that this engine started died meanwhile: it is then
        restarted with all weights, at most once a publish and once a rollout."""
        try:
            with self.explained():
                return work()
        except OSError as error:
            if not self.revive(error):
                raise
        with self.explained():
            return work()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add to an error what the server said, if this engine started it and it is not healthy, and keep its log: it
        may answer for some time while it dies."""
        try:
            yield
        except OSError as error:
            if self.child is None or isinstance(error, RanksError) or answers(self.child, str(self.url)):
                raise
            self._keeps_log = True
            raise ShortageError(f"{error}; {last_words(self.child)}") from error

    def revive(self, error: OSError) -> bool:
        """Restart the server if this engine started it and it died, is not healthy (``answers``) or has half of the
        weights, at most once a publish or rollout. Return False if it was not restarted; with staleness it never is, as
        the weights may be changing meanwhile."""
        if self.child is None or self.staleness or self._revived or isinstance(error, RanksError):
            return False
        if answers(self.child, str(self.url)) and not self._broken:
            return False
        logging.getLogger(__name__).warning("%s; the server is started again", error)
        self._revived = True
        self._end(keep_log=True)  # which may say why, also of one that is still dying
        with self.explained():
            self._publish(list(self.published.values()))
        return True

    def _publish(self, news: Sequence[Published]) -> None:
        if self._broken and self.child is not None:  # by ranks that were lost in the middle of a transfer
            self._end(keep_log=True)
        news = news if self._begun else list(self.published.values())  # a server that begins has none
        sent: dict[PolicyName, arrival.Kept] = {}
        if not self._begun:
            if self.ours:
                if self._cache is None:
                    self._cache = kv_cache_flag(self.start or {})
                flags = {**self._cache, **(self.start or {})}
                self.child, self.url = serve(list(self.published.values()), flags, self.seconds, self.transfer)
            try:
                run(self._greet())
            except BaseException:
                self.close()  # else the next publish would start another server, and this one would never be ended
                raise
            self._begun = True
        self._wake()
        for new in news:
            if self._sent_apart(new):
                assert new.send is not None and self.url is not None  # checked by ``publish``
                whose = f"policy {new.name!r}, version {new.version}: {self.about}"
                if self._broken:
                    raise ShortageError(
                        f"{whose} may have half of the weights of a transfer that failed; start it again"
                    )
                self._broken = True
                transfer = Transfer(self.url, cast(Way, self.transfer), new.spec.dtype, self.seconds, whose, Nccl)
                sent[new.name] = new.send(transfer) or {}
                self._broken = False
        run(self._take(news, sent))

    def _started(self) -> str:
        """Return what ``about`` says of a server that was started here."""
        if not self.ours:
            return ""
        return (
            f" (started here{''.join(f', KV cache {size / 2**30:.1f} GiB' for size in (self._cache or {}).values())})"
        )

    async def _greet(self) -> None:
        """Ask the server for its routes, its version, the name of its base model, and its ``max_model_len``. Raises
        ValueError for a route that it lacks."""
        at = f"at {self.url}{self._started()}"
        self.about, url = f"{self.routes.name} {at}", str(self.url)
        sending = () if self.transfer == "disk" else TRANSFER
        needed = self.routes.needed({new.spec.weights for new in self.published.values()}, sending)
        async with self._requests(lambda: f"{self._team}: {self.about} did not say what it can do") as client:
            try:
                if self.routes.schema and (version := await greeting.version(client, url, self.routes, needed)):
                    self.about = f"{self.routes.name} {version} {at}"
                found = await greeting.served(client, url, self.routes, self.model)
            except FailedError as error:
                raise ShortageError(f"{self._team}: {self.about} does not answer: {error}") from error
        self._base, self._longest = found.base, found.longest
        self._check_model(found.root)

    def _check_model(self, root: str | None) -> None:
        """Warn if the server names its model, and that name differs from the frozen policies' model: their turns are
        never checked by the gate of an update."""
        frozen = [new for new in self.published.values() if not new.spec.trainable]
        if (
            self.model is None
            and root is not None
            and frozen
            and _name(root) != _name(models.resolve(frozen[0].spec.model))
        ):
            logging.getLogger(__name__).warning(
                "policy %r is frozen and its model is %s, and %s serves %s; if that is another model, ids are of "
                "another tokenizer and turns mean nothing; engine.model says which one is meant",
                *(frozen[0].name, frozen[0].spec.model, self.about, root),
            )

    async def _take(self, news: Sequence[Published], sent: Mapping[PolicyName, arrival.Kept]) -> None:
        """Have the server load these weights, then remove those that they replace. sent: some of the weights that were
        sent without the disk."""
        for new in news:
            if not new.spec.trainable or not self.scores:
                continue  # its weights never change
            name = f"{new.name}@{self._nonce}-{next(self._attempts)}-{new.version}"
            folder = self._folder() / name
            adapter = name if new.spec.weights == "lora" else None
            try:
                await self._load(new, name, folder)
            except BaseException:  # the next attempt has a name of its own
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if new.name in self._there:
                self._replaced.append(self._there[new.name])
            self._there[new.name] = adapter, folder
            if arrival.unclear_to_gate(new):
                await self._check_arrived(new, sent.get(new.name) or arrival.kept_of(folder))
        await self._forget(self.seconds)

    async def _check_arrived(self, new: Published, kept: arrival.Kept) -> None:
        """Raise ValueError if the server took these weights and still samples those of before (``arrival``). kept: some
        of these weights."""
        asked, say = arrival.question(new, self.context(new.name))
        where = f"policy {new.name!r}, version {new.version}: {self.about}"
        async with self._requests(lambda: f"{where} left a fixed prompt unanswered") as client:
            sample = await self.one(client, asked, say)
        now = arrival.Answer(sample, kept, new.version)
        self._answers[new.name] = arrival.checked(where, self._answers.get(new.name), now)

    async def _load(self, new: Published, name: str, folder: Path) -> None:
        """Have the server load one policy's weights from a folder, an adapter under this name, unless they were sent
        apart."""
        calls: dict[str, Any] = {}
        if not self._sent_apart(new):
            new.save(folder)
            calls = {route: body(folder) for route, body in self.routes.reload.items()}
        if self.routes.reset_cache:
            calls[self.routes.reset_cache] = {}
        if new.spec.weights == "lora":
            calls = {self.routes.load: {"lora_name": name, "lora_path": str(folder)}}
        await self._posted(calls, f"policy {new.name!r}, version {new.version}")

    def _sent_apart(self, new: Published) -> bool:
        """Return whether these weights are sent without the disk."""
        return new.spec.weights == "full" and self.transfer != "disk"

    async def _forget(self, seconds: float) -> None:
        """Remove replaced adapters from the server, and the folders of replaced weights from the disk."""
        while self._replaced:
            adapter, folder = self._replaced[0]
            if adapter is not None:
                with suppress(NotFoundError):  # of a server that somebody has started again meanwhile
                    await self._posted({self.routes.unload: {"lora_name": adapter}}, f"adapter {adapter}", seconds)
            shutil.rmtree(folder, ignore_errors=True)
            del self._replaced[0]

    async def _posted(self, calls: Mapping[str, Any], whose: str, seconds: float | None = None) -> None:
        """Send these requests one after the other. A failed one is not repeated, as it may have taken effect; one that
        the server says it did not carry out is: vLLM does not reset a cache of which a block is in use."""
        async with self._requests(lambda: f"{whose}: {self.about} did not take it", seconds) as client:
            for route, body in calls.items():
                try:
                    while _undone(await sent(client, route, body)):
                        await asyncio.sleep(_PAUSE)
                except FailedError as error:
                    raise ShortageError(f"{whose}: {self.about} failed: {error}") from error
                except ValueError as error:
                    kind = NotFoundError if isinstance(error, NotFoundError) else ValueError
                    raise kind(f"{whose}: {self.about}: {error}") from error

    def _folder(self) -> Path:
        """Return the folder in which weights are written."""
        if self.folder is not None:
            return self.folder.absolute()
        if self._room is None:
            self._room = Path(tempfile.mkdtemp(prefix="coevolve-"))
        return self._room

    async def _sweep(self, says: Mapping[PolicyName, Sequence[Say]]) -> Mapping[PolicyName, list[Sample]]:
        """Sample all says with their requests in flight together, under one deadline."""
        asked = [(name, say) for name, some in says.items() for say in some]
        found: dict[int, Sample] = {}

        def late() -> str:
            missing = [self.whose(*one) for i, one in enumerate(asked) if i not in found]
            if not missing:
                return f"{self.about} answered, and did not end its connections"
            return f"{missing[0]}: {self.about} left {len(missing)} of {len(asked)} turns unanswered"

        async with self._requests(late) as client:

            async def answer(i: int) -> None:
                name, say = asked[i]
                found[i] = await self.one(client, self.published[name], say)

            await asyncio.gather(*map(answer, range(len(asked))))
        rows = iter([found[i] for i in range(len(asked))])
        return {name: [next(rows) for _ in some] for name, some in says.items()}

    async def one(self, client: Any, speaker: Published, say: Say, again: bool = True) -> Sample:
        """Sample one say; a failed request is repeated once if ``again``."""
        name, (adapter, _) = speaker.name, self._there.get(speaker.name, (None, None))
        try:
            answer = await sent(client, self.routes.generate, self.routes.asks(adapter, self._base, speaker, say))
            try:
                return self.routes.reads(answer.json(), speaker)
            except (ValueError, LookupError, TypeError, AttributeError) as error:  # an incomplete or unknown answer
                raise FailedError(f"{self.routes.generate} answers {cut(answer)!r}, which is no turn") from error
        except FailedError as error:
            if again:
                return await self.one(client, speaker, say, again=False)
            raise ShortageError(f"{self.whose(name, say)}: {self.about} failed twice: {error}") from error
        except ValueError as error:
            if isinstance(error, NotFoundError) and adapter is not None:
                raise ShortageError(
                    f"{self.whose(name, say)}: {self.about} no longer has the adapter that it took ({error}); if it "
                    "was started again meanwhile, continue with --resume"
                ) from error
            raise ValueError(f"{self.whose(name, say)}: {self.about}: {error}") from error

    @property
    def _team(self) -> str:
        """The policies that the server samples, for errors that are of all of them."""
        return f"{'policy' if len(self.published) == 1 else 'policies'} {', '.join(map(repr, self.published))}"

    def whose(self, name: PolicyName, say: Say) -> str:
        """Return whose turn a say asks for, for errors."""
        return f"policy {name!r}, version {self.published[name].version}, problem {say.problem.id!r}"

    def _requests(self, late: Callable[[], str], seconds: float | None = None) -> AbstractAsyncContextManager[Any]:
        assert self.url is not None
        return requests(self.url, self.seconds if seconds is None else seconds, late)


def _name(model: str | Path) -> str:
    """Return the last part of a model's hub id or folder: owners and folders may differ between machines."""
    return Path(model).name.lower()


def _undone(answer: Any) -> bool:
    """Return whether the server answered ``success: false``: it did not carry out the request."""
    try:
        said = answer.json()
    except ValueError:
        return False
    return isinstance(said, Mapping) and said.get("success") is False


def _check_team(routes: Routes, team: Sequence[Published]) -> None:
    """Raise ValueError if one server of this kind cannot hold the team, or gives no log-probabilities to learn from."""
    check_one_server({new.name: new.spec for new in team}, takes=routes.scores)
    if not routes.scores and (taught := [new for new in team if new.version and new.spec.trainable]):
        raise ValueError(
            f"policy {taught[0].name!r}: {routes.name} gives no log-probabilities and takes no weights, so "
            "nobody learns from what it samples; say weights: frozen, or engine: vllm"
        )
