"""How much of the batches of a loader is padding, as the probe sees it."""

from __future__ import annotations

import struct
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
from installed import lazily
from probe_runs import MODES, Run

from tuiprof.advice import priorities
from tuiprof.advice.redundant.padded_batches import is_padding
from tuiprof.formats import open_trace
from tuiprof.model.steps import BatchPadding
from tuiprof.probe.frameworks.batches import Batches
from tuiprof.probe.steps.counting import Steps
from tuiprof.session import log as records

torch = lazily("torch")

TEXTS = """
import random, torch
from torch.utils.data import DataLoader
texts = [[5 + (7 * i + j) % 300 for j in range(10 + 17 * i % 90)] for i in range(64)]
class Encoding(__import__("collections").UserDict): pass
def collate(texts, width=256):
    ids = torch.zeros(len(texts), width, dtype=torch.int64)
    for row, text in zip(ids, texts): row[: len(text)] = torch.tensor(text)
    return Encoding(input_ids=ids, attention_mask=(ids > 0).long(), token_type_ids=torch.zeros_like(ids))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(400, 8), torch.nn.Linear(8, 2)
    def forward(self, ids, mask): return self.head((self.embed(ids) * mask[..., None]).sum(1))
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train():
    for batch in DataLoader(texts, 8, collate_fn=collate):
        loss = model(batch["input_ids"], batch["attention_mask"]).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item(), torch.rand(1).item())
"""


def test_a_few_batches_of_a_run_are_looked_at(
    run: Callable[..., Run], run_forked: Callable[..., Run]
) -> None:
    script = f"{TEXTS}\nfor _ in range(10): train()"
    done = run(script, flags=("-W", "error"))
    assert (done.code, done.err) == (0, "")
    looked = done.of(records.BatchPadding)
    assert [one.n for one in looked] == [1, 2, 4, 8, 12, 18, 26, 60]
    longest = [max(10 + 17 * i % 90 for i in range(8 * k, 8 * k + 8)) for k in range(8)]
    used = [longest[one.n % 8] for one in looked]
    last = looked[-1]
    assert (last.batches, last.width, last.longest) == (8, 8 * 256, sum(used))
    assert (last.masked, last.full, last.least, last.most) == (8, 0, min(used), max(used))
    plain = run_forked(script, TUIPROF_SESSION="")
    assert done.out == plain.out
    assert not plain.logs


def test_no_mode_of_the_script_sees_that_batches_are_looked_at(run_forked: Callable[..., Run]) -> None:
    script = """
import sys
ready = [collate(texts[:8]) for _ in range(5)]
with Functions(), Dispatch():
    for batch in DataLoader(ready, None):
        loss = model(batch["input_ids"], batch["attention_mask"]).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
del batch
print(len(seen), *seen, *(sys.getrefcount(batch["input_ids"]) for batch in ready))
"""
    looked = run_forked(TEXTS + MODES + script)
    plain = run_forked(TEXTS + MODES + script, TUIPROF_SESSION="")
    assert [one.n for one in looked.of(records.BatchPadding)] == [1, 2, 4]
    assert int(looked.out.split()[0]) > 50
    assert (looked.code, looked.out) == (plain.code, plain.out) == (0, plain.out)


def test_the_compiler_sees_nothing_of_it(run_forked: Callable[..., Run]) -> None:
    script = (
        TEXTS
        + """
texts = texts[:24]  # the compiler unrolls the loop
class Batches:
    def __init__(self, loader): self.loader = iter(loader)
    def __iter__(self): return self
    def __next__(self): return next(self.loader)
@torch.compile(backend="eager")
def loop(batches):
    total = 0.0
    for batch in batches: total = total + model(batch["input_ids"], batch["attention_mask"]).sum()
    return total
for kind in (iter, Batches):
    for _ in range(2):
        total = loop(kind(DataLoader(texts, 8, collate_fn=collate)))
        optimizer.zero_grad(); total.backward(); optimizer.step()
from torch._dynamo.utils import counters
print(dict(counters["stats"]), dict(counters["graph_break"]))
"""
    )
    script = script.replace("Encoding(input_ids", "dict(input_ids")
    done, plain = run_forked(script), run_forked(script, TUIPROF_SESSION="")
    assert (done.code, done.err) == (plain.code, plain.err)
    assert done.out == plain.out
    assert "unique_graphs" in done.out


