"""The teacher's endpoint: its accepted settings, and those in its fingerprint."""

from __future__ import annotations

import pytest

from r2v.config import TeacherConfig, endpoint_identity, identity, load
from r2v.errors import UsageError


def teacher(*overrides: str) -> TeacherConfig:
    return load(None, [f"teacher.{override}" for override in overrides]).teacher


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["provider=opnai"], "did you mean openai"),
        (["base_url=http://localhost:8000/v1"], "teacher.base_url needs a provider"),
        (["provider=openai", "base_url=localhost:8000"], "is a URL such as"),
        (["provider=openai", "base_url=https://user:secret@example.org/v1"], "holds no key"),
        (["provider=openai", "base_url=https://example.org/v1?key=secret"], "holds no key"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        teacher(*overrides)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("base_url", "identical_to"),
    [
        ("http://localhost:8000/v1", "http://node17:9000/v1"),
        ("http://10.0.3.4:8000/v1", "http://127.0.0.1:1/v1"),
        ("https://api.example.org/v1", "https://api.example.org/v1/"),
    ],
)
def test_a_fingerprint_holds_a_vendors_url_and_not_the_host_of_ones_own_server(
    base_url: str, identical_to: str
) -> None:
    with_url = identity(teacher("provider=openai", f"base_url={base_url}"))
    assert with_url == identity(teacher("provider=openai", f"base_url={identical_to}", "api_key_env=LAB_API_KEY"))
    assert with_url != identity(teacher("provider=openai"))
    assert with_url["base_url"] == endpoint_identity(base_url)
    assert with_url != identity(teacher("provider=openai", "base_url=https://other.example.org/v1"))


def test_a_configuration_without_an_endpoint_keeps_its_fingerprint() -> None:
    assert not {"base_url", "api_key_env"} & set(identity(teacher("provider=openai")))
