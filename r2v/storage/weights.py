"""Model files: the bundled models, and folders that hold adapters alone. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from r2v.config.models import BUNDLED_NAMES, PolicyConfig
from r2v.errors import DISK_REFUSES, InputError, R2VError, failure_of
from r2v.signals import time_limit

BUNDLED = {name: Path(__file__).parents[1] / "bundled" / "weights" / name for name in BUNDLED_NAMES}
"""Models that come with R2V: the desk's student, and the word problems' toy policy; `benchmarks/recipes` made them."""
ADAPTERS = "adapter_config.json"
"""What a folder of adapters has."""
LOAD_SECONDS = 60.0
"""CPU time in which the small files of any model are read; a regex or a template of its folder may have no end."""


def needs_gpu(policy: PolicyConfig) -> bool:
    """True if a policy has work for a GPU: a bundled model has none, unless its device asks for one, and one behind an
    API none here."""
    if policy.is_api:
        return False
    return policy.model_name not in BUNDLED or not policy.device.startswith(("auto", "cpu"))


_REASONS = {
    "ignore_mismatched_sizes": "its tensors have other shapes than its config.json says",
    "weights_only": "its weights are a pickle that asks for more than tensors, which is not run",
}
"""What libraries say at length, or with a remedy that must not be taken, in our words."""


@contextmanager
def readable_model(what: str, remedy: str, *, seconds: float | None = LOAD_SECONDS) -> Iterator[None]:
    """Turn what libraries raise over the files of a model (they raise everything, for files are others') into one
    InputError "<what> (<reason>); <remedy>", and so their computing for longer than `seconds` (None: no limit). A full
    disk stays what it is, and out of memory, which notes `what`."""
    try:
        with nullcontext() if seconds is None else time_limit(seconds, f"{what} (no end in {seconds:g} s); {remedy}"):
            yield
    except R2VError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of libraries in Rust
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
    """Raises InputError where weights lack tensors: the library would draw them at random and go on."""
    absent = sorted(missing)
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise InputError(f"{what} (no {', '.join(absent[:3])}{more} in its weights); {remedy}")


def require_tokenizer(what: str, source: Path | str, remedy: str) -> None:
    """Raises InputError for a folder without a vocabulary: the library would make a tokenizer of special tokens."""
    folder = Path(source)
    kept = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "*.model", "*.spm", "*.tiktoken")
    if folder.is_dir() and not any(path.is_file() for pattern in kept for path in folder.glob(pattern)):
        raise InputError(f"{what} (it has no tokenizer.json and no other vocabulary); {remedy}")


def adapters_alone(folder: Path) -> bool:
    """Whether a folder holds adapters and no model."""
    return (folder / ADAPTERS).exists() and not (folder / "config.json").exists()


def base_of(folder: Path) -> str:
    """The name of the model that a folder's adapters belong to. Raises InputError where it does not say."""
    try:
        return str(json.loads((folder / ADAPTERS).read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{folder / ADAPTERS}: names no base model ({error}); name a folder that r2v or peft has written"
        ) from error
