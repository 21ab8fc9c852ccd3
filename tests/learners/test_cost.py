"""The cost model's formulas against a table made by hand, and what a dry run says by them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config

from coevolve import cli
from coevolve.engines import started
from coevolve.engines.routed import RoutedEngine
from coevolve.engines.server import ServerEngine
from coevolve.interfaces import Published
from coevolve.learners import cost
from coevolve.learners import sizes as learners_sizes
from coevolve.learners.build import build_policies
from coevolve.learners.sizes import adapter_size, sizes, weightless
from coevolve.models import names
from coevolve.models.hub_sizes import SIZES, config_of
from coevolve.models.spec import LoraSpec, PolicySpec
from coevolve.recipe import memory, room
from coevolve.recipe.build import parts
from coevolve.recipe.plan import plan
from coevolve.recipe.rank_memory import sampled_on_gpu
from coevolve.recipe.read import load_recipe
from coevolve.runtime import free_memory, placement

GB = 1e9
SMALL = cost.Shape(1_540_000_000, 233_000_000, 28, 1536, 256, 151_936)
MIDDLE = cost.Shape(3_090_000_000, 311_000_000, 36, 2048, 256, 151_936)
LARGE = cost.Shape(7_620_000_000, 1_090_000_000, 28, 3584, 512, 151_936)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run minds runs that are there already, such as this checkout's own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("shape", "want"), [(SMALL, 3.2), (MIDDLE, 3.7), (LARGE, 4.1)])
def test_the_table(shape: cost.Shape, want: float) -> None:
    """Of 8,192 tokens whose layers' inputs are bfloat16, which are the bytes of 4,096 in float32, as ours are."""
    spec = PolicySpec("m", dtype="bfloat16", gradient_checkpointing=True, micro_tokens=4096)
    assert round(sum(cost.learning(shape, spec).values()) / GB, 1) == want


def test_a_rank_has_its_part_and_what_it_borrows() -> None:
    shape = cost.Shape(1000, 200, layers=4, hidden=8, kv=4, vocabulary=10)
    state, spec = {"weights": 4000, "gradients": 4000, "optimizer": 8000, "reference": 4000}, PolicySpec("m")
    assert cost.of_rank(state, shape, 4, replace(spec, micro_tokens=3), on_cpu=False) == {
        "weights": 1000,
        "gradients": 1000,
        "optimizer": 2000,
        "reference": 1000,
        "borrowed": 2 * 4 * (200 + 2 * 200),  # of two models: outside of layers, and two layers of 200 each
        "rounded": 0,
        "activations": 140 * 4 * 8 * 3,
        "logits": 8 * 2048 * 10,
    }
    half = replace(spec, micro_tokens=3, dtype="bfloat16")
    assert cost.learning(shape, half) == {"rounded": 2000, "activations": 85 * 4 * 8 * 3, "logits": 163_840}
    again = cost.learning(shape, replace(half, gradient_checkpointing=True))
    assert again == {"rounded": 0, "activations": 4 * 4 * 8 * 3, "logits": 163_840}
    on_cpu = cost.of_rank(state, shape, 4, spec, on_cpu=True)
    assert on_cpu["borrowed"] == 2 * 4 * 1000  # both models, whole
    lora = cost.of_rank(state | {"reference": 0}, shape, 4, replace(spec, weights="lora"), on_cpu=False)
    assert lora["weights"] == 4000
    assert "borrowed" not in cost.of_rank(state, shape, 4, replace(spec, weights="lora"), on_cpu=True)


def test_a_publish_writes_what_is_trained_in_float32() -> None:
    spec = PolicySpec("m", dtype="bfloat16")
    assert cost.published(spec, 1000, 0) == 4000
    assert cost.published(replace(spec, weights="lora"), 1000, 30) == 120
    assert cost.published(replace(spec, weights="frozen"), 1000, 0) == 0
    assert cost.published(spec, 1000, 0, by_disk=False) == 2000  # in the dtype of the server
    assert cost.published(replace(spec, dtype="float32"), 1000, 0, by_disk=False) == 4000


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "mlp.down_proj"]])
def test_a_publish_of_an_adapter_has_the_bytes_that_were_predicted(targets: Any, tmp_path: Path) -> None:
    spec = PolicySpec("coevolve-tiny", weights="lora", lora=LoraSpec(rank=3, targets=targets))
    [policy] = build_policies({"ann": spec}, reference=False, critic=False, steps=1, seed=0).values()
    policy.published(0).save(tmp_path)
    [file] = tmp_path.glob("*.safetensors")
    made = weightless(spec.model)
    written = sum(tensor.nbytes for tensor in load_file(file).values())
    assert cost.published(spec, sizes(made)[0], adapter_size(made, spec)) == written > 0


