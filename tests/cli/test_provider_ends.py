"""Every defined end of a run by a provider, typed as a user types it: the line, the exit code, and the bill.

If the cause can be removed, the same command follows without it: it ends with 0, and nothing is billed twice.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.data.registry import DataRegistry
from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.emulator.ledger import Bill
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.randomness import digest
from r2v.wire.exchange import TokenCounts
from tests import trust
from tests.llm.talk import MODELS, environment, paid_turns

SMALL = (
    "env.options.num_tasks=36",
    "env.options.num_heldout=0",
    "data.seeds=[1]",
    "data.num_episodes=3",
    "rollout.workers=1",
    "teacher.flush_seconds=0.1",
    "teacher.poll_seconds=0.02",
    "teacher.reconcile_after=0.2",
    "teacher.max_tokens=64",
    "teacher.max_usd=1",
)
ADDRESS = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


@dataclass(frozen=True, kw_only=True)
class End:
    """A fault, and the expected end of the run."""

    code: int
    line: str
    """Pattern in the last line of the log."""
    providers: tuple[str, ...] = ("openai", "anthropic")
    faults: tuple[Fault, ...] = ()
    address: str | None = None
    """Address of the endpoint; {port}: a dead one. None: the emulator's."""
    words: tuple[str, ...] = ()
    billed: tuple[int, int] = (0, 0)
    """Requests that are paid by then, at least and at most."""
    mended: bool = True
    """True if the same command ends well without the cause."""


CALLS, BATCHES = "teacher.mode=concurrent", "teacher.mode=batch"
SOON = "teacher.outage_seconds=0.3"
NO_CONNECTION = r"no connection to .*; check the network and the endpoint's address; .*run the same command again"
ENDS = {
    "a dead address, by calls": End(code=5, line=NO_CONNECTION, address="http://127.0.0.1:{port}", words=(CALLS, SOON)),
    "a dead address, by batches": End(
        code=5, line=NO_CONNECTION, address="http://127.0.0.1:{port}", words=(BATCHES, SOON), providers=("openai",)
    ),
    "a name that nobody knows": End(code=5, line=NO_CONNECTION, address="http://no-such.invalid", words=(CALLS, SOON)),
    "a refused connection with a cap of less than one request's worst case a try": End(
        code=5, line=NO_CONNECTION, address="http://127.0.0.1:{port}", words=(CALLS, SOON, "teacher.max_usd=0.02")
    ),
    "401 in the middle of calls": End(
        code=5,
        line=r"401: .*check the account and the key",
        faults=tuple(Fault("401", on=f"{name}.sync", at=tuple(range(5, 99))) for name in MODELS),
        words=(CALLS, "teacher.max_concurrent=1"),
        billed=(4, 4),
    ),
    "401 in the middle of batches": End(
        code=5,
        line=r"401: .*check the account and the key",
        faults=tuple(Fault("401", on=f"{name}.create", at=tuple(range(2, 99))) for name in MODELS),
        words=(BATCHES,),
        billed=(4, 4),
    ),
    "a cleanly cut file of results": End(
        code=0,
        line="",
        faults=(Fault("lines_cut", at=(1, 2, 3)),),
        words=(BATCHES,),
        billed=(5, 99),
        mended=False,
    ),
    "a retired model": End(
        code=2,
        line=r"retired it on 2026-\d\d-\d\d; its successor is \S+",
        words=("teacher.model_name={retired}",),
        mended=False,
    ),
    "a model that only the provider knows to be retired": End(
        code=5,
        line=r"404: .*(does not exist|not_found|model)",
        words=("teacher.model_name={retired}", "teacher.model.retires=never"),
        mended=False,
    ),
    "a parameter that the model does not know": End(
        code=5,
        line=r"a call before the run was refused: 400: .*Unknown parameter",
        faults=tuple(Fault("call_400", on=f"{name}.sync", at=1) for name in MODELS),
        words=(CALLS,),
    ),
}
CENT = 1e-8
"""USD by which sums of rounded figures may differ."""
CALL_BEFORE = digest("preflight").hex()[:16]
"""Conversation id of the preflight call."""
RETIRED = {"openai": "gpt-4-turbo", "anthropic": "claude-3-5-haiku"}
CASES = [pytest.param(name, one, id=f"{name}-{one}") for name, end in ENDS.items() for one in end.providers]

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return a function that runs `r2v collect` in a project; its exit code and output."""
    monkeypatch.chdir(tmp_path)

    def collect(provider: str, *words: str) -> tuple[int, str]:
        model = f"teacher.model_name={MODELS[provider]}"
        code = main(["collect", "--overrides", *SMALL, f"teacher.provider={provider}", model, *words])
        return code, capsys.readouterr().err

    return collect


def sent_to(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(emulator).items():
        monkeypatch.setenv(name, value)


def booked(project: Path) -> float:
    """Return the USD that the project's ledger holds as spent or perhaps spent."""
    return sum(entry.usd for entry in ProjectLedger(project).entries())


