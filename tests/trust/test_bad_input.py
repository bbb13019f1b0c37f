"""Bad input: every key of the configuration and every option of every command refuses invalid values.

The cases are generated from the declarations that are enforced (`r2v.constraints`) and from the parser, so a new key or
option is tested at once. For any input, a command ends with a documented exit code and one line on stderr that begins
with `r2v:`; no traceback, nothing made or altered in or around its folder, and no hang.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import signal
import string
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from r2v.cli.main import build_parser, main
from r2v.config import Config
from r2v.constraints import LARGEST, Distinct, FileOrFolder, OneOf, Range, Text, declared, unwrap
from r2v.errors import EXIT_CODES
from tests import trust
from tests.trust import drawn

SECONDS = 60
"""Seconds after which a command counts as hanging."""
ESCAPE, NEWLINE, BIDI, NUL = "a\x1b[2Jb", "a\nb", "a\u202eb", "a\0b"
PATHS = ("..", ".", "../../x", "/etc/passwd", "a/b", "~/x", "-x")
MISSING, SECRET, RESOLVER = "???", "${oc.env:R2V_TEST_TOKEN}", "${oc.create:{a: 1}}"


@dataclass(frozen=True)
class Key:
    """A value that a key of the configuration must refuse."""

    key: str
    why: str
    value: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"


def refused(base: Any, rules: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (fault, value) for values that a field of this type and with these rules must refuse."""
    yield "missing value", MISSING
    yield "secret", SECRET
    yield "resolver", RESOLVER
    if typing.get_origin(base) is Literal:
        yield from (("no choice", "nonsense"), ("control characters", ESCAPE), ("list", [1]), ("mapping", {"a": 1}))
    elif base is bool:
        yield from (
            ("wrong type", "maybe"),
            ("list", [1]),
            ("mapping", {"a": 1}),
            ("nan", float("nan")),
            ("null", None),
        )
    elif base in (int, float):
        yield from (("wrong type", "many"), ("empty", ""), ("list", [1]), ("mapping", {"a": 1}), ("control", ESCAPE))
        yield from (("nan", float("nan")), ("inf", float("inf")), ("-inf", float("-inf")), ("1e400", "1e400"))
        yield from (("huge", 10**400), ("too large", LARGEST * 10**8), ("too small", -LARGEST * 10))
        for rule in rules:
            yield from outside(rule, base)
    elif typing.get_origin(base) is list:
        inner, rules_inside = unwrap(typing.get_args(base)[0])
        yield from (("scalar", 3), ("mapping", {"a": 1}), ("null inside", [None]), ("list inside", [[1]]))
        if any(isinstance(rule, Distinct) for rule in rules):
            good = [1] if inner in (int, float) else ["desk_scripted_expert_20260101T000000"]
            yield "duplicate", good * 2
        if any(isinstance(rule, Distinct) and not rule.empty for rule in rules):
            yield "empty list", []
        for why, value in refused(inner, rules_inside):
            if why not in ("list", "null"):
                yield f"{why} inside", [value]
    elif base is str:
        yield from (("list", [1]), ("mapping", {"a": 1}))
        for rule in rules:
            yield from outside(rule, base)
    elif typing.get_origin(base) is dict:
        yield from (("scalar", 3), ("list", [1]), ("nan inside", {"a": float("nan")}), ("control", {"a": ESCAPE}))


def outside(rule: Any, base: Any) -> Iterator[tuple[str, Any]]:
    """Yield values outside one rule, as near to its bounds as the type allows."""
    if isinstance(rule, Range):
        step = 1 if base is int else 1e-6
        if rule.above is not None:
            yield "the bound below", rule.above
        if rule.at_least is not None:
            yield "below range", rule.at_least - step
        if rule.below is not None:
            yield "the bound above", rule.below
        if rule.at_most is not None:
            yield "above range", rule.at_most + step
    elif isinstance(rule, OneOf):
        yield from (("no choice", "nonsense"), ("no choice by number", 17))
    elif isinstance(rule, FileOrFolder):
        yield from ((f"the device {name}", f"/dev/{name}") for name in ("zero", "null", "tty"))
    elif isinstance(rule, Text):
        yield from (("control characters", ESCAPE), ("bidirectional", BIDI), ("NUL", NUL), ("C1", "a\x9b2J"))
        yield "too long", "a" * (rule.longest + 1)
        if not rule.lines:
            yield from (("newline", NEWLINE), ("newline at the end", "a\n"))
        if not rule.empty:
            yield "empty", ""
        if rule.pattern:
            yield from ((f"path {path}", path) for path in PATHS if not rule.allows(path))


