"""Traces at a URL: ``s3://``, ``gs://``, ``http(s)://`` and other fsspec protocols.

A remote file is copied once, block by block, into the user's cache directory, named after its URL and what the server
says of its version (ETag, time of change, size), and read from there: a trace is read from several places at once,
which a connection cannot do. The copies share a limit; the longest unused go first.

Servers are not trusted: one that stops responding is abandoned, a file whose size differs from the reported one is
rejected, and a file without a reported size may not be larger than the limit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tuiprof.errors import TraceError
from tuiprof.formats.cache import UNFINISHED, directory, evict
from tuiprof.formats.session_files import sidecar_name

#: ``off`` = copies are deleted with this process; a path = their directory.
FOLDER_VARIABLE: Final = "TUIPROF_REMOTE_CACHE"
#: Maximum total size of all copies, bytes; also of one with unknown length.
LIMIT_VARIABLE: Final = "TUIPROF_REMOTE_CACHE_BYTES"
#: Timeout without data from a web server, s.
PATIENCE_VARIABLE: Final = "TUIPROF_REMOTE_TIMEOUT_S"
_DEFAULT_LIMIT: Final = 16 << 30
_DEFAULT_PATIENCE_S: Final = 60.0
#: So many times that may pass between two answers: looking for a file asks for several things.
_GIVEN_UP: Final = 4
_BLOCK: Final = 4 << 20
#: Interval of checks for cancellation.
_LOOK_S: Final = 0.1
#: Maximum length of a quoted library message.
_MOST_SAID: Final = 300
_URL: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_REMEDY: Final = "pip install 'tuiprof[remote]'"
#: Which package brings a protocol that fsspec itself does not.
_PACKAGES: Final = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "hf": "huggingface_hub",
}

Progress = Callable[[int, int], None]
T = TypeVar("T")


def is_url(text: str | os.PathLike[str]) -> bool:
    """Whether a target is a URL."""
    return isinstance(text, str) and bool(_URL.match(text))


def fetch(url: str, *, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None) -> Path:
    """Return a local copy of a remote trace, or of a remote directory of traces.

    ``progress`` is called with (bytes copied, bytes in all; 0 = the server does not say).

    Raises:
        TraceError: fsspec or what it needs for this protocol is not installed, there is nothing at the URL, it may
            not be read, or copying failed.
        tuiprof.formats.Cancelled: ``cancelled`` answered True.
    """
    system, path = _connect(url)
    with _explained(url):
        files, is_folder = _stoppable(lambda: _found(system, path, url), cancelled, _Silence(system).check)
    folder = _cache_folder() / _identity(url, files)
    local = folder / _name(url)
    if not folder.is_dir():
        with _explained(url):
            _copy(
                system,
                files,
                path if is_folder else "",
                folder,
                local,
                progress,
                cancelled,
            )
        evict(folder, LIMIT_VARIABLE, _DEFAULT_LIMIT)
    with contextlib.suppress(OSError):
        os.utime(folder)  # the most recently used is evicted last
    return local


def _connect(url: str) -> tuple[Any, str]:
    protocol = urlsplit(url).scheme
    try:
        import fsspec
    except ImportError:
        raise TraceError(f"{_without_secrets(url)} is remote, and fsspec is not installed", _REMEDY) from None
    try:
        return fsspec.core.url_to_fs(url, **_options(protocol))  # type: ignore[no-any-return]
    except ImportError as error:
        package = _PACKAGES.get(protocol.lower(), "")
        more = f" {package}" if package and package != "aiohttp" else ""
        raise TraceError(
            f"{protocol}:// requires a package that is not installed ({error})", f"{_REMEDY}{more}"
        ) from None
    except ValueError as error:
        raise TraceError(
            f"{_without_secrets(url)}: {_redacted(str(error))}",
            "use s3://, gs://, http:// or https://, or download the file",
        ) from None


def _options(protocol: str) -> dict[str, Any]:
    """Return what a file system needs beyond the URL: for HTTP, the time after which a server is given up.

    By itself aiohttp gives up what takes five minutes in all, which a large trace on a slow line does.
    """
    if protocol.lower() not in ("http", "https"):
        return {}
    import aiohttp

    patience_s = _patience_s()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience_s, sock_read=patience_s)
    return {"client_kwargs": {"timeout": timeout}}


def _patience_s() -> float:
    try:
        return float(os.environ.get(PATIENCE_VARIABLE) or _DEFAULT_PATIENCE_S)
    except ValueError:
        return _DEFAULT_PATIENCE_S


class _Silence:
    """Gives up a web server that says nothing, where aiohttp does not.

    After a chunk that is none aiohttp now and then waits for ever: the connection is gone, and its own limit with it.
    """

    def __init__(self, system: Any) -> None:
        self._most_s = _GIVEN_UP * _patience_s() if "http" in system.protocol else float("inf")
        self.broken()

    def broken(self) -> None:
        """Something has come."""
        self._since_s = time.monotonic()

    def check(self) -> None:
        """Raise where it has lasted too long.

        Raises:
            TimeoutError: It has.
        """
        if time.monotonic() - self._since_s > self._most_s:
            raise TimeoutError


def _stoppable(
    work: Callable[[], T], cancelled: Callable[[], bool] | None, tick: Callable[[], None] = lambda: None
) -> T:
    """Run a blocking server request in a thread, which is abandoned on cancellation."""
    from tuiprof.formats.registry import Cancelled

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    threading.Thread(target=run, name="tuiprof-remote", daemon=True).start()
    while not wait([future], _LOOK_S).done:
        tick()
        if cancelled is not None and cancelled():
            raise Cancelled("stopped while copying")
    return future.result()


def _found(system: Any, path: str, url: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the files that a URL stands for, and whether it is a folder of them."""
    info = system.info(path)
    if info.get("type") == "directory":
        return _listed(system, path, url), True
    return [info, *_beside(system, info)], False


