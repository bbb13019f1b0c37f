"""Acceptance of a preference-trained policy by executed success; a rejected one is replaced by the cloned policy."""

from __future__ import annotations

import shutil
from pathlib import Path

from r2v import config as c
from r2v.errors import EnvironmentFault
from r2v.evaluation.acting.acting_settings import ActingSettings
from r2v.log import logger
from r2v.storage.artifact import Work
from r2v.storage.files import write_json
from r2v.storage.removal import ATTEMPT_PART, remove_own


def accept_or_hand_on(preference: c.PreferenceConfig, acting: ActingSettings, work: Work) -> None:
    """Keep the trained weights, or replace them by the cloned ones. Raise EnvironmentFault if that is refused."""
    from r2v.evaluation.acting.acceptance import compare_policies

    assert preference.accept != "always"
    trained = work.folder / "final"
    verdict = compare_policies(
        acting,
        work,
        cloned=work.inputs["bc"].file("final"),
        trained=trained,
        limit=preference.accept_tasks,
        rule=preference.accept,
    )
    work.summary.update(acceptance=verdict.summary())
    write_json(work.folder / "acceptance.json", verdict.summary())
    logger.info("  preference training compared with bc: verdict=%s", verdict)
    if not verdict.accepted:
        logger.warning(
            "  preference training rejected, the cloned policy is published: preference.accept=%s", preference.accept
        )
        if not remove_own(trained, ATTEMPT_PART):
            raise EnvironmentFault(f"{trained}: cannot be removed; mend its permissions and run the same command again")
        hand_on(work)
        work.summary.update(weights_sha256=work.inputs["bc"].summary.get("weights_sha256", ""))


def published_policy(work: Work) -> Path | None:
    """Return the weights that later stages play; None if the small model is behind an API."""
    return work.inputs["preference"].file("final") if "preference" in work.inputs else None


def hand_on(work: Work) -> None:
    """Publish the cloned policy."""
    shutil.copytree(work.inputs["bc"].file("final"), work.folder / "final", dirs_exist_ok=True)
