"""Identity of a section: it holds every setting that decides results, in whatever spelling, and removed keys too."""

from __future__ import annotations

import pytest

from r2v.config import PolicyConfig, PreferenceConfig, identity, keys, load, section
from r2v.config.config import REMOVED_KEYS
from r2v.errors import UsageError


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (PolicyConfig(), False),
        (PolicyConfig(max_seq_len=1000), False),
        (PolicyConfig(max_seq_len=200), True),
        (PolicyConfig(model_name="some/model"), True),
    ],
)
def test_the_rule_of_elision_is_named_where_contexts_may_be_too_long(policy: PolicyConfig, named: bool) -> None:
    assert identity(policy).get("elision") == ("half" if named else None)


def test_removed_keys_stay_in_fingerprints() -> None:
    """The artifacts of versions with these keys keep their names."""
    content = identity(load(None).preference)
    assert {"method": "dpo", "rehearsal": 0.0, "max_similarity": 0.95}.items() <= content.items()
    assert not REMOVED_KEYS.keys() & set(keys())
    assert section(PreferenceConfig, content) == PreferenceConfig()


def test_a_section_with_another_value_of_a_removed_key_is_refused() -> None:
    with pytest.raises(UsageError, match=r"preference\.method: got rft, allowed: dpo"):
        section(PreferenceConfig, identity(PreferenceConfig()) | {"method": "rft"})


@pytest.mark.parametrize("key", REMOVED_KEYS)
def test_a_removed_key_is_an_unknown_one(key: str) -> None:
    with pytest.raises(UsageError, match=f"unknown key {key}"):
        load(None, [f"{key}=1"])