class _explained(contextlib.AbstractContextManager["_explained"]):  # noqa: N801 - used like a function
    """Turn what a file system raises into an error that says what to do."""

    def __init__(self, url: str) -> None:
        self._url = _without_secrets(url)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool | None:
        from tuiprof.formats.registry import Cancelled

        if error is None or isinstance(error, (TraceError, Cancelled)) or not isinstance(error, Exception):
            return None
        status = _status(error)
        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception) and status != 404:
            error = error.__cause__  # fsspec calls every fault of a web server so
        if status == 404 or (isinstance(error, FileNotFoundError) and status is None):
            raise TraceError(f"{self._url} does not exist", "check the address") from error
        if isinstance(error, PermissionError) or status in (401, 403):
            raise TraceError(
                f"no permission to read {self._url}{f' (status {status})' if status else ''}",
                "sign in as for the provider's tools (AWS_PROFILE, gcloud auth application-default login), or give "
                "a signed URL",
            ) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TraceError(
                f"no space left for a copy of {self._url} in {_cache_folder()}",
                f"free some space, or set {FOLDER_VARIABLE}",
            ) from error
        if isinstance(error, TimeoutError):
            raise TraceError(
                f"{self._url} cannot be read: the server stopped responding",
                f"try again; {PATIENCE_VARIABLE} sets the timeout",
            ) from error
        said = _redacted(" ".join(str(error).split()))[:_MOST_SAID]
        if not said or is_url(said):  # aiohttp names some faults by their type alone
            said = f"{type(error).__name__} {said}".rstrip()
        raise TraceError(
            f"{self._url} cannot be read: {said}", "check the connection and try again"
        ) from error


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an error; fsspec wraps it in errors of its own."""
    while error is not None:
        status = getattr(error, "status", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _beside(system: Any, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the file with source lines that the probe wrote next to a trace, if it exists."""
    name = str(info["name"])
    folder, slash, own = name.partition("?")[0].rpartition("/")
    try:
        found = system.info(f"{folder}{slash}{sidecar_name(own)}")
    except Exception:  # noqa: BLE001 - whatever the file system raises: the trace can be read without
        return []
    return [found] if found.get("type") == "file" else []


def _listed(system: Any, path: str, url: str) -> list[dict[str, Any]]:
    found = [info for info in system.find(path, detail=True).values() if info.get("type") == "file"]
    from tuiprof.formats.directory import is_trace_name

    traces = [
        info for info in found if is_trace_name(name := str(info["name"])) or name.endswith(".syncs.jsonl")
    ]
    if not traces:
        raise TraceError(f"{_without_secrets(url)} contains no trace", "give the trace file")
    return sorted(traces, key=lambda info: str(info["name"]))


