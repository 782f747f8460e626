"""Says what a file is that is no trace, or one that needs a step before it can be read."""

from __future__ import annotations

from tuiprof.formats.source import Source


def explain(head: bytes, source: Source) -> tuple[str, str]:
    """Return what a file is and what to do with it."""
    path, name = source.path, source.path.name
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    lowered = text[:512].lower()
    if not text:
        return f"{path} holds nothing but space", "let the profiler finish writing before opening its trace"
    if lowered.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return (
            f"{path} is a web page, not a trace",
            "the download gave an error or login page: fetch the raw file",
        )
    if head.startswith(b"version https://git-lfs"):
        return f"{path} is a Git LFS pointer, not the trace", "run `git lfs pull`"
    if head.startswith(b"PAR1"):
        return (
            f"{path} is a Parquet table, not a trace that tuiprof reads",
            "Neuron Explorer writes a directory of such tables: give that directory",
        )
    if name.endswith(".xplane.pb"):
        return f"{path} does not begin like an XSpace protobuf (xplane.pb)", "copy or record the file again"
    if head.startswith(b"SQLite format 3"):
        return (
            f"{path} is a SQLite database, perhaps of Nsight Systems",
            "tuiprof reads what torch.profiler and jax.profiler write",
        )
    if head.startswith((b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf")):
        return f"{path} is compressed in a way that is not read here", "unpack it, or compress it with gzip"
    if _is_utf16(head):
        return (
            f"{path} is text in UTF-16, and JSON is UTF-8",
            "convert it (iconv -f UTF-16 -t UTF-8), or write it without the shell's redirection",
        )
    if head[:1] in (b"{", b"["):
        return f"{path} is JSON, but no trace", "a trace is a list of events, or an object with traceEvents"
    if _is_text(head):
        return f"{path} is text, but not JSON", "give the .json or .json.gz that the profiler wrote"
    return f"{path} is a binary file of an unknown kind", "give the .json or .json.gz that the profiler wrote"


def _is_utf16(head: bytes) -> bool:
    """Return whether every other byte is zero, as in Latin text of two bytes a character, or a mark says so."""
    pairs = head[:512] if len(head) % 2 == 0 or len(head) > 512 else head[:-1]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    first, second = pairs[::2], pairs[1::2]
    return len(pairs) >= 4 and ((not any(first) and all(second)) or (not any(second) and all(first)))


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and sum(byte < 9 for byte in head[:4096]) == 0