_OF_A_MODEL = ("temperature", "forced_tool", "json_schema", "responses", "cache", "batch")
TAKEN = {("hierarchical.gradient_checkpointing", "null"), *((f"teacher.model.{name}", "null") for name in _OF_A_MODEL)}
"""Values that are invalid elsewhere and valid here."""
KEYS = [
    Key(key, why, value)
    for key, base, rules in declared(Config)
    for why, value in refused(base, rules)
    if (key, why) not in TAKEN
]


def as_override(case: Key) -> list[str]:
    return ["--overrides", f"{case.key}={yaml(case.value)}"]


def yaml(value: Any) -> str:
    """Return the value as YAML on one line, which equals JSON except for its numbers."""
    if isinstance(value, float):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(str(value), repr(value))
    if isinstance(value, list):
        return f"[{', '.join(map(yaml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {yaml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


@contextmanager
def no_hang() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def snapshot(folder: Path) -> dict[str, str]:
    """Return every file, folder and link below a folder, with its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = (
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else path.stat().st_mode.__str__()
            )
    return found


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit code and output."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


Try = Callable[..., Ended]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Try]:
    """Return a function that runs a command in this process, in a folder inside a folder, and checks the promises of
    every command."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "trajectories.jsonl").write_text('{"precious": true}\n')
    work = tmp_path / "outside" / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):  # with one, a command that is not refused would pay
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("R2V_TEST_TOKEN", "sk-precious")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run(*words: str, codes: Sequence[int] = (2,), may_write: bool = False) -> Ended:
        before = snapshot(tmp_path)
        capsys.readouterr()
        with no_hang():
            try:
                code = main(list(words))
            except SystemExit as left:
                code = int(left.code or 0)
        ended = Ended(code, *capsys.readouterr())
        assert "Traceback" not in ended.err + ended.out, ended.err
        assert not set(ended.err + ended.out) & set("\x1b\x9b\u202e\0"), ended.err
        assert "sk-precious" not in ended.err + ended.out
        assert ended.code in codes, (ended.code, ended.err[-500:])
        if ended.code:
            assert ended.lines and ended.lines[-1].startswith("r2v: "), ended.err
            assert len(ended.lines[-1]) < 2000
        after = snapshot(tmp_path)
        if not may_write:
            assert after == before, after.keys() ^ before.keys()
        return ended

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("case", drawn(KEYS, 110, "bad values"), ids=str)
def test_a_bad_value_of_a_key_is_2_in_one_line(case: Key, attempt: Try) -> None:
    ended = attempt("config", *as_override(case))
    assert len(ended.lines) == 1 and ended.out == "", ended.err
    key = case.key.split(".")
    assert any(".".join(key[: n + 1]) in ended.err for n in range(len(key))), "no key named"


@pytest.mark.parametrize("case", drawn(KEYS, 20, "bad values in files"), ids=str)
def test_a_bad_value_in_a_file_is_2_in_one_line(case: Key, attempt: Try) -> None:
    text = yaml(case.value)
    for word in reversed(case.key.split(".")):
        text = f"{{{word}: {text}}}"
    Path("c.yaml").write_text(text)
    ended = attempt("config", "--config", "c.yaml")
    assert len(ended.lines) == 1 and ended.out == ""


PATH_KEYS = [key for key, _, rules in declared(Config) if any(isinstance(rule, FileOrFolder) for rule in rules)]


@pytest.mark.parametrize("key", PATH_KEYS)
def test_a_pipe_in_the_configuration_is_refused_and_not_waited_for(key: str, attempt: Try) -> None:
    os.mkfifo("fifo")
    for folder, name in (("model", "config.json"), ("adapters", "adapter_config.json")):
        Path(folder).mkdir()
        os.mkfifo(Path(folder, name))
    for path in ("fifo", "./fifo", "model", "adapters"):
        for command in ("config", "plan", "run"):
            ended = attempt(command, "--overrides", f"{key}={path}")
            assert len(ended.lines) == 1 and f"{key} must be a file or a folder, with no pipe" in ended.err, ended.err


def test_paths_of_the_configuration_are_known() -> None:
    assert {"policy.model_name", "hierarchical.problems.path", "hierarchical.calibration"} < set(PATH_KEYS)


