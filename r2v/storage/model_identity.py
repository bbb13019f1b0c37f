"""Model identity: a hash over every file of a base model that loading it reads.

    base_sha256("models/base")                          # on a login node: from the cache, else NotHashed
    base_sha256("models/base", hash_weights=True)       # in a stage: hashed once, then from the cache
    model_folder("Qwen/Qwen3-0.6B", revision)           # the folder to load, downloaded if it is not on this machine

Weights, config.json, generation config, tokenizer and chat template count; a README does not. Hashes of weights are
cached under path, inode, size, mtime and ctime, without the device number, which differs between the nodes of a
cluster. The hub's cache names large files by their SHA-256, so those are never read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from r2v.errors import InputError, R2VError, UsageError
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.files import content_sha256, write_json, write_text
from r2v.storage.integrity import cache_folder, current_sha256
from r2v.storage.weights import ADAPTERS, BUNDLED, adapters_alone, base_of, readable_model

NOT_HASHED = "base not hashed yet"
POLICY_MODEL, CRITIC_MODEL = "policy.model_name", "hierarchical.critic.model_name"
"""Settings that name a model whose files are read."""
BASE_RECORD = "base.json"
"""File next to adapters with the base that they were trained on."""
_READ = (
    *("config.json", "generation_config.json", "quantize_config.json", ADAPTERS),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "*.model", "*.spm", "*.tiktoken"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
)
"""Glob patterns of the small files that transformers and peft read of a model."""
_WHOLE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Weight files in the order of transformers' search; each may be split into shards listed in an index."""
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SETTLED_NS, _FINE_NS = 2_000_000_000, 50_000_000
"""Age in ns after which a change shows in a file's times: on file systems that count in whole seconds, and others."""
_UNRECORDED: set[Path] = set()
"""Folders of adapters without a base record that were logged by this process."""


class NotHashed(InputError):
    """The weights of a base model are not in the cache of hashes, and this process may not read them."""


def base_sha256(name: str, revision: str | None = None, *, hash_weights: bool = False, key: str = POLICY_MODEL) -> str:
    """Return the hex SHA-256 of a base model: a bundled one, a folder, or a hub model.

    The hash of adapters covers their base too. `hash_weights`: hash weights that are not in the cache, and download a
    hub model. `key`: the setting that names the model, for messages. Raise NotHashed if hashing is needed and not
    allowed, InputError if the model does not exist.
    """
    layers: list[dict[str, str]] = []
    seen: set[Path] = set()
    while True:
        folder = model_folder(name, revision, key=key) if hash_weights else folder_here(name, revision)
        if folder is None:
            raise NotHashed(f"{NOT_HASHED}: {key}={name} is not on this machine; `r2v run` or the stage's job gets it")
        if folder.resolve() in seen:
            raise InputError(f"{key}: cannot load {folder} (its adapters are their own base); name another model")
        seen.add(folder.resolve())
        files = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
        layers.append({file: _sha256(path, hash_weights or name in BUNDLED) for file, path in sorted(files.items())})
        if not adapters_alone(folder):
            return json_sha256(layers)
        name, revision = base_of(folder), None


def model_folder(name: str, revision: str | None = None, *, key: str = POLICY_MODEL) -> Path:
    """Return the folder that a model is loaded from; download a hub model whose files are incomplete. Raise InputError
    if the model does not exist, UsageError for a revision of a local folder."""
    if name in BUNDLED or Path(name).expanduser().is_dir():
        folder = BUNDLED.get(name) or Path(name).expanduser()
        if revision is not None:
            raise UsageError(f"policy.revision={revision}: {folder} is a folder; only a hub model has revisions")
        return folder
    if Path(name).expanduser().is_absolute() or name.startswith((".", "~")):
        raise InputError(f"{key}={name}: no such directory; name tiny, toy, a directory, or a hub model")
    return folder_here(name, revision) or _downloaded(name, revision, key)


def is_here(name: str, revision: str | None = None) -> bool:
    """True if a model is on this machine, a hub model with all its weights."""
    path = Path(name).expanduser()
    return path.is_dir() or (folder_here(name, revision) is not None)


def record_base(folder: Path, name: str, sha256: str) -> None:
    """Write the record of the base that the adapters in `folder` were trained on."""
    write_json(folder / BASE_RECORD, {"model_name": name, "sha256": sha256})


