"""Secrets are found in data and kept out of exports; text that only looks like one is left."""

from __future__ import annotations

import pytest

from r2v.redaction import redacted, secret_in

KEY = "sk-ant-api03-" + "abcDEF123_" * 4


def test_keys_passwords_and_credentials_in_urls_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_SECRET", "a value that nobody else has")
    config = {
        "teacher": {"api_key_env": "LAB_SECRET", "max_new_tokens": 8, "base_url": "http://localhost:8000/v1"},
        "options": {"password": "x", "note": f"use {KEY} or a value that nobody else has", "at": "ftp://me:pw@host/f"},
        "names": ["tokenizer", None, 0.5],
    }
    assert redacted(config) == {
        "teacher": config["teacher"],
        "options": {"password": "[redacted]", "note": "use [redacted] or [redacted]", "at": "ftp://[redacted]@host/f"},
        "names": ["tokenizer", None, 0.5],
    }


@pytest.mark.parametrize("key", [KEY, "hf_" + "a1" * 17, "ghp_" + "a1" * 18, "AKIA" + "A1" * 8, "r2v-" + "x" * 43])
def test_a_key_is_found_by_its_form(key: str) -> None:
    secret = secret_in(b"\x00 before " + key.encode() + b" after")
    assert secret is not None and "of the form of a key" in secret and key not in secret


def test_a_secret_of_the_environment_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "swordfish-1")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/passwd")
    assert secret_in(b"he said swordfish-1.") == "the value of the environment variable SOME_PASSWORD"
    assert secret_in(b"cat /etc/passwd; task-for-a-sk-list") is None
