"""Loading and sharing of models: one base in memory carries any number of LoRA adapters.

With adapters off the base is the start model, so it also serves as the frozen reference of every policy that started
from it, and as a frozen partner.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.pytorch_utils import Conv1D

from coevolve.faults import one_line
from coevolve.files import read_json
from coevolve.interfaces import Backend
from coevolve.models.adapters import Adapters, lora_layers
from coevolve.models.exact import beginning_unlike, beginnings, check_file, check_same, read, weight_files
from coevolve.models.load import load_causal_lm, without_bars
from coevolve.models.spec import LoraSpec

ADAPTER_FILE = "adapter_model.safetensors"
_OF_BASE = "adapter_base.json"
"""The file beside an adapter that tells of the base on which it was trained (``Base.beginnings``)."""

_ADAPTER_KEYS = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""Keys of an adapter's config that change how its tensors are used."""

_PRODUCTS = ("Linear", "Conv1D", "Linear4bit", "FalconLinear")
"""Names of layer classes that compute one matrix product and nothing else; classes derived from them may do more."""


_PADDED = 2
_ROUNDED = 0.1
"""The number of padding tokens in ``check_model``, and the share of the hidden states' norm that they may change: more
than rounding in bfloat16 does in deep models, less than other positions do."""


class Base:
    """One causal language model in memory and the adapters on it. ``causal`` is the transformers model.

    backend: computes for the model. adapters: those in use now (``speaking``), None for the bare model.
    """

    backend: Backend

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        self.peft: Any = None
        self.lora_layers: list[Any] = []
        self.adapters: Adapters | None = None

    def add(self, adapter: str, spec: LoraSpec, seed: int) -> None:
        """Add an adapter that changes nothing yet (B = 0). Its A is random, as a function of ``seed``."""
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise ValueError("weights: lora needs the package peft; install coevolve[lora]") from error
        config = LoraConfig(
            r=spec.rank, lora_alpha=spec.alpha, target_modules=spec.targets, lora_dropout=0.0, task_type="CAUSAL_LM"
        )
        _check_targets(self.causal, spec.targets)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # GPT-2's Conv1D stores weights transposed; peft warns about it and handles it correctly.
            warnings.filterwarnings("ignore", message="fan_in_fan_out")
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            torch.manual_seed(seed & ((1 << 63) - 1))
            try:
                if self.peft is None:
                    self.peft = get_peft_model(self.causal, config, adapter_name=adapter)
                else:
                    self.peft.add_adapter(adapter, config)
            except ValueError as error:
                raise ValueError(
                    f"lora.targets: {spec.targets!r} takes no adapter ({one_line(error)}); {_linear(self.causal)}"
                ) from error
        self.peft.eval()
        self._take_over()

    def _take_over(self) -> None:
        """Have ``Adapters`` compute the adapters: PEFT's layers are set to return the base's output, to which a forward
        hook adds."""
        before, self.lora_layers = set(map(id, self.lora_layers)), lora_layers(self.causal)
        for layer in self.lora_layers:
            if (kind := type(layer.base_layer).__name__) not in _PRODUCTS:
                raise ValueError(
                    f"lora.targets takes in modules of the kind {kind}, whose adapters Coevolve does not compute; name "
                    f"layers that are matrix products, such as [q_proj, v_proj]; {_linear(self.causal)}"
                )
        for layer in self.lora_layers:
            layer.enable_adapters(False)
            for part in (*layer.lora_A.values(), *layer.lora_B.values()):
                part.requires_grad_(True)
            if id(layer) not in before:
                layer.register_forward_hook(partial(_add_adapters, self))

    def bare_state(self) -> dict[str, Tensor]:
        """Return the model's weights without adapters, under the names that they have without adapters."""
        state = self.causal.state_dict()
        if self.peft is None:
            return dict(state)
        prefix: str = self.peft.base_model.prefix  # of adapters' parameters
        return {name.replace(".base_layer.", "."): t for name, t in state.items() if prefix not in name}

    @torch.no_grad()
    def beginnings(self) -> dict[str, str]:
        """Return ``exact.beginnings`` of the model without adapters, under a name for 4 bits or for whole numbers,
        as it is noted beside an adapter; empty for a model in shards."""
        four_bit = getattr(self.causal, "is_loaded_in_4bit", False)
        found = beginnings(self.bare_state())
        return {"base_4bit" if four_bit else "base": found} if found else {}

    def has_changed(self, since: Mapping[str, str]) -> bool:
        """Return whether the model, without adapters, is another one than when ``beginnings`` was noted."""
        return any(since.get(key, value) != value for key, value in self.beginnings().items())

    def groupable(self) -> bool:
        """Return whether rows of different adapters can share a forward: no adapter is on the head."""
        top = head(self.causal)
        return all(layer is not top for layer in self.lora_layers)

    @contextmanager
    def speaking(self, names: Sequence[str | None]) -> Iterator[Adapters]:
        """Use these adapters (None: the bare base) in the model's forwards inside the context, in every thread: so only
        one thread may use the base at a time."""
        before, self.adapters = self.adapters, Adapters(names, self.causal.device)
        try:
            yield self.adapters
        finally:
            self.adapters = before