def _unbounded() -> Iterator[tuple[str, Range, Any]]:
    """Yield (key, range, a value beyond it) of numbers with a bound that is not on their range."""
    for key, base, rules in declared(Config):
        for rule in rules if base in (int, float) else ():
            if isinstance(rule, Range) and rule.at_most is None and rule.below is None:
                yield key, rule, base(LARGEST * 10)
            if isinstance(rule, Range) and rule.at_least is None and rule.above is None:
                yield key, rule, base(-LARGEST * 10)


UNBOUNDED = list(_unbounded())


@pytest.mark.parametrize(("key", "rule", "value"), drawn(UNBOUNDED, 6, "unbounded"))
def test_a_number_too_large_is_told_the_largest_as_the_reference_tells_it(
    key: str, rule: Range, value: Any, attempt: Try
) -> None:
    ended = attempt("config", "--overrides", f"{key}={value}")
    assert rule.text in ended.err and "1e12" in rule.text, ended.err
    assert rule.allows(LARGEST if value > 0 else -LARGEST) and not rule.allows(value)


STAGES = ("run", "stages", "collect", "perturb", "train_policy", "train_verifier", "evaluate", "ablations", "plan")


@pytest.mark.parametrize("case", drawn(KEYS, 12, "bad values at stages"), ids=str)
def test_every_command_that_takes_a_configuration_refuses_before_it_does_anything(case: Key, attempt: Try) -> None:
    command = STAGES[int(hashlib.sha256(str(case).encode()).hexdigest(), 16) % len(STAGES)]
    assert len(attempt(command, *as_override(case)).lines) == 1


def test_every_key_is_tried_in_every_way_that_its_type_allows() -> None:
    tried = {key: {case.why for case in KEYS if case.key == key} for key, _, _ in declared(Config)}
    assert min(map(len, tried.values())) >= 3  # a path or a remark may be almost any text, but never these
    assert len(KEYS) > 1500
    numbers = [key for key, base, _ in declared(Config) if base in (int, float)]
    assert all({"nan", "inf", "wrong type", "missing value", "secret"} <= tried[key] for key in numbers)


# Options --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A command line that must be refused, or may be if the value happens to be valid."""

    words: tuple[str, ...]
    codes: tuple[int, ...]

    def __str__(self) -> str:
        return (
            " ".join(word if len(word) < 30 else f"{word[:20]}..." for word in self.words)
            .encode("ascii", "backslashreplace")
            .decode()
        )


NEEDED = {
    "verify-results": ("nowhere",),
    "completion": ("bash",),
    "heal": ("nowhere", "bc"),
    "logs": ("bc",),
    "cluster": ("show",),
    "import": (),
    "export": ("new",),
}
"""Required arguments of a command, so that the tested option is the one refused."""
FOLDERS = {"DIR", "FOLDER", "JOB_FOLDER", "CHECKPOINT", "CKPT"}
FILES = {"FILE", "SPEC"}
BAD_NUMBERS = (
    "many",
    "",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1e9",
    "9" * 30,
    "9" * 5000,
    "0x10",
    "1_0_",
    ESCAPE,
    "\u0661e",
)
BAD_WORDS = ("\udcff", NUL, ESCAPE, NEWLINE, BIDI, "../../x", "", "a" * 5000)
UNREADABLE = {
    "nowhere": "missing",
    "folder": "a folder",
    "empty": "an empty file",
    "binary": "bytes",
    "deep": "deep JSON",
    "list": "a list",
    "loop": "a link to itself",
    "below/a/file": "below a file",
    "x" * 300: "too long a name",
    "/dev/null": "a device",
    "fifo": "a pipe",
    "\udcff": "not UTF-8",
    NUL: "NUL",
}
"""Paths of every wrong kind; `make_unreadable` makes them."""


def make_unreadable() -> None:
    Path("folder").mkdir()
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(256)) * 8)
    Path("deep").write_text("[" * 100_000)
    Path("list").write_text("[1, 2]\n")
    Path("loop").symlink_to("loop")
    Path("below").touch()
    os.mkfifo("fifo")


