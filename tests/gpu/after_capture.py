"""What a capture leaves behind on a GPU, and whether taking CUPTI down harms what scripts do with CUDA.

Needs torch with a GPU and this checkout; takes about three minutes::

    python tests/gpu/after_capture.py            # all, and a table
    python tests/gpu/after_capture.py graph ddp  # the cases whose names hold one of these

Each case is a process of its own under the probe, as ``tuiprof record`` starts it. The first table is about time: steps
of a model that is bound by launches, before the first capture and after the last, with CUPTI taken down (as the
probe does) and kept (``TEARDOWN_CUPTI=0``). The second is about harm: each case checks its own numbers, every trace
must hold kernels, and the process must end well.
"""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INJECT = Path(__file__).resolve().parents[2] / "tuiprof" / "probe" / "inject"
ROUNDS = 2
LIMIT_S = 150
#: Steps of a timed run, the captures of the runs with several, and what is timed: steps before the first, and the last.
STEPS, SEVERAL, WARM_UP, LAST = 200, (50, 70, 90, 110, 130), 15, 60


# -- what runs in a case ------------------------------------------------------------------------------------------


def small_model(torch: Any, blocks: int = 24, width: int = 256) -> Any:
    """Return a model whose step the host needs longer to launch than the GPU to compute."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.LayerNorm(width)) for _ in range(blocks)
    ]
    return torch.nn.Sequential(*layers).cuda()


def train(
    torch: Any, steps: int, each: Callable[[int], None] = lambda step: None, model: Any = None
) -> list[float]:
    """Train; return the time of each step in ms."""
    model = small_model(torch) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    x = torch.randn(64, 256, device="cuda")
    times = []
    for step in range(steps):
        began = time.perf_counter()
        each(step)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.perf_counter() - began) * 1e3)
    torch.cuda.synchronize()
    check(bool(torch.isfinite(loss)), f"the loss is {loss}")
    return times


def check(holds: bool, said: str) -> None:
    if not holds:
        raise SystemExit(f"WRONG: {said}")


def timed(torch: Any) -> Any:
    return train(torch, STEPS)


def graph_alive(torch: Any) -> Any:
    """Graphs captured before, between and after captures are replayed through all of them."""
    graphs: list[tuple[Any, ...]] = []

    def capture_one() -> None:
        x = torch.randn(64, 256, device="cuda")
        weight = torch.randn(256, 256, device="cuda") / 16
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                y = torch.tanh(x @ weight) @ weight
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.tanh(x @ weight) @ weight
        expected = torch.tanh(x @ weight) @ weight
        # What a graph reads has to outlive it.
        graphs.append((graph, y, expected, x, weight))

    def each(step: int) -> None:
        if step in (5, 45, 75, 115):
            capture_one()
        for graph, y, expected, *_ in graphs:
            y.zero_()
            graph.replay()
            check(torch.allclose(y, expected, atol=1e-4), f"a graph computes something else in step {step}")

    return train(torch, STEPS, each)


def compiled(torch: Any) -> Any:
    """``torch.compile(mode="reduce-overhead")``: its CUDA graphs live across captures."""
    model = small_model(torch, blocks=4)
    fast = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 256, device="cuda")
    for step in range(STEPS):
        fast(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            with torch.no_grad():
                torch.compiler.cudagraph_mark_step_begin()
                check(
                    torch.allclose(fast(x), model(x), atol=1e-3), f"it computes something else in step {step}"
                )
    torch.cuda.synchronize()


def own_profiler(torch: Any, at: Sequence[int]) -> None:
    """Let the script profile steps of its own; each profile must hold kernels."""
    found = []
    profiler: Any = None

    def each(step: int) -> None:
        nonlocal profiler
        if profiler is not None and step - 3 in at:
            torch.cuda.synchronize()
            profiler.__exit__(None, None, None)
            found.append(sum("cuda" in str(event.device_type).lower() for event in profiler.events()))
            profiler = None
        if step in at:
            kinds = torch.profiler.ProfilerActivity
            profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA])
            profiler.__enter__()

    train(torch, STEPS, each)
    print("events on the device:", found)
    check(len(found) == len(at) and min(found) > 100, f"its profiles hold {found} events of the device")
    check(max(found) < 1.5 * min(found), f"its profiles differ: {found}")


def own_profiler_after(torch: Any) -> Any:
    own_profiler(torch, (80, 100, 140))


def own_profiler_before(torch: Any) -> Any:
    own_profiler(torch, (15, 25, 120))


def own_profiler_during(torch: Any) -> Any:
    """The second of our captures has to give way."""
    own_profiler(torch, (101, 140))


def backward_steps(torch: Any) -> Any:
    """Optimizers that step in hooks of backward, which for a GPU run on a thread of autograd's own."""
    model = small_model(torch)
    each = {p: torch.optim.SGD([p], lr=1e-3, foreach=False) for p in model.parameters()}

    def hook(p: Any) -> None:
        each[p].step()
        each[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    x = torch.randn(64, 256, device="cuda")
    for _ in range(STEPS):
        model(x).square().mean().backward()
    torch.cuda.synchronize()


def busy_threads(torch: Any) -> Any:
    """Two threads call CUDA all the time, also while CUPTI is being taken down."""
    import threading

    stop = threading.Event()
    failures: list[str] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            a = torch.randn(256, 256, device="cuda")
            while not stop.is_set():
                mark = torch.cuda.Event()
                b = a @ a
                mark.record()
                mark.synchronize()
                if not bool(torch.isfinite(b).all()):
                    failures.append("not finite")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        train(torch, STEPS)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    check(not failures, str(failures))


def ddp(torch: Any) -> Any:
    """DistributedDataParallel over NCCL: its watchdog polls events from a thread of its own."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(small_model(torch))
    train(torch, STEPS, model=model)
    torch.distributed.destroy_process_group()


def workers(torch: Any) -> Any:
    """Data loader workers that are forked after CUPTI was taken down."""
    data = torch.utils.data.TensorDataset(torch.randn(320, 256))
    model = small_model(torch, blocks=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(5):
        for (x,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
            model(x.cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def many(torch: Any) -> Any:
    """A capture every ten steps: memory must not grow with them."""
    import resource

    seen: list[int] = []

    def each(step: int) -> None:
        if step % 50 == 0:
            seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)

    train(torch, 400, each)
    print("MiB resident at steps 0, 50, …:", seen)


CASES: dict[str, Callable[[Any], Any]] = {
    "timed": timed,
    "graph alive": graph_alive,
    "reduce-overhead": compiled,
    "own profiler after": own_profiler_after,
    "own profiler before": own_profiler_before,
    "own profiler during": own_profiler_during,
    "optimizer in backward": backward_steps,
    "busy threads": busy_threads,
    "ddp": ddp,
    "workers": workers,
    "many captures": many,
}
#: Where three steps are captured, beside the cases in which that is done four times; the last number: traces expected.
USUAL = (20, 60, 100, 160)
CAPTURES: dict[str, tuple[Sequence[int], int]] = {
    "many captures": (range(20, 400, 10), 38),
    "workers": ((15, 60, 110), 3),
    "own profiler before": ((50, 80), 2),
    "own profiler during": ((20, 100), 1),
    "own profiler after": ((20, 60, 160), 3),
}


# -- running cases ------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """A case that ran."""

    code: int  # exit status of the process
    said: str  # the end of what it printed
    times: list[float] = field(default_factory=list)  # its step times in ms, of timed ones
    kernels: list[int] = field(default_factory=list)  # kernels in each trace
    captures: list[str] = field(default_factory=list)  # last state of each capture
    capture_ms: list[float] = field(default_factory=list)  # host time of each capture
    notes: list[str] = field(default_factory=list)  # what the probe noted
    steps: int = 0  # steps in the log
    seconds: float = 0.0  # how long it ran


def run(folder: Path, case: str, captures: Sequence[int] = (), *, probe: bool = True, **more: str) -> Ran:
    """Run a case in a process of its own.

    Args:
        folder: An empty folder.
        case: Its name.
        captures: Steps at which three steps are captured.
        probe: Whether the probe is loaded.
        more: Further variables of the environment.
    """
    session = folder / "session"
    for name in ("log", "traces", "control"):
        (session / name).mkdir(parents=True)
    for at in captures:
        request = {"id": f"at{at:04d}", "steps": 3, "at": at}
        (session / "control" / f"capture-{request['id']}.json").write_text(json.dumps(request))
    names = ("TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT", "PYTHONPATH", "RANK", "WORLD_SIZE")
    env = {name: value for name, value in os.environ.items() if name not in names} | more
    if probe:
        env |= {"TUIPROF_SESSION": str(session), "PYTHONPATH": str(INJECT)}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", __file__, "--case", case],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, out, err = 124, str(late.stdout), f"it hung for {LIMIT_S} s: {late.stderr}"
    lines = [line for line in (out + err).splitlines() if not line.startswith(("USDT:", "TIMES"))]
    ran = Ran(code, "\n".join(lines[-12:]), seconds=time.monotonic() - began)
    ran.times = next((json.loads(line[5:]) for line in out.splitlines() if line.startswith("TIMES")), [])
    _read(session, ran)
    return ran


def _read(session: Path, ran: Ran) -> None:
    """Read what the probe wrote."""
    states: dict[str, dict[str, Any]] = {}
    for path in (session / "log").glob("rank0.jsonl"):
        for text in path.read_text().splitlines():
            record = json.loads(text)
            if record["t"] == "capture":
                states[record["id"]] = record
            elif record["t"] == "note":
                ran.notes.append(record["text"])
            ran.steps += record["t"] == "step"
    for _, record in sorted(states.items()):
        ran.captures.append(record["state"] + (f" ({record['why']})" if record.get("why") else ""))
        ran.capture_ms.append(record.get("ns", 0) / 1e6)
        if record.get("path"):
            with gzip.open(session / record["path"], "rt") as file:
                ran.kernels.append(
                    sum(event.get("cat") == "kernel" for event in json.load(file)["traceEvents"])
                )


def before_and_after(ran: Ran, first: int) -> tuple[float, float]:
    """Return the median step before the first capture and of the last steps, ms."""
    return statistics.median(ran.times[WARM_UP : first - 1]), statistics.median(ran.times[-LAST:])


@dataclass
class Row:
    """A line of a table, and what is wrong with it; empty = nothing."""

    cells: tuple[str, ...]
    wrong: str = ""


def time_rows(folder: Path) -> list[Row]:
    """Measure what captures leave behind, in turns."""
    kinds: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "bare": ((), {"probe": False}),
        "probe": ((), {}),
        "capture, CUPTI kept": ((50,), {"TEARDOWN_CUPTI": "0"}),
        "capture, CUPTI down": ((50,), {}),
        "5 captures, CUPTI kept": (SEVERAL, {"TEARDOWN_CUPTI": "0"}),
        "5 captures, CUPTI down": (SEVERAL, {}),
    }
    ran: dict[str, list[Ran]] = {name: [] for name in kinds}
    for number in range(ROUNDS):
        for name, (captures, options) in kinds.items():
            if number and not captures:
                continue
            ran[name].append(run(folder / f"{name.replace(' ', '-')}-{number}", "timed", captures, **options))
    rows = []
    for name, (captures, _) in kinds.items():
        wrong = next((f"exit {one.code}: {one.said}" for one in ran[name] if one.code), "")
        pairs = [before_and_after(one, 50) for one in ran[name] if one.times]
        shares = [after / before - 1 for before, after in pairs]
        if not wrong and any(len(one.kernels) != len(captures) or 0 in one.kernels for one in ran[name]):
            wrong = f"kernels in its traces: {[one.kernels for one in ran[name]]}, captures {ran[name][0].captures}"
        notes = [note for one in ran[name] for note in one.notes]
        if name.endswith("down"):
            if any("CUPTI" in note for note in notes):
                wrong = wrong or f"CUPTI was not taken down: {notes}"
            if not wrong and statistics.median(shares) > 0.15:
                wrong = f"steps are {statistics.median(shares):.0%} slower"
        took = [ms for one in ran[name] for ms in one.capture_ms]
        cells = (
            name,
            " ".join(f"{before:.2f}→{after:.2f}" for before, after in pairs),
            " ".join(f"{share:+.1%}" for share in shares),
            f"{statistics.median(took):.0f} ms" if took else "",
            "; ".join(dict.fromkeys(notes))[:110],
        )
        rows.append(Row(cells, wrong))
    return rows


def harm_rows(folder: Path, wanted: Callable[[str], bool]) -> list[Row]:
    """Run every other case with captures, several at once."""
    names = [name for name in CASES if name != "timed" and wanted(name)]

    def one(name: str) -> Ran:
        captures, _ = CAPTURES.get(name, (USUAL, 0))
        return run(folder / name.replace(" ", "-"), name, captures)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, names))
    rows = []
    for name, ran in zip(names, found, strict=True):
        _, wanted_traces = CAPTURES.get(name, (USUAL, len(USUAL)))
        wrong = f"exit {ran.code}: {ran.said}" if ran.code else ""
        if not wrong and (len(ran.kernels) != wanted_traces or 0 in ran.kernels):
            wrong = f"kernels in its traces: {ran.kernels}; {ran.captures}"
        told = f"{ran.steps} steps, {len(ran.kernels)} traces of {min(ran.kernels, default=0)}+ kernels"
        rows.append(
            Row((name, told, f"{ran.seconds:.0f} s", "; ".join(dict.fromkeys(ran.notes))[:110]), wrong)
        )
    return rows


def measure(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> list[Row]:
    """Run what is wanted, and print the tables as they come; return their rows."""
    rows = []
    for title, make in (
        (
            f"step time in ms before and after, {ROUNDS} rounds",
            lambda: time_rows(folder) if wanted("timed") else [],
        ),
        ("harm", lambda: harm_rows(folder, wanted)),
    ):
        part = make()
        if part:
            print(f"\n{title}")
        widths = [max(len(row.cells[i]) for row in part) for i in range(len(part[0].cells))] if part else []
        for row in part:
            words = "  ".join(cell.ljust(width) for cell, width in zip(row.cells, widths, strict=True))
            print(f"  {'WRONG' if row.wrong else 'ok   '}  {words}".rstrip())
            if row.wrong:
                print("         " + row.wrong.replace("\n", "\n         "))
        rows += part
        sys.stdout.flush()
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run a case here, or all in processes of their own."""
    import torch

    if arguments[:1] == ["--case"]:
        times = CASES[arguments[1]](torch)
        if times:
            print("TIMES" + json.dumps(times))
        print("done")
        return 0
    version = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, Python {sys.version.split()[0]}"
    print(version)
    with tempfile.TemporaryDirectory(prefix="tuiprof-after-capture-") as folder:
        rows = measure(
            Path(folder), lambda name: not arguments or any(argument in name for argument in arguments)
        )
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