def test_padding_is_advice_where_the_model_gets_the_padding(run_forked: Callable[..., Run]) -> None:
    script = TEXTS.replace("(400, 8), torch.nn.Linear(8, 2)", "(400, 512), torch.nn.Linear(512, 256)")
    script = script.replace(
        "(self.embed(ids) * mask[..., None])", "(self.head(self.embed(ids)) * mask[..., None])"
    )
    script = script.replace("self.head((self.head", "((self.head") + "\nfor _ in range(5): train()"
    advised = []
    cut = """
def cut(batch):
    columns = slice(int(batch["attention_mask"].sum(1).max()))
    return {name: values[:, columns] for name, values in batch.items()}
"""
    use = "for batch in DataLoader(texts, 8, collate_fn=collate):\n"
    assert use in script
    for width, changed in (
        (256, script),
        ("max(map(len, texts))", script),
        (256, cut + script.replace(use, f"{use}        batch = cut(batch)\n")),
        (
            256,
            script.replace(use, f"{use}        batch = {{key: one[:, 1:] for key, one in batch.items()}}\n"),
        ),
    ):
        padded_to = changed.replace("width=256", "_=None").replace(
            "(len(texts), width", f"(len(texts), {width}"
        )
        done = run_forked(padded_to, requests=[{"id": "a", "steps": 3, "at": 20}])
        trace = open_trace(done.session / done.captures("a")[-1].path)
        advised.append([one for one in priorities(trace).findings if one.rule == "padded-batches"])
    (padded,), none, cut_by_script, (without_first,) = advised
    assert not none
    assert not cut_by_script
    assert padded.share is not None
    assert "padded to 256 tokens" in padded.finding.what
    assert "padded to 256 tokens" in without_first.finding.what
    assert 0.01 < padded.share < 0.7


def ids(rows: int, width: int, lengths: Any, left: bool = False) -> Any:
    """Return tokens of 5 and more with zeros after, or before, each text."""
    columns = torch.arange(width).expand(rows, width)
    inside = columns >= width - lengths[:, None] if left else columns < lengths[:, None]
    return torch.where(inside, torch.randint(5, 30_000, (rows, width)), 0)


def looked_at(make: Callable[[], Any], count: int = 8) -> BatchPadding | None:
    """Return what the probe records of some batches; None = of none of them."""
    torch.manual_seed(0)
    steps = Steps(lambda *_: None)
    batches = Batches(steps)
    for _ in range(count):
        batches.look(make())
    if not steps.out:
        return None
    fields = dict(steps.out[-1][1])
    del fields["t"], fields["at"], fields["n"]
    return BatchPadding(**fields)


def lengths(rows: int, most: int, least: int = 5) -> Any:
    return torch.randint(least, most, (rows,))


def masked(left: bool = False, mask: Any = lambda ids: (ids > 0).long()) -> dict[str, Any]:
    tokens = ids(16, 128, lengths(16, 60), left)
    return {"input_ids": tokens, "mask": mask(tokens)}


def with_labels() -> dict[str, Any]:
    batch = masked()
    positions = torch.arange(128).expand(16, 128)
    labels = torch.where(batch["mask"] > 0, batch["input_ids"], -100)
    labels[:, :6] = -100  # of the prompt
    classes = torch.zeros(16, 300, dtype=torch.int64)
    return {**batch, "labels": labels, "position_ids": positions, "classes": classes}


def often_full() -> dict[str, Any]:
    whole = bool(torch.rand(()) < 0.3)
    tokens = ids(4, 128, torch.full((4,), 128) if whole else lengths(4, 60))
    return {"input_ids": tokens, "mask": (tokens > 0).long()}


@pytest.mark.parametrize(
    "make",
    [
        masked,
        lambda: masked(left=True),
        lambda: masked(mask=lambda ids: ids > 0),
        lambda: masked(mask=lambda ids: ids == 0),
        lambda: UserDict(masked()),
        lambda: (masked(), torch.zeros(16)),
        lambda: ids(16, 128, lengths(16, 60)),
        lambda: [ids(16, 128, lengths(16, 60)).int(), torch.zeros(16, dtype=torch.int64)],
        lambda: ids(16, 129, lengths(16, 60))[:, 1:],
        with_labels,
        often_full,
        lambda: {"source": ids(16, 256, lengths(16, 60)), **masked()},
    ],
    ids=[
        *("mask", "left", "bool", "inverted", "user dict", "nested", "ids alone", "int32", "slice", "labels"),
        *("full", "wider without mask"),
    ],
)
def test_padded_texts(make: Callable[[], Any]) -> None:
    found = looked_at(make)
    assert found is not None
    assert is_padding(found)
    assert found.width == found.batches * 128


