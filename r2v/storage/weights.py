"""Model files: bundled models, adapter folders and their checks, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from r2v.config.models import BUNDLED_NAMES, PolicyConfig
from r2v.errors import DISK_REFUSES, InputError, R2VError, failure_of
from r2v.signals import time_limit

BUNDLED = {name: Path(__file__).parents[1] / "bundled" / "weights" / name for name in BUNDLED_NAMES}
"""Bundled models: the desk's student and the word problems' toy policy, made by `benchmarks/recipes`."""
ADAPTERS = "adapter_config.json"
"""File that every folder of adapters has."""
LOAD_SECONDS = 60.0
"""Limit on the CPU time for a model's small files, whose regex or template may never end."""


def needs_gpu(policy: PolicyConfig) -> bool:
    """True if a policy runs on a GPU of this machine: not an API policy, and a bundled model only if its device says
    so."""
    if policy.is_api:
        return False
    return policy.model_name not in BUNDLED or not policy.device.startswith(("auto", "cpu"))


_REASONS = {
    "ignore_mismatched_sizes": "its tensors have other shapes than its config.json says",
    "weights_only": "its weights are a pickle that asks for more than tensors, which is not run",
}
"""Text in a library's error -> short reason, for errors that are long or suggest an unsafe remedy."""


@contextmanager
def readable_model(what: str, remedy: str, *, seconds: float | None = LOAD_SECONDS) -> Iterator[None]:
    """Raise one InputError "<what> (<reason>); <remedy>" for any error of a library over a model's files, and for CPU
    time beyond `seconds` (None: no limit). Errors of a full disk and of memory pass, the latter with a note of `what`.
    """
    try:
        with nullcontext() if seconds is None else time_limit(seconds, f"{what} (no end in {seconds:g} s); {remedy}"):
            yield
    except R2VError:
        raise
    except BaseException as error:
        # Libraries in Rust raise PanicException, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        full = isinstance(error, OSError) and error.errno in DISK_REFUSES
        out_of_memory = failure_of(error)[0] in ("cuda_oom", "host_oom")
        if out_of_memory:
            error.add_note(f"{what}; take a smaller model, or a machine with more memory (`r2v plan` tells how much)")
        if full or out_of_memory:
            raise
        text = " ".join(str(error).strip().split("\n")[0].split()) or type(error).__name__
        reason = next((ours for theirs, ours in _REASONS.items() if theirs in str(error)), text)
        if isinstance(error, (KeyError, RecursionError, ZeroDivisionError)):
            reason = f"{type(error).__name__}: {reason}"
        raise InputError(f"{what} ({reason[:300]}); {remedy}") from error


def require_all(what: str, missing: Iterable[str], remedy: str) -> None:
    """Raise InputError if weights lack tensors, which the library would initialize at random."""
    absent = sorted(missing)
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise InputError(f"{what} (no {', '.join(absent[:3])}{more} in its weights); {remedy}")


def require_tokenizer(what: str, source: Path | str, remedy: str) -> None:
    """Raise InputError for a folder without a vocabulary: the library would make a tokenizer of special tokens."""
    folder = Path(source)
    vocabularies = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "*.model", "*.spm", "*.tiktoken")
    if folder.is_dir() and not any(path.is_file() for pattern in vocabularies for path in folder.glob(pattern)):
        raise InputError(f"{what} (it has no tokenizer.json and no other vocabulary); {remedy}")


def adapters_alone(folder: Path) -> bool:
    """True if a folder holds adapters and no model."""
    return (folder / ADAPTERS).exists() and not (folder / "config.json").exists()


def base_of(folder: Path) -> str:
    """Return the name of the base model of a folder's adapters. Raise InputError if it is not recorded."""
    try:
        return str(json.loads((folder / ADAPTERS).read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{folder / ADAPTERS}: names no base model ({error}); name a folder that r2v or peft has written"
        ) from error