def _add_adapters(base: Base, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Add the adapters in use to a layer's output; a forward hook."""
    return output if base.adapters is None else base.adapters.add([layer], inputs[0], output)


@dataclass(frozen=True)
class Weights:
    """The weights of one policy (or reference): a base and an adapter on it, None for the bare model."""

    base: Base
    adapter: str | None = None

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Yield the transformers model with this policy's adapter in use; on exit the one before is in use again."""
        with self.base.speaking([self.adapter]):
            yield self.base.causal

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that training this policy changes."""
        named = self.base.causal.named_parameters()
        if self.adapter is None:
            return [parameter for _, parameter in named]
        return [parameter for name, parameter in named if f".{self.adapter}." in name]

    def save(self, folder: Path) -> None:
        """Write a folder that transformers or, for an adapter, peft can load."""
        if self.adapter is None:
            with without_bars():
                self.base.causal.save_pretrained(folder, state_dict=self.base.bare_state())
            return
        tensors = _adapter_state(self.base.peft, self.adapter)
        folder.mkdir(parents=True, exist_ok=True)
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        save_file(plain, folder / ADAPTER_FILE)
        (folder / _OF_BASE).write_text(json.dumps(self.base.beginnings()), "utf-8")
        config = self.base.peft.peft_config[self.adapter]
        config.save_pretrained(folder)

    @torch.no_grad()
    def unlike(self, folder: Path) -> str:
        """Return the name of a tensor whose first row differs from the files that ``save`` of a bare model wrote, or
        "". Only first rows are compared, which takes little time and memory."""
        state = self.base.bare_state()
        return next((name for file in weight_files(folder) for name in beginning_unlike(file, state)), "")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Load the weights that ``save`` wrote, bit for bit. Raises ValueError for weights of another policy; warns of
        an adapter whose base has changed."""
        if self.adapter is None:
            saved = load_causal_lm(str(folder.absolute())).state_dict()
            check_same(saved, self.base.bare_state(), folder)
            self.base.causal.load_state_dict(saved)
            return
        from peft import set_peft_model_state_dict

        file = folder / ADAPTER_FILE
        check_file(file)
        tensors = read(file)
        check_same(tensors, _adapter_state(self.base.peft, self.adapter), file)
        _check_adapter(folder / "adapter_config.json", self.base.peft.peft_config[self.adapter])
        set_peft_model_state_dict(self.base.peft, tensors, self.adapter)
        of_base = folder / _OF_BASE
        if of_base.is_file() and self.base.has_changed(since=read_json(of_base)):
            warnings.warn(
                f"{folder}: the adapter was trained on a base with other weights than {self.base.causal.name_or_path} "
                "has now; what follows is computed with those of now",
                stacklevel=3,
            )


def checkpoint_tensors(causal: Any) -> dict[str, Tensor]:
    """Return a model's own tensors, each once, by the names that ``save_pretrained`` would give them.

    Raises ValueError for an architecture whose checkpoints have other tensors than the loaded model."""
    from transformers.core_model_loading import revert_weight_conversion

    state: dict[str, Tensor] = causal.state_dict(keep_vars=True)
    once = {id(x): name for name, x in reversed(state.items())}  # a tied output layer is not sent again
    found = {name: x for name, x in state.items() if once[id(x)] == name}
    empty = {name: torch.empty(x.shape, dtype=x.dtype, device="meta") for name, x in found.items()}
    there = revert_weight_conversion(causal, empty)
    if {name: x.shape for name, x in there.items()} != {name: x.shape for name, x in found.items()}:
        raise ValueError(
            f"{type(causal).__name__} has other tensors in memory than in a checkpoint, which is what a server loads; "
            "say transfer: disk"
        )
    return found


def _adapter_state(peft_model: Any, adapter: str) -> dict[str, Tensor]:
    """Return an adapter's tensors under the names in its file."""
    from peft import get_peft_model_state_dict

    # By default, peft adds the base's embedding to an adapter on the head, and may ask the hub.
    return dict(get_peft_model_state_dict(peft_model, adapter_name=adapter, save_embedding_layers=False))


def load_base(model: str, device: torch.device, four_bit: torch.dtype | None) -> Any:
    """Load a transformers model onto the device, in evaluation mode, with float32 weights.

    four_bit: if given, linear layers below the head are in 4 bits and compute in this dtype (call ``need_4bit`` first).
    """
    if four_bit is None:
        causal: Any = load_causal_lm(model, torch.float32)
        return causal.to(device).eval()
    from bitsandbytes.nn.modules import Linear4bit
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=four_bit
    )
    causal = load_causal_lm(model, torch.float32, quantization_config=config, device_map={"": device})
    for name, module in causal.named_modules():
        if isinstance(module, Linear4bit):
            weight: Any = module.weight
            found, wanted = list(weight.quant_state.shape), [module.out_features, module.in_features]
            if found != wanted:  # transformers does not check this
                raise ValueError(f"model {model!r}: the tensor {name}.weight has the shape {found}, not {wanted}")
            # On CPUs with AVX512-BF16 the layer would convert the weights of a model in evaluation mode, as Coevolve's
            # always are, to an inference format that has no backward.
            module.support_avx512bf16_for_cpu = False
    causal.hf_quantizer = None  # with it, save_pretrained would write the adapters into the model and ignore bare_state
    return causal.eval()