def described(folder: Path, hidden: int, inside: int, heads: int, groups: int, tied: bool) -> str:
    """The configuration of a Qwen2.5, without weights."""
    config = Qwen2Config(
        vocab_size=151_936 if tied else 152_064, hidden_size=hidden, intermediate_size=inside, num_hidden_layers=28,
        num_attention_heads=heads, num_key_value_heads=groups, tie_word_embeddings=tied,
    )  # fmt: skip
    config.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """Of 1.5 billion parameters."""
    return described(tmp_path / "qwen", 1536, 8960, 12, 2, tied=True)


@pytest.fixture
def large(tmp_path: Path) -> str:
    """Of 7.6 billion."""
    return described(tmp_path / "large", 3584, 18_944, 28, 4, tied=False)


RECIPES = Path(__file__).parents[2] / "recipes"


def ranks_of(name: str, model: str, *changes: str) -> list[str]:
    """What a dry run says of a recipe's ranks, and of the trainer's GPUs."""
    text = plan(load_recipe(str(RECIPES / f"{name}.yaml"), [f"policies.*.model={model}", *changes]))
    lines = [line.removeprefix("#").strip() for line in text.splitlines()]
    return lines[next(i for i, line in enumerate(lines) if line.startswith("ranks, ")) + 1 :]


COPIES = ("policies.*.engine=null", "learner.ranks=4", "policies.bob.device=cuda:4")
"""Changes to the recipe for eight GPUs: the local engine samples copies, and all cards are of ranks."""


def test_a_dry_run_says_what_goes_where(qwen: str) -> None:
    """On each of six cards a third of a policy; on the others the server's weights, 2 bytes each. The trainer's process
    holds nothing."""
    parts = "weights 1.92, gradients 1.92, optimizer 3.83, reference 1.10, borrowed 2.44, rounded 2.88"

    def a_policy(name: str, first: int, card: int) -> list[str]:
        last = first + 2
        where = f"read by the vllm that is started on GPU {card}, where the weights take 2.9 GiB beside the KV cache"
        return [
            f"{name}: 1,543,714,304 parameters, weights sharded, cuda:{first} to cuda:{last} of this machine",
            f"30.3 ({parts}, activations 13.95, logits 2.32); 11.5 while it is loaded",
            f"a publish writes 3,087 MB by nccl, {where}; a checkpoint 12,350 MB more",
        ]

    assert ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen) == [*a_policy("ann", 0, 6), *a_policy("bob", 3, 7)]


def test_a_dry_run_says_where_the_copies_of_the_local_engine_are(qwen: str) -> None:
    said = ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen, *COPIES)
    assert said[0] == "ann: 1,543,714,304 parameters, weights sharded, cuda:0 to cuda:3 of this machine"
    assert said[3] == "bob: 1,543,714,304 parameters, weights sharded, cuda:4 to cuda:7 of this machine"
    copied = "read into a copy of 5.8 GiB that the local engine samples"
    assert said[2] == said[5] == f"a publish writes 6,175 MB, {copied}; a checkpoint 12,350 MB more"
    # Copies of 4 bytes a weight, each on the first card of its ranks, whose weights, moments and reference stay.
    needs = "at most 33.90 GiB: 5.75 held for {0}; while one is sampled 4.63; in ranks of {0} at most 28.15"
    assert said[6:] == [
        f"the trainer's cuda:{card}: {needs.format(name)}, while policies are sampled 5.14"
        for card, name in ((0, "ann"), (4, "bob"))
    ]


def test_the_guide_shows_what_a_dry_run_says(qwen: str, large: str) -> None:
    page = {line.strip() for line in (RECIPES.parent / "docs/guides/cluster.md").read_text("utf-8").splitlines()}
    local = "policies.*.engine=null", "engine={name: local, max_tokens: 16384}"
    for said in (
        ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen),
        ranks_of("cory-gsm8k-qwen2.5-7b-2nodes", large),
        ranks_of("cory-gsm8k-qwen2.5-7b-2nodes", large, *local)[-1:],
    ):
        assert [line for line in said if line not in page] == []


