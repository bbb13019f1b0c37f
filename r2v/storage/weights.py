"""Model files: the bundled models, and folders that hold adapters alone. No torch is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from r2v.config.models import FORMER_MODELS
from r2v.errors import InputError

BUNDLED = {name: Path(__file__).parents[1] / "bundled" / "weights" / name for name in ("tiny", "toy")}
"""Models that come with R2V: the desk's student (`r2v.bundled.tiny`), and the word problems' toy policy
(`r2v.bundled.toy_policy`)."""
ADAPTERS = "adapter_config.json"
"""What a folder of adapters has."""


def adapters_alone(folder: Path) -> bool:
    """Whether a folder holds adapters and no model."""
    return (folder / ADAPTERS).exists() and not (folder / "config.json").exists()


def base_of(folder: Path) -> str:
    """The name of the model that a folder's adapters belong to. Raises InputError where it does not say."""
    try:
        name = str(json.loads((folder / ADAPTERS).read_text())["base_model_name_or_path"])
        return FORMER_MODELS.get(name, name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / ADAPTERS}: names no base model ({error}); name a folder that r2v or peft has written"
        ) from error