def _check_adapter(file: Path, config: Any) -> None:
    """Raise ValueError unless the saved adapter has this policy's settings, which names and shapes do not show."""
    try:
        saved = json.loads(file.read_text("utf-8"))
        differ = [key for key in _ADAPTER_KEYS if saved.get(key, getattr(config, key)) != getattr(config, key)]
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{file} is not the description of an adapter ({one_line(error)})") from error
    if differ:
        key = differ[0]
        raise ValueError(f"{file}: {key} is {saved[key]!r} there and {getattr(config, key)!r} for this policy")


def _check_targets(causal: nn.Module, targets: list[str] | str) -> None:
    """Raise ValueError naming a target that is not a linear layer of the model, and the layers that are.

    PEFT accepts embeddings and convolutions, too, whose adapters ``Adapters`` does not compute.
    """
    for target in [] if isinstance(targets, str) else targets:
        found = [module for name, module in _own(causal) if name == target or name.endswith(f".{target}")]
        if not found:
            raise ValueError(f"lora.targets: no module of this model is called {target!r}; {_linear(causal)}")
        for module in found:
            if not isinstance(module, nn.Linear | Conv1D):
                kind = type(module).__name__
                raise ValueError(f"lora.targets: {target!r} is of the kind {kind}, not linear; {_linear(causal)}")


