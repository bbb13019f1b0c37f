"""Errors: R2V's exceptions with their exit codes, and the kinds of failures.

    R2VError
    ├── UsageError          2   usage            an option or a configuration value that is not allowed
    ├── InputError          3   input            an input file that is missing, cut, malformed or leaks between splits
    ├── EmptyResult         4   empty            the stage ran without a result; the counts tell the reasons
    ├── EnvironmentFault    5   environment      a disk, a browser, a provider: not caused by the user
    ├── LeaseConflict       6   lease_conflict   another process is working on the same thing
    └── Interrupted        75   interrupted      stopped on request; the same command continues

A message is one line: the request, the value, the allowed values, the remedy. The command line prints it without a
traceback and exits with the code; a library user catches the class.

Only this file defines exit codes and kinds of failures. Error records (r2v.storage.record), ranks (r2v.distributed) and
the healing of Slurm jobs (r2v.slurm.healing) use its names.
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
"""Kinds of a stage's failure. The first six are the exceptions above; `bug` is any other exception; `cuda_oom` and
`host_oom` are a GPU or a machine out of memory; `machine` is a failed GPU, driver or link; `file_system` is a transient
failure, as of a network file system, that persisted; `installation` is software missing on a node (an environment, a
module); `stalled` is a stage ended by its watchdog; `killed` is an unexplained signal. The rest are ends that only
Slurm reports: its time limit, preemption, a lost node, scancel, a failed parent, a log file that could not be
opened."""

CUDA_OOM = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|Cuda failure \d* ?'out of memory'"
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|torch\.(cuda\.)?OutOfMemoryError"
)
"""Messages of torch, CUDA, cuBLAS, cuDNN and NCCL for a GPU out of memory. Search for it before HOST_OOM, which matches
most of them too."""

HOST_OOM = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory: you tried to allocate"
    r"|exceeded( job| step)? memory limit|oom[-_ ]kill|out of memory|OUT_OF_MEMORY"
    r"|failed to map segment from shared object|can't start new thread|std::bad_alloc",
    re.IGNORECASE,
)
"""Messages of torch, the C library, Slurm and the kernel for a machine, or a job's share of it, out of memory."""

MACHINE_FAULT = re.compile(
    r"uncorrectable (NVLink|ECC)|\bECC error|\bXid\b|fallen off the bus|GPU is lost|GPU requires reset"
    r"|Found no NVIDIA driver|CUDA driver initialization failed|(initialize|Initialize) NVML"
    r"|CUDA error: (unknown error|hardware stack error|system not yet initialized|unspecified launch failure)"
    r"|CUDA unknown error|no CUDA-capable device|No CUDA GPUs are available"
    r"|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError"
    r"|Watchdog caught collective operation timeout|NCCL preflight"
)
"""Messages of torch, CUDA, NCCL, NVML and the kernel for a failed GPU, driver or link between GPUs; none that a program
can cause, such as by a wrong index or argument of a collective. Search for CUDA_OOM before it."""

NOT_INSTALLED = re.compile(
    r"ModuleNotFoundError: No module named|: command not found|error while loading shared libraries"
    r"|Unable to locate a modulefile|Lmod has detected the following error|: No such file or directory\s*$",
    re.MULTILINE,
)
"""Messages of Python, the shell, the loader and a site's modules for software missing on a node."""

DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a full, exhausted or read-only disk: faults of the environment."""
UNSTEADY = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a file system that may be transient, or limited to a node."""
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
"""Errors of a file or folder that is missing, of the wrong kind, or not the user's: a bad input. All other errors of an
operating system are failures of a machine, a disk or a network."""
UNREADABLE = (
    "UnicodeDecodeError",
    "JSONDecodeError",
    "RecursionError",
    "SafetensorError",
    "UnpicklingError",
    "BadZipFile",
)
"""Exceptions of libraries for a damaged or hostile file, if its reader did not catch them."""