def _copy(
    system: Any,
    files: list[dict[str, Any]],
    top: str,
    folder: Path,
    local: Path,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Copy into a new folder, which takes its name when all of it is there."""
    from tuiprof.formats.registry import Cancelled

    total = sum(_size(info) or 0 for info in files)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if total > shutil.disk_usage(folder.parent).free:
        raise OSError(errno.ENOSPC, "No space left on device")
    done, silence = 0, _Silence(system)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=UNFINISHED, ignore_cleanup_errors=True
    ) as made:
        new = Path(made) / "copy"

        def report() -> None:
            silence.check()
            if progress is not None:
                progress(done, max(total, done) if total else 0)

        def copy() -> None:
            nonlocal done
            for info in files:
                name = str(info["name"])
                if top:
                    target = new / local.name / _below(name, top)
                else:  # the file, or what lies beside it
                    target = new / (local.name if info is files[0] else sidecar_name(local.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                for size in _copied(system, name, _size(info), target):
                    done += size
                    silence.broken()
                    if cancelled is not None and cancelled():
                        raise Cancelled("stopped while copying")

        _stoppable(copy, cancelled, report)
        report()
        with contextlib.suppress(OSError):  # another process was quicker, and its copy is as good
            os.rename(new, folder)


def _copied(system: Any, name: str, size: int | None, target: Path) -> Iterator[int]:
    """Copy one file; yields the number of bytes of each part."""
    # Of a web server a file comes as one stream: not every one of them gives parts.
    block = 0 if "http" in system.protocol else _BLOCK
    most = size if size is not None else _limit()
    done = 0
    with system.open(name, "rb", block_size=block) as source, target.open("wb") as file:
        while part := source.read(_BLOCK):
            done += len(part)
            if done > most and size is None:
                raise TraceError(
                    f"{_without_secrets(name)} is larger than {most:,} bytes, and the server does not report its size",
                    f"raise the limit with {LIMIT_VARIABLE}=<bytes>, or download the file yourself",
                )
            if done > most:
                raise TraceError(
                    f"{_without_secrets(name)} is larger than the {most:,} bytes that the server reported",
                    "try again",
                )
            file.write(part)
            yield len(part)
    if size is not None and done != size:
        raise TraceError(f"{_without_secrets(name)} ended after {done:,} of {size:,} bytes", "try again")


def _size(info: dict[str, Any]) -> int | None:
    """Return the size that a file is said to have; None = that is not said, or no size."""
    size = info.get("size")
    return size if isinstance(size, int) and size >= 0 else None


def _limit() -> int:
    try:
        return int(os.environ.get(LIMIT_VARIABLE, _DEFAULT_LIMIT))
    except ValueError:
        return _DEFAULT_LIMIT


def _below(name: str, top: str) -> Path:
    """Return a path relative to the copied folder; one that would lead out of it is an attack."""
    relative = PurePosixPath(name.strip("/")).relative_to(PurePosixPath(top.strip("/")))
    if ".." in relative.parts or relative.is_absolute():
        raise TraceError(f"{name} is not a path below {top}", "download the files yourself")
    return Path(*relative.parts)


def _cache_folder() -> Path:
    return directory(FOLDER_VARIABLE, "remote") or _for_this_process()


_temporary: list[tempfile.TemporaryDirectory[str]] = []


def _for_this_process() -> Path:
    if not _temporary:
        _temporary.append(tempfile.TemporaryDirectory(prefix="tuiprof-remote-"))
    return Path(_temporary[0].name)


def _identity(url: str, files: list[dict[str, Any]]) -> str:
    """Return a name for this version of what is behind a URL."""
    digest = hashlib.blake2b(_without_secrets(url).encode(), digest_size=16)
    for info in files:
        versions = [
            info.get(key)
            for key in ("name", "size", "ETag", "etag", "LastModified", "mtime", "updated", "created")
        ]
        digest.update(repr([_without_secrets(str(one)) for one in versions]).encode())
    return digest.hexdigest()


def _name(url: str) -> str:
    """Return the file's own name: formats and ranks look at it."""
    name = PurePosixPath(urlsplit(url).path).name or "trace"
    return re.sub(r"[^A-Za-z0-9._#+-]", "_", name)


def _redacted(text: str) -> str:
    """Return what a library said, without the passwords and signatures of the URLs in it."""
    return re.sub(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)]+", lambda found: _without_secrets(found[0]), text)


def _without_secrets(url: str) -> str:
    """Return a URL without password and signature, which belong neither on the screen nor in a name."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as http://[::1 without the other bracket
        return f"{url.partition('://')[0]}://"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else url
