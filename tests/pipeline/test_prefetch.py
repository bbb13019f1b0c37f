"""`r2v prefetch`: files that jobs read from elsewhere are listed and fetched beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.pipeline.prefetch import downloads
from r2v.storage.weights import BUNDLED

TEACHER = "teacher.model_name=lab/large"


def names(*overrides: str) -> list[str]:
    return [item.what for item in downloads(load(None, overrides))]


def test_the_models_of_a_configuration_are_named_by_their_keys() -> None:
    assert names() == ["policy.model_name=tiny"]
    assert names("teacher.engine=job", TEACHER) == ["policy.model_name=tiny", TEACHER]
    pair = ("policy.provider=openai", "policy.model_name=gpt-6-luna", "teacher.engine=http://gpu1:8000", TEACHER)
    assert names(*pair) == [], "neither is served here"
    critic = ("hierarchical.enabled=true", "hierarchical.critic.model_name=FacebookAI/roberta-base")
    assert names(*critic)[1:] == ["hierarchical.critic.model_name=FacebookAI/roberta-base"]


def test_what_is_here_is_not_fetched_and_what_cannot_be_had_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["prefetch", "--overrides", "teacher.engine=job"]
    assert main([*words, f"teacher.model_name={BUNDLED['toy']}"]) == 0
    assert capsys.readouterr().out == f"policy.model_name=tiny: here\nteacher.model_name={BUNDLED['toy']}: here\n"
    assert main(["prefetch", "--dry-run", *words[1:], TEACHER]) == 0
    assert f"{TEACHER}: to be fetched" in capsys.readouterr().out
    assert main(["run", *words[1:], TEACHER]) == 3
    assert f"r2v: {TEACHER}: not on this machine" in (told := capsys.readouterr().err) and "r2v prefetch" in told