class R2VError(Exception):
    """Base of all errors that a user can cause or remedy."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[FailureKind] = "bug"
    meaning: ClassVar[str] = "a bug of R2V, or out of memory"
    """Meaning of the exit code, for help and documentation."""


class UsageError(R2VError):
    """An option, argument or configuration value that is not allowed."""

    exit_code, kind, meaning = 2, "usage", "usage or config"


class InputError(R2VError):
    """An input that is missing, incomplete, malformed, or breaks a split."""

    exit_code, kind, meaning = 3, "input", "bad or incomplete input"


class MissingInput(InputError):
    """Missing output of another command. `command`: the words after `r2v`, or () if unknown."""

    def __init__(self, problem: str, command: Sequence[str] = ()) -> None:
        remedy = f"run `{shlex.join(('r2v', *command))}` with this configuration"
        super().__init__(f"{problem}: {remedy if command else 'run the stage that makes it first'}")
        self.problem, self.command = problem, tuple(command)

    def configured(self, options: Sequence[str]) -> InputError:
        """Return the error for a command line, with its options for the configuration in the remedy."""
        if not self.command:
            return self
        return InputError(f"{self.problem}: run `{shlex.join(('r2v', *self.command, *options))}`")


class EmptyResult(R2VError):
    """A stage that completed without any result."""

    exit_code, kind, meaning = 4, "empty", "empty result"


class EnvironmentFault(R2VError):
    """The machine or a service failed: full disk, dead browser, refused request."""

    exit_code, meaning = 5, "environment or provider failure"
    kind: ClassVar[FailureKind] = "environment"


class FileSystemFault(EnvironmentFault):
    """A transient failure of a file system that persisted; the same command continues, possibly on another node."""

    kind = "file_system"

    @classmethod
    def of(cls, error: OSError) -> FileSystemFault:
        """Return the fault for an error of the operating system."""
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
        """Slurm job of the lease's holder; "" for a process outside Slurm, None for an unknown holder."""


class Interrupted(R2VError):
    """Stopped on request, with finished work kept; the same command continues."""

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
"""Exit code -> its exception."""

EXIT_CODES: dict[int, str] = {
    0: "ok",
    R2VError.exit_code: R2VError.meaning,
    **{code: error.meaning for code, error in BY_EXIT_CODE.items()},
}
"""Exit code -> its meaning, in the order of the codes."""


def kind_named(name: object) -> FailureKind | None:
    """Return the kind of failure with this name; None for an unknown name.

    >>> kind_named("cuda_oom"), kind_named("no such kind")
    ('cuda_oom', None)
    """
    return cast(FailureKind, name) if name in get_args(FailureKind) else None


def failure_of(error: BaseException) -> tuple[FailureKind, int]:
    """Return the kind of failure of an exception, and the exit code of a command that it ends."""
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
    ours = as_r2v_error(error)
    return (ours.kind, ours.exit_code) if ours is not None else (R2VError.kind, R2VError.exit_code)


def as_r2v_error(error: BaseException) -> R2VError | None:
    """Return the R2VError for an exception of the system or of a library that reads a file; None for a bug, a machine
    out of memory, and a signal."""
    if isinstance(error, R2VError):
        return error
    if isinstance(error, (MemoryError, KeyboardInterrupt)) or HOST_OOM.search(str(error)):
        return None
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("r2v."):
        return EnvironmentFault(
            f"{error.name}, a part of R2V itself, is missing: its installation is damaged, or was replaced while this "
            "command ran; install R2V again and run the same command, finished work is kept"
        )
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
    """Return the R2VError for an error of the operating system, with the file's name."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    if error.errno in DISK_REFUSES:
        return EnvironmentFault(
            f"cannot write {' to '.join(names) or 'a file'}: {reason}; make room and run the same command again, "
            "finished work is kept"
        )
    if error.errno in UNSTEADY and (
        names or error.errno != errno.ETIMEDOUT
    ):  # without a file's name it may be a socket's
        return FileSystemFault.of(error)
    if error.errno in NOT_USABLE:
        return InputError(f"{' and '.join(names) or 'a file'}: {reason}; name another, or mend it")
    return EnvironmentFault(f"{f'{names[0]}: ' if names else ''}{reason}; mend it and run the same command again")


_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Top-level module -> package of another name."""


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
    """Return a hint with the allowed spelling closest to `word`, or with a few if none is close.

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
