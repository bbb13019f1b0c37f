"""Errors: the exceptions of R2V, the exit code of each, and the names of every kind of failure.

    R2VError
    ├── UsageError          2   usage            an option or a configuration value that is not allowed
    ├── InputError          3   input            an input file that is missing, cut, malformed or leaks between splits
    ├── EmptyResult         4   empty            the stage ran and nothing was left; the counts say where it went
    ├── EnvironmentFault    5   environment      a disk, a browser, a provider: not the user's doing
    ├── LeaseConflict       6   lease_conflict   another process is working on the same thing
    └── Interrupted        75   interrupted      stopped on request; the same command continues

A message is one line: what was asked, what was got, what is allowed, the remedy. The command line prints it without a
traceback and exits with the code; a library user catches the class.

This file is the only one that knows exit codes and kinds of failure. Error records (r2v.storage.record), ranks
(r2v.distributed) and the healing of Slurm jobs (r2v.slurm.healing) use the names given here.
"""

from __future__ import annotations

import difflib
import errno
import re
import shlex
from collections.abc import Iterable, Sequence
from importlib.metadata import requires
from typing import ClassVar, Literal, cast, get_args

FailureKind = Literal[
    "usage",
    "input",
    "empty",
    "environment",
    "lease_conflict",
    "interrupted",
    "bug",
    "cuda_oom",
    "host_oom",
    "machine",
    "file_system",
    "installation",
    "stalled",
    "killed",
    "timeout",
    "preempted",
    "node_fail",
    "cancelled",
    "dependency",
    "no_log",
    "unknown",
]
"""Why a stage failed. The first six are the exceptions above; `bug` is any other one; `cuda_oom` and `host_oom` are a
GPU or a machine out of memory; `machine` is a GPU, its driver or its links that failed; `file_system` is one that fails
for a moment, as a network's does, and went on failing; `installation` is software that a node lacks (an environment, a
module); `stalled` is a stage that its watchdog ended; `killed` is a signal that nothing explains. The rest are ends
that Slurm alone can tell of: its time limit, preemption, a lost node, scancel, a failed parent, a log file that could
not be opened."""

CUDA_OOM = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|Cuda failure \d* ?'out of memory'"
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|torch\.(cuda\.)?OutOfMemoryError"
)
"""A GPU out of memory, in the words of torch, CUDA, cuBLAS, cuDNN or NCCL. Search for it before HOST_OOM, which
matches most of these as well."""

HOST_OOM = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory: you tried to allocate"
    r"|exceeded( job| step)? memory limit|oom[-_ ]kill|out of memory|OUT_OF_MEMORY"
    r"|failed to map segment from shared object|can't start new thread|std::bad_alloc",
    re.IGNORECASE,
)
"""A machine, or a job's share of one, out of memory, in the words of torch, the C library, Slurm or the kernel."""

MACHINE_FAULT = re.compile(
    r"uncorrectable (NVLink|ECC)|\bECC error|\bXid\b|fallen off the bus|GPU is lost|GPU requires reset"
    r"|Found no NVIDIA driver|CUDA driver initialization failed|(initialize|Initialize) NVML"
    r"|CUDA error: (unknown error|hardware stack error|system not yet initialized|unspecified launch failure)"
    r"|CUDA unknown error|no CUDA-capable device|No CUDA GPUs are available"
    r"|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError"
    r"|Watchdog caught collective operation timeout|NCCL preflight"
)
"""A GPU, its driver or the links between GPUs that failed, in the words of torch, CUDA, NCCL, NVML or the kernel;
nothing that a program brings about by itself, as a wrong index or a wrong argument of a collective does. Search for
CUDA_OOM before it."""

NOT_INSTALLED = re.compile(
    r"ModuleNotFoundError: No module named|: command not found|error while loading shared libraries"
    r"|Unable to locate a modulefile|Lmod has detected the following error|: No such file or directory\s*$",
    re.MULTILINE,
)
"""Software that a node lacks, in the words of Python, the shell, the loader or the modules of a site."""

DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a full, exhausted or read-only disk: the environment's fault, not ours."""
UNSTEADY = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a file system that may be gone a moment later, or on another node."""
NOT_USABLE = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EINVAL,
    errno.ENXIO,
)
"""Errors of a file or folder that is missing, of the wrong kind, or not the user's: a bad input. All others that an
operating system has are failures of a machine, a disk or a network."""
UNREADABLE = (
    "UnicodeDecodeError",
    "JSONDecodeError",
    "RecursionError",
    "SafetensorError",
    "UnpicklingError",
    "BadZipFile",
)
"""Exceptions of libraries that a damaged or hostile file causes. Who reads a file names it; this is the net below."""


class R2VError(Exception):
    """Base of all errors that a user can cause or mend."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[FailureKind] = "bug"
    meaning: ClassVar[str] = "a bug of R2V, or out of memory"
    """What the exit code means, for help and documentation."""


class UsageError(R2VError):
    """An option, argument or configuration value that is not allowed."""

    exit_code, kind, meaning = 2, "usage", "usage or config"


class InputError(R2VError):
    """An input that is missing, incomplete, malformed, or breaks a split."""

    exit_code, kind, meaning = 3, "input", "bad or incomplete input"


class MissingInput(InputError):
    """An input that another command makes: `command`, as the words after `r2v`, or () where it is not known."""

    def __init__(self, problem: str, command: Sequence[str] = ()) -> None:
        remedy = f"run `{shlex.join(('r2v', *command))}` with this configuration"
        super().__init__(f"{problem}: {remedy if command else 'run the stage that makes it first'}")
        self.problem, self.command = problem, tuple(command)

    def configured(self, options: Sequence[str]) -> InputError:
        """Return the error of a command line, whose options name the configuration."""
        if not self.command:
            return self
        return InputError(f"{self.problem}: run `{shlex.join(('r2v', *self.command, *options))}`")


class EmptyResult(R2VError):
    """A stage that ran to its end and has nothing to hand on."""

    exit_code, kind, meaning = 4, "empty", "empty result"


class EnvironmentFault(R2VError):
    """The machine or a service failed: full disk, dead browser, refused request."""

    exit_code, meaning = 5, "environment or provider failure"
    kind: ClassVar[FailureKind] = "environment"


class FileSystemFault(EnvironmentFault):
    """A file system went on failing in a way that passes: the same command goes on, elsewhere if need be."""

    kind = "file_system"

    @classmethod
    def of(cls, error: OSError) -> FileSystemFault:
        """The fault in an error of the system."""
        name = "" if error.filename is None else f"{error.filename}: "
        return cls(
            f"{name}{error.strerror or error}: the file system fails; run the same command again, nothing is lost"
        )


class LeaseConflict(R2VError):
    """Another process holds the lease on the same artifact, run or chain, or works on it in the queue."""

    exit_code, kind, meaning = 6, "lease_conflict", "another process works on the same thing"

    def __init__(self, message: str = "", *, slurm_job: str | None = None) -> None:
        super().__init__(message)
        self.slurm_job = slurm_job
        """That of the process which holds the lease, "" for one outside of Slurm; None where nobody is known to."""


class Interrupted(R2VError):
    """Stopped on request with everything finished kept; the same command continues."""

    exit_code, kind, meaning = 75, "interrupted", "interrupted, run again to continue"


_ERRORS: tuple[type[R2VError], ...] = (
    UsageError,
    InputError,
    EmptyResult,
    EnvironmentFault,
    LeaseConflict,
    Interrupted,
)
BY_EXIT_CODE: dict[int, type[R2VError]] = {error.exit_code: error for error in _ERRORS}
"""Exit code -> the exception that ends a command with it."""

EXIT_CODES: dict[int, str] = {
    0: "ok",
    R2VError.exit_code: R2VError.meaning,
    **{code: error.meaning for code, error in BY_EXIT_CODE.items()},
}
"""Exit code -> what it means, in the order of the codes."""