def priced(bills: Sequence[Bill], provider: str) -> tuple[float, float]:
    """Return the USD of the provider's own bills: with everything written to a prompt cache at the price of its shorter
    and of its longer life, which bills do not tell apart."""
    rate = rate_of(provider, MODELS[provider])
    usd = dict.fromkeys(("write_5m", "write_1h"), 0.0)
    for bill in bills:
        fresh = bill.tokens_in - bill.cached_in - bill.written_in
        for life in usd:
            tokens = TokenCounts(fresh=fresh, cached=bill.cached_in, output=bill.tokens_out, **{life: bill.written_in})
            usd[life] += rate.usd(tokens, batch=bill.mode == "batch")
    return usd["write_5m"], usd["write_1h"]


@pytest.mark.parametrize(("name", "provider"), trust.drawn(CASES, 10, "provider ends"))
def test_a_run_ends_as_it_is_defined_to(
    name: str, provider: str, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ENDS[name]
    words = [word.format(retired=RETIRED[provider]) for word in end.words]
    lifecycle, state = Lifecycle(polls=1), tmp_path / "emulator"
    with (
        socket.socket() as taken,
        Emulator(answer="desk", faults=end.faults, lifecycle=lifecycle, folder=state) as emulator,
    ):
        sent_to(emulator, monkeypatch)
        if end.address is not None:
            taken.bind(("127.0.0.1", 0))  # without a listener: a connection is refused
            monkeypatch.setenv(ADDRESS[provider], end.address.format(port=taken.getsockname()[1]))
        code, said = typed(provider, *words)
        bills = emulator.ledger().bills
    assert (code, end.billed[0] <= len(bills) <= end.billed[1]) == (end.code, True), (len(bills), said)
    assert re.search(end.line, said.splitlines()[-1]), said
    assert "Traceback" not in said and "-test-0123456789" not in said
    least, most = priced(bills, provider)
    assert booked(tmp_path) >= least - CENT, "nothing is forgotten"
    assert booked(tmp_path) <= most + CENT or (bills and code), "and nothing made up, but for what is open"
    if end.mended:
        with Emulator(answer="desk", lifecycle=lifecycle, folder=state) as emulator:
            sent_to(emulator, monkeypatch)
            code, said = typed(provider, *words)
            bills = emulator.ledger().bills
            assert code == 0, said
    turns = [bill.turn for bill in bills if bill.turn is not None and bill.turn[1] != CALL_BEFORE]
    assert len(turns) == len(set(turns)), "nothing is paid twice"
    if code == 0:
        (run,) = DataRegistry(tmp_path / "data").query()
        assert (run.status, run.n_episodes, run.n_env_faults) == ("done", 3, 0)
        least, most = priced(bills, provider)
        assert least - CENT <= booked(tmp_path) <= most + CENT, "the ledger is the provider's bill"


@pytest.mark.parametrize("provider", MODELS)
def test_an_archived_batch_is_given_up_alone(
    provider: str, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Emulator(answer="desk", faults=[Fault("archived", at=2)], lifecycle=Lifecycle(polls=1)) as emulator:
        sent_to(emulator, monkeypatch)
        for _ in range(2):
            code, said = typed(provider, BATCHES)
            (batch,) = re.findall(r"give this batch up alone by `r2v providers forget (\S+)`", said.splitlines()[-1])
            assert code == 5
        answered = paid_turns(emulator)
        assert main(["providers", "forget", batch]) == 0
        assert typed(provider, BATCHES)[0] == 0
        twice = {turn for turn, times in paid_turns(emulator).items() if times > 1}
    assert len(twice) == 3 and twice < set(answered), "those alone whose answers are gone"
    assert DataRegistry(tmp_path / "data").query()[-1].status == "done"


@pytest.mark.parametrize("provider", MODELS)
def test_an_outage_in_the_middle_is_ridden_out(provider: str, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seconds, or (whole suites) of more than eight minutes: pings are 1, 2, 4 ... 60 seconds apart."""
    looks = 10 if trust.whole_suites else 1
    away = Fault("503", on=provider, at=tuple(range(6, 6 + 4 + looks)))
    with Emulator(answer="desk", faults=[away]) as emulator:
        sent_to(emulator, monkeypatch)
        code, said = typed(provider, CALLS, "teacher.max_concurrent=1")
        assert code == 0 and max(emulator.ledger().paid().values()) == 1, said
    (begun,) = [line for line in said.splitlines() if "provider unreachable; nothing is sent" in line]
    assert "at_most=4.0 h" in begun
    ((length, unit),) = re.findall(r"reachable again: .*after=(\d+) (s|min)", said)
    assert provider in begun and (not trust.whole_suites or (unit == "min" and int(length) >= 8))