def test_the_guides_seconds_are_arithmetic(qwen: str, large: str) -> None:
    """By the numbers that the page gives, and the tokens, GPUs and bytes of the dry runs."""
    page = (RECIPES.parent / "docs/guides/cluster.md").read_text("utf-8")
    small, big, ranks = 1_543_714_304, 7_615_616_512, {"8gpu": 3, "2nodes": 7}
    reading, speed = 0.6 * 4.8e12, 0.4 * 790e12

    def generation(parameters: int) -> str:
        return f"{2 * 256 * 2 * parameters / reading:.2f}"

    def update(parameters: int, gpus: float) -> str:
        return f"{6 * parameters * 32_768 / speed / gpus:.2f}"

    for name, model in (("1.5b-8gpu", qwen), ("7b-2nodes", large)):
        recipe = load_recipe(str(RECIPES / f"cory-gsm8k-qwen2.5-{name}.yaml"), [f"policies.*.model={model}"])
        assert recipe.learner is not None and recipe.learner["ranks"] == ranks[name.split("-")[1]]
        told = plan(recipe)
        assert "calls of generate: 2, each of at most 256 model calls per policy" in told
        assert told.count("32 turns, at most 8192 tokens sampled and 32768 trained on") == 2
    nvlink, ways = f"{2 * 3.087 / 450:.3f}", [f"{4 * size / 2:.1f}" for size in (6.175, 30.462)]
    network = f"{2 * 15.231 / 50:.2f}"
    one, eight = (f"{generation(small)} | {update(small, gpus)}" for gpus in (0.5, 3))
    assert f"| `cory-gsm8k-qwen2.5-1.5b`, one GPU | {one} | 0 |" in page
    assert f"| `cory-gsm8k-qwen2.5-1.5b-8gpu` | {eight} | {nvlink} by NVLink (`transfer: disk`: {ways[0]}) |" in page
    sent = f"{ways[1]} through the disk (`transfer: nccl`, by the network: {network})"
    assert f"| `cory-gsm8k-qwen2.5-7b-2nodes` | {generation(big)} | {update(big, 7)} | {sent} |" in page


def a_policy_of_7b(name: str, read: str) -> list[str]:
    where = "7,615,616,512 parameters, weights sharded, 7 x 1 card where the cluster ray has room"
    parts = "weights 4.05, gradients 4.05, optimizer 8.11, reference 2.32, borrowed 11.59, rounded 0.00"
    return [
        f"{name}: {where}",
        f"33.2 ({parts}, activations 0.77, logits 2.32); 56.7 while it is loaded",
        f"a publish writes {read}; a checkpoint 60,925 MB more",
    ]


def test_7b_on_two_machines_fits_cards_of_80_gb(large: str) -> None:
    """Which is 74.5 GiB: ranks while they are loaded, and a server on each of the two cards that have no rank."""
    recipe, read = (
        "cory-gsm8k-qwen2.5-7b-2nodes",
        "{} read by the vllm that is started on GPU {}, where the weights take",
    )
    tail = "14.2 GiB beside the KV cache"

    def both(sent: str) -> list[str]:
        policies = [a_policy_of_7b(n, f"{read.format(sent, card)} {tail}") for n, card in (("ann", 0), ("bob", 1))]
        return [line for lines in policies for line in lines]

    assert ranks_of(recipe, large) == both("30,462 MB,")
    by_nccl = "policies.*.engine.transfer=nccl", "policies.*.engine.start.host=10.0.0.1"
    assert ranks_of(recipe, large, *by_nccl) == both("15,231 MB by nccl,")


def test_two_copies_of_7b_are_to_be_on_a_card_that_has_no_rank(large: str) -> None:
    local = "policies.*.engine=null", "engine={name: local, max_tokens: 16384}"
    read = "30,462 MB, read into a copy of 28.4 GiB that the local engine samples"
    assert ranks_of("cory-gsm8k-qwen2.5-7b-2nodes", large, *local) == [
        *a_policy_of_7b("ann", read),
        *a_policy_of_7b("bob", read),
        "the trainer's cuda:0: at most 71.80 GiB: 56.74 held for ann, bob; while one is sampled 15.06; "
        "keep this card from Ray: beside a rank it needs 113.48",
    ]


@pytest.mark.parametrize(
    ("engine", "read"),
    [
        ("{name: vllm, url: http://x:1}", ", read by the vllm at http://x:1, where the weights take 2.9 GiB"),
        ("{name: vllm}", ", read by the vllm that is started on the first GPU, where the weights take 2.9 GiB"),
        ("{name: vllm, start: {devices: ''}}", ", read by the vllm that is started on the CPU, where the weights take"),
        ("{name: vllm, start: {devices: '6,7'}}", ", read by the vllm that is started on GPUs 6,7, where the weights"),
        ("mine.py:engine", "; a checkpoint 12,350 MB more"),
    ],
)
def test_which_server_reads_a_publish_is_told(qwen: str, engine: str, read: str) -> None:
    Path("mine.py").write_text("def engine(): ...\n")
    said = ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen, f"policies.ann.engine={engine}")
    assert said[2].startswith(f"a publish writes 6,175 MB{read}")


