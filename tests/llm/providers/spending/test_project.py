"""The project's ledger: the sum of its journals, whatever happens to the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger, Replies, closed

SCOPE = {"provider": "openai", "model": "m"}


def entry(run: str, **changes: object) -> JournalEntry:
    made = JournalEntry(run=run, folder=f"runs/{run}", payer="runs", scope=SCOPE, open=False, usd=1.5, answered=3)
    return replace(made, **changes)  # type: ignore[arg-type]


def journal(root: Path, run: str, *rows: str) -> None:
    folder = root / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    first = f'{{"row":"open","version":1,"run":"{run}","scope":{{}}}}'
    (folder / "journal.jsonl").write_text("\n".join([first, *rows]) + "\n")


CALL = '{"row":"call","id":"0000000b-c-0-0","sha256":"s","usd":0.25}'
ANSWER = (
    '{"row":"answer","id":"0000000b-d-0-0","batch":null,"sha256":"s","usd":0.5,"text":"yes","cut":false,"tokens":null}'
)


def test_a_closed_journal_counts_with_its_entry_though_it_is_gone(tmp_path: Path) -> None:
    ledger = ProjectLedger(tmp_path)
    assert ledger.entries() == []
    ledger.write(entry("0000000a"))
    (known,) = ProjectLedger(tmp_path).entries()
    assert known == entry("0000000a") and ledger.committed(known) == 1.5 and ledger.view(known) is None


def test_an_open_journal_counts_with_what_it_says_and_a_dead_one_s_quota_is_free(tmp_path: Path) -> None:
    ledger, mine = ProjectLedger(tmp_path), entry("0000000b", open=True, usd=0.0, allotted=9.0)
    ledger.write(mine)
    assert ledger.committed(mine) == 9.0, "its journal is gone, so all it may have spent counts"
    journal(tmp_path, "0000000b", CALL, ANSWER)
    assert ledger.committed(mine) == 0.75, "nobody writes it: a call in flight, and an answer"
    journal(tmp_path, "0000000c")
    (tmp_path / "runs/0000000c").rename(tmp_path / "runs/0000000b-0f0f")
    moved = replace(mine, run="0000000c")
    found = ledger.view(moved)
    assert found is not None and found.folder.name == "0000000b-0f0f", "set aside by --force"


def test_what_others_write_is_seen_and_a_change_needs_no_second_look_at_the_rest(tmp_path: Path) -> None:
    ledger, other = ProjectLedger(tmp_path), ProjectLedger(tmp_path)
    ledger.write(entry("0000000a"))
    assert [one.usd for one in other.entries()] == [1.5]
    ledger.write(closed(entry("0000000a", open=True), usd=2.0, answered=4))
    ledger.write(entry("0000000b"))
    assert sorted(one.usd for one in other.entries()) == [1.5, 2.0]
    (ledger.folder / "changed").unlink()
    assert len(other.entries()) == 2 and len(ProjectLedger(tmp_path).entries()) == 2


def test_a_damaged_entry_is_named_and_no_cap_is_promised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = ProjectLedger(tmp_path)
    ledger.write(entry("0000000a"))
    path = ledger.folder / "0000000a.json"
    path.write_text(path.read_text().replace("1.5", "0.5"))
    fresh = ProjectLedger(tmp_path)
    assert fresh.entries() == [] and "0000000a.json is damaged" in caplog.text
    with pytest.raises(InputError, match=r"0000000a.json.*the spending of its journal is unknown"):
        fresh.require_whole()
    ledger.write(entry("0000000a"))
    assert len(fresh.entries()) == 1
    fresh.require_whole()


def test_replies_are_those_of_one_scope_and_not_of_what_was_set_aside(tmp_path: Path) -> None:
    ledger = ProjectLedger(tmp_path)
    journal(tmp_path, "0000000b", ANSWER)
    ledger.write(entry("0000000b"))
    from r2v.llm.providers.provider_requests import reply_key

    key = reply_key(("d", 0, "s"))
    replies = Replies(ledger, SCOPE, "mine")
    replies.look()
    verdict = replies.answer(key)
    assert verdict is not None and verdict.text == "yes" and replies.answer(reply_key(("e", 0, "s"))) is None
    for scope, run in (({"provider": "openai", "model": "n"}, "mine"), (SCOPE, "0000000b")):
        others = Replies(ledger, scope, run)
        others.look()
        assert others.answer(key) is None
    (tmp_path / "runs/0000000b").rename(tmp_path / "runs/0000000b-0f0f")
    later = Replies(ProjectLedger(tmp_path), SCOPE, "mine")
    later.look()
    assert later.answer(key) is None
