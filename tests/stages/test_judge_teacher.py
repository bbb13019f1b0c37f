"""Who judges: the model that collected the runs, as it was asked then, unless the configuration says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import TeacherConfig, load, to_yaml
from r2v.data.manifest import RunManifest
from r2v.errors import InputError, UsageError
from r2v.stages.judge_teacher import judge_teacher
from r2v.storage.files import write_text

ASKED = (
    "teacher.provider=anthropic",
    "teacher.model_name=claude-haiku-4-5",
    "teacher.base_url=http://localhost:8000",
    "teacher.mode=batch",
    "teacher.api_key_env=LAB_API_KEY",
    "teacher.model={temperature: false}",
)


def run(artifacts: Path, fingerprint: str, *settings: str) -> RunManifest:
    """A run, with the configuration that lies beside its artifact."""
    config = load(None, list(settings))
    write_text(artifacts / f"collect-{fingerprint}" / "config.yaml", to_yaml(config))
    return RunManifest(
        run_id=f"desk_x_m_20260101T00000{fingerprint}",
        benchmark="desk",
        provider=config.teacher.provider,
        model_name=config.teacher.model_name,
        output_dir=artifacts,
        fingerprint=fingerprint,
        started_at="",
        updated_at="",
    )


def test_the_collections_settings_hold_with_what_is_given_over_them(tmp_path: Path) -> None:
    runs = [run(tmp_path, "1", *ASKED), run(tmp_path, "2", *ASKED)]
    found = judge_teacher(TeacherConfig(), runs, tmp_path)
    assert found == load(None, list(ASKED)).teacher, "the endpoint, the mode and the key's name too"
    capped = judge_teacher(TeacherConfig(max_usd=3, mode="concurrent"), runs, tmp_path)
    assert (capped.max_usd, capped.mode, capped.model_name) == (3, "concurrent", "claude-haiku-4-5")
    own = TeacherConfig(provider="openai", model_name="gpt-6-luna")
    assert judge_teacher(own, runs, tmp_path) is own


def test_who_cannot_be_found_is_asked_for(tmp_path: Path) -> None:
    paid, scripted = run(tmp_path, "1", *ASKED), run(tmp_path, "2")
    other = run(tmp_path, "3", *ASKED, "teacher.temperature=0.5")
    with pytest.raises(UsageError, match="was collected by no provider's model either; set teacher.provider"):
        judge_teacher(TeacherConfig(), [paid, scripted], tmp_path)
    with pytest.raises(UsageError, match="were collected under different teacher"):
        judge_teacher(TeacherConfig(), [paid, other], tmp_path)
    (tmp_path / "collect-1" / "config.yaml").unlink()
    with pytest.raises(InputError, match="missing, so that it is not known how run .* asked claude-haiku-4-5"):
        judge_teacher(TeacherConfig(), [paid], tmp_path)