def test_used_columns_are_those_of_the_longest_text() -> None:
    batch = ids(4, 64, torch.tensor([9, 31, 2, 17]))
    found = looked_at(lambda: {"ids": batch, "mask": batch > 0}, 3)
    assert found == BatchPadding(batches=3, width=192, longest=93, masked=3, full=0, least=31, most=31)
    left = batch.flip(1)
    assert looked_at(lambda: {"ids": left, "mask": left > 0}, 3) == found
    nearly = batch.clone()
    nearly[3, 50] = 7  # the mask says that this is not read
    found = looked_at(lambda: {"ids": nearly, "mask": batch > 0}, 3)
    assert found is not None
    assert found.longest == 3 * 51


def multi_hot(classes: int = 200) -> Any:
    labels = torch.zeros(8, classes, dtype=torch.int64)
    most = int(torch.randint(40, 120, ()))
    return labels.scatter_(1, torch.randint(0, most, (8, 4)), 1)


def ordinal() -> dict[str, Any]:
    grades = torch.randint(1, 40, (8, 1))
    grid = torch.arange(100).expand(8, 100)
    return {"grades": (grid < grades).long(), "one_hot": (grid == grades).long()}


def counts() -> Any:
    """Words of a vocabulary in order of their frequency."""
    found = torch.zeros(8, 200, dtype=torch.int64)
    words = (torch.rand(8, 30) ** 3 * torch.randint(70, 140, ())).long()
    return found.scatter_add_(1, words, torch.ones(8, 30, dtype=torch.int64))


def features() -> Any:
    """Numbers, and after them flags that are rarely set."""
    flags = (torch.rand(16, 60) < 0.0005).long()
    return torch.cat([torch.randint(1, 1000, (16, 50)), flags], 1)


def grid() -> Any:
    """Pictures of 8 by 8 cells on a board of 16 by 16, row by row, with a mask."""
    board = torch.zeros(8, 16, 16, dtype=torch.int64)
    board[:, : int(torch.randint(4, 9, ())), :8] = torch.randint(1, 9, (8, 1, 8))
    return {"cells": board.flatten(1), "mask": board.flatten(1) > 0}


def same_length() -> Any:
    """Rows that all have the same columns, such as codes of a fixed size."""
    return ids(16, 64, torch.full((16,), 24))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ids(16, 128, torch.full((16,), 128)),
        lambda: {**masked(), "pixel_values": torch.zeros(16, 3, 8, 8)},
        lambda: {**masked(), "image": torch.zeros(16, 3, 8, 8, dtype=torch.uint8)},
        lambda: (torch.zeros(4, 3, 32, 32), torch.randint(0, 9, (4, 32, 32))),
        lambda: torch.randint(0, 9, (16, 1)),
        lambda: torch.zeros(16, 128, dtype=torch.int64),
        lambda: torch.rand(16, 128).round(),
        multi_hot,
        lambda: (torch.zeros(8, 3, 8, 8), multi_hot()),
        ordinal,
        counts,
        features,
        grid,
        same_length,
        lambda: ids(16, 31, lengths(16, 9)),
        lambda: ids(1, 128, lengths(1, 60)),
        lambda: {"ids": ids(16, 128, lengths(16, 60)), "next": torch.randint(0, 99, (16, 128))},
    ],
    ids=[
        *(
            "full",
            "with pictures",
            "with images",
            "label pictures",
            "labels",
            "constant",
            "floats",
            "multi-hot",
        ),
        *("pictures", "ordinal", "counts", "features", "grid", "same length", "narrow", "one row", "others"),
    ],
)
def test_columns_that_are_alike_need_not_be_padding(make: Callable[[], Any]) -> None:
    found = looked_at(make)
    assert found is None or not is_padding(found)


def test_without_a_mask_the_longest_text_has_to_differ() -> None:
    batch = ids(16, 128, lengths(16, 60))
    found = looked_at(lambda: batch)
    assert found is not None
    assert found.longest < 8 * 60
    assert not is_padding(found)


