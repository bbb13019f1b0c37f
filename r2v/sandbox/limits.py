"""Resource limits of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from r2v.errors import UsageError

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one sandbox; those on CPU, memory and files apply to each process. Raises UsageError for a limit of 0
    or less."""

    cpu_seconds: int = 5
    """CPU seconds of a process."""
    wall_seconds: float = 10.0
    """Wall-clock seconds of the whole sandbox."""
    memory: int = 512 * MIB
    """Bytes of a process's address space."""
    processes: int = 1
    """Processes and threads at a time; 1 forbids starting any."""
    file_bytes: int = MIB
    """Bytes of a file."""
    disk_bytes: int = 16 * MIB
    """Bytes of all files in home, and as many in /tmp. They are in memory and end with the sandbox."""
    files: int = 10_000
    """Files and folders in home, and as many in /tmp."""
    open_files: int = 64
    """Open files of a process."""
    output_bytes: int = MIB
    """Bytes of output, and of returned files; the sandbox is stopped above it."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UsageError(f"Limits.{name} must be above 0, got {value}")
