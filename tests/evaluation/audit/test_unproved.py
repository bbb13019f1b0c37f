"""There is one list of unproved values: the page has the table that the code prints from."""

from __future__ import annotations

from collections.abc import Iterator

from r2v.evaluation.audit.unproved import UNPROVED
from tests.test_imports import REPOSITORY


def table() -> Iterator[str]:
    """Yield the lines of the page's table."""
    yield from ("| what | leaves | why it cannot be proved |", "|---|---|---|")
    for one in UNPROVED:
        yield f"| {one.what} | {', '.join(f'`{leaf}`' for leaf in one.leaves) or 'all of such a model'} | {one.why} |"


def test_the_page_has_the_same_table() -> None:
    assert "\n".join(table()) in (REPOSITORY / "docs" / "trust.md").read_text()


def test_at_most_ten_entries_and_no_leaf_twice() -> None:
    leaves = [leaf for one in UNPROVED for leaf in one.leaves]
    assert len(UNPROVED) <= 10 and len(set(leaves)) == len(leaves)
