"""A training-like loop with one planted host wait a line: what tuiprof must find, and nothing else.

Every planted line ends in a comment ``sync: KIND xN``: the kind as the sync view names it and how often a step runs
it. Lines marked ``no sync`` look dangerous and are not. Recorded with::

    tuiprof record --stack --memory --capture 4@6 --name planted-syncs -- python tests/gpu/planted_syncs.py
"""

from __future__ import annotations

import torch

STEPS = 14


def work(x: torch.Tensor) -> torch.Tensor:
    """Give the device about a millisecond to do, so that a wait is seen as one."""
    for _ in range(4):
        x = torch.tanh(x @ x)
    return x


def reads(x: torch.Tensor) -> float:
    """Reads of device values by the host."""
    total = x.sum().item()  # sync: item x1
    if (x > 2).any():  # sync: bool x1
        total += 1
    total += float(x[0, 0])  # sync: item x1
    total += int(x.argmax())  # sync: item x1
    total += sum(x[0, :4].tolist())  # sync: copy to host x1
    total += x[:64, :64].cpu().shape[0]  # sync: copy to host x1
    for _ in range(2):
        total += x.mean().item()  # sync: item x2
    return total


def sizes(x: torch.Tensor, mask: torch.Tensor, repeats: torch.Tensor) -> int:
    """Results whose size only the device knows."""
    found = torch.nonzero(mask).shape[0]  # sync: nonzero x1
    found += x[mask].shape[0]  # sync: boolean mask x1
    found += torch.masked_select(x, mask).shape[0]  # sync: masked_select x1
    found += torch.repeat_interleave(x[:64], repeats, dim=0).shape[0]  # sync: repeat_interleave x2
    found += torch.unique(repeats).shape[0]  # sync: unique x1
    return found


def copies(pageable: torch.Tensor, pinned: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copies from the host."""
    a = pageable.to("cuda")  # sync: copy to device x1
    b = pageable.to("cuda", non_blocking=True)  # sync: pageable copy to device x1
    target.copy_(pinned)  # sync: copy to device x1
    c = pinned.to("cuda", non_blocking=True)  # no sync
    scale = torch.tensor(0.5, device="cuda")  # sync: copy to device x1
    return (a + b + c + target) * scale


def explicit(side: torch.cuda.Stream, x: torch.Tensor) -> None:
    """Waits that the script asks for."""
    event = torch.cuda.Event()
    event.record()
    event.synchronize()  # sync: event sync x1
    with torch.cuda.stream(side):
        x.relu()  # sync: allocator x1
    side.synchronize()  # sync: stream sync x1
    torch.cuda.synchronize()  # sync: device sync x1


def allocates(step: int) -> int:
    """Calls into the device's allocator in the middle of a step; the emptied cache costs the side stream one, too."""
    torch.cuda.empty_cache()  # sync: allocator x2
    block = torch.empty((64 << 20) + step * (4 << 20), dtype=torch.uint8, device="cuda")  # sync: allocator x1
    return block.numel()


def main() -> None:
    """Run the loop."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
    pageable, pinned = torch.randn(1024, 1024), torch.randn(1024, 1024).pin_memory()
    target = torch.empty(1024, 1024, device="cuda")
    repeats = torch.randint(1, 4, (64,), device="cuda")
    side = torch.cuda.Stream()
    x = torch.randn(1024, 1024, device="cuda")
    for step in range(STEPS):
        x = work(copies(pageable, pinned, target)) / 32
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        x = work(x.detach())
        total = reads(x)
        mask = x > 0.5
        found = sizes(work(x), mask, repeats)
        explicit(side, work(x))
        got = allocates(step)
    print(f"{STEPS} steps, {total:.3f}, {found}, {got}")


if __name__ == "__main__":
    main()
