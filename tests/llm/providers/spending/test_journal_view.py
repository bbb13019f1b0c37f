"""The view of another process' journal: new rows as they arrive, and none of the damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from r2v.llm.providers.provider_requests import reply_key
from r2v.llm.providers.spending import journal_view
from r2v.llm.providers.spending.journal_view import WORTH_AN_INDEX, JournalView, read_index
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger, Replies

KEY = reply_key(("c", 0, "s"))


def write(folder: Path, *rows: dict[str, Any], end: str = "\n") -> None:
    with (folder / "journal.jsonl").open("a") as file:
        file.write("\n".join(map(json.dumps, rows)) + end)


def view_of(folder: Path) -> JournalView:
    write(folder, {"row": "open", "version": 1, "run": "0a0a0a0a", "scope": {}})
    view = JournalView(folder, "0a0a0a0a")
    view.look()
    return view


def answer(text: str = "yes", usd: float = 0.5) -> dict[str, Any]:
    common = {"row": "answer", "id": "0a0a0a0a-c-0-0", "sha256": "s", "batch": None, "cut": False, "tokens": None}
    return common | {"usd": usd, "text": text}


def test_money_is_what_is_spent_lost_and_reserved(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    write(tmp_path, {"row": "call", "id": "0a0a0a0a-c-0-0", "sha256": "s", "usd": 2.0})
    write(tmp_path, {"row": "call", "id": "0a0a0a0a-x-0-0", "sha256": "s", "usd": 4.0})
    write(tmp_path, {"row": "intent", "batch": "b", "usd": 8.0})
    view.look()
    assert view.committed == 14.0
    write(tmp_path, answer(), {"row": "lost", "id": "0a0a0a0a-x-0-0", "usd": 3.0, "why": ""})
    write(tmp_path, {"row": "dropped", "batch": "b", "why": ""})
    view.look()
    assert (view.spent, view.lost_usd, view.committed) == (0.5, 3.0, 3.5)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    write(tmp_path, answer(), end="")
    view.look()
    assert view.answer(KEY) is None
    write(tmp_path, end="\n")
    view.look()
    verdict = view.answer(KEY)
    assert verdict is not None and verdict.text == "yes"


def test_claims_of_a_process_that_is_gone_bind_nobody(tmp_path: Path) -> None:
    from r2v.storage.lease import lease

    view = view_of(tmp_path)
    write(tmp_path, {"row": "claim", "keys": [KEY]})
    view.look()
    assert not view.claims(KEY)
    with lease(tmp_path / "journal.lease"):
        assert view.claims(KEY)
        write(tmp_path, {"row": "claims", "keys": []})
        view.look()
        assert not view.claims(KEY)


def test_an_altered_line_is_named_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    view = view_of(tmp_path)
    write(tmp_path, answer())
    view.look()
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"yes"', '"no!"'))
    assert view.answer(KEY) is None and "answer altered in its journal" in caplog.text
    assert not view.answers(KEY)


def test_a_line_that_is_no_row_is_named_once_and_the_rest_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    view = view_of(tmp_path)
    write(tmp_path, answer())
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write("{nonsense\n")
    view.look()
    view.look()
    assert view.answer(KEY) is None and view.damage and caplog.text.count("its answers are not used") == 1


def test_another_journal_at_its_place_is_not_this_one(tmp_path: Path) -> None:
    view_of(tmp_path)
    other = JournalView(tmp_path, "0b0b0b0b")
    with pytest.raises(FileNotFoundError, match="now belongs to another run"):
        other.look()


SCOPE, RUN = {"model": "m"}, "0a0a0a0a"


def row(number: int) -> dict[str, Any]:
    common = {"row": "answer", "id": f"{RUN}-c{number}-0-0", "sha256": "s", "batch": None, "cut": False, "tokens": None}
    return common | {"usd": 0.25, "text": f"said {number}"}


def project(root: Path) -> ProjectLedger:
    """Make a checkout with one closed journal."""
    folder = root / "runs"
    folder.mkdir()
    rows = [{"row": "open", "version": 1, "run": RUN, "scope": {}}, *map(row, range(WORTH_AN_INDEX))]
    (folder / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    entry = JournalEntry(run=RUN, folder="runs", payer="runs", scope=SCOPE, open=False, usd=0.25 * WORTH_AN_INDEX)
    ProjectLedger(root).write(entry)
    return ProjectLedger(root)


def said(ledger: ProjectLedger, number: int) -> str | None:
    replies = Replies(ledger, SCOPE, "mine")
    replies.look()
    verdict = replies.answer(reply_key((f"c{number}", 0, "s")))
    return None if verdict is None else verdict.text


def test_who_begins_reads_the_index_and_answers_from_the_journal(tmp_path: Path) -> None:
    assert said(project(tmp_path), 7) == "said 7"
    index = tmp_path / f"outputs/.replies/{RUN}.index"
    found = read_index(index)
    assert found is not None and found[0]["answered"] == len(found[1]) == WORTH_AN_INDEX
    view = journal_view.JournalView(tmp_path / "runs", RUN)
    view.remember(index)
    assert view.answered == WORTH_AN_INDEX and view.spent == 0.25 * WORTH_AN_INDEX, (
        "before any line but the first was read"
    )
    assert said(ProjectLedger(tmp_path), WORTH_AN_INDEX - 1) == f"said {WORTH_AN_INDEX - 1}"
    with (tmp_path / "runs/journal.jsonl").open("a") as file:
        file.write(json.dumps(row(WORTH_AN_INDEX)) + "\n")
    assert said(ProjectLedger(tmp_path), WORTH_AN_INDEX) == f"said {WORTH_AN_INDEX}", "what was appended since is read"


def test_an_index_that_is_not_true_is_not_believed(tmp_path: Path) -> None:
    ledger = project(tmp_path)
    assert said(ledger, 3) == "said 3"
    index, journal = tmp_path / f"outputs/.replies/{RUN}.index", tmp_path / "runs/journal.jsonl"
    content = index.read_bytes()
    index.write_bytes(content[:-1] + b"x")
    assert read_index(index) is None and said(ProjectLedger(tmp_path), 3) == "said 3"
    index.write_bytes(content)
    journal.write_bytes(journal.read_bytes().replace(b'said 3"', b'SAID 3"'))
    assert said(ProjectLedger(tmp_path), 3) is None and said(ProjectLedger(tmp_path), 4) == "said 4"
    journal.write_text(json.dumps({"row": "open", "version": 1, "run": "another", "scope": {}}) + "\n")
    assert said(ProjectLedger(tmp_path), 4) is None, "the index is of a journal that is gone"
