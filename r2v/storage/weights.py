"""Model files: the bundled models, and folders that hold adapters alone. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from r2v.config.models import BUNDLED_NAMES, PolicyConfig
from r2v.errors import DISK_REFUSES, InputError, R2VError, failure_of

BUNDLED = {name: Path(__file__).parents[1] / "bundled" / "weights" / name for name in BUNDLED_NAMES}
"""Models that come with R2V: the desk's student, and the word problems' toy policy; `benchmarks/recipes` made them."""
ADAPTERS = "adapter_config.json"
"""What a folder of adapters has."""


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
def readable_model(what: str, remedy: str) -> Iterator[None]:
    """Turn what libraries raise over the files of a model (they raise everything, for files are others') into one
    InputError "<what> (<reason>); <remedy>". Out of memory and a full disk stay what they are."""
    try:
        yield
    except R2VError:
        raise
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in DISK_REFUSES
        if full or failure_of(error)[0] in ("cuda_oom", "host_oom"):
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
