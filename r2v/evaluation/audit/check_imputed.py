"""Imputed labels, which stand in no table: what an audit says of a folder that holds nothing but such.

An imputed router is fitted on whether a policy acts as its teacher was recorded to. No episode was played for it, so
there is nothing to replay; that its files are what was written can be checked, that it saves anything cannot.
"""

from __future__ import annotations

import json
from pathlib import Path

from r2v.config.evaluation import IMPUTED
from r2v.errors import InputError
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import SETUP

_LARGEST = 4 << 20


def require_executed(folder: Path) -> None:
    """Raises InputError for an imputed router's folder or bundle: there is nothing in it that could be verified."""
    if (folder / SETUP).exists():
        return
    for name, field in (("bundle.json", "labels"), ("artifact.json", "summary")):
        try:
            path = folder / name
            told = json.loads(path.read_text())[field] if path.stat().st_size <= _LARGEST else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if told == IMPUTED or (isinstance(told, dict) and told.get("labels") == IMPUTED):
            raise InputError(
                f"{folder}: its labels are imputed, and no episode was played: there is nothing to replay. It can tell "
                "where the policy acts otherwise than its teacher was recorded to; it cannot tell whether the policy "
                "succeeds there, nor what the LLM would gain. `r2v export DIR --check` hashes a bundle's files"
            )


def imputed_problems(settings: EvaluateSettings) -> list[str]:
    """What is wrong with a table of executed results that says it routes by imputed labels."""
    if not settings.router.imputed:
        return []
    return ["router.label is imputed: of such a router nothing is executed, and it is evaluated in no table"]
