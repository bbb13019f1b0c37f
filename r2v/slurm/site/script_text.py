"""Text of the scripts, read and written byte for byte: bytes that are not UTF-8, a byte-order mark, CR LF.

    text = read_script(path)              # every byte is in it: one that is not UTF-8 as a lone surrogate
    write_script(path, text)              # unchanged text gives the same bytes
    printable(text)                       # to print or store: such a byte becomes U+FFFD
    flaw_of(path)                         # None, or line, byte and the remedy

sbatch accepts a Latin-1 byte in a comment, and refuses a byte-order mark and CR LF. R2V reads all of them, so that no
job of a chain fails for a script that was edited meanwhile, and reports them on commands that a person types.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.storage.files import replacing
from r2v.storage.paths import SCRIPTS

BOM = "\ufeff"
ENVIRONMENT = SCRIPTS / "env.sh"
"""The script that every job sources first."""
_RESTORE = "restore it, or copy that of R2V's release"


def read_script(path: Path) -> str:
    """Return the text of a script, line ends unchanged. Raises InputError if it is missing or no text."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: a folder, a pipe or a device; {_RESTORE}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"no script {path}; run this in a project that `r2v init DIR` made, or in R2V's checkout"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); chmod u+r {shlex.quote(str(path))}") from None
    if b"\0" in data:
        wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        remedy = f"convert it: {_converted(path, 'utf-16')}" if wide else _RESTORE
        raise InputError(f"{path}: {'UTF-16' if wide else 'binary'}, which neither sbatch nor bash reads; {remedy}")
    return data.decode(errors="surrogateescape")


def write_script(path: Path, text: str) -> None:
    """Write a script's text, keeping its mode. Raises EnvironmentFault if it cannot be written."""
    mode = path.stat().st_mode if path.exists() else None
    with replacing(path) as file:
        file.write(text.encode(errors="surrogateescape"))
    if mode is not None:
        path.chmod(mode)


def printable(text: str) -> str:
    """Return the text with U+FFFD for bytes that are not UTF-8, which messages and JSON cannot hold."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def script_lines(text: str) -> list[str]:
    """Return the lines as sbatch and bash split them, each with its end: a form feed begins none."""
    return re.findall(r".*\n|.+", text)


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """Unwanted bytes in a script, in env.sh or in the site profile, and the remedy."""

    path: Path
    what: str
    remedy: str
    ends_jobs: bool = False
    """True if every job of the project fails at it."""

    @property
    def line(self) -> str:
        """The flaw in one line."""
        return f"{self.path}: {self.what}; mend it: {self.remedy}"


def flaw_of(path: Path) -> Flaw | None:
    """Return all flaws of a file as one; None for a sound file. Raises InputError as `read_script` does."""
    text, quoted = read_script(path), shlex.quote(str(path))
    wrong, remedies = list[str](), list[str]()
    is_shell, is_environment = path.suffix == ".sh", path.name == ENVIRONMENT.name
    if is_shell and text.startswith(BOM):
        wrong.append("it begins with a byte-order mark, which sbatch and bash take for a word")
        remedies.append(rf"sed -i '1s/^\xEF\xBB\xBF//' {quoted}")
    if is_shell and (end := text.find("\r\n")) >= 0:
        line = text.count("\n", 0, end) + 1
        effect = "at which the shell of every job ends" if is_environment else "which sbatch refuses"
        wrong.append(f"line {line} ends in CR LF, {effect}")
        remedies.append(rf"sed -i 's/\r$//' {quoted}")
    if (odd := re.search(r"[\udc80-\udcff]", text)) is not None:
        offset = len(text[: odd.start()].encode(errors="surrogateescape"))
        line = text.count("\n", 0, odd.start()) + 1
        wrong.append(f"line {line} has byte 0x{ord(odd[0]) - 0xDC00:02X}, at offset {offset}, which is not UTF-8")
        mixed = re.search(r"[^\x00-\x7f\udc80-\udcff]", text.removeprefix(BOM))  # iconv would damage the UTF-8 in it
        remedies.append(f"retype line {line}" if mixed else _converted(path, "latin1"))
    ends_jobs = is_environment and "\r\n" in text
    return Flaw(path=path, what="; ".join(wrong), remedy="; ".join(remedies), ends_jobs=ends_jobs) if wrong else None


def flaws(root: Path = Path()) -> list[Flaw]:
    """Return the flaws of the scripts, of env.sh and of the site profile."""
    paths = sorted(path for kind in ("*.sh", "*.yaml") for path in (root / SCRIPTS).glob(kind))
    damaged = list[Flaw]()
    for path in paths:
        with suppress(InputError):  # the command that needs an unreadable script refuses it
            if (flaw := flaw_of(path)) is not None:
                damaged.append(flaw)
    return damaged


def report(root: Path = Path()) -> None:
    """Log a line for each flaw. Raises UsageError for one that ends every job."""
    for flaw in flaws(root):
        if flaw.ends_jobs:
            raise UsageError(flaw.line)
        logger.warning("script damaged: error=%s", flaw.line)


def _converted(path: Path, encoding: str) -> str:
    quoted, draft = shlex.quote(str(path)), shlex.quote(f"{path}.utf8")
    return f"iconv -f {encoding} -t utf-8 {quoted} > {draft} && cp {draft} {quoted} && rm {draft}"
