"""Synthetic images with a real data loader, and a training loop that times steps without making the host wait."""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader, Dataset

try:  # the scripts run without tuiprof too; under it, the phases and steps appear on its live screen
    import tuiprof
except ImportError:
    tuiprof = None


class Images(Dataset):
    """Random images and labels, the same for the same seed and index.

    Args:
        count: Number of samples.
        size: Height and width in pixels.
        classes: Labels are 0 … classes − 1.
        seed: Seed.
    """

    def __init__(self, count: int, size: int, classes: int, seed: int = 0) -> None:
        self.count, self.size, self.classes, self.seed = count, size, classes, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a uint8 image ``[3, size, size]`` and its label (int64, no dimensions)."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        image = random_bytes((3, self.size, self.size), random)
        return image, torch.randint(0, self.classes, (), generator=random)


def random_bytes(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Return a uint8 tensor of random numbers."""
    # Eight bytes from each number that is drawn: drawing each byte by itself takes 15 times as long.
    count = math.prod(shape)
    numbers = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None, generator=random)
    return numbers.view(torch.uint8)[:count].view(shape)


def loader(
    data: Dataset,
    batch: int,
    workers: int,
    device: torch.device,
    collate: Callable[[list[Any]], Any] | None = None,
) -> DataLoader:
    """Return a loader of whole batches; on CUDA from pinned memory, so that copies need not wait.

    Args:
        data: The data.
        batch: Samples a batch.
        workers: Wanted worker processes; no more are started than there are CPUs.
        device: Where the batches will go.
        collate: Makes a batch of samples; None = stacks them.
    """
    workers, pin = min(workers, len(os.sched_getaffinity(0))), device.type == "cuda"
    return DataLoader(data, batch, num_workers=workers, drop_last=True, pin_memory=pin, collate_fn=collate)


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Turn uint8 images into float32 in −1 … 1, on whatever device they are: a quarter of the bytes is copied."""
    return images.float().div_(127.5).sub_(1)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name a part of the step, in the profiler's trace and on tuiprof's live screen."""
    with ExitStack() as stack:
        stack.enter_context(record_function(name))
        if tuiprof is not None:
            stack.enter_context(tuiprof.phase(name))
        yield


class Loop:
    """Iterates over batches, times the steps and keeps their losses.

    On CUDA the time of a step is taken from events that the device passes, read when all is over: asking during
    training would make the host wait, and so change what is measured. Elsewhere the host's clock is used.

    Args:
        batches: Anything that yields batches; iterated once.
        batch: Samples a step, over all ranks.
        warmup: First steps, not measured.
        device: Where the training runs.
        interpreted: A kernel in it is interpreted, for want of the device it is for.

    Attributes:
        losses: The losses that were noted, step by step.
    """

    def __init__(
        self, batches: Any, batch: int, warmup: int, device: torch.device, *, interpreted: bool = False
    ) -> None:
        self.batches, self.batch, self.warmup, self.device = batches, batch, warmup, device
        self.interpreted = interpreted
        self.losses: list[torch.Tensor] = []
        self.marks: list[Any] = []
        self.parts: dict[str, list[tuple[Any, Any]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the step, as :func:`phase` does, and take its time too."""
        with phase(name):
            start = self._now()
            yield
            self.parts.setdefault(name, []).append((start, self._now()))

    def note(self, loss: torch.Tensor) -> None:
        """Keep the loss of a step where it is, and print it now and then: only then does the host wait for it."""
        self.losses.append(loss.detach())
        step = len(self.losses)
        if step % 20 == 0 or step == len(self.batches):
            print(f"step {step}: loss {loss.item():.4f}")

    def __iter__(self) -> Iterator[Any]:
        """Yield batches; a step ends when the next one is asked for."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        batches = iter(self.batches)
        self.marks.append(self._now())
        for _ in range(len(self.batches)):
            with phase("data"):
                batch = next(batches)
            yield batch
            self.marks.append(self._now())
            if tuiprof is not None:
                tuiprof.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def result(self, price: float | None = None) -> dict[str, Any]:
        """Summarise the measured steps.

        Args:
            price: Dollars an hour of the machine; None = unknown, and so are the samples per dollar.

        Returns:
            Median step time in ms, mean throughput in samples/s, samples per dollar, peak memory in bytes (the CUDA
            allocator's, else the process's resident set) and what it ran on; the median time in ms of the parts that
            were timed. No times if training ended before or with the last step of warm-up.
        """
        cuda = self.device.type == "cuda"
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        facts = {
            "warmup": self.warmup,
            "batch": self.batch,
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.device) if cuda else resident,
            "device": torch.cuda.get_device_name(self.device) if cuda else self.device.type,
            "torch": torch.__version__,
            **({"interpreted": True} if self.interpreted else {}),
        }
        all_ms = [self._between(a, b) for a, b in zip(self.marks, self.marks[1:], strict=False)]
        steps_ms = all_ms[self.warmup :]
        if not steps_ms:
            print(f"no step was measured: training ended after {len(all_ms)} of warm-up")
            return {"steps": 0, **facts}

        median_ms, samples_per_s = (
            statistics.median(steps_ms),
            self.batch * len(steps_ms) / sum(steps_ms) * 1e3,
        )
        samples_per_usd = round(samples_per_s * 3600 / price) if price else None
        dollars = f", {samples_per_usd:,} samples per dollar at ${price} an hour" if price else ""
        print(
            f"{len(steps_ms)} steps measured after {self.warmup} of warm-up: median {median_ms:.2f} ms, "
            f"{samples_per_s:.1f} samples/s{dollars}"
        )
        parts = {
            name: round(statistics.median([self._between(*pair) for pair in pairs[self.warmup :]]), 4)
            for name, pairs in self.parts.items()
        }
        for name, ms in parts.items():
            print(f"{name}: median {ms:.3f} ms")
        return {
            "steps": len(steps_ms),
            **facts,
            "step_ms": round(median_ms, 4),
            "samples_per_s": round(samples_per_s, 3),
            "samples_per_usd": samples_per_usd,
            **({"ranges_ms": parts} if parts else {}),
        }

    def _now(self) -> Any:
        """Return a mark: an event that the device passes, or the host's time."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks."""
        return start.elapsed_time(end) if self.device.type == "cuda" else (end - start) * 1e3


def accelerator() -> torch.device:
    """Return the CUDA device if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
