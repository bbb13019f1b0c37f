"""Limits: what code in a sandbox may use before it is stopped."""

from __future__ import annotations

from dataclasses import dataclass

from r2v.errors import UsageError

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one sandbox. Those on CPU, memory and files hold for each of its processes. Raises UsageError for a
    limit that is not above 0."""

    cpu_seconds: int = 5
    """CPU seconds."""
    wall_seconds: float = 10.0
    """Seconds by the clock, for all of it."""
    memory: int = 512 * MIB
    """Bytes of address space."""
    processes: int = 1
    """Processes and threads at a time; 1: it can start no other."""
    file_bytes: int = MIB
    """Bytes of a file."""
    disk_bytes: int = 16 * MIB
    """Bytes of all files in its home, and as many in /tmp. They lie in memory, and none outlives the sandbox."""
    files: int = 10_000
    """Files and folders in its home, and as many in /tmp."""
    open_files: int = 64
    """Open files."""
    output_bytes: int = MIB
    """Bytes of output, and of what it may hand out in files; above it is stopped."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UsageError(f"Limits.{name} must be above 0, got {value}")
