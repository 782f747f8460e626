"""A session that grows as a real one would, without a script: drives the live screen in tests and by hand.

python tests/tui/synthetic.py FOLDER --seconds 120 --step-ms 27 --gpus 1
"""

from __future__ import annotations

import argparse
import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tuiprof.session.log import (
    Capture,
    Cost,
    End,
    Head,
    Memory,
    Note,
    Printed,
    Record,
    Step,
    Telemetry,
)
from tuiprof.session.store.folders import Session, create
from tuiprof.session.store.meta import DeviceMeta, Scenario, SessionMeta, write_meta
from tuiprof.system import process
from tuiprof.system.files import write_atomic

GIB = 1 << 30
PHASES = {
    "data": 0.015,
    "h2d": 0.033,
    "forward": 0.30,
    "backward": 0.56,
    "optimizer": 0.033,
    "metrics": 0.055,
}


@dataclass
class Synthetic:
    """Writes a session; time is given, so that a test decides how much of it has passed."""

    root: Path  # folder of sessions
    step_ms: float = 27.0  # typical step time
    gpus: int = 1  # number of GPUs beside the host
    ranks: int = 1  # number of ranks
    cores: int = 16  # CPU cores
    phases: dict[str, float] = field(default_factory=lambda: dict(PHASES))  # share of the step of each phase
    #: What it says it ran; None = an own script.
    scenario: Scenario | None = field(default_factory=lambda: Scenario("metrics", "naive", "paper"))
    slow: tuple[int, ...] = (171, 402)  # step numbers that take twice as long
    argv: tuple[str, ...] = ("python", "train.py")
    name: str = "metrics-naive"
    seed: int = 7
    lag: float = 0.02  # share of a step by which each rank is slower than the one before
    prints: bool = True  # whether the script prints a line every twenty steps
    jitter: float = 0.012  # standard deviation of the step times, as a share
    outliers: float = 0.0  # share of the steps that take longer by a half or more
    pid: int = 0  # of every rank; 0 = numbers that are probably those of no process

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.mono_ns = time.monotonic_ns()
        self.t_ns = 0
        self.next_step_ns = 0
        self.next_reading_ns = 0
        self.steps = 0
        host = DeviceMeta("host", "host", "AMD EPYC 9554", 512 * GIB, {"cores": self.cores})
        gpu = [
            DeviceMeta(f"gpu{i}", "nvidia", "NVIDIA H200", 141 * GIB, {"power_limit_w": 700.0})
            for i in range(self.gpus)
        ]
        absent = {} if gpu else {"nvidia": "no NVIDIA driver (libnvidia-ml.so.1 not found)"}
        meta = SessionMeta(
            1,
            self.name,
            list(self.argv),
            "/home/user/vit",
            time.time_ns(),
            self.mono_ns,
            boot=process.boot_id(),
            host="h200-01",
            scenario=self.scenario,
            devices=[host, *gpu],
            absent=absent,
        )
        self.session = create(self.root, meta)

    def start(self, *, running: bool = True) -> Session:
        """Write the heads; this process stands for the supervisor."""
        if running:
            me = process.identify(__import__("os").getpid())
            assert me is not None
            who = process.Processes(supervisor=me, script=me, pid_namespace=process.pid_namespace())
            write_atomic(self.session.control / "process.json", msgspec.json.encode(who))
        now = time.time_ns()
        for rank in range(self.ranks):
            self.write(
                f"rank{rank}",
                Head(
                    1,
                    f"rank{rank}",
                    self.pid or 1000 + rank,
                    now,
                    self.mono_ns,
                    rank,
                    self.ranks,
                    "3.12.4",
                    {"torch": "2.11.0"},
                    boot=process.boot_id(),
                ),
            )
        self.write("recorder", Head(1, "recorder", 999, now, self.mono_ns, boot=process.boot_id()))
        self.session.stdout.touch()
        self.session.stderr.touch()
        return self.session

    def ran(self, t_s: float, *, code: int | None = None) -> Synthetic:
        """Write the heads and all that happens up to a session time and, with an exit status, the end; return it."""
        self.start()
        self.run_until(t_s)
        if code is not None:
            self.end(code)
        return self

    def write(self, writer: str, *records: Record) -> None:
        """Append records to the log of a writer."""
        with open(self.session.log / f"{writer}.jsonl", "ab") as file:
            file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))

    def run_until(self, t_s: float) -> None:
        """Write all that happens up to a session time."""
        lines: dict[str, list[Record]] = {}
        printed = []
        while min(self.next_step_ns, self.next_reading_ns) <= t_s * 1e9:
            if self.next_reading_ns <= self.next_step_ns:
                self.t_ns = self.next_reading_ns
                self.next_reading_ns += 500_000_000
                lines.setdefault("recorder", []).extend(self._readings())
                continue
            self.t_ns = self.next_step_ns
            for rank in range(self.ranks):
                lines.setdefault(f"rank{rank}", []).extend(self._step(rank))
            if self.steps % 20 == 0 and self.prints:
                printed.append(f"Step {self.steps}: loss {7 / (1 + self.steps / 300):.3f}  acc 0.0011\n")
            self.steps += 1
        for writer, records in lines.items():
            self.write(writer, *records)
        if printed:
            with open(self.session.stdout, "a") as file:
                file.writelines(printed)
            at = self.mono_ns + self.t_ns
            sizes = (path.stat().st_size for path in (self.session.stdout, self.session.stderr))
            self.write("recorder", Printed(at, *sizes))

    def end(self, code: int = 0, *, why: str = "exit", signal: int | None = None) -> None:
        """Write the last records."""
        at = self.mono_ns + self.t_ns
        self.write("recorder", End(at, code, signal, why))

    def capture(
        self,
        state: str,
        *,
        id: str = "c1",  # noqa: A002
        first: int | None = None,
        path: str = "",
        why: str = "",
    ) -> None:
        """Write a capture record at the present time."""
        first = max(0, self.steps - 5) if first is None else first
        self.write(
            "rank0", Capture(self.mono_ns + self.t_ns, id, state, first, first + 4, path, why, 120_000_000)
        )

    def note(self, level: str, text: str) -> None:
        """Write a note."""
        self.write("rank0", Note(self.mono_ns + self.t_ns, level, text))

    def _step(self, rank: int) -> list[Record]:
        dur = self.step_ms * (1 + self.random.gauss(0, self.jitter) + self.lag * rank)
        if self.steps in self.slow:
            dur *= 1.55
        if self.outliers and self.random.random() < self.outliers:
            dur *= 1.3 + self.random.expovariate(3)
        if self.steps == 0:
            dur *= 12
        dur_ns = int(dur * 1e6)
        self.next_step_ns = max(self.next_step_ns, self.t_ns + dur_ns) if rank else self.t_ns + dur_ns
        at = self.mono_ns + self.t_ns
        captured = 250 <= self.steps < 255
        phases = {name: int(dur_ns * share) for name, share in self.phases.items()}
        records: list[Record] = [Step(self.steps, at, dur_ns, phases, {"loss": 6.9}, captured)]
        if self.steps % 20 == 0:
            records.append(Cost(at, self.steps + 1, (self.steps + 1) * 4_000))
            if self.gpus:
                records.append(Memory(at, rank, int(7.1 * GIB), int(8.2 * GIB), int(9.4 * GIB)))
        return records

    def _readings(self) -> list[Record]:
        at, t = self.mono_ns + self.t_ns, self.t_ns / 1e9
        wave = 0.5 + 0.5 * math.sin(t / 9)
        host = {
            "util": 0.07 + 0.03 * wave,
            "tree_cpu": 1.12 + 0.2 * wave,
            "tree_rss_bytes": 3.2 * GIB + 0.2 * GIB * wave,
            "mem_used_bytes": 41.0 * GIB,
            "loaders": 12.0,
            "loaders_idle": 9.0,
            "tree_processes": 13.0,
            "tree_threads": 96.0,
            "load_1m": 1.9,
            "disk_read_bytes_per_s": 2.4e6,
            "disk_write_bytes_per_s": 1.1e5,
            "net_rx_bytes_per_s": 3.1e4,
            "net_tx_bytes_per_s": 1.2e4,
        }
        host.update({f"core{i}_util": min(1.0, self.random.random() ** 4) for i in range(self.cores)})
        records: list[Record] = [Telemetry(at, "host", host)]
        records.extend(
            Telemetry(
                at,
                f"gpu{i}",
                {
                    "util": min(1.0, 0.94 + self.random.gauss(0, 0.02)),
                    "mem_used_bytes": 8.9 * GIB + i * GIB,
                    "power_w": 611 + 30 * wave + i,
                    "temp_c": 58 + 3 * wave,
                    "sm_clock_hz": 1.98e9,
                    "mem_clock_hz": 3.2e9,
                    "pcie_rx_bytes_per_s": 1.1e9,
                    "pcie_tx_bytes_per_s": 2.0e7,
                },
                {"throttle": "none"},
            )
            for i in range(self.gpus)
        )
        return records