def parsers(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (words, parser) of every command."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield words, parser
    for action in inner:
        for word, below in action.choices.items():
            yield from parsers(below, (*words, word))


PARSERS = dict(parsers(build_parser()))
REFUSES = (2,)
USED = tuple(code for code in EXIT_CODES if code not in (0, 1))


def options() -> Iterator[Option]:
    for command, parser in PARSERS.items():
        needed = NEEDED.get(command[-1], ())
        yield Option((*command, *needed, "--no-such-option"), REFUSES)
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction):
                continue
            name = action.option_strings[-1:]
            for value in bad_values(action):
                rest = () if action.option_strings and needed[:1] == (*name,) else needed
                yield Option((*command, *(rest if name else ()), *name, value), REFUSES)
            if name and action.nargs in (None, "+"):
                yield Option((*command, *needed, *name), REFUSES)


def bad_values(action: argparse.Action) -> Sequence[str]:
    """Return values that this option or argument must refuse with exit code 2."""
    if action.nargs == 0:
        return ()
    if action.choices is not None:
        return ("nonsense", "", ESCAPE, "\udcff")
    if getattr(action.type, "__qualname__", "").startswith(("whole", "decimal")) or action.type in (int, float):
        return BAD_NUMBERS
    if action.type is Path or action.metavar in FILES | FOLDERS:
        return ("\udcff", NUL, "")
    return ("\udcff", NUL, *(BAD_WORDS if action.dest in ("overrides",) else ()))


OPTIONS = list(options())


@pytest.mark.parametrize("case", drawn(OPTIONS, 80, "bad options"), ids=str)
def test_a_bad_option_is_2_in_one_line(case: Option, attempt: Try) -> None:
    ended = attempt(*case.words, codes=case.codes)
    assert len(ended.lines) == 1 and ended.out == "", ended.err


def test_every_option_of_every_command_is_tried() -> None:
    tried = Counter(case.words[0] for case in OPTIONS)
    assert set(tried) == {command[0] for command in PARSERS}
    assert len(OPTIONS) > 600


ALLOWED = {
    ("--config", "empty"),  # all defaults
    ("--output", "nowhere"),  # made
    ("--output", "folder"),  # taken by what makes folders inside
    ("--folder", "nowhere"),  # made: the emulator would serve from it
    ("--folder", "folder"),
    ("--home", "nowhere"),  # made: gigabytes of an engine
    ("--home", "folder"),
    ("--ledger", "nowhere"),
    ("--ledger", "empty"),
}
"""Paths that these options accept."""


def wrong_paths() -> Iterator[Option]:
    for command, parser in PARSERS.items():
        needed = NEEDED.get(command[-1], ())
        for action in parser._actions:
            if not (action.type is Path or action.metavar in FILES | FOLDERS):
                continue
            for path in UNREADABLE:
                name = action.option_strings[-1:]
                rest = () if not name or needed[:1] == (*name,) else needed
                if (*name, path) not in ALLOWED:
                    yield Option((*command, *rest, *name, path), USED)


WRONG_PATHS = list(wrong_paths())


@pytest.mark.parametrize("case", drawn(WRONG_PATHS, 45, "wrong paths"), ids=str)
def test_a_path_of_the_wrong_kind_is_refused_with_a_documented_code(case: Option, attempt: Try) -> None:
    make_unreadable()
    before = snapshot(Path("..").resolve())
    attempt(*case.words, codes=case.codes, may_write=True)
    after = snapshot(Path("..").resolve())
    altered = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    # An attempt begins with its folder, a journal with its own: nothing else is made, no file of the user's changes.
    assert not {name for name in altered if not name.startswith(("work/outputs", "work/results", "work/data"))}
    assert not list(Path("data").glob("runs/*"))


LINES: dict[tuple[str, ...], tuple[int, ...]] = {
    ("heal", "../../x", "bc"): (2,),
    ("heal", "a\x1b[2J", "bc"): (2,),
    ("status", "../.."): (2,),
    ("cancel", "../.."): (2,),
    ("resume", "/etc"): (2,),
    ("logs", "../..", "bc"): (2,),
    ("explain", ESCAPE): (2,),
    ("run_all", "../../x"): (2,),
    ("run", "--from", "../x"): (2,),
    ("run", "--without", ESCAPE): (2,),
    ("cluster", "set", "partition=a\nb"): (2,),
    ("plan", "--gpu", "nan"): (2,),
    ("plan", "--gpu", "-1GiB"): (2,),
    ("plan", "--gpu", "9" * 400): (2,),
    ("plan", "--model", "../x"): (3,),
    ("train_policy", "--resume", "/"): (3,),
    ("providers", "emulate", "--faults", "500@nan"): (2,),
    ("providers", "emulate", "--limits", "openai.requests=nan"): (2,),
    ("providers", "emulate", "--limits", "openai.requests=-1"): (2,),
    ("providers", "emulate", "--timing", "silence=inf"): (2,),
    ("providers", "emulate", "--answer", "../x"): (2,),
    ("game", "run", "--overrides", "rules.payoffs.both=nan"): (2,),
    ("game", "run", "--overrides", "rules.payoffs=[]"): (2,),
    ("game", "run", "--overrides", "rules.memory=???"): (2,),
    ("game", "run", "--overrides", "rules.memory=${oc.env:HOME}", ESCAPE): (2,),
    ("game", "analyse", "/etc"): (3,),
}
"""Command lines whose words have a grammar of their own."""