def require_base(folder: Path, name: str, sha256: str) -> None:
    """Raise InputError if the adapters in a folder were trained on another base. Log, once per process, adapters
    without a record: they were made before bases were hashed."""
    record = folder / BASE_RECORD
    if not record.exists():
        if folder.resolve() not in _UNRECORDED:
            _UNRECORDED.add(folder.resolve())
            logging.getLogger("r2v").warning("adapters' base not checked: folder=%s missing=%s", folder, BASE_RECORD)
        return
    try:
        trained_on = str(json.loads(record.read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{record}: names no base ({error}); train the adapters again") from error
    if trained_on != sha256:
        raise InputError(
            f"{folder}: adapters of another base: trained on {trained_on[:12]}, policy.model_name={name} is "
            f"{sha256[:12]}; put that base back, or train on this one: r2v run"
        )


def hub_commit(name: str, revision: str | None = None) -> str | None:
    """Return the commit of a hub model in the hub's cache, or None if the cache lacks the revision."""
    if name in BUNDLED or Path(name).expanduser().is_dir():
        return None
    repository = hub_repository(name)
    if revision is not None and (repository / "snapshots" / revision).is_dir():
        return revision
    with suppress(OSError):
        return (repository / "refs" / (revision or "main")).read_text().strip() or None
    return None


def pinned_commit(name: str, revision: str | None = None) -> str | None:
    """Return the commit of a hub model, from the cache or the hub. None for other models and, with a warning, if
    neither knows it."""
    if name in BUNDLED or Path(name).expanduser().is_dir() or Path(name).is_absolute() or name.startswith((".", "~")):
        return None
    if commit := hub_commit(name, revision):
        return commit
    from huggingface_hub import HfApi

    try:
        with readable_model(f"{POLICY_MODEL}={name}: no commit to pin", "a job takes the newest one"):
            return HfApi().model_info(name, revision=revision, timeout=10).sha
    except InputError as error:  # offline is no failure: the job resolves the revision itself
        logging.getLogger("r2v").warning("model commit not pinned: error=%s", error)
        return None


def folder_here(name: str, revision: str | None) -> Path | None:
    """Return the folder of a model on this machine, a hub model with all its weights, or None."""
    if name in BUNDLED:
        return BUNDLED[name]
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    commit = hub_commit(name, revision)
    if commit is None:
        return None
    snapshot = hub_repository(name) / "snapshots" / commit
    weights = weight_files(snapshot) if snapshot.is_dir() else []
    return snapshot if weights and all(path.exists() for path in weights) else None


def _downloaded(name: str, revision: str | None, key: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [*_READ, *_WHOLE_WEIGHTS[:1], "model-*.safetensors", "*.safetensors.index.json", *_ADAPTER_WEIGHTS]
    what = f"{key}: cannot load {name}"
    with readable_model(what, "name a directory or a hub model that is downloaded or can be", seconds=None):
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        if not weight_files(folder):  # pickles only where there is no safetensors file, to download weights once
            patterns.append("pytorch_model*.bin*")
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    return folder


def hub_repository(name: str) -> Path:
    """Return the folder of a hub model in the hub's cache, which need not exist."""
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
    return Path(hub).expanduser() / f"models--{name.replace('/', '--')}"


def _files(folder: Path) -> list[Path]:
    small = [path for pattern in _READ for path in folder.glob(pattern) if path.is_file()]
    return [*small, *(path for path in weight_files(folder) if path.is_file())]


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files that a model is loaded from, with their index and missing shards."""
    chosen = [folder / name for name in _ADAPTER_WEIGHTS if (folder / name).exists()][:1]
    for name in _WHOLE_WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            return [*chosen, folder / name]
        if index.exists():
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
                return [*chosen, index, *(folder / shard for shard in shards)]
            return [*chosen, index]
    return chosen


def _sha256(path: Path, hash_weights: bool) -> str:
    real = path.resolve()
    if real.parent.name == "blobs" and _SHA256.fullmatch(real.name):
        return real.name  # a blob of the hub's cache
    if path.suffix not in (".safetensors", ".bin"):
        return current_sha256(real)
    entry, begun = _entry(real), time.time_ns()
    with suppress(OSError, ValueError):
        if _SHA256.fullmatch(text := entry.read_text().strip()):
            return text
    if not hash_weights:
        raise NotHashed(f"{NOT_HASHED}: {path}; `r2v run` or the stage's job hashes it")
    content = content_sha256(real)
    if entry == _entry(real) and _is_settled(real, begun):
        with suppress(R2VError):  # a read-only home costs time, and nothing else
            write_text(entry, content + "\n")
    return content


def _entry(real: Path) -> Path:
    status = real.stat()
    key = (str(real), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return cache_folder() / "weights" / hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _is_settled(real: Path, begun: int) -> bool:
    """True if a change after `begun`, the ns at which hashing began, would show in the file's times."""
    status = real.stat()
    counts_in_seconds = status.st_ctime_ns % 1_000_000_000 == 0
    return begun - max(status.st_mtime_ns, status.st_ctime_ns) > (_SETTLED_NS if counts_in_seconds else _FINE_NS)
