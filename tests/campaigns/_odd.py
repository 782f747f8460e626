"""Odd files made by hand: each is read, or refused in a sentence, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import os
import socket
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl

from tests.formats import xspace
from tests.formats.test_neuron_profiles import device_profile, monitored, system_profile

MiB = 1 << 20
Maker = Callable[[Path], Path]


def odd_files() -> dict[str, Maker]:
    """Return every odd file by name: what makes it in an empty folder, and returns what to open."""
    found: dict[str, Maker] = {name: _file(f"{name}.json", data) for name, data in _texts().items()}
    found |= {f"json {name}": _file("t.json", _json(events)) for name, events in _events().items()}
    found |= {f"xplane {name}": _file("vm.xplane.pb", data) for name, data in _planes().items()}
    found |= {
        f"neuron {name}": _file("p.json", json.dumps(content).encode()) for name, content in _neuron().items()
    }
    found |= _archives() | _folders()
    return found


def _file(name: str, data: bytes | Callable[[], bytes]) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / name.replace(" ", "-")
        path.write_bytes(data if isinstance(data, bytes) else data())
        return path

    return make


def _json(events: Callable[[], Iterable[dict[str, Any]]]) -> Callable[[], bytes]:
    return lambda: json.dumps({"traceEvents": list(events())}).encode()


def _event(name: str, ts: float, dur: float = 1, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, **more}


_E = json.dumps(_event("op", 1)).encode()


def _texts() -> dict[str, bytes | Callable[[], bytes]]:
    return {
        "nothing": b"",
        "one space": b" ",
        "one bracket": b"[",
        "one brace": b"{",
        "an empty object": b"{}",
        "null": b"null",
        "a number": b"1e999",
        "a text": b'"traceEvents"',
        "no list": b'{"traceEvents": {}}',
        "a list of nothing": b'{"traceEvents": [null, null]}',
        "lists in lists": b'{"traceEvents": [[' + _E + b"]]}",
        "two lists": b'{"traceEvents": [' + _E + b'], "traceEvents": [' + _E + b"]}",
        "two documents": b'{"traceEvents": [' + _E + b"]}" + b'{"traceEvents": [' + _E + b"]}",
        "zeros": bytes(100_000),
        "zeros behind": b"[" + _E + b"]" + bytes(100_000),
        "zeros within": b"[" + _E + b"," + bytes(100_000) + b"," + _E + b"]",
        "a mark and nothing": b"\xef\xbb\xbf",
        "utf-16": b"\xff\xfe" + "[]".encode("utf-16-le"),
        "utf-32": "[{}]".encode("utf-32"),
        "escapes without end": b'[{"name":"' + b"\\" * 100_001,
        "quotes without end": b'[{"name":' + b'"' * 300_001,
        "escaped quotes without end": lambda: b'[{"name":"' + b'\\"' * MiB,
        "braces without end": lambda: b"[" + b"{" * (4 * MiB),
        "brackets without end": lambda: b"[" * (4 * MiB),
        "closing brackets": lambda: b"[" + _E + b"]" * MiB,
        "commas": lambda: b"[" + b"," * (4 * MiB) + _E + b"]",
        "empty events": lambda: b"[" + b"{}," * MiB + b"{}]",
        "broken events": lambda: b"[" + b'{"ph":"X","ts":1,,},' * 50_000 + _E + b"]",
        "spaces between": lambda: b"[" + _E + b" " * (8 * MiB) + b"," + b"\n" * (8 * MiB) + _E + b"]",
        "a deep argument": b"["
        + _E[:-1]
        + b',"args":{"x":'
        + b"[" * 200_000
        + b"]" * 200_000
        + b"}},"
        + _E
        + b"]",
        "deep properties": b'{"a":'
        + b'{"a":' * 100_000
        + b"1"
        + b"}" * 100_000
        + b',"traceEvents":['
        + _E
        + b"]}",
        "a long number": b"[" + _E.replace(b'"ts": 1', b'"ts": ' + b"1" * MiB) + b"," + _E + b"]",
        "a long exponent": b"[" + _E.replace(b'"ts": 1', b'"ts": 1e' + b"9" * 5000) + b"," + _E + b"]",
        "surrogates": b'[{"ph":"X","name":"\\ud800\\udc00\\ud800","ts":1,"dur":1,"cat":"\\udfff"}]',
        "half a page of html": b"<html><body>" + b"a" * 5000,
        "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    }


def _events() -> dict[str, Callable[[], Iterable[dict[str, Any]]]]:
    many = range(100_000)
    few = range(20_000)
    return {
        "all at once": lambda: (_event("a", 5, 0) for _ in many),
        "all inside each other": lambda: (_event("a", i, 200_000 - 2 * i) for i in few),
        "all over each other": lambda: (_event("a", i, 50_000) for i in few),
        "a lane each": lambda: (_event("a", i, pid=i, tid=f"t{i}") for i in few),
        "a name each": lambda: (_event(f"aten::op_{i}", i) for i in many),
        "a category each": lambda: (_event("a", i, cat=f"c{i}") for i in range(70_000)),
        "a stream each": lambda: (_event("k", i, cat="kernel", args={"stream": i, "device": i % 2000}) for i in few),
        "begins alone": lambda: ({"ph": "B", "name": f"n{i}", "ts": i, "pid": 1, "tid": 1} for i in few),
        "ends alone": lambda: ({"ph": "E", "name": f"n{i}", "ts": i, "pid": 1, "tid": 1} for i in few),
        "crossed pairs": lambda: (
            {"ph": ph, "name": f"n{i}", "ts": i + (ph == "E") * 20_000, "pid": 1, "tid": 1} for i in few for ph in "BE"
        ),
        "asynchronous begins": lambda: ({"ph": "b", "id": i, "cat": "c", "name": "n", "ts": i, "pid": 1} for i in few),
        "one launch of all": lambda: (
            _event("cudaGraphLaunch", 0, cat="cuda_runtime", args={"correlation": 1}),
            *(_event("k", i, 0.5, cat="kernel", args={"correlation": 1, "stream": 7}) for i in few),
        ),
        "launches of one": lambda: (
            *(_event("cudaLaunchKernel", i, cat="cuda_runtime", args={"correlation": 1}) for i in few),
            _event("k", 5, cat="kernel", args={"correlation": 1}),
        ),
        "steps over each other": lambda: (
            _event(f"ProfilerStep#{i}", i, 500, cat="user_annotation") for i in range(3000)
        ),
        "one step many times": lambda: (_event("ProfilerStep#1", i, 1, cat="user_annotation") for i in few),
        "syncs alone": lambda: (_event("cudaDeviceSynchronize", i, 0.9, cat="cuda_runtime") for i in few),
        "syncs and kernels": lambda: (
            event
            for i in range(5000)
            for event in (
                _event("aten::item", 10 * i, 9),
                _event("cudaLaunchKernel", 10 * i + 1, 1, cat="cuda_runtime", args={"correlation": i + 1}),
                _event("cudaStreamSynchronize", 10 * i + 3, 5, cat="cuda_runtime", args={"correlation": 9_000 + i}),
                _event("k", 10 * i + 3, 4, cat="kernel", args={"correlation": i + 1, "stream": 7, "device": 0}),
            )
        ),
        "long names": lambda: (_event("n" * 200_000 + str(i), i) for i in range(40)),
        "names that do things": lambda: (
            _event(name, i, cat="user_annotation")
            for i, name in enumerate(("\x1b[2J", "[bold red]", "\u202e", "=1+1", "<script>", "a\nb", "\0", "", "`|*_"))
        ),
        "times far apart": lambda: (
            _event("a", ts, dur) for ts in (-4e15, 0, 1e-9, 1.7e15, 4e15) for dur in (0, 1e-3, 4e15)
        ),
        "clocks that run back": lambda: (_event("a", -i, 0.5) for i in many),
        "values without end": lambda: ({"ph": "C", "name": "c", "ts": i, "pid": 1, "args": {f"s{i}": i}} for i in few),
        "memory events": lambda: (
            {"ph": "i", "name": "[memory]", "ts": i, "pid": 1, "tid": 1, "s": "t",
             "args": {"Bytes": (-1) ** i << 62, "Addr": i // 2, "Total Allocated": (1 << 63) - 1 - i,
                      "Device Id": i % 300, "Device Type": i % 3}}
            for i in few
        ),
        "frames of Python": lambda: (
            _event(f"train.py({i}): f{i}", i, 30_000 - i, cat="python_function") for i in range(3000)
        ),
        "everything in text": lambda: (
            {key: str(value) for key, value in _event("a", i).items()} | {"args": {"correlation": "7"}} for i in few
        ),
        "whole numbers as fractions": lambda: (_event("a", i, pid=1.0, tid=2.5, args={"stream": 7.0}) for i in few),
    }  # fmt: skip


def _planes() -> dict[str, Callable[[], bytes]]:
    def named(name: str, lines: int, events: int) -> bytes:
        plane = xspace.Plane(name)
        for i in range(lines):
            line = plane.line(f"Stream #{i}", 0, i)
            for k in range(events):
                line.event(f"k{i}.{k}", k * 1000, 900, correlation_id=k)
        return xspace.encode(plane)

    return {
        "of many planes": lambda: xspace.encode(*(xspace.Plane(f"/device:GPU:{i}") for i in range(20_000))),
        "of many lines": lambda: named("/device:GPU:0", 20_000, 1),
        "of many names": lambda: named("/host:CPU", 1, 50_000),
        "of many planes and names": lambda: b"".join(
            xspace.encode(_many_names(f"/host:plane {i}", i)) for i in range(200)
        ),
        "of empty fields": lambda: b"\n\x00" * 500_000,
        "of other fields": lambda: b"\n\x0b\x12\x09/host:CPU" + xspace.number(99, 1) * 1000,
        "of an endless length": lambda: b"\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x12\x09/host:CPU",
        "in itself": lambda: xspace.chunk(
            1, xspace.chunk(2, "/host:CPU") + xspace.chunk(3, xspace.chunk(4, b"") * 100_000)
        ),
    }


def _many_names(name: str, first: int) -> xspace.Plane:
    plane = xspace.Plane(name, names={f"n{k}": (first * 500 + k) << 40 for k in range(500)})
    plane.line("python").event("n1", 0, 5)
    return plane


def _neuron() -> dict[str, Any]:
    event = {"name": "nrt_execute", "duration": 5, "group": "g"}
    many = range(30_000)
    return {
        "of many threads": {
            "trace_event": [
                {**event, "timestamp": i, "process_id": i, "thread_id": -i, "nc_idx": i} for i in many
            ]
        },
        "of one moment": {"instruction": [{"timestamp": 5, "duration": 0, "opcode": "A"}] * 30_000},
        "of lists": {"instruction": [[], [[]]], "dma": {"a": 1}, "metadata": [], "summary": 3},
        "of flows": {
            "trace_event": [{**event, "timestamp": i, "flow_id": [[i]], "exec_id": {"a": 1}} for i in many]
        },
        "of nothing": {"instruction": []},
        "of a summary": {"n_427efdc00a1c": None},
    }


def _archives() -> dict[str, Maker]:
    plain = b"[" + _E + b"]"

    def zipped(
        change: Callable[[bytes], bytes] = bytes, *, names: tuple[str, ...] = ("t.json",), method: int = 8
    ) -> Maker:
        def make(folder: Path) -> Path:
            path = folder / "t.zip"
            with zipfile.ZipFile(path, "w", method) as archive:
                for name in names:
                    archive.writestr(name, plain * (1000 if method != 0 else 1))
            path.write_bytes(change(path.read_bytes()))
            return path

        return make

    def packed(data: bytes, times: int) -> bytes:
        for _ in range(times):
            data = gzip.compress(data)
        return data

    return {
        "gzip of nothing": _file("t.json.gz", gzip.compress(b"")),
        "gzip six times": _file("t.json.gz", packed(plain, 6)),
        "gzip with rubbish behind": _file("t.json.gz", gzip.compress(plain) + b"rubbish"),
        "gzip of zeros": _file("t.json.gz", lambda: gzip.compress(bytes(1 << 20)) * 200),
        "gzip of spaces": _file("t.json.gz", lambda: gzip.compress(b"[") + gzip.compress(b" " * MiB) * 2048),
        "gzip of one name": _file(
            "t.json.gz", lambda: gzip.compress(b'[{"name":"') + gzip.compress(b"n" * MiB) * 1024
        ),
        "gzip of a plane": _file(
            "t.xplane.pb.gz", lambda: gzip.compress(b"\n\x80\x01/host:CPU" + bytes(MiB)) * 1100
        ),
        "gzip of a profile": _file(
            "t.json.gz", lambda: gzip.compress(b'{"dma":[') + gzip.compress(b" " * MiB) * 1100
        ),
        "only a header of gzip": _file("t.json.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\0"),
        "zip of nothing": zipped(names=()),
        "zip of two": zipped(names=("a.json", "b.json")),
        "zip stored": zipped(method=0),
        "zip by bzip2": zipped(method=zipfile.ZIP_BZIP2),
        "zip by lzma": zipped(method=zipfile.ZIP_LZMA),
        "zip damaged by bzip2": zipped(
            lambda data: data[:60] + b"\xff" * 9 + data[69:], method=zipfile.ZIP_BZIP2
        ),
        "zip damaged by lzma": zipped(
            lambda data: data[:60] + b"\xff" * 9 + data[69:], method=zipfile.ZIP_LZMA
        ),
        "zip of a method nobody knows": zipped(lambda data: data.replace(b"\x08\0", b"\x63\0")),
        "zip of a password": zipped(lambda data: data.replace(b"\x14\0\0\0\x08", b"\x14\0\1\0\x08")),
        "zip of a newer version": zipped(lambda data: data.replace(b"PK\1\2\x14\3\x14", b"PK\1\2\x14\3\xff")),
        "zip of another name": zipped(lambda data: data.replace(b"t.json", b"u.json", 1)),
        "zip without its end": zipped(lambda data: data[:-30]),
    }


def _folders() -> dict[str, Maker]:
    def linked(folder: Path) -> Path:
        (folder / "rank0.json").write_bytes(b"[" + _E + b"]")
        (folder / "loop.json").symlink_to("loop.json")
        (folder / "up").symlink_to(folder)
        return folder

    def sparse(folder: Path) -> Path:
        path = folder / "t.json"
        path.write_bytes(b"[" + _E + b",")
        os.truncate(path, 4 << 30)
        return path

    def piped(folder: Path) -> Path:
        os.mkfifo(folder / "t.json")
        return folder / "t.json"

    def socketed(folder: Path) -> Path:
        here = os.getcwd()
        os.chdir(folder)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("t.json")
        os.chdir(here)
        return folder / "t.json"

    def endless(folder: Path) -> Path:
        (folder / "t.json").symlink_to("/dev/zero")
        return folder / "t.json"

    def named(name: str) -> Maker:
        def make(folder: Path) -> Path:
            (folder / name).mkdir()
            (folder / name / f"rank0-{name}.json").write_bytes(b"[" + _E + b"]")
            return folder

        return make

    def full(folder: Path) -> Path:
        for i in range(3000):
            (folder / f"rank{i}.json").write_bytes(b"[" + _E + b"]")
        return folder

    def tabled(write: Callable[[Path], Path], change: Callable[[pl.DataFrame], pl.DataFrame]) -> Maker:
        def make(folder: Path) -> Path:
            profile = write(folder / "p@latest")
            for path in profile.glob("*.parquet"):
                change(pl.read_parquet(path)).write_parquet(path)
            return profile

        return make

    def monitor(documents: Callable[[], Iterable[Any]]) -> Maker:
        return _file("m.ndjson", lambda: b"".join(json.dumps(one).encode() + b"\n" for one in documents()))

    return {
        "linked to itself": linked,
        "four GiB of nothing": sparse,
        "a pipe": piped,
        "a socket": socketed,
        "a device": endless,
        "an empty folder": lambda folder: folder,
        "a folder of brackets": named("[a]*?"),
        "a folder of escapes": named("\x1b[31m\n\u202e"),
        "a folder of many ranks": full,
        "tables without rows": tabled(device_profile, lambda frame: frame.head(0)),
        "tables without columns": tabled(system_profile, lambda frame: frame.select([])),
        "tables of text": tabled(device_profile, lambda frame: frame.cast(pl.String)),
        "tables of one row a million times": tabled(
            system_profile,
            lambda frame: pl.concat([frame.head(1)] * 1000).select(pl.all().repeat_by(300).explode()),
        ),
        "tables of nulls": tabled(
            device_profile, lambda frame: frame.select(pl.lit(None).alias(c) for c in frame.columns)
        ),
        "monitored for long": monitor(lambda: (monitored(i % 100) for i in range(20_000))),
        "monitored without a core": monitor(lambda: [{"neuron_runtime_data": []}] * 1000),
        "monitored cores without number": monitor(
            lambda: [
                {
                    "neuron_hardware_info": {
                        "neuron_device_count": 1 << 60,
                        "neuroncore_per_device_count": 1 << 60,
                    }
                }
            ]
        ),
    }