def kind_named(name: object) -> FailureKind | None:
    """The kind of failure that a record calls `name`; None where there is no such kind.

    >>> kind_named("cuda_oom"), kind_named("no such kind")
    ('cuda_oom', None)
    """
    return cast(FailureKind, name) if name in get_args(FailureKind) else None


def failure_of(error: BaseException) -> tuple[FailureKind, int]:
    """The kind of failure that an exception is, and the exit code of a command that it ends."""
    if isinstance(error, R2VError):
        return error.kind, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return Interrupted.kind, Interrupted.exit_code
    if type(error).__name__ == "OutOfMemoryError" or CUDA_OOM.search(str(error)):
        return "cuda_oom", R2VError.exit_code
    if isinstance(error, MemoryError) or HOST_OOM.search(str(error)):
        return "host_oom", R2VError.exit_code
    if MACHINE_FAULT.search(str(error)):
        return "machine", R2VError.exit_code
    if isinstance(error, ModuleNotFoundError):
        return "installation", R2VError.exit_code
    known = as_r2v_error(error)
    return (known.kind, known.exit_code) if known is not None else (R2VError.kind, R2VError.exit_code)


def as_r2v_error(error: BaseException) -> R2VError | None:
    """What an exception of the system, or of a library that reads a file, is among our errors; None for a bug of ours,
    for a machine out of memory, and for a signal."""
    if isinstance(error, R2VError):
        return error
    if isinstance(error, (MemoryError, KeyboardInterrupt)) or HOST_OOM.search(str(error)):
        return None
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, ModuleNotFoundError) and error.name and (extra := _extra_of(error.name)):
        return EnvironmentFault(
            f"the package {error.name} is not installed, which this command needs: pip install 'r2v[{extra}]' (in a "
            f"checkout: pip install -e '.[{extra}]')"
        )
    if type(error).__name__ in UNREADABLE or (isinstance(error, RuntimeError) and "Symlink loop" in str(error)):
        reason = " ".join(str(error).split())[:300]
        return InputError(
            f"an input file cannot be read ({type(error).__name__}: {reason}); R2V_TRACEBACK=1 shows where"
        )
    return None


def _of_system(error: OSError) -> R2VError:
    """The operating system's refusal, with the name of the file that it refused."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    if error.errno in DISK_REFUSES:
        return EnvironmentFault(
            f"cannot write {' to '.join(names) or 'a file'}: {reason}; make room and run the same command again, "
            "finished work is kept"
        )
    if error.errno in UNSTEADY and (names or error.errno != errno.ETIMEDOUT):  # without a name it may be a socket's
        return FileSystemFault.of(error)
    if error.errno in NOT_USABLE:
        return InputError(f"{' and '.join(names) or 'a file'}: {reason}; name another, or mend it")
    return EnvironmentFault(f"{f'{names[0]}: ' if names else ''}{reason}; mend it and run the same command again")


_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Top-level modules whose package has another name."""


def _extra_of(module: str) -> str | None:
    """Return the extra of R2V that installs a module; None if none does."""
    top = module.partition(".")[0]
    package = _DISTRIBUTIONS.get(top, top).replace("_", "-")
    for requirement in requires("r2v") or ():
        name, _, marker = requirement.partition(";")
        extra = re.search(r'extra == "([\w-]+)"', marker)
        if extra and re.match(r"[\w.-]+", name.strip())[0].replace("_", "-") == package:  # type: ignore[index]
            return extra[1]
    return None


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A hint naming the allowed spelling closest to `word`, or listing a few when none is close.

    >>> nearest("lorar", ["lora_r", "lr"])
    'did you mean lora_r?'
    >>> nearest("run_1", [])
    'there is none'
    """
    options = sorted(allowed)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    shown = ", ".join(options[:12]) + (", ..." if len(options) > 12 else "")
    return f"allowed: {shown}" if options else "there is none"
