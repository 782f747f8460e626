"""Downloads traces from a URL: ``s3://``, ``gs://``, ``http(s)://`` and other fsspec protocols.

A file is downloaded once into the user's cache directory and opened from there, because a trace is read at several
offsets at once, which one connection cannot do. The cache key is made of the URL and the version that the server
reports (ETag, modification time, size). Cached files share a size limit; the least recently used are evicted first.

Servers are not trusted: a request to an unresponsive server times out, a file whose size differs from the reported one
is rejected, and a file without a reported size may not be larger than the limit.
"""

from __future__ import annotations

import contextlib
import errno
import functools
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
from tuiprof.formats.cache import UNFINISHED, directory, evict, size_limit
from tuiprof.formats.registry import Cancelled
from tuiprof.formats.session_files import SIDECARS, sidecar_names

#: The cache directory; ``off`` = a temporary directory that is deleted when the process exits.
FOLDER_VARIABLE: Final = "TUIPROF_REMOTE_CACHE"
#: Maximum total size of the cache in bytes; also the limit for a file of unknown size.
LIMIT_VARIABLE: Final = "TUIPROF_REMOTE_CACHE_BYTES"
#: Timeout for connecting to a web server and for each read, s.
TIMEOUT_VARIABLE: Final = "TUIPROF_REMOTE_TIMEOUT_S"
_DEFAULT_LIMIT: Final = 16 << 30
_DEFAULT_TIMEOUT_S: Final = 60.0
#: Timeouts that may pass without data before the server counts as unresponsive: a lookup sends several requests.
_STALL_TIMEOUTS: Final = 4
_BLOCK: Final = 4 << 20
#: Interval between checks for cancellation and for an unresponsive server.
_POLL_S: Final = 0.1
#: Maximum length of a library's message in an error.
_MAX_MESSAGE: Final = 300
_URL: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_REMEDY: Final = "pip install 'tuiprof[remote]'"
#: The package that implements a protocol for fsspec.
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
    """Download a trace, or a directory of traces, unless it is cached; return the local path.

    ``progress`` is called with (bytes downloaded, total bytes; 0 = the server does not report it).

    Raises:
        TraceError: fsspec or a package for this protocol is not installed, nothing exists at the URL, access is denied,
            or the download failed.
        tuiprof.formats.Cancelled: ``cancelled`` returned True.
    """
    system, path = _connect(url)
    with _explained(url):
        files, is_folder = _cancellable(
            lambda: _list_files(system, path, url), cancelled, _StallTimer(system).check
        )
    entry = _cache_folder() / _cache_key(url, files)
    local = entry / _file_name(url)
    if not entry.is_dir():
        with _explained(url):
            _download(system, files, path if is_folder else "", local, progress, cancelled)
        evict(entry.parent.iterdir(), LIMIT_VARIABLE, _DEFAULT_LIMIT, newest=entry)
    with contextlib.suppress(OSError):
        os.utime(entry)  # mark as recently used
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
    """Return the options of a file system: for HTTP, timeouts per connection attempt and per read.

    aiohttp's default is a total of five minutes, which a large trace on a slow connection exceeds.
    """
    if protocol.lower() not in ("http", "https"):
        return {}
    import aiohttp

    timeout_s = _timeout_s()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    return {"client_kwargs": {"timeout": timeout}}


def _timeout_s() -> float:
    try:
        return float(os.environ.get(TIMEOUT_VARIABLE) or _DEFAULT_TIMEOUT_S)
    except ValueError:
        return _DEFAULT_TIMEOUT_S


class _StallTimer:
    """Detects a web server that has stopped responding.

    aiohttp's own read timeout is not enough: after a malformed chunk it can wait forever on a closed connection.
    """

    def __init__(self, system: Any) -> None:
        self._limit_s = _STALL_TIMEOUTS * _timeout_s() if "http" in system.protocol else float("inf")
        self.restart()

    def restart(self) -> None:
        """Note that data has arrived."""
        self._since_s = time.monotonic()

    def check(self) -> None:
        """Raise TimeoutError if no data has arrived within the limit."""
        if time.monotonic() - self._since_s > self._limit_s:
            raise TimeoutError


