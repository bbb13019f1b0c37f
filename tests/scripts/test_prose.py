"""The prose checker: log formats that are events, and the counts of a module and of a page."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.test_imports import REPOSITORY

SPEC = importlib.util.spec_from_file_location("prose", REPOSITORY / "scripts" / "prose.py")
assert SPEC is not None and SPEC.loader is not None
prose = importlib.util.module_from_spec(SPEC)
sys.modules["prose"] = prose  # dataclasses look their module up
SPEC.loader.exec_module(prose)

MODULE = '''
"""What is here."""

def told(found):
    """Whether it is."""
    one = found  # NFS: the file vanished
    logger.info("%s is %s", one, found)
    logger.info("stage done: stage=%s cpu_s=%.1f", one, found)
'''


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("reconcile failed: chain=%s error=%s", True),
        ("rate limited: llm_steps=%.1f%% cost=$%.4f played=%d/%d", True),
        ("nothing to do", True),
        ("100%% of the steps", True),
        ("%s: not without %s", False),
        ("failed: job=%s (%s)", False),
    ],
)
def test_a_log_line_is_an_event_with_keys(text: str, event: bool) -> None:
    assert prose.is_event(text) == event


def test_only_the_formats_of_log_lines_are_read() -> None:
    calls = ('logger.info("a %s", 1)', "log.warning(text)", 'print("a %s")', 'self.logger.info("a")')
    formats = [prose.log_format(ast.parse(call, mode="eval").body) for call in calls]
    assert formats == ["a %s", None, None, None]


def test_a_module_and_a_page_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, page, counted = Path("r2v", "slurm", "a").with_suffix(".py"), Path("page"), prose.Prose()
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    page.write_text(f"{'x' * 121}\n| {'x' * 121} |\n```\n{'x' * 121}\n```\n[{'x' * 121}](y)\n")
    counted.read(module)
    counted.page(page)
    assert {kind: len(places) for kind, places in counted.places.items()} == {
        "docstrings that begin as riddles": 1,
        "names that say nothing": 2,
        "log lines that are no event: key=value": 1,
        "words that must not return": 0,
        "wide lines of pages": 1,
    }
    assert (counted.whats, counted.comments["slurm"], counted.functions) == (1, 1, 1)


def test_only_docstrings_are_read_outside_the_package(tmp_path: Path) -> None:
    module, counted = (tmp_path / "test_a").with_suffix(".py"), prose.Prose()
    module.write_text(MODULE)
    counted.read_heads(module)
    assert [kind for kind, places in counted.places.items() if places] == ["docstrings that begin as riddles"]
    assert (counted.functions, counted.names, counted.words) == (1, 0, 0)


def test_this_checkout_keeps_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert [(rule, figure, limit) for rule, figure, limit in prose.measured().figures() if figure > limit] == []
