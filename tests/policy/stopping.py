"""A signal in the middle of a training that runs in this very process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r2v.storage import record


@contextmanager
def stopped_by_a_signal(folder: Path) -> Iterator[None]:
    """Send SIGTERM to this process as soon as the record of a training shows that it is under way."""
    records, over = folder.with_name(f"{folder.name}-record"), threading.Event()

    def watch() -> None:
        while not over.is_set():
            lines = events.read_text().splitlines() if (events := records / record.EVENTS).exists() else []
            if any(json.loads(line)["total"] for line in lines):
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.005)

    before, handler = os.environ.get(record.FOLDER), signal.signal(signal.SIGTERM, lambda *_: None)
    os.environ[record.FOLDER] = str(records)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGTERM, handler)
        os.environ.pop(record.FOLDER)
        if before is not None:
            os.environ[record.FOLDER] = before