def recorded(root: Path, seconds: float = 30.0, lasting: float = 0.0, **options: object) -> Synthetic:
    """Return a session that runs since some seconds (or longer), and which are recorded."""
    made = Synthetic(root, **options)  # type: ignore[arg-type]
    made.mono_ns -= int(max(seconds, lasting) * 1e9)
    made.session.meta.mono_ns = made.mono_ns
    write_meta(made.session.path, made.session.meta)
    return made.ran(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--before", type=float, default=70, help="seconds already recorded at the start")
    parser.add_argument("--step-ms", type=float, default=27)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--jitter", type=float, default=0.012)
    parser.add_argument("--outliers", type=float, default=0.0)
    parser.add_argument("--exit", type=int, default=None)
    given = parser.parse_args()
    made = Synthetic(
        given.root,
        given.step_ms,
        given.gpus,
        given.ranks,
        given.cores,
        jitter=given.jitter,
        outliers=given.outliers,
    )
    made.mono_ns -= int(given.before * 1e9)
    made.session.meta.mono_ns = made.mono_ns
    from tuiprof.session.store.meta import write_meta

    write_meta(made.session.path, made.session.meta)
    made.start()
    print(made.session.path, flush=True)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < given.seconds:
        made.run_until(given.before + passed)
        time.sleep(0.1)
    if given.exit is not None:
        made.end(given.exit)


if __name__ == "__main__":
    main()
