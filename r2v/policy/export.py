"""Export: trained weights as files whose bytes depend on the training alone.

A folder holds `model.safetensors` with a sorted `config.json`, or with LoRA `adapter_model.safetensors` with
`adapter_config.json` and the base's hash in `base.json`, and the tokenizer. No time, path or library version
is written. `r2v.policy.load.load_policy` reads it back, and so does transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from r2v.policy.load import Loaded
from r2v.storage.file_system import share
from r2v.storage.files import write_json, writing
from r2v.storage.model_identity import record_base
from r2v.storage.removal import ATTEMPT_PART, remove_own, require_own
from r2v.storage.weights import ADAPTERS

FULL, ADAPTER = "model.safetensors", "adapter_model.safetensors"
_MACHINE_SPECIFIC = {
    "name_or_path",
    "_name_or_path",
    "is_local",
    "local_files_only",
    "tokenizer_file",
    "transformers_version",
    "peft_version",
    "_commit_hash",
    "revision",
}


def export(loaded: Loaded, folder: Path) -> str:
    """Write the trained weights, all at once or not at all; return `weights_sha256(folder)`.

    Of a LoRA model only the adapter being trained is written, never a frozen reference. Earlier weights are replaced in
    an attempt; elsewhere an existing folder raises NotOurs.
    """
    if os.path.lexists(folder):
        require_own(folder, ATTEMPT_PART)
    draft = folder.with_name(f"tmp-{folder.name}")
    remove_own(draft, ATTEMPT_PART)
    with writing(folder):
        draft.mkdir(parents=True)
        if hasattr(loaded.model, "peft_config"):
            export_adapters(loaded, draft)
        else:
            _save(_distinct(loaded.model.state_dict()), draft / FULL)
            config = {**loaded.model.config.to_dict(), "dtype": str(loaded.model.dtype).removeprefix("torch.")}
            write_json(draft / "config.json", _without_machine(config))
        loaded.tokenizer.save_pretrained(draft)
        tokenizer = json.loads((draft / "tokenizer_config.json").read_text())
        write_json(draft / "tokenizer_config.json", _without_machine(tokenizer))
        remove_own(folder, ATTEMPT_PART)
        draft.rename(folder)
    return weights_sha256(folder)


def weights_sha256(folder: Path) -> str:
    """Return the hex SHA-256 over the names and bytes of an exported folder's files."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        whole.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def export_adapters(loaded: Loaded, folder: Path, name: str = "default") -> None:
    """Write the adapters of that name into a folder, as peft reads them; equal adapters give equal bytes."""
    from peft import get_peft_model_state_dict

    model = loaded.model
    _save(get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False), folder / ADAPTER)
    config = model.peft_config[name].to_dict()
    config.update(
        base_model_name_or_path=loaded.name, inference_mode=True, target_modules=sorted(config["target_modules"])
    )
    write_json(folder / ADAPTERS, _without_machine(config))
    if loaded.base:
        record_base(folder, loaded.name, loaded.base)


def _save(tensors: dict[str, Any], path: Path) -> None:
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"}
    )
    share(path)


def _distinct(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors with tied weights once, under the first of their names; loading ties them again."""
    seen: dict[int, str] = {}
    return {name: tensor for name, tensor in tensors.items() if seen.setdefault(tensor.data_ptr(), name) == name}


def _without_machine(config: dict[str, Any]) -> dict[str, Any]:
    plain = json.loads(json.dumps(config, default=str, sort_keys=True))
    return {key: value for key, value in plain.items() if key not in _MACHINE_SPECIFIC}