def _cancellable(work: Callable[[], T], cancelled: Callable[[], bool] | None, poll: Callable[[], None]) -> T:
    """Run a blocking request in a thread, which is abandoned on cancellation or if ``poll`` raises."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - re-raised in the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name="tuiprof-remote", daemon=True).start()
    while not wait([future], _POLL_S).done:
        poll()
        if cancelled is not None and cancelled():
            raise Cancelled("stopped while copying")
    return future.result()


def _list_files(system: Any, path: str, url: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the metadata of the files to download, and whether the URL is a directory."""
    info = system.info(path)
    if info.get("type") != "directory":
        return [info, *_sidecars(system, info)], False
    from tuiprof.formats.directory import is_trace_name

    found = [info for info in system.find(path, detail=True).values() if info.get("type") == "file"]
    traces = [info for info in found if is_trace_name(name := str(info["name"])) or name.endswith(SIDECARS)]
    if not traces:
        raise TraceError(f"{_without_secrets(url)} contains no trace", "give the trace file")
    return sorted(traces, key=lambda info: str(info["name"])), True


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert the exceptions of file systems to a TraceError with a remedy."""
    url = _without_secrets(url)
    try:
        yield
    except (TraceError, Cancelled):
        raise
    except Exception as raised:  # noqa: BLE001 - file systems raise what they like
        error = raised
        status = _status(error)
        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception) and status != 404:
            error = error.__cause__  # fsspec raises FileNotFoundError for every HTTP error
        if status == 404 or (isinstance(error, FileNotFoundError) and status is None):
            raise TraceError(f"{url} does not exist", "check the address") from error
        if isinstance(error, PermissionError) or status in (401, 403):
            raise TraceError(
                f"no permission to read {url}{f' (status {status})' if status else ''}",
                "sign in as for the provider's tools (AWS_PROFILE, gcloud auth application-default login), or give "
                "a signed URL",
            ) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TraceError(
                f"no space left for a copy of {url} in {_cache_folder()}",
                f"free some space, or set {FOLDER_VARIABLE}",
            ) from error
        if isinstance(error, TimeoutError):
            raise TraceError(
                f"{url} cannot be read: the server stopped responding",
                f"try again; {TIMEOUT_VARIABLE} sets the timeout",
            ) from error
        message = _redacted(" ".join(str(error).split()))[:_MAX_MESSAGE]
        if not message or is_url(message):  # some aiohttp errors have no message of their own
            message = f"{type(error).__name__} {message}".rstrip()
        raise TraceError(f"{url} cannot be read: {message}", "check the connection and try again") from error


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error or of its causes; fsspec wraps HTTP errors in exceptions of its own."""
    while error is not None:
        status = getattr(error, "status", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _sidecars(system: Any, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files beside a trace that the probe wrote."""
    folder, slash, own = str(info["name"]).partition("?")[0].rpartition("/")
    found: list[dict[str, Any]] = []
    for name in sidecar_names(own):
        with contextlib.suppress(Exception):  # file systems raise anything, and these are optional
            found.append(system.info(f"{folder}{slash}{name}"))
    return [beside for beside in found if beside.get("type") == "file"]


def _beside(trace: str, name: str) -> str:
    """Return the name of a file beside a trace that has another name here."""
    return next(own for own, end in zip(sidecar_names(trace), SIDECARS, strict=True) if name.endswith(end))


def _download(
    system: Any,
    files: list[dict[str, Any]],
    top: str,
    local: Path,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Download files into a temporary directory, which is renamed to the cache entry once it is complete.

    ``top`` is the remote directory; empty = the files are a trace and its sidecars.
    """
    entry = local.parent
    total = sum(_size(info) or 0 for info in files)
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if total > shutil.disk_usage(entry.parent).free:
        raise OSError(errno.ENOSPC, "No space left on device")
    done, stall_timer = 0, _StallTimer(system)
    with tempfile.TemporaryDirectory(
        dir=entry.parent, prefix=UNFINISHED, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary) / "copy"

        def poll() -> None:
            stall_timer.check()
            if progress is not None:
                progress(done, max(total, done) if total else 0)

        def download() -> None:
            nonlocal done
            for info in files:
                name = str(info["name"])
                if top:
                    target = new / local.name / _relative_path(name, top)
                else:
                    target = new / (local.name if info is files[0] else _beside(local.name, name))
                target.parent.mkdir(parents=True, exist_ok=True)
                for size in _download_file(system, name, _size(info), target):
                    done += size
                    stall_timer.restart()
                    if cancelled is not None and cancelled():
                        raise Cancelled("stopped while copying")

        _cancellable(download, cancelled, poll)
        poll()
        with contextlib.suppress(OSError):  # another process was faster; its entry is equivalent
            os.rename(new, entry)


def _download_file(system: Any, name: str, size: int | None, target: Path) -> Iterator[int]:
    """Download one file; yields the number of bytes of each block."""
    # Over HTTP the file is read as one stream, because not every server supports range requests.
    block = 0 if "http" in system.protocol else _BLOCK
    limit = size if size is not None else size_limit(LIMIT_VARIABLE, _DEFAULT_LIMIT)
    done = 0
    with system.open(name, "rb", block_size=block) as source, target.open("wb") as file:
        while part := source.read(_BLOCK):
            done += len(part)
            if done > limit and size is None:
                raise TraceError(
                    f"{_without_secrets(name)} is larger than {limit:,} bytes, and the server does not report its size",
                    f"raise the limit with {LIMIT_VARIABLE}=<bytes>, or download the file yourself",
                )
            if done > limit:
                raise TraceError(
                    f"{_without_secrets(name)} is larger than the {limit:,} bytes that the server reported",
                    "try again",
                )
            file.write(part)
            yield len(part)
    if size is not None and done != size:
        raise TraceError(f"{_without_secrets(name)} ended after {done:,} of {size:,} bytes", "try again")


def _size(info: dict[str, Any]) -> int | None:
    """Return the size that the server reports for a file; None = none, or an invalid one."""
    size = info.get("size")
    return size if isinstance(size, int) and size >= 0 else None


def _relative_path(name: str, top: str) -> Path:
    """Return the path of a file relative to the remote directory; rejects path traversal."""
    relative = PurePosixPath(name.strip("/")).relative_to(PurePosixPath(top.strip("/")))
    if ".." in relative.parts or relative.is_absolute():
        raise TraceError(f"{name} is not a path below {top}", "download the files yourself")
    return Path(*relative.parts)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the cache of a process that keeps no cache."""
    return tempfile.TemporaryDirectory(prefix="tuiprof-remote-")


def _cache_folder() -> Path:
    return directory(FOLDER_VARIABLE, "remote") or Path(_temporary_folder().name)


def _cache_key(url: str, files: list[dict[str, Any]]) -> str:
    """Return a hash of the URL and of the versions of the files that the server reports."""
    digest = hashlib.blake2b(_without_secrets(url).encode(), digest_size=16)
    keys = ("name", "size", "ETag", "etag", "LastModified", "mtime", "updated", "created")
    for info in files:
        digest.update(repr([_without_secrets(str(info.get(key))) for key in keys]).encode())
    return digest.hexdigest()


def _file_name(url: str) -> str:
    """Return a local name for a URL: the last part of its path, because formats and ranks are detected by name."""
    name = PurePosixPath(urlsplit(url).path).name or "trace"
    return re.sub(r"[^A-Za-z0-9._#+-]", "_", name)


def _redacted(text: str) -> str:
    """Return a message with passwords and signatures removed from the URLs in it."""
    return re.sub(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)]+", lambda found: _without_secrets(found[0]), text)


def _without_secrets(url: str) -> str:
    """Return a URL without credentials and query, for messages and cache keys."""
    try:
        parts = urlsplit(url)
    except ValueError:  # for example http://[::1, without the closing bracket
        return f"{url.partition('://')[0]}://"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else url
