"""Extension points: a named object is used only if it is of the required kind, and checking that runs no code."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Protocol

import pytest

from r2v.config import load
from r2v.envs.base import load_benchmark
from r2v.errors import UsageError
from r2v.extensions import load_class, load_function, source_file, source_sha256


class Greeter(Protocol):
    name: str

    def greet(self, who: str) -> str: ...


SOURCE = """
class Polite:
    name = "polite"

    def greet(self, who):
        return f"good day, {who}"


class Silent:
    name = "silent"


def greet(who):
    return f"hello, {who}"


def anything(*words):
    return words


NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the package `greetings`, whose modules leave a mark when they are imported."""
    mark = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + ' ')\n"
    package = tmp_path / "greetings" / "deep"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.write_text(mark)
    (package / "world.py").write_text(mark + SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in [name for name in sys.modules if name.partition(".")[0] == "greetings"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_a_class_with_the_methods_of_the_protocol_is_loaded_and_one_line_says_so_first(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "r2v"):
        loaded = load_class("a.key", "greetings.deep.world:Polite", (), Greeter)
    assert loaded().greet("you") == "good day, you"
    assert f"key=a.key path=greetings.deep.world:Polite file={folder}/greetings/deep/world.py" in caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Silent", "is no Greeter: it lacks greet"),
        ("greet", "is a function, not a class"),
        ("NUMBER", "is a int, not a class"),
        ("Polit", "did you mean Polite"),
    ],
)
def test_what_is_no_such_class_is_refused(name: str, words: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=words):
        load_class("a.key", f"greetings.deep.world:{name}", (), Greeter)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("anything", r"takes \(words\); name a function of \(who\)"),
        ("Polite", "is a type; name a function"),
        ("NUMBER", "is a int; name a function"),
    ],
)
def test_what_is_no_such_function_is_refused(name: str, words: str, folder: Path) -> None:
    assert load_function("a.key", "greetings.deep.world:greet", (), ("who",))("you") == "hello, you"
    with pytest.raises(UsageError, match=words):
        load_function("a.key", f"greetings.deep.world:{name}", (), ("who",))


@pytest.mark.parametrize(
    "spec", ["os:system", "subprocess:Popen", "json:dumps", "importlib.util:find_spec", "os:execv"]
)
def test_pythons_own_modules_are_no_extensions(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a module of Python itself"):
        load_benchmark(spec, {"command": f"touch {tmp_path / 'pwned'}", "args": ["touch", str(tmp_path / "pwned")]})
    with pytest.raises(UsageError, match="is a module of Python itself"):
        load_function("a.key", spec, (), ("problem", "answer"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", ["a b:c", "a.b", "a:b:c", "../a:b", "a\n:b", ":b", "a:", "a..b:c", "a:b()", "é:b"])
def test_what_is_no_path_is_never_looked_for(spec: str, folder: Path) -> None:
    with pytest.raises(UsageError, match="unknown"):
        load_class("a.key", spec, (), Greeter)


def test_the_content_of_a_module_is_read_without_importing_it_or_the_packages_around_it(folder: Path) -> None:
    before = source_sha256("a.key", "greetings.deep.world:greet")
    file = folder / "greetings" / "deep" / "world.py"
    assert source_file("greetings.deep.world:greet") == file
    file.write_text(file.read_text() + "\n# edited\n")
    assert source_sha256("a.key", "greetings.deep.world:greet") != before
    with pytest.raises(UsageError, match="there is no module greetings.deep.nothing; searched"):
        source_sha256("a.key", "greetings.deep.nothing:greet")
    assert not (folder / "imported").exists()


def test_a_namespace_package_has_no_content_of_its_own(folder: Path) -> None:
    (folder / "space" / "inner").mkdir(parents=True)
    (folder / "space" / "inner" / "world.py").write_text("")
    assert source_sha256("a.key", "space.inner:x") == ""
    assert source_file("space.inner.world:x") == folder / "space" / "inner" / "world.py"


def test_a_configuration_is_read_without_importing_what_it_names(folder: Path) -> None:
    names = [
        "env.benchmark=greetings.deep.world:Polite",
        "teacher.provider=greetings.deep.world:Polite",
        "router.model=greetings.deep.world:Polite",
        "hierarchical.problems.checker=greetings.deep.world:greet",
        "hierarchical.guidance.reward=greetings.deep.world:greet",
        "perturbations.extra={'greetings.deep.world:NUMBER': {prob: 0.1}}",
    ]
    assert load(None, names).env.benchmark == "greetings.deep.world:Polite"
    assert not (folder / "imported").exists()
