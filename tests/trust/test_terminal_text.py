"""Text from episodes, tags, providers and files reaches terminals, logs and tables as text, without effect."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2v import log
from r2v.cli.boundary import guarded
from r2v.cli.main import main
from r2v.console import FilteredStream, filtered_streams, printable, text_table, unfiltered
from r2v.data.manifest import RUN_MANIFEST
from r2v.errors import EnvironmentFault
from r2v.evaluation.tables.files import COLUMNS, csv_text
from r2v.storage.artifact_manifest import json_sha256
from tests.trust.alter import read_records, write_records

TITLE, CLEAR, C1, BIDI = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b31m", "\u202ecod.exe"
ALL = f"a{TITLE}{CLEAR}{C1}{BIDI}\x00\x08\r\x7f\u2066\u200f\ufeff\U000e0041z"
OBEYED = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), 0x2066, 0x200F)}


def harmless(text: str) -> bool:
    return not OBEYED & set(text)


def test_what_a_terminal_obeys_is_shown_as_its_escape() -> None:
    assert printable(ALL) == (
        "a\\x1b]0;owned\\x07\\x1b[2J\\x1b[H\\x9b31m\\u202ecod.exe\\x00\\x08\\r\\x7f\\u2066\\u200f\\ufeff\\U000e0041z"
    )
    assert printable("line\n\tindented, café, 漢字, 👩\u200d🚀") == "line\n\tindented, café, 漢字, 👩\u200d🚀"
    assert printable("\x1b[1;31mred\x1b[0m") == "red", "a colour says nothing"
    assert printable("\udcff") == "\\udcff", "a byte that is not UTF-8"


@given(st.text())
def test_printable_is_harmless_and_leaves_it_at_that(text: str) -> None:
    assert harmless(printable(text)) and printable(printable(text)) == printable(text)
    printable(text).encode()


def test_a_filtered_stream_writes_text_and_is_the_stream_in_all_else() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    stream: Any = FilteredStream(inner)
    print(f"{CLEAR}café", file=stream)
    stream.writelines(["a\n", "\x07"])
    stream.flush()
    assert inner.buffer.getvalue() == b"\\x1b[2J\\x1b[Hcaf\\xe9\na\n\\x07"  # type: ignore[attr-defined]
    assert stream.encoding == "ascii" and not stream.isatty() and unfiltered(stream) is inner is unfiltered(inner)


def test_streams_are_put_back_and_never_filtered_twice() -> None:
    before = sys.stdout, sys.stderr
    with filtered_streams(), filtered_streams():
        assert not isinstance(unfiltered(sys.stdout), FilteredStream)
    assert (sys.stdout, sys.stderr) == before


def test_a_line_of_the_log_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup()
    logging.getLogger("r2v").info("the provider says %s", ALL)
    assert harmless(capsys.readouterr().err)


def test_a_providers_message_in_an_error_is_one_harmless_line(capsys: pytest.CaptureFixture[str]) -> None:
    def act() -> int:
        raise EnvironmentFault(f"openai: {ALL}\nr2v: all is well")

    assert guarded(act) == 5
    err = capsys.readouterr().err
    assert harmless(err) and err.count("\n") == 1 and err.startswith("r2v: openai: a\\x1b")


def test_a_bug_keeps_its_traceback_says_where_to_report_it_and_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    def act() -> int:
        raise KeyError(ALL)

    assert guarded(act) == 1
    err = capsys.readouterr().err
    assert harmless(err) and "Traceback" in err and "please report it with the lines above: https://" in err


def test_an_error_of_the_user_shows_its_traceback_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wanted in (False, True):
        if wanted:
            monkeypatch.setenv("R2V_TRACEBACK", "1")
        assert main(["config", "--overrides", "training.lr=-1"]) == 2
        assert ("Traceback" in capsys.readouterr().err) == wanted


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PermissionError(13, "Permission denied", "a.json"), 3, "a.json: Permission denied"),
        (IsADirectoryError(21, "Is a directory", "a"), 3, "a: Is a directory"),
        (NotADirectoryError(20, "Not a directory", "a/b"), 3, "a/b: Not a directory"),
        (OSError(40, "Too many levels of symbolic links", "a"), 3, "a: Too many levels"),
        (OSError(36, "File name too long", "a"), 3, "a: File name too long"),
        (FileNotFoundError(2, "No such file or directory", "a"), 3, "a: No such file"),
        (OSError(5, "Input/output error", "a"), 5, "a: Input/output error"),
        (OSError(28, "No space left on device", "a"), 5, "cannot write a: No space left"),
        (OSError(116, "Stale file handle", "a"), 5, "a: Stale file handle"),
        (ConnectionRefusedError(111, "Connection refused"), 5, "Connection refused"),
        (TimeoutError("timed out"), 5, "timed out"),
        (json.JSONDecodeError("Expecting value", "x", 0), 3, "JSONDecodeError: Expecting value"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 3, "invalid start byte"),
        (RecursionError("maximum recursion depth exceeded"), 3, "RecursionError"),
        (RuntimeError("Symlink loop from 'a'"), 3, "Symlink loop"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_system_refuses_is_one_line_with_its_file_and_a_code(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> int:
        raise error

    assert guarded(act) == code
    err = capsys.readouterr().err
    assert words in err and err.startswith("r2v: ") and err.count("\n") == 1


def test_no_cell_of_a_table_holds_a_control_character() -> None:
    rows = [["run", "tags"], ["r1", ALL]]
    assert harmless(printable(text_table(rows)))
    [name, columns] = next(iter(COLUMNS.items()))
    row = {**dict.fromkeys(columns, 0.5), columns[0]: ALL}
    assert harmless(csv_text(name, [row]))  # type: ignore[list-item]


def test_tags_and_notes_of_a_run_that_another_tool_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chain = ["env.benchmark=chain", "env.options={num_tasks: 9, length: 1, p_easy: 1.0}", "data.seeds=[1]"]
    assert main(["collect", "--overrides", *chain]) == 0
    [path] = tmp_path.glob(f"data/runs/*/{RUN_MANIFEST}")
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest |= {"tags": [ALL], "notes": ALL}
    path.write_text(json.dumps({**manifest, "sha256": json_sha256(manifest)}))
    capsys.readouterr()
    assert main(["registry"]) == 0
    shown = capsys.readouterr().out
    assert harmless(shown) and "\\x1b]0;owned\\x07" in shown


def test_an_episode_of_a_strangers_results(
    micro_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(micro_run / "results" / "micro", tmp_path / "results", symlinks=False)
    [path, *_] = sorted((folder / "episodes").rglob("*.jsonl.zst"))
    episode, *others = read_records(path)
    write_records(path, [{**episode, "episode_id": ALL}, *others])
    capsys.readouterr()
    assert main(["verify-results", str(folder)]) in (2, 3)
    told = capsys.readouterr()
    assert harmless(told.err + told.out) and "Traceback" not in told.err
    setup = json.loads((folder / "setup.json").read_text())
    (folder / "setup.json").write_text(json.dumps({**setup, "benchmark": ALL}))
    assert main(["verify-results", str(folder)]) in (2, 3)
    told = capsys.readouterr()
    assert harmless(told.err + told.out) and "Traceback" not in told.err
