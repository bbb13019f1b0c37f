"""A large closed journal is read once in a project, and its index is used only while it is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from r2v.llm.providers.provider_requests import reply_key
from r2v.llm.providers.spending import journal_view
from r2v.llm.providers.spending.journal_index import WORTH_AN_INDEX, read_index
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger, Replies

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
