"""Clocks for kernels: the host's, and the device's by CUDA events and CUDA graphs; each imports only its framework."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

#: Written or read before a call that is to find its inputs in memory: more than any cache the chips here have.
FLUSH_BYTES = 256 << 20
#: Calls in one replayed unit: enough that its own start costs nothing beside them.
REPLAYED = 20
#: A call that the host needs long for has so many launches that few calls fill a graph.
CAPTURE_S = 0.05
#: Calls in one compiled loop, whose start costs more.
LOOPED = 200


class NotReplayable(Exception):
    """The kernel cannot be recorded once and replayed; says why."""


class Clock:
    """The host's clock, for what has computed everything when the call returns. Only the standard library.

    Attributes:
        device: What the kernel runs on.
        software: Versions, by name.
        interpreted: The kernel is interpreted: it has its numbers and not its speed.
        where: Where torch must put the inputs: ``"cpu"`` or ``"cuda"``.
        method: How calls are timed, in words.
        asynchronous: The call returns before the device is done.
        can_flush: The cache can be emptied before each call.
        why_no_flush: If not, why.
    """

    method = "host clock, one call at a time"
    asynchronous = False
    can_flush = False
    why_no_flush = "the host's clock does not tell a cold cache from the start of the call"

    def __init__(self, device: str, *, interpreted: bool = False, **software: str) -> None:
        self.device = f"{device} (interpreted)" if interpreted else device
        self.software, self.interpreted = software, interpreted
        self.where = "cpu"

    def wait(self, output: Any) -> None:
        """Return when an output is there."""

    def wait_if_host(self, output: Any) -> None:
        """Return when an output is there, unless the device marks the ends of steps by itself."""
        self.wait(output)

    def samples_ms(self, call: Callable[[], Any], count: int, *, cold: bool) -> list[float]:
        """Return the times of calls in milliseconds, one by one.

        Args:
            call: The kernel.
            count: How many.
            cold: Empty the cache before each.
        """
        samples = []
        for _ in range(count):
            start = time.perf_counter()
            self.wait(call())
            samples.append((time.perf_counter() - start) * 1e3)
        return samples

    def host_ms(self, call: Callable[[], Any], count: int) -> list[float]:
        """Return how long the host needs to start a call, in milliseconds, while the device has nothing to do."""
        samples = []
        for _ in range(count):
            start = time.perf_counter()
            output = call()
            samples.append((time.perf_counter() - start) * 1e3)
            self.wait(output)
        return samples

    def replayed_ms(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], count: int
    ) -> list[float]:
        """Return the times of a call among many that the host starts at once, in milliseconds.

        Raises:
            NotReplayable: They cannot be started at once.
        """
        raise NotReplayable("the host makes every call itself")

    def peak_memory_bytes(self) -> int:
        """Return the largest memory in use so far: here the process's resident set."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaClock(Clock):
    """CUDA events around each call, and a CUDA graph of many calls; for whatever launches on torch's stream.

    The device is kept busy while the host queues the calls, so that an event waits for the call before it and never
    for the host: what is timed is the device's work, in the order of launching. Each pair of events adds one or two
    microseconds, which the graph does not. Where the host does not get ahead (a call of more launches than the
    queue holds, some thousand, or a busy host), what it needs is timed; there the graph alone shows the device.
    """

    method = "CUDA events around each call, in a full queue"
    asynchronous = True
    can_flush = True

    def __init__(self) -> None:
        import torch

        super().__init__(torch.cuda.get_device_name(), torch=torch.__version__)
        self._torch, self.where = torch, "cuda"
        self._flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        torch.cuda.reset_peak_memory_stats()

    def wait(self, output: Any) -> None:
        self._torch.cuda.synchronize()

    def wait_if_host(self, output: Any) -> None:
        pass

    def samples_ms(self, call: Callable[[], Any], count: int, *, cold: bool) -> list[float]:
        cuda, pairs = self._torch.cuda, []
        for first in range(0, count, REPLAYED):
            cuda.synchronize()
            cuda._sleep(8_000_000)  # some milliseconds, in which the host gets ahead
            for _ in range(min(REPLAYED, count - first)):
                if cold:
                    # Reading leaves nothing that must be written back during the call, as writing would.
                    self._flush.amax()
                start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                start.record()
                call()
                end.record()
                pairs.append((start, end))
        cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    def replayed_ms(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], count: int
    ) -> list[float]:
        cuda = self._torch.cuda
        graph, side = cuda.CUDAGraph(), cuda.Stream()
        side.wait_stream(cuda.current_stream())
        try:
            with cuda.stream(side):
                function(*arguments)  # whatever is set up on the first call of a stream
                begun = time.perf_counter()
                function(*arguments)
                calls = max(1, min(REPLAYED, int(CAPTURE_S / (time.perf_counter() - begun))))
            cuda.current_stream().wait_stream(side)
            with cuda.graph(graph, stream=side):
                for _ in range(calls):
                    function(*arguments)
        except RuntimeError as error:
            cuda.synchronize()
            said = str(error).strip().splitlines()[0]
            raise NotReplayable(f"it cannot be captured in a CUDA graph: {said}") from error
        pairs = []
        graph.replay()
        cuda.synchronize()
        for _ in range(max(5, count // REPLAYED)):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            pairs.append((start, end))
        cuda.synchronize()
        return [start.elapsed_time(end) / calls for start, end in pairs]

    def peak_memory_bytes(self) -> int:
        return self._torch.cuda.max_memory_allocated() - FLUSH_BYTES


def torch_clock(*, interpreted: bool = False) -> Clock:
    """Return the clock for torch's default accelerator here: CUDA events, or without a GPU the host's clock.

    Args:
        interpreted: Without a GPU the kernel is interpreted, which has its numbers and not its speed.
    """
    import torch

    if torch.cuda.is_available():
        return CudaClock()
    return Clock("cpu", interpreted=interpreted, torch=torch.__version__)


class JaxClock(Clock):
    """The host's clock around a call and the wait for it; and one compiled loop of many calls.

    JAX shows no device events. The loop is started once, so that what the host does for a call is not in it; a barrier
    makes each round depend on the one before, or the compiler would compute only one.

    Args:
        device: The JAX device that computes.
        interpreted: The kernel runs in Pallas's interpreter, which has its numbers and not its speed.
    """

    method = "host clock around a call and the wait for its output"

    def __init__(self, device: Any, *, interpreted: bool = False) -> None:
        import jax

        name = "cpu" if device.platform == "cpu" else device.device_kind
        super().__init__(name, interpreted=interpreted, jax=jax.__version__)
        self._jax, self._device = jax, device
        self.asynchronous = device.platform != "cpu"

    def wait(self, output: Any) -> None:
        self._jax.block_until_ready(output)

    def wait_if_host(self, output: Any) -> None:
        if not self.asynchronous:
            self.wait(output)

    def replayed_ms(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], count: int
    ) -> list[float]:
        if not self.asynchronous:
            raise NotReplayable("on a CPU the host makes every call itself")
        jax = self._jax

        def again(_: Any, carry: Any) -> Any:
            inputs, _ = jax.lax.optimization_barrier(carry)
            return inputs, function(*inputs)

        @jax.jit
        def loop(*inputs: Any) -> Any:
            return jax.lax.fori_loop(0, LOOPED, again, (inputs, function(*inputs)))[1]

        self.wait(loop(*arguments))
        samples = self.samples_ms(lambda: loop(*arguments), max(5, count // REPLAYED), cold=False)
        calls = LOOPED + 1  # one before the loop gives it its first output
        return [sample / calls for sample in samples]

    def peak_memory_bytes(self) -> int:
        statistics = self._device.memory_stats() or {}
        return int(statistics.get("peak_bytes_in_use", 0)) or super().peak_memory_bytes()
