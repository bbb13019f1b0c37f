"""README.md: short, its links hold on a package index too, and its Python asks a served bundle."""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from r2v.config import load
from r2v.emulator import Emulator
from r2v.pipeline.write_bundle import write_bundle
from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.server import listening
from tests.docs.pages import REPOSITORY, blocks_of
from tests.serve.stub import in_thread
from tests.trust import MICRO

README = REPOSITORY / "README.md"
TEXT = README.read_text()
OURS = re.compile(
    r"https://(?:github\.com/r2v-agent/r2v/(?:blob|tree)/main|raw\.githubusercontent\.com/r2v-agent/r2v/main)/"
)
LLM = "gpt-6.1-terra"


def test_it_is_short_and_the_changelogs_section_too() -> None:
    assert len(TEXT.splitlines()) <= 150
    _, section = (REPOSITORY / "CHANGELOG.md").read_text().split("## [0.1.0]")
    assert len(section.split("\n## ")[0].splitlines()) <= 40


def test_every_link_is_absolute_and_leads_to_a_file_that_is_here() -> None:
    """The long description of a package is shown on an index, where a relative link is broken."""
    links = re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', TEXT)
    addresses = [first or second for first, second in links]
    assert addresses and all(address.startswith("https://") for address in addresses)
    ours = [OURS.sub("", address).partition("#")[0] for address in addresses if OURS.match(address)]
    assert len(ours) > 10 and [path for path in ours if not (REPOSITORY / path).exists()] == []


def test_the_duration_of_the_first_command_is_the_measured_one() -> None:
    with (REPOSITORY / "docs" / "results" / "mrp_runs.csv").open(newline="") as file:
        seconds = [int(row["CPU-seconds"]) for row in csv.DictReader(file)]
    for page in (TEXT, (REPOSITORY / "docs" / "index.md").read_text()):
        assert f"{min(seconds)} to {max(seconds)} seconds" in " ".join(page.split())


def test_its_python_asks_a_served_bundle(micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in blocks_of(README) if block.language == "python"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    write_bundle(load(str(MICRO)), tmp_path / "bundle", micro_run)
    with Emulator(answer="desk", models=[LLM]) as emulator:
        teacher = {"provider": "openai", "model_name": LLM, "base_url": emulator.openai_url, "max_usd": 20.0}
        config = load({"teacher": {**teacher, "usd_in": 1.0, "usd_out": 4.0}, "serve": {"port": 0}})

        async def serve(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
            keys = {"client": "k" * 20}
            async with listening(config, tmp_path, record=True, keys=keys, bundle=tmp_path / "bundle") as place:
                ready(place)
                await stop.wait()

        with in_thread(serve) as place, redirect_stdout(StringIO()) as printed:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{place.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "k" * 20)
            exec(compile(block.text, str(README), "exec"), {})
    (turn,) = [row for row in read_traffic(place.folder) if row["kind"] == "turn"]
    assert turn["decision"]["source"] == "llm" and printed.getvalue().strip()
