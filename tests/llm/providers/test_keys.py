"""Keys: a configuration sends no variable but a provider's key, and none to another host without a warning line
first."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config.yaml_text import Document
from r2v.emulator import Emulator
from r2v.errors import EnvironmentFault, UsageError
from r2v.experiments.records import RunRecord
from r2v.experiments.schedule.launcher import words_of
from r2v.experiments.specification.spec import ExperimentSpec
from r2v.llm.engines.release import ENGINE_KEY_ENV
from r2v.llm.providers import keys
from r2v.llm.providers.factory import make_provider
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.provider import ProviderFault
from r2v.pipeline.helping import helper_command
from r2v.pipeline.jobs import job
from tests.llm.talk import MODELS

R2V = Path(keys.__file__).parents[2]
SECRET = "AWS_SECRET_ACCESS_KEY"


@pytest.fixture(autouse=True)
def as_at_the_start_of_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    yield
    keys.allow([])


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "LAB_API_KEY", ENGINE_KEY_ENV])
def test_keys_of_providers_are_sent_without_an_option(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "sk-0123456789")
    assert keys.read_key(variable) == "sk-0123456789"


@pytest.mark.parametrize("variable", [SECRET, "GITHUB_TOKEN", "HOME", "LAB_KEY", "OPENAI_API_KEY_", "API_KEY"])
def test_any_other_variable_is_refused_in_one_line_unless_the_command_allows_it(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "sk-0123456789")
    with pytest.raises(UsageError) as refused:
        keys.read_key(variable)
    line = str(refused.value)
    assert f"api_key_env={variable}" in line and f"--allow-env {variable}" in line and "OPENAI_API_KEY" in line
    assert "\n" not in line and "sk-" not in line
    keys.allow([variable])
    assert keys.read_key(variable) == "sk-0123456789"
    assert keys.allowed_words() == ["--allow-env", variable]


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
def test_a_missing_key_names_the_rehearsal_that_needs_none(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match=rf"^{variable} is not set in the environment; .*`r2v providers emulate`"):
        keys.require_key(variable, None)
    with pytest.raises(UsageError, match=r"any text, if the endpoint asks for no key"):
        keys.require_key(variable, "http://localhost:8000/v1")


def test_names_that_are_allowed_for_a_while_are_not_afterwards() -> None:
    keys.allow(["A"])
    with keys.also_allowed(["B", "A"]):
        assert keys.allowed() == ("A", "B")
    assert keys.allowed() == ("A",)


SENT = {
    "a stranger's host": ("OPENAI_API_KEY", "http://x:1/v1/", "openai", "to=http://x:1/v1 note=not OpenAI's own host"),
    "a look-alike": ("OPENAI_API_KEY", "https://api.openai.com.x.org", "openai", "own host api.openai.com"),
    "another variable": ("LAB_API_KEY", "https://api.lab.org/v1", "anthropic", "note=not Anthropic's own host"),
    "another's key": ("ANTHROPIC_API_KEY", "https://api.openai.com/v1", "openai", "note=not Anthropic's own host"),
    "an engine": (ENGINE_KEY_ENV, "http://g7:8000", None, f"variable={ENGINE_KEY_ENV} to=http://g7:8000"),
    "a user in the URL": ("OPENAI_API_KEY", "http://me:pw@y/v1?k=1", "openai", "to=http://y/v1 note=not"),
}


@pytest.mark.parametrize("case", SENT)
def test_one_line_names_key_and_host_once(case: str, caplog: pytest.LogCaptureFixture) -> None:
    variable, url, provider, words = SENT[case]
    for _ in range(3):
        keys.announce(variable, url, provider)
    (line,) = caplog.messages
    assert line.startswith(f"sending a key: variable={variable} to=") and words in line and "pw" not in line


@pytest.mark.parametrize(
    ("variable", "url", "provider"),
    [
        ("OPENAI_API_KEY", "https://api.openai.com/v1", "openai"),
        ("LAB_API_KEY", "https://eu.api.openai.com/v1", "openai"),
        ("ANTHROPIC_API_KEY", "https://api.anthropic.com", "anthropic"),
        ("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1", "openai"),
    ],
)
def test_nothing_is_said_of_a_keys_own_host(
    variable: str, url: str, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys.announce(variable, url, provider)
    assert caplog.messages == []


@pytest.mark.parametrize("provider", MODELS)
def test_the_line_comes_before_the_first_request_and_names_further_headers(
    provider: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In any order of requests: all traffic of a provider goes through one client."""
    variable, headers = f"{provider.upper()}_LAB_API_KEY", f"{provider.upper()}_CUSTOM_HEADERS"
    monkeypatch.setenv(variable, "sk-lab-0123456789")
    monkeypatch.setenv(headers, "X-Gateway: secret")
    url = "http://127.0.0.1:9/v1"  # a dead port: the request fails, the line is there
    made = make_provider(provider, rate_of(provider, MODELS[provider]), base_url=url, api_key_env=variable)
    assert caplog.messages == []
    with pytest.raises(ProviderFault):
        asyncio.run(made.ping())
    (line,) = caplog.messages
    assert line.startswith(f"sending a key: variable={variable} to={url} headers={headers}") and "sk-" not in line


