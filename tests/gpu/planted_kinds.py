"""Host waits as real scripts have them, on known lines, beside look-alikes that never wait.

Every planted line ends in a comment ``sync: KIND xN``: the kind as the sync view names it and how often a step runs
it. Lines marked ``no sync`` look dangerous and are not. Recorded with::

    tuiprof record --stack --memory --capture 4@6 --name planted-kinds -- python tests/gpu/planted_kinds.py
"""

from __future__ import annotations

import torch

STEPS = 14
MIB = 1 << 20


def work(x: torch.Tensor) -> torch.Tensor:
    """Give the device about a millisecond to do, so that a wait is seen as one."""
    for _ in range(4):
        x = torch.tanh(x @ x)
    return x


def hold_segments() -> list[torch.Tensor]:
    """Keep a small block alive in each of many segments of the allocator: there is room, and none is given back."""
    large = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda") for _ in range(80)]
    small = [torch.empty(MIB // 4, dtype=torch.uint8, device="cuda") for _ in range(64)]
    return large[::10] + small[::8]


def logs(loss: torch.Tensor, x: torch.Tensor) -> float:
    """What is written to the log in every step."""
    print("class", x[0].argmax())  # sync: item x2
    print(f"loss {loss:.4f}")  # sync: item x1
    value = float(loss.detach().cpu().numpy())  # sync: copy to host x1
    value += x[0, :8].detach().to("cpu").sum().item()  # sync: copy to host x1
    value += sum(x[:2, :4].tolist()[0])  # sync: copy to host x1
    return value


def checks(loss: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> int:
    """What is asked of the device in every step."""
    bad = 0
    if torch.isnan(loss).any():  # sync: bool x1
        bad += 1
    if not torch.isfinite(x).all():  # sync: bool x1
        bad += 1
    if torch.equal(x, y):  # sync: equal x1
        bad += 1
    if torch.allclose(x[:64], y[:64]):  # sync: equal x1
        bad += 1
    return bad + bool(loss > 1e9)  # sync: bool x1


def shapes(x: torch.Tensor, labels: torch.Tensor) -> int:
    """Shapes that only the device knows."""
    rows = torch.where(x[:, 0] > 0)[0]  # sync: nonzero x1
    classes = torch.nn.functional.one_hot(labels)  # sync: one_hot x1
    picked = x[labels > 1]  # sync: boolean mask x1
    chosen = x[:256].masked_select(x[:256] > 0.1)  # sync: masked_select x1
    groups = labels.unique(sorted=True)  # sync: unique x1
    spread = labels.repeat_interleave(labels + 1)  # sync: repeat_interleave x2
    fixed = labels.repeat_interleave(2)  # no sync
    return sum(len(t) for t in (rows, classes, picked, chosen, groups, spread, fixed))


def moves(x: torch.Tensor, batch: torch.Tensor, pinned: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Data that comes from the host."""
    a = batch.to("cuda", non_blocking=True)  # sync: pageable copy to device x1
    b = torch.tensor([0.1, 0.2, 0.3], device="cuda").sum()  # sync: copy to device x1
    c = x[order]  # sync: copy to device x1
    d = torch.as_tensor(0.5, device="cuda")  # sync: copy to device x1
    e = pinned.to("cuda", non_blocking=True)  # no sync
    x[0, :4].to("cpu", non_blocking=True)  # no sync
    f = x * torch.tensor(0.5)  # no sync
    return (a + e + f) * (b + d) + c.mean()


def waits(side: torch.cuda.Stream, x: torch.Tensor) -> None:
    """Waits that the script asks for, and what only the device waits for."""
    event = torch.cuda.Event()
    event.record()
    event.query()  # no sync
    side.wait_event(event)  # no sync
    with torch.cuda.stream(side):
        x.sum()
    torch.cuda.current_stream().wait_stream(side)  # no sync
    event.synchronize()  # sync: event sync x1
    torch.cuda.current_stream().synchronize()  # sync: stream sync x1
    torch.cuda.synchronize()  # sync: device sync x1


def grows(step: int) -> int:
    """A buffer that is larger in every step, so that the cache never has it."""
    return torch.empty((64 + 4 * step) * MIB, dtype=torch.uint8, device="cuda").numel()  # sync: allocator x1


def main() -> None:
    """Run the loop."""
    torch.manual_seed(0)
    held = hold_segments()
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    batch, pinned = torch.randn(1024, 1024), torch.randn(1024, 1024).pin_memory()
    order = torch.randperm(1024)
    labels = torch.randint(0, 8, (1024,), device="cuda")
    side = torch.cuda.Stream()
    x = torch.randn(1024, 1024, device="cuda")
    saved = got = 0
    for step in range(STEPS):
        x = work(moves(x, batch, pinned, order)) / 32
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # sync: item x1
        scaler.update()
        optimizer.zero_grad()
        x = work(x.detach())
        logged = logs(loss, work(x))
        asked = checks(loss, work(x), x)
        found = shapes(work(x), labels)
        for value in model.state_dict().values():
            saved += value.cpu().numel()  # sync: copy to host x2
        waits(side, work(x))
        got += grows(step)
    print(f"{STEPS} steps, {logged:.3f}, {asked}, {found}, {saved}, {got}, {len(held)} held")


if __name__ == "__main__":
    main()
