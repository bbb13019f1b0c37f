"""The inference engine is part of the fingerprint of stages that play, and of no training."""

from __future__ import annotations

import pytest

from r2v.config import PolicyConfig, identity, load
from r2v.config.engines import POOLING_FLAGS, VLLM_VERSION, engine_identity, require_url, server_root
from r2v.errors import UsageError
from r2v.pipeline.jobs import JOBS

SERVED = {"model_name": "/models/llama", "lora_r": 8}
PLAYED = {"candidates", "preference", "router_features", "router", "evaluate", "ablations"}


def test_a_local_policy_has_the_identity_it_always_had() -> None:
    assert "engine" not in identity(PolicyConfig())
    assert identity(PolicyConfig(engine_venv="/opt/engine", engine_memory=0.3)) == identity(PolicyConfig())


def test_an_engine_counts_by_name_version_and_flags_and_not_by_its_url() -> None:
    assert identity(PolicyConfig(engine="vllm"))["engine"]["version"] == VLLM_VERSION
    one, two = (PolicyConfig(engine=url) for url in ("http://node7:8000", "https://node9:8001/v1"))
    assert identity(one) == identity(two) != identity(PolicyConfig(engine="vllm"))
    assert engine_identity("http://node7:8000") == {"name": "external"}


def test_a_served_verifier_counts_by_its_servers_flags_and_leaves_training_as_it_was() -> None:
    policy = PolicyConfig(**SERVED, engine="vllm", engine_memory=0.4)
    served = PolicyConfig(**SERVED, engine="vllm", engine_memory=0.4, engine_verifier=True)
    assert identity(served) == {**identity(policy), "engine_verifier": list(POOLING_FLAGS)}
    assert identity(served.trained()) == identity(PolicyConfig(**SERVED))
    with pytest.raises(UsageError, match="policy.engine_verifier needs policy.engine=vllm"):
        PolicyConfig(**SERVED, engine="http://node7:8000", engine_verifier=True)
    with pytest.raises(UsageError, match="two servers share each GPU"):
        PolicyConfig(**SERVED, engine="vllm", engine_verifier=True)


def test_only_the_stages_that_play_with_the_policy_depend_on_it() -> None:
    before, after = load(None, []), load(None, ["policy.engine=vllm"])
    changed = {
        row.name for row in JOBS if identity(row.load().sections(before)) != identity(row.load().sections(after))
    }
    assert changed == PLAYED | {"hierarchical"}, "which refuses an engine, and so makes nothing with one"


@pytest.mark.parametrize("url", ["vlm", "node7:8000", "http://"])
def test_what_is_no_engine_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="policy.engine is local, vllm or a URL"):
        PolicyConfig(engine=url)


GOOD = ("http://localhost:8000/v1", "https://api.example.org", "http://[::1]:8000/v1", "http://node_7:1")
WRONG = (
    *(
        "node7:8000",
        "//node7/v1",
        "ftp://node7",
        "http://",
        "http:///v1",
        "http://[::1",
        "http://[zz]/",
        "http://a b/v1",
    ),
    *("http://node7:0", "http://node7:65536", "http://node7:x", "http://node7/v 1", "http://node7/\x1b", "http://é"),
)
SECRET = (
    "http://user:secret@node7",
    "http://user:se/secret@node7",
    "http://node7/v1?key=secret",
    "http://node7#secret",
)


@pytest.mark.parametrize("url", [*GOOD, *WRONG, *SECRET])
def test_a_setting_that_is_no_url_of_a_server_is_one_line(url: str) -> None:
    if url in GOOD:
        return require_url("teacher.base_url", url, key_variable="teacher.api_key_env")
    with pytest.raises(UsageError, match="^teacher.base_url (is a URL such as|holds no key)") as raised:
        require_url("teacher.base_url", url, key_variable="teacher.api_key_env")
    assert "secret" not in str(raised.value) and str(raised.value).isprintable()
    return None


def test_a_url_holds_no_key() -> None:
    with pytest.raises(UsageError, match="R2V_ENGINE_KEY") as raised:
        PolicyConfig(engine="http://user:secret@node7:8000")
    assert "secret" not in str(raised.value)
    assert server_root("http://node7:8000/v1/") == "http://node7:8000"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_name": "tiny"}, "bundled models are played in this process"),
        ({"lora_r": 0}, "set policy.lora_r"),
        ({"load_in_4bit": True}, "4-bit weights are not served"),
        ({"dtype": "float64"}, "no engine computes in float64"),
    ],
)
def test_a_policy_that_no_engine_serves_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        PolicyConfig(engine="vllm", **{**SERVED, **changes}).require_servable()  # type: ignore[arg-type]
    PolicyConfig(engine="local", **{**SERVED, **changes}).require_servable()  # type: ignore[arg-type]
    PolicyConfig(engine="vllm", **SERVED).require_servable()  # type: ignore[arg-type]
