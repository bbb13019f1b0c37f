"""A project of an earlier version is continued: fingerprints changed, and nothing is paid for twice.

`project_of_480883e.tar.xz` is the output of `collect` and `train_verifier` (labels by consensus with the teacher as
judge) at commit 480883e with the emulator, without weights.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tests import warm

ARCHIVE = Path(__file__).with_name("project_of_480883e.tar.xz")
NOBODY = {"OPENAI_BASE_URL": "http://127.0.0.1:9", "OPENAI_API_KEY": "nobody is asked"}


def test_a_stage_that_is_made_again_for_its_base_asks_nobody_for_what_was_paid(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (before,) = tmp_path.glob("outputs/.artifacts/verifier-*")
    done = warm.run(tmp_path, "train_verifier", "--config", "paid.yaml", "--overrides", "teacher.max_usd=5", env=NOBODY)
    assert done.returncode == 0, done.stderr
    assert "replies reused from the project: replies=42" in done.stderr
    (after,) = set(tmp_path.glob("outputs/.artifacts/verifier-*")) - {before}
    assert (after / "verifier_data.jsonl").read_bytes() == (before / "verifier_data.jsonl").read_bytes()
    bases = json.loads((after / "attempt.meta.json").read_text())["bases"]
    assert list(bases) == ["base"] and "bases" not in json.loads((before / "attempt.meta.json").read_text())
    plan = warm.run(tmp_path, "run", "--dry-run", "--config", "paid.yaml", env=NOBODY).stdout
    assert "collect          up to date" in plan and "verifier         up to date" in plan
