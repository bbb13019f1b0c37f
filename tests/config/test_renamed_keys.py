"""Old spellings of configuration keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from r2v.config import identity, keys, load
from r2v.config.renamed_keys import REMOVED_KEYS, RENAMED_KEYS
from r2v.errors import UsageError


def nested(key: str, value: object) -> str:
    """A file with one key in its sections."""
    *sections, name = key.split(".")
    return "".join(f"{section}: {{" for section in sections) + f"{name}: {value}" + "}" * len(sections)


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_an_old_key_is_read_with_a_warning(
    old: str, new: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old.yaml").write_text(nested(old, 2000))
    assert old not in set(keys())
    for config in (load(None, [f"{old}=2000"]), load(tmp_path / "old.yaml")):
        value: Any = config
        for part in new.split("."):
            value = getattr(value, part)
        assert value == 2000
    assert caplog.text.count(f"{old} is now called {new}") == 2


def test_the_current_key_wins_over_the_old_one_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text("teacher: {hour_usd: 2000, waiting_usd_per_hour: 3.5}\n")
    assert load(path).teacher.waiting_usd_per_hour == 3.5


def test_a_removed_key_is_read_with_the_value_that_is_left_and_stays_in_fingerprints(tmp_path: Path) -> None:
    """What an earlier R2V wrote beside an artifact is still a configuration of that artifact."""
    path = tmp_path / "old.yaml"
    path.write_text("preference: {method: dpo, rehearsal: 0.0, beta: 0.3}\n")
    config = load(path, ["preference.method=dpo"])
    assert config == load(None, ["preference.beta=0.3"])
    assert {"method": "dpo", "rehearsal": 0.0, "max_similarity": 0.95}.items() <= identity(config.preference).items()
    assert not REMOVED_KEYS.keys() & set(keys())


@pytest.mark.parametrize("key", REMOVED_KEYS)
def test_a_removed_key_is_still_read_with_its_last_value(key: str, tmp_path: Path) -> None:
    value = REMOVED_KEYS[key]
    (tmp_path / "old.yaml").write_text(nested(key, str(value).lower()))
    assert load(tmp_path / "old.yaml") == load(None) == load(None, [f"{key}={str(value).lower()}"])
    with pytest.raises(UsageError, match=rf"{key}: got odd, but the key was removed, "):
        load(None, [f"{key}=odd"])


@pytest.mark.parametrize("given", ["method=rft", "rehearsal=0.5", "method=[1]"])
def test_another_value_of_a_removed_key_is_refused(given: str) -> None:
    key = given.partition("=")[0]
    with pytest.raises(UsageError, match=rf"preference\.{key}: got .*, but the key was removed"):
        load(None, [f"preference.{given}"])