def test_a_server_that_reads_adapters_has_no_size_of_them(qwen: str) -> None:
    said = ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen, "policies.*.weights=lora")
    assert said[2] == "a publish writes 74 MB, read by the vllm that is started on GPU 6; a checkpoint 148 MB more"


def test_the_cards_of_servers_are_no_cards_of_ranks() -> None:
    """Since NCCL refuses two processes on one card."""
    recipe = load_recipe(str(RECIPES / "cory-gsm8k-qwen2.5-1.5b-8gpu.yaml"))
    engine = parts(recipe).engine()
    assert isinstance(engine, RoutedEngine) and recipe.learner is not None
    servers = [engine.of(name) for name in recipe.policies]
    cards = [int(one.start["devices"]) for one in servers if isinstance(one, ServerEngine) and one.start is not None]
    first = [int(spec.device.removeprefix("cuda:")) for spec in recipe.policies.values()]
    ranks = [card for one in first for card in range(one, one + recipe.learner["ranks"])]
    assert sorted(ranks + cards) == list(range(8))


@pytest.mark.parametrize(
    ("name", "card", "transfer"),
    [
        ("cory-gsm8k-qwen2.5-1.5b-8gpu", 6, ['--weight-transfer-config={"backend": "nccl"}']),
        ("cory-gsm8k-qwen2.5-7b-2nodes", 0, []),
    ],
)
def test_a_recipe_starts_a_server_for_each_policy(
    name: str, card: int, transfer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has GPUs: with full weights in bfloat16, each on a card of its own."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    calls = list[tuple[list[str], dict[str, str]]]()
    monkeypatch.setattr(started, "Child", lambda *given: calls.append(given))
    monkeypatch.setattr(started, "answers", lambda child, url: True)
    recipe = load_recipe(str(RECIPES / f"{name}.yaml"))
    for policy, spec in recipe.policies.items():
        assert spec.engine is not None
        team = [Published(policy, 0, spec, None, 2048, frozenset(), lambda folder: None)]
        started.check_started(team, spec.engine["start"])
        started.serve(team, spec.engine["start"], 1.0, spec.engine.get("transfer", "disk"))
    assert [around["CUDA_VISIBLE_DEVICES"] for _, around in calls] == [str(card), str(card + 1)]
    for command, around in calls:
        assert command[:3] == ["vllm", "serve", recipe.policies["ann"].model]
        assert "--dtype=bfloat16" in command and "--enable-lora" not in command
        assert [flag for flag in command if "transfer" in flag] == transfer
        assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in around


def sampled_here(recipe: str, *changes: str) -> list[str]:
    """What the lines `compute:` of a dry run say of the local engine."""
    text = plan(load_recipe(str(RECIPES / f"{recipe}.yaml"), changes))
    compute = text.partition("# compute:\n")[2].partition("\n#\n")[0]
    return [line for line in compute.splitlines() if "local engine" in line]


def test_what_the_local_engine_lacks_on_a_gpu_is_told_before_a_model_is_loaded(
    qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ours, ranks = (
        ("quickstart", "policies.*.device=cuda:0"),
        ("cory-gsm8k-qwen2.5-1.5b-8gpu", f"policies.*.model={qwen}"),
    )
    said = "#   the local engine samples {} on a GPU without CUDA graphs and continuous batching, which vllm has"
    assert sampled_here(*ours) == [said.format("ann, bob")]
    assert sampled_here("quickstart", "policies.bob.device=cuda:1") == [said.format("bob")]
    assert sampled_here("quickstart") == []
    server = "policies.ann.engine={name: vllm, url: http://x}"
    assert sampled_here(*ours, server) == [said.format("bob")]
    assert sampled_here(*ranks) == []
    assert sampled_here(*ranks, *COPIES) == [said.format("ann, bob")]
    assert sampled_here(*ranks, *COPIES, "policies.*.device=cpu") == []
    assert sampled_here(*ranks, *COPIES, "policies.*.device=auto", "learner.cluster=ray") == [said.format("ann, bob")]


def test_auto_is_a_gpu_where_this_machine_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(str(RECIPES / "quickstart.yaml"), ["policies.bob.device=cpu"])
    for here in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda here=here: here)
        assert [sampled_on_gpu(recipe, name) for name in ("ann", "bob")] == [here, False]


def test_a_critic_that_never_speaks_is_sampled_nowhere() -> None:
    recipe = load_recipe(str(RECIPES / "maac-writing-mini.yaml"), ["policies.*.device=cuda:0"])
    assert {name for name in recipe.policies if not sampled_on_gpu(recipe, name)} == {"judge"}


def test_the_trainers_card_is_told_for_every_kind_of_ranks(qwen: str) -> None:
    def told(*changes: str) -> list[str]:
        found = ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen, *COPIES, *changes)
        return [line.removeprefix("the trainer's ") for line in found if line.startswith("the trainer's ")]

    both = "11.50 held for ann, bob; while one is sampled 4.63; in ranks of"
    # The first process of torchrun is a rank of the first policy; policies on the same cards add up.
    assert told("learner.cluster=torchrun") == [
        f"cuda:0: at most 39.66 GiB: {both} ann at most 28.15, while policies are sampled 5.14"
    ]
    assert told("policies.*.device=cuda:0") == [
        f"cuda:0: at most 67.81 GiB: {both} ann, bob at most 56.31, while policies are sampled 10.28"
    ]
    # Its second rank is beside the other's copy; and so is what is frozen, of which no rank is.
    assert told("policies.ann.engine={name: vllm, url: http://x}", "policies.bob.device=cuda:1")[0].startswith(
        "cuda:1: at most 62.06 GiB: 5.75 held for bob; while one is sampled 4.63; in ranks of ann, bob at most 56.31"
    )
    assert told("policies.bob.weights=frozen")[1:] == [
        "cuda:4: at most 5.06 GiB: 3.31 held for bob; while one is sampled 1.75"
    ]
    assert told("policies.*.device=cpu") == []
    assert told(*(f"policies.{name}.engine={{name: vllm, url: http://{name}}}" for name in ("ann", "bob"))) == []