@pytest.mark.parametrize("words", LINES, ids=lambda words: " ".join(words)[:60].encode("unicode_escape").decode())
def test_a_word_with_a_grammar_of_its_own_is_refused_in_one_line(words: tuple[str, ...], attempt: Try) -> None:
    assert len(attempt(*words, codes=LINES[words]).lines) == 1


RUN_IDS = [
    *PATHS,
    "/",
    "../outside",
    "data/runs",
    "..%2f..",
    "run\nid",
    ESCAPE,
    BIDI,
    "x" * 300,
    "",
    " ",
    ".hidden",
    "desk_scripted_expert_20260101T000000/../../..",
]


@pytest.mark.parametrize("run_id", RUN_IDS)
def test_a_run_id_never_leads_out_of_the_runs(run_id: str, attempt: Try) -> None:
    for words in (("collect", f"--run-id={run_id}"), ("collect", "--cancel", f"--run-id={run_id}")):
        assert len(attempt(*words).lines) == 1
    assert len(attempt("perturb", "--overrides", f"data.runs=[{json.dumps(run_id)}]").lines) == 1


@pytest.mark.parametrize("prefix", [one for one in RUN_IDS if one])
def test_a_prefix_never_leads_out_of_the_folder(prefix: str, attempt: Try) -> None:
    for command in ("perturb", "stages", "evaluate", "run"):
        attempt(command, "--overrides", f"prefix={json.dumps(prefix)}")


def test_a_folder_that_is_no_run_is_left_as_it_is(attempt: Try) -> None:
    """It is neither emptied nor given a manifest, whatever its name among the runs."""
    for name in ("notes", "desk_scripted_expert_20260101T000000"):
        folder = Path("data/runs") / name
        folder.mkdir(parents=True)
        (folder / "trajectories.jsonl").write_text('{"precious": true}\n')
        ended = attempt("collect", "--run-id", name, codes=(2, 3), may_write=True)
        assert "run_manifest.json" in ended.err
        assert [path.name for path in folder.iterdir()] == ["trajectories.jsonl"]
        assert (folder / "trajectories.jsonl").read_text() == '{"precious": true}\n'


# Anything at all ------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=40) | st.text(st.sampled_from(string.printable + "\x1b\x9b\u202e"), max_size=40)
TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SECTIONS = [item.name for item in dataclasses.fields(Config)]
CALM = settings(
    max_examples=1500 if trust.whole_suites else 30,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@CALM
@given(text=TEXT | st.binary(max_size=60))
def test_whatever_a_configuration_file_holds(text: str | bytes, attempt: Try) -> None:
    Path("c.yaml").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    ended = attempt("config", "--config", "c.yaml", codes=(0, 2))
    assert len(ended.lines) == (1 if ended.code else 0)


@CALM
@given(section=st.sampled_from(SECTIONS), tree=TREE)
def test_whatever_tree_a_section_holds(section: str, tree: Any, attempt: Try) -> None:
    Path("c.yaml").write_text(f"{section}: {yaml(tree)}")
    attempt("config", "--config", "c.yaml", codes=(0, 2))


@CALM
@given(key=st.sampled_from([*(key for key, _, _ in declared(Config)), "env.options.x"]), value=TEXT)
def test_whatever_is_assigned_to_a_key(key: str, value: str, attempt: Try) -> None:
    attempt("config", "--overrides", f"{key}={value}", codes=(0, 2))


@CALM
@given(words=st.lists(st.sampled_from(sorted({c[0] for c in PARSERS} - {"providers", "game"})) | TEXT, max_size=4))
def test_whatever_words_are_typed(words: list[str], attempt: Try) -> None:
    known = {command[0] for command in PARSERS}
    if words and words[0] in known and words[0] not in ("config", "stages"):
        words = ["config", *words]  # a valid command would run
    attempt(*words, codes=(0, 2))