class Lazy(dict[str, Any]):
    """A container with code of its own."""

    def values(self) -> Any:
        raise AssertionError("the script's code ran")

    __iter__ = __getitem__ = items = keys = values


class Odd:
    """An object that answers anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("the script's code ran")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ids(16, 128, lengths(16, 60)).as_subclass(type("Tokens", (torch.Tensor,), {})),
        lambda: ids(16, 128, lengths(16, 60)).to("meta"),
        lambda: ids(16, 128, lengths(16, 60)).t().contiguous().t(),
        lambda: ids(16, 128, lengths(16, 60)).to_sparse(),
        lambda: torch.empty(0, 128, dtype=torch.int64),
        lambda: torch.zeros(4097, 32, dtype=torch.int64),
        lambda: torch.empty(2, 9_000_000, dtype=torch.int64)[:, :64],  # of which nothing is ever touched
        lambda: ids(2, 1 << 18, lengths(2, 60)),
        lambda: None,
        lambda: [Odd(), "text", 3],
        Odd,
        lambda: [[[ids(16, 128, lengths(16, 60))]]],
    ],
    ids=[
        *("subclass", "meta", "transposed", "sparse", "empty", "long", "far apart", "wide"),
        *("none", "objects", "object", "deep"),
    ],
)
def test_other_batches_are_left_alone(make: Callable[[], Any]) -> None:
    assert looked_at(make) is None


def test_tensors_whose_memory_was_freed_are_not_read() -> None:
    batch = masked()
    for tensor in batch.values():
        tensor.untyped_storage().resize_(64)
    assert looked_at(lambda: batch) is None
    tokens = ids(17, 128, lengths(17, 60))[1:]
    assert looked_at(lambda: tokens) is not None
    tokens.untyped_storage().resize_(16 * 128 * 8)  # it begins with the second row
    assert looked_at(lambda: tokens) is None


def test_memory_that_is_copied_when_it_is_written_to_stays_shared() -> None:
    if not hasattr(torch._C, "_is_cow_tensor"):
        pytest.skip("this PyTorch copies at once")
    tokens = ids(16, 128, lengths(16, 60))
    lazy = torch._lazy_clone(tokens)
    assert looked_at(lambda: lazy) is None
    assert torch._C._is_cow_tensor(lazy)


def test_no_code_of_a_container_runs() -> None:
    found = looked_at(lambda: Lazy(masked()))
    assert found is not None
    assert is_padding(found)


def test_expanded_rows_are_read_in_place() -> None:
    batch = ids(1, 128, torch.tensor([40])).expand(16, 128)
    assert looked_at(lambda: batch) == looked_at(lambda: batch.contiguous())


def frames(
    rows: int = 8, width: int = 120, features: int = 20, most: int = 70, value: float = 0.0
) -> tuple[Any, Any]:
    """Return frames of speech, padded with a value, and their lengths."""
    long = lengths(rows, most)
    inside = (torch.arange(width) < long[:, None])[..., None]
    return torch.where(inside, torch.randn(rows, width, features), value), long


def text_beside() -> dict[str, Any]:
    speech, long = frames()
    return {"labels": ids(8, 64, lengths(8, 30)), "speech": speech, "lengths": long}


@pytest.mark.parametrize(
    "make",
    [
        frames,
        lambda: frames(value=-11.5),
        lambda: [one.bfloat16() if one.is_floating_point() else one.int() for one in frames()],
        lambda: [(speech := frames())[0].transpose(1, 2).contiguous(), speech[1]],
        lambda: [(speech := frames())[0], torch.arange(120) < speech[1][:, None]],
        lambda: [(speech := frames())[0], (torch.arange(120) >= speech[1][:, None]).long()],
        text_beside,
    ],
    ids=["lengths", "log", "bfloat16", "features first", "mask", "inverted", "text beside"],
)
def test_padded_frames(make: Callable[[], Any]) -> None:
    found = looked_at(make)
    assert found is not None
    assert is_padding(found)
    assert (found.batches, found.frames, found.width, found.full) == (8, 8, 8 * 120, 0)
    assert found.longest < 8 * 70


def with_weights() -> dict[str, Any]:
    batch = masked()
    return {**batch, "weights": torch.rand(16, 128) * batch["mask"]}


def whole_beside_numbers() -> dict[str, Any]:
    """Texts that use the whole width, with their mask, and numbers that are not padded."""
    tokens = ids(16, 128, torch.full((16,), 128))
    return {"ids": tokens, "mask": torch.ones_like(tokens), "numbers": torch.randn(16, 128)}


@pytest.mark.parametrize("make", [with_weights, whole_beside_numbers])
def test_texts_with_a_number_for_each_word_stay_texts(make: Callable[[], Any]) -> None:
    found = looked_at(make)
    assert found is not None
    assert (found.frames, found.width) == (0, 8 * 128)
    assert is_padding(found) == (make is with_weights)


def test_sequences_without_padding_count_once_others_are_padded() -> None:
    whole = (torch.randn(8, 120, 20), torch.full((8,), 120))
    assert looked_at(lambda: whole) is None
    batches = iter([whole, whole, frames(), frames(), whole])
    found = looked_at(lambda: next(batches), 5)
    assert found is not None
    assert (found.batches, found.frames, found.full, found.width) == (5, 5, 3, 5 * 120)


def test_what_takes_long_to_compare_is_left_alone() -> None:
    wide = torch.zeros(2, 64, 80_000)
    wide[:, :5] = 1
    assert looked_at(lambda: (wide[:, :, :80].contiguous(), torch.tensor([5, 5])), 1) is not None
    assert looked_at(lambda: (wide, torch.tensor([5, 5])), 1) is None


def test_the_lengths_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def unpack(format_: str, view: Any) -> Any:
        read.append(format_)
        return struct.unpack(format_, view)

    monkeypatch.setattr("tuiprof.probe.frameworks.frames.unpack", unpack)
    mask = (torch.arange(120) < torch.arange(50, 58)[:, None]).contiguous()
    looked_at(lambda: [mask, *(torch.randn(8, 120, 120) for _ in range(5))], 1)
    assert read == ["960B"]


def test_samples_of_sound_are_padded_too() -> None:
    speech, long = frames()
    found = looked_at(lambda: (speech[..., 0].contiguous(), long), 3)
    assert found is not None
    assert (found.frames, found.longest, found.masked) == (3, 3 * int(long.max()), 3)


def silent() -> tuple[Any, Any]:
    """Frames of which one ends in silence."""
    speech, long = frames()
    speech[0, int(long[0]) - 2 :] = 0
    return speech, long


def test_a_sequence_may_end_in_what_looks_like_padding() -> None:
    found = looked_at(silent)
    assert found is not None
    assert is_padding(found)


@pytest.mark.parametrize(
    "make",
    [
        lambda: frames()[0],  # without lengths, rows may be dark
        lambda: (frames()[0], torch.randint(0, 10, (8,))),  # classes
        lambda: (frames()[0], frames()[1]),  # lengths of others
        lambda: (frames()[0], frames()[1] - 5),
        lambda: (frames()[0].to("meta"), frames()[1]),
        lambda: (frames()[0][:, ::2], frames()[1] // 2),
        lambda: (torch.zeros(8, 120, 20), torch.randint(5, 70, (8,))),
        lambda: (torch.randn(8, 3, 40, 40), torch.randint(5, 40, (8,))),
        lambda: (torch.randn(8, 120, 20), torch.full((8,), 120)),
    ],
    ids=["alone", "classes", "others", "shorter", "meta", "strided", "nothing", "pictures", "full"],
)
def test_other_numbers_are_not_padded_frames(make: Callable[[], Any]) -> None:
    found = looked_at(make)
    assert found is None or not is_padding(found)


@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((8, 120, 20), False),
        ((8, 60, 20), False),
        ((120, 8, 20), False),
        ((8, 69, 20), True),
        ((8, 69, 120), True),
        ((8, 69, 60), True),
    ],
    ids=["whole", "stacked", "time first", "cut", "as many features", "half as many features"],
)
def test_models_may_get_frames_that_the_script_has_cut_or_stacked(shape: tuple[int, ...], cut: bool) -> None:
    steps = Steps(lambda *_: None)
    batches = Batches(steps)
    batches.look(frames())
    batches.given((torch.zeros(shape), torch.zeros(8, dtype=torch.int64)), {})
    assert steps.out[-1][1]["cut"] == cut


@pytest.mark.parametrize("length", [0, 121])
def test_what_cannot_be_lengths_is_none(length: int) -> None:
    assert looked_at(lambda: (frames()[0], torch.full((8,), length))) is None