def _linear(causal: nn.Module) -> str:
    last = dict.fromkeys(name.rpartition(".")[2] for name, m in _own(causal) if isinstance(m, nn.Linear | Conv1D))
    return f"its linear layers are {', '.join(last)}"


def _own(causal: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the model's modules without adapters', under the names that they have without adapters."""
    named = [(name, m) for name, m in causal.named_modules() if ".lora_" not in name and not hasattr(m, "base_layer")]
    return [(name.removesuffix(".base_layer"), module) for name, module in named]


def need_4bit(policy: str) -> None:
    """Raise ValueError if this machine cannot hold a base in 4 bits."""
    need_quant(policy, "load_in_4bit", "remove load_in_4bit, which takes about 7 times the memory")


def need_quant(policy: str, what: str, instead: str) -> None:
    """Raise ValueError if bitsandbytes, which holds weights or moments in 4 or 8 bits, is missing. what: the setting
    that needs it; instead: advice for the message."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"policy {policy!r}: {what} needs the package bitsandbytes; pip install 'coevolve[quant]', or {instead}"
        ) from error


def trunk(causal: nn.Module) -> Any:
    """Return the model below its language-model head."""
    return causal.base_model


def head(causal: Any) -> Any:
    """Return the language-model head."""
    return causal.get_output_embeddings()


@torch.no_grad()
def check_model(causal: Any, model: str) -> None:
    """Raise ValueError unless logits are head(trunk(ids)), and the trunk keeps a KV cache.

    Families that rescale or cap their logits would be trained wrongly, and those without a cache could not be sampled.
    """
    ids = (torch.arange(3, device=causal.device) % causal.config.get_text_config().vocab_size)[None]
    logits: Tensor = causal(input_ids=ids).logits
    try:
        found = trunk(causal)(input_ids=ids, use_cache=True, past_key_values=DynamicCache(config=causal.config))
    except ValueError as error:
        raise ValueError(
            f"model {model!r} ({type(causal).__name__}) takes no cache but its own ({one_line(error)}); use a model of "
            "another family"
        ) from error
    if getattr(found, "past_key_values", None) is None:
        raise ValueError(f"model {model!r} ({type(causal).__name__}) keeps no key-value cache; use an attention model")
    if head(causal) is None or getattr(found, "last_hidden_state", None) is None:
        raise ValueError(
            f"model {model!r} ({type(causal).__name__}) has no output layer that comes after a model of its own, which "
            "Coevolve needs apart; use a model of another family"
        )
    ours = head(causal)(found.last_hidden_state)
    if not torch.allclose(ours, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max())):
        raise ValueError(
            f"model {model!r} ({type(causal).__name__}) changes its logits after the output layer, which Coevolve "
            "does not reproduce; use a model of another family"
        )
    if not _takes_padding(causal, ids, found.last_hidden_state):
        raise ValueError(
            f"model {model!r} ({type(causal).__name__}) computes something else where a row is padded on the left, as "
            "rows of unequal length are when they are sampled; use a model of another family"
        )


def _takes_padding(causal: Any, ids: Tensor, hidden: Tensor) -> bool:
    """Return whether the last hidden states stay as they are when the row is padded on the left, but for rounding."""
    padded, mask = nn.functional.pad(ids, (_PADDED, 0)), nn.functional.pad(torch.ones_like(ids), (_PADDED, 0))
    found: Tensor = trunk(causal)(
        input_ids=padded,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=True,
        past_key_values=DynamicCache(config=causal.config),
    ).last_hidden_state[:, _PADDED:]
    return bool((found - hidden).float().norm() < _ROUNDED * hidden.float().norm())