def test_a_configuration_that_names_a_secret_of_mine_reaches_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SECRET, "SENTINEL")
    monkeypatch.setattr(logging.getLogger("r2v"), "propagate", True)
    words = ["collect", "--num-episodes", "1", "--seeds", "1", "--config", "paper.yaml"]
    with Emulator(answer="desk") as emulator:
        teacher = f"provider: openai, model_name: gpt-5.2, base_url: '{emulator.openai_url}', api_key_env: {SECRET}"
        Path("paper.yaml").write_text(
            f"teacher: {{{teacher}, mode: concurrent, max_usd: 5}}\n"
            "env: {options: {num_tasks: 36, num_heldout: 0}}\n"
        )
        assert main(words) == 2
        assert emulator.ledger().bills == () and not (tmp_path / "data").exists()
        refused = capsys.readouterr().err
        assert f"--allow-env {SECRET}" in refused and "sending" not in refused
        assert main([*words, "--allow-env", SECRET]) == 0
        sent = capsys.readouterr().err
        assert emulator.ledger().bills
    assert f"variable={SECRET} to={emulator.openai_url} note=not OpenAI's own host api.openai.com" in sent
    assert sent.count("sending a key") == 1 and "SENTINEL" not in refused + sent
    assert main(words) == 2, "what one command allows is not allowed to the next one"


class Gateway:
    name = "gateway"

    def __init__(self, rate: Rate, *, base_url: str | None = None, api_key_env: str | None = None) -> None:
        self.variable = api_key_env

    async def call(self, request: object) -> None: ...
    async def ping(self) -> None: ...
    async def close(self) -> None: ...
    def request_body(self, request: object) -> None: ...


def test_a_provider_of_ones_own_is_given_no_other_variable_either(caplog: pytest.LogCaptureFixture) -> None:
    spec, rate = f"{__name__}:Gateway", rate_of("openai", MODELS["openai"])
    with pytest.raises(UsageError, match=f"--allow-env {SECRET}"):
        make_provider(spec, rate, base_url="http://lab/v1", api_key_env=SECRET)
    make_provider(spec, rate, base_url="http://lab/v1", api_key_env="LAB_API_KEY")
    assert caplog.messages == [f"sending a key: variable=LAB_API_KEY to=http://lab/v1 teacher.provider={spec}"]


def test_processes_that_a_command_starts_are_allowed_the_same() -> None:
    """Helpers beside a stage and the runs of an experiment over one; a user's own program takes no option."""
    tree = Document(Path("s.yaml"), {})
    sweep = ExperimentSpec(path=Path("s.yaml"), tree=tree, sha256="", name="s", mode="training", stage="evaluate")
    record = RunRecord(run="run_001", status="pending", config_path="c.yaml", run_dir="runs/1", identity="")
    for allowed in ([], [SECRET]):
        keys.allow(allowed)
        command_lines = [helper_command(job("evaluate"), Path("c.yaml"), ()), words_of(sweep, record)]
        assert all(("--allow-env" in words, SECRET in words) == (bool(allowed),) * 2 for words in command_lines)
    assert SECRET not in words_of(replace(sweep, stage=None, command=("train", "{config}")), record)


def test_no_other_module_reads_a_key_from_the_environment() -> None:
    """Every key of a provider or an engine passes `read_key`; only the engine's own server, which demands it, looks one
    up by its name elsewhere."""
    lookup = re.compile(r"os\.(environ\.get\(|environ\[|getenv\()(.*)", re.DOTALL)
    harmless = re.compile(r"'(?!\w*(KEY|TOKEN|SECRET|PASSWORD)\b)\w+'")
    readers = set()
    for path in (path for room in ("llm", "game", "rollout") for path in (R2V / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            found = lookup.match(ast.unparse(node)) if isinstance(node, ast.Call | ast.Subscript) else None
            if found and not harmless.match(found[2]):
                readers.add(path.relative_to(R2V).as_posix())
    assert readers == {"llm/providers/keys.py", "llm/engines/require_key.py"}


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://me:sesame@127.0.0.1:1080")

    def lacks_socksio(trust_env: bool) -> None:
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed")

    with pytest.raises(EnvironmentFault, match="ALL_PROXY names a SOCKS proxy.*pip install socksio") as told:
        keys.made_client(lacks_socksio, "openai", None)
    assert "sesame" not in str(told.value)


@contextmanager
def refusing_proxy() -> Iterator[str]:
    """Yield the address of a proxy that answers every request with its own page, status 403, as a squid does."""

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            page = b"<html>ERR_ACCESS_DENIED</html>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_GET = do_CONNECT = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("provider", MODELS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxys_refusal_names_the_proxy(provider: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "sk-lab-0123456789")
    with refusing_proxy() as address:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://me:sesame@{address}")
        url = f"{scheme}://models.lab/v1"
        made = make_provider(provider, rate_of(provider, MODELS[provider]), base_url=url, api_key_env="LAB_API_KEY")
        with pytest.raises(ProviderFault) as refused:
            asyncio.run(made.ping())
    assert f"(asked through the proxy {address} of {scheme}_proxy)" in refused.value.reason
    assert "sesame" not in refused.value.reason


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_server_on_loopback_is_asked_without_the_proxy(
    variable: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_KEY", "sk-lab-0123456789")
    monkeypatch.setenv(variable, proxy)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Emulator() as emulator:
        url = emulator.openai_url
        made = make_provider("openai", rate_of("openai", "gpt-5.2"), base_url=url, api_key_env="LAB_API_KEY")
        with pytest.raises(ProviderFault, match="no such endpoint in the emulator"):
            asyncio.run(made.ping())
