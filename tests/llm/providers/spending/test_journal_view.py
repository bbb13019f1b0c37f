"""The view of another process' journal: new rows as they arrive, and none of the damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from r2v.llm.providers.provider_requests import reply_key
from r2v.llm.providers.spending.journal_view import JournalView

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