@pytest.mark.parametrize(
    ("changes", "borrowed"),
    [
        (["policies.*.device=cpu"], "9.06"),  # 5.75 and a reference of 3.31 in bfloat16, whole
        (["policies.*.device=cpu:0"], "9.06"),
        (["policies.*.device=auto"], "9.06"),
        (["policies.*.device=auto", "learner.cluster=torchrun"], "9.06"),
        (["policies.*.device=auto", "learner.cluster=ray"], "2.44"),
        (["policies.*.device=cpu", "learner.cluster=ray"], "9.06"),
    ],
)
def test_ranks_on_the_cpu_borrow_all_weights(
    qwen: str, changes: list[str], borrowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = ranks_of("cory-gsm8k-qwen2.5-1.5b-8gpu", qwen, *changes)
    assert f"borrowed {borrowed}, " in said[1] and f"borrowed {borrowed}, " in said[4]


def planned(model: str, *changes: str, told: str = "together", workers: str = "auto") -> str:
    """What two policies of a model take together, as a recipe for one GPU has them but for the changes; nothing if no
    line is told so."""
    changed = [f"policies.{policy}.{key}" for policy in ("ann", "bob") for key in (f"model={model}", *changes)]
    recipe = str(RECIPES / "cory-gsm8k-qwen2.5-1.5b.yaml")
    found = [line for line in plan(load_recipe(recipe, [f"workers={workers}", *changed])).splitlines() if told in line]
    return "".join(found).partition(": at most ")[2]


def test_a_pair_fits_a_card_of_80_gb(qwen: str, large: str) -> None:
    """Which is 74.5 GiB. Held, of 1,543,714,304 parameters: twice 12 bytes each, and a reference of 3,554,465,792.
    Gradients are of the one that learns."""
    cache = "; while they are sampled at most 4.63"  # of keys and values 1.75, of rounded weights 2.88
    assert planned(qwen, "weights=full", "micro_tokens=2048") == (
        f"55.73 GiB: 37.82 held; while one learns gradients 5.75, rounded 2.88, activations 6.97, logits 2.32{cache}"
    )
    assert planned(qwen, "weights=full", "gradient_checkpointing=true") == (
        f"47.20 GiB: 37.82 held; while one learns gradients 5.75, activations 1.31, logits 2.32{cache}"
    )
    assert planned(large, "gradient_checkpointing=true").startswith("22.65 GiB: 17.12 held; while one learns")
    assert planned(large).startswith("84.67 GiB: 17.12 held; while one learns gradients 0.15, activations 65.08")


def test_what_a_publish_writes_is_told_without_ranks(qwen: str) -> None:
    """To a server the weights of those that learn; the local engine samples what this process trains."""

    def told(*changes: str) -> list[str]:
        models = [f"policies.{name}.model={qwen}" for name in ("ann", "bob")]
        found = plan(load_recipe(str(RECIPES / "cory-gsm8k-qwen2.5-1.5b.yaml"), [*models, *changes]))
        return [line.partition("a publish writes ")[2] for line in found.splitlines() if "a publish" in line]

    Path("mine.py").write_text("def engine(): ...\n")
    server = "policies.bob.engine={name: vllm, url: http://x}"
    assert told() == ["nothing: the local engine samples the weights that are trained"]
    assert told("engine={name: vllm, start: {}}") == ["74 MB for ann, 74 MB for bob"]
    assert told("engine=mine.py:engine") == []
    assert told(server, "policies.bob.weights=full") == ["6,175 MB for bob"]
    by_nccl = server.replace("}", ", transfer: nccl}")
    assert told(by_nccl, "policies.bob.weights=full") == ["3,087 MB by nccl for bob"]
    assert told(by_nccl) == ["74 MB for bob"]  # an adapter goes through the disk
    assert told(server, "policies.bob.weights=frozen") == [
        "nothing: the local engine samples the weights that are trained"
    ]


def test_what_is_frozen_is_there_once_and_learns_nothing(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = "; while they are sampled at most 1.75"
    assert planned(qwen, "weights=frozen", "compute=torch") == f"5.06 GiB: 3.31 held{cache}"
    pytest.importorskip("numba")
    # The loops' copy of products and head: 2 bytes each of 1,310,195,712 and 233,373,696.
    for cores, held in {2: "7.94 GiB: 6.19 held", 3: "5.06 GiB: 3.31 held"}.items():
        monkeypatch.setattr(placement, "cores", lambda cores=cores: cores)
        assert planned(qwen, "weights=frozen", "device=cpu") == held + cache


def test_what_worker_processes_take_is_told_where_they_would_start(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 processes have gradients of their own, of 1,543,714,304 weights, and add them to buffers, 8 for each of the two
    policies that learn at a time, of which one is counted where one learns: 23 x 4 bytes. 7 more work, each as one
    that is alone, with 12.17 GiB."""

    def beside(*changes: str, workers: str = "auto") -> str:
        return planned(qwen, "device=cpu", *changes, told="in 8 worker processes", workers=workers)

    monkeypatch.setattr("coevolve.recipe.memory.cores", lambda: 8)
    full = "weights=full", "micro_tokens=2048", "compute=torch"
    assert beside(*full) == beside(*full, workers="true") == "217.43 GiB (gradients 132.27, work 85.16)"
    assert beside(*full, workers="false") == ""
    assert beside("load_in_4bit=true", "compute=torch", workers="true") == ""  # which stays in this process
    assert beside("weights=frozen", "compute=torch") == "12.25 GiB (work 12.25)"  # a cache of 1.75 each
    monkeypatch.setattr("coevolve.recipe.memory.cores", lambda: 1)
    assert planned(qwen, *full, told="worker processes", workers="true") == ""


def test_each_worker_process_keeps_the_copy_that_compiled_loops_sample(
    qwen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    for module in ("runtime.placement", "recipe.memory"):
        monkeypatch.setattr(f"coevolve.{module}.cores", lambda: 2)
    # 2 x 2 bytes each of 1,310,195,712 and 233,373,696, once for both policies, and the cache of one
    assert planned(qwen, "weights=frozen", "device=cpu", told="worker processes") == (
        "7.50 GiB (work 1.75, copies 5.75)"
    )


def test_ranks_beyond_the_cores_are_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevolve.recipe.rank_memory.cores", lambda: 2)
    for ranks, said in (
        (2, "2 processes on the CPU of this machine"),
        (3, "3 processes on the CPU of this machine of 2 cores"),
    ):
        changes = ["policies.bob.weights=frozen", "policies.*.device=cpu", f"learner={{name: fsdp, ranks: {ranks}}}"]
        assert cli.main(["train", str(RECIPES / "quickstart.yaml"), "--dry-run", *changes]) == 0
        assert said in (found := capsys.readouterr().out)
        assert (" of 2 cores" in found) == (ranks == 3)


def test_frozen_policies_have_no_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["policies.bob.weights=frozen", "policies.ann.weights=lora", "learner={name: fsdp, ranks: 2}"]
    assert cli.main(["train", str(RECIPES / "quickstart.yaml"), "--dry-run", *changes]) == 0
    found = capsys.readouterr().out
    assert "bob: frozen, 0.0" in found
    assert "the base on each, gradients of the adapter added up, 2 processes on the CPU of this machine" in found


def test_a_rank_loads_in_float32_what_it_holds_in_bfloat16(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """1,543,714,304 parameters of 4 bytes, for full weights with a reference twice."""
    recipe = str(RECIPES / "cory-gsm8k-qwen2.5-1.5b-8gpu.yaml")
    changes = [f"policies.*.model={qwen}", "policies.*.dtype=bfloat16", "policies.bob.weights=lora"]
    cli.main(["train", recipe, "--dry-run", *changes])
    found = [line.rpartition("; ")[2] for line in capsys.readouterr().out.splitlines() if "while it is loaded" in line]
    assert found == ["11.5 while it is loaded", "5.8 while it is loaded"]


def test_frozen_policies_beside_ranks_each_have_their_own_weights(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,543,714,304 parameters of 4 bytes, less 2 for each of the 1,310,195,712 in linear layers: 3,554,465,792."""
    frozen = [f"policies.bob.{key}" for key in ("weights=frozen", f"model={qwen}", "dtype=bfloat16")]
    recipe = str(RECIPES / "cory-gsm8k-qwen2.5-1.5b-8gpu.yaml")
    cli.main(["train", recipe, "--dry-run", *COPIES, f"policies.ann.model={qwen}", *frozen])
    told = "bob: frozen, 3.31 GiB in the trainer's process, which it shares with nobody"
    assert told in capsys.readouterr().out


def test_ranks_of_torchrun_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    learner = "learner={name: fsdp, ranks: 2, cluster: torchrun}"
    assert cli.main(["train", str(RECIPES / "quickstart.yaml"), "--dry-run", learner]) == 0
    assert "weights sharded, 2 of the processes that torchrun starts" in capsys.readouterr().out


def test_ranks_are_asked_for_by_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(RECIPES / "quickstart.yaml"), "--dry-run", "learner=fsdp"]) == 2
    assert "learner: ranks" in capsys.readouterr().err


def test_a_learner_of_the_users_has_no_worker_processes_and_any_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def mine(name, spec, reference, critic, steps, seed): ...\n")
    device = [f"policies.{name}.device=cuda:7" for name in ("ann", "bob")]
    learner = f"learner={tmp_path / 'mine.py'}:mine"
    assert cli.main(["train", str(RECIPES / "quickstart.yaml"), "--dry-run", learner, *device]) == 0
    found = capsys.readouterr().out
    assert "together, device cuda:7" in found
    assert "worker processes" not in found


def test_a_partner_whose_own_engine_is_this_process_is_counted(qwen: str) -> None:
    """With a model of its own: the base that others share is loaded apart."""
    models = [f"policies.{name}.model={qwen}" for name in ("ann", "bob")]
    recipe = str(RECIPES / "cory-gsm8k-qwen2.5-1.5b.yaml")

    def planned(*changes: str) -> tuple[float, str]:
        text = plan(load_recipe(recipe, [*models, "policies.*.device=cpu", "policies.bob.weights=frozen", *changes]))
        [bob] = [
            line.partition(": ")[2] for line in text.splitlines() if line.startswith("#   bob: ") and "MiB" in line
        ]
        return float(text.partition("together, device cpu: at most ")[2].split()[2]), bob

    (shared, bob), (apart, its) = planned(), planned("policies.bob.engine=local")
    assert bob == its and "weights" in bob
    assert apart - shared == pytest.approx(int(bob.split(", ")[1].split()[0]) / 1024, abs=0.02)


def test_a_recipe_for_a_gpu_is_planned_without_one(qwen: str) -> None:
    models = [f"policies.{name}.model={qwen}" for name in ("ann", "bob")]
    text = plan(load_recipe(str(RECIPES / "cory-gsm8k-qwen2.5-1.5b.yaml"), [*models, "policies.*.device=cuda:3"]))
    assert "torch; not cpu: it is on cuda:3 (there is no device cuda:3 on this machine)" in text
    assert "together, device cuda:3: at most" in text


def _free(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: int(gib * 2**30))


def fits(*changes: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """The line on free memory, and of its sizes the largest that fits and the recipe's."""
    text = plan(load_recipe(str(RECIPES / "quickstart.yaml"), ["policies.*.device=cpu", *changes]))
    [line] = [line for line in text.splitlines() if "free now" in line]
    sizes = re.findall(r"(\w+)(?: of ann)? up to ([\d,]+) fit \(the recipe has ([\d,]+)\)", line)
    return line, {key: (int(most.replace(",", "")), int(own.replace(",", ""))) for key, most, own in sizes}


@pytest.mark.parametrize("workers", ["false", "true"])
def test_the_sizes_that_fit_take_nine_tenths_of_the_free_memory(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe with these sizes needs just that, by the same formulas."""
    _free(monkeypatch, 4.0)
    monkeypatch.setattr(memory, "cores", lambda: 2)
    line, found = fits(f"workers={workers}")
    assert "too little" not in line and found["micro_tokens"][1] == 2048 and found["max_tokens"][1] == 65_536
    sizes = [f"policies.*.micro_tokens={found['micro_tokens'][0]}", "engine={name: local, max_tokens: 1024}"]
    text = plan(load_recipe(str(RECIPES / "quickstart.yaml"), ["policies.*.device=cpu", f"workers={workers}", *sizes]))
    needs = [float(most) for most in re.findall(r"at most ([\d.]+) GiB", text)]
    assert len(needs) == 1 + (workers == "true")
    assert sum(needs) == pytest.approx(0.9 * 4.0, abs=0.02)


def test_too_little_memory_is_told_with_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 0.3)
    line, found = fits("workers=false")
    assert "device cpu has 0.30 GiB free now: too little for all that the recipe asks for; micro_tokens of ann" in line
    assert 0 < found["micro_tokens"][0] < 2048
    _free(monkeypatch, 0.01)
    said = "too little for all that the recipe asks for; no micro_tokens of ann fit (the recipe has 2,048) and no max"
    assert said in fits("workers=false")[0]


def test_a_device_has_one_line_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 4.0)
    assert fits("policies.bob.device=auto") == fits()


def test_a_device_that_does_not_say_what_is_free_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: None)
    text = plan(load_recipe(str(RECIPES / "quickstart.yaml"), ["policies.*.device=cpu"]))
    assert "device cpu: how much memory is free there is not known" in text


def test_a_device_that_is_not_here_has_no_free_memory(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(RECIPES / "quickstart.yaml"), "--dry-run", "policies.*.device=cuda:7"]
    assert cli.main(words) == 0
    found = capsys.readouterr().out
    assert "together, device cuda:7" in found and "free now" not in found


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "_CONTAINER", tmp_path)
    machine = free_memory.free_memory(torch.device("cpu"))
    assert machine is not None and machine > 0
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 1500000\ninactive_file 400000\nactive_file 100000\n")
    assert free_memory.free_memory(torch.device("cpu")) == 3_400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory.free_memory(torch.device("cpu")) > 3_000_000
    assert free_memory.free_memory(torch.device("meta")) is None


@pytest.mark.parametrize("model", SIZES)
def test_the_hubs_models_have_the_sizes_that_their_cards_say(model: str) -> None:
    """In billions, as their publishers round them."""
    said = {"gpt2-large": 0.774, "meta-llama/Llama-2-7b-chat-hf": 6.74, "Qwen/Qwen3-1.7B": 1.72, "Qwen/Qwen3-4B": 4.02}
    billions = said.get(model) or next(
        size for name, size in (("0.5B", 0.494), ("1.5B", 1.54), ("3B", 3.09), ("7B", 7.62)) if name in model
    )
    made: Any = AutoModelForCausalLM
    with torch.device("meta"):
        count, _ = sizes(made.from_config(config_of(model, "")))
    assert round(count / 1e9, 3 if billions < 1 else 2) == billions


def test_every_hub_model_of_our_recipes_is_in_the_table() -> None:
    named = {
        spec.model
        for file in sorted(RECIPES.glob("*.yaml"))
        if not file.name.startswith("pretrain-")
        for spec in load_recipe(str(file)).policies.values()
    }
    hub = {name for name in named if not names.is_recipe(name) and isinstance(names.resolve(name), str)}
    assert {name for name in hub if not name.startswith("models/")} == set(SIZES)


def test_a_dry_run_without_a_network_has_the_sizes_of_our_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(name: str) -> Any:
        raise ValueError(f"model {name!r} cannot be loaded (403); ask for access")

    monkeypatch.setattr(learners_sizes, "load_config", gone)
    said = ranks_of("cory-gsm8k-qwen2.5-7b-2nodes", "Qwen/Qwen2.5-7B-Instruct")
    why = "model 'Qwen/Qwen2.5-7B-Instruct' cannot be loaded (403)"
    table = f"7,615,616,512 parameters (by Coevolve's table of the hub's models: {why})"
    assert said[0].startswith(f"ann: {table}, weights sharded") and "30,462 MB" in said[-1]
    said = ranks_of("cory-gsm8k-qwen2.5-7b-2nodes", "Somebody/else")
    assert said[0] == "ann: size unknown: model 'Somebody/else' cannot be loaded (403); ask for access"
