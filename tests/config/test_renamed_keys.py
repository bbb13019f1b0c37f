"""Old spellings of configuration keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import keys, load
from r2v.config.renamed_keys import RENAMED_KEYS


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_an_old_key_is_read_with_a_warning(
    old: str, new: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    section, _, name = old.rpartition(".")
    (tmp_path / "old.yaml").write_text(f"{section}: {{{name}: 2.5}}\n")
    assert new in set(keys()) and old not in set(keys())
    for config in (load(None, [f"{old}=2.5"]), load(tmp_path / "old.yaml")):
        value = config
        for part in new.split("."):
            value = getattr(value, part)
        assert value == 2.5
    assert caplog.text.count(f"{old} is now called {new}") == 2


def test_the_current_key_wins_over_the_old_one_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text("teacher: {hour_usd: 2.5, waiting_usd_per_hour: 3.5}\n")
    assert load(path).teacher.waiting_usd_per_hour == 3.5
