"""Variants that carry a published figure are the published experiment, in what a figure of their size depends on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPython
from installed import needs
from scripts import SCENARIOS

PRELUDE = """
import json, runpy, sys
sys.path.insert(0, sys.argv[1])
from common import scenario
def loaded(name, variant, preset="paper"):
    script = runpy.run_path(f"{sys.argv[1]}/{name}.py")
    ladder = scenario.header(script["__file__"])
    options = scenario._parser(script["__file__"], ladder).parse_args(["--preset", preset])
    return script, scenario._run(ladder, scenario._variant(ladder, variant), options)
"""


Ask = Callable[..., Any]


@pytest.fixture
def ask(forked: ForkedPython, tmp_path: Path) -> Ask:
    """Runs a program beside the scripts and returns what it prints, as JSON."""
    needs("torch")

    def answer(program: str) -> Any:
        (tmp_path / "program.py").write_text(PRELUDE + program)
        code, out, err = forked.run(tmp_path / "program.py", str(SCENARIOS), env=os.environ, cwd=tmp_path)
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    return answer


def test_gpt2_pads_to_the_longest_possible_document_and_trains_with_dropout(ask: Ask) -> None:
    pytest.importorskip("transformers")
    program = """
import torch
answer = {}
for variant in ("gpt2-sdpa", "gpt2-sdpa-compiled", "gpt2-sdpa-longest"):
    script, run = loaded("varlen", variant)
    batch = script["arrangement"](run).collate([torch.zeros(5, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)])
    run.size.depth = 1
    model = script["build"](run, script["arrangement"](run))
    rates = sorted({part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)})
    answer[variant] = [list(batch.tokens.shape), rates, model.training]
print(json.dumps(answer))
"""
    assert ask(program) == {
        "gpt2-sdpa": [[2, 1024], [0.1], True],
        "gpt2-sdpa-compiled": [[2, 1024], [0.1], True],
        "gpt2-sdpa-longest": [[2, 8], [0.1], True],
    }


def test_the_window_of_the_published_figures_reaches_four_patches(ask: Ask) -> None:
    program = """
import torch
answer = {}
for variant in ("window-sdpa", "window-flex", "window-5x5-sdpa"):
    script, run = loaded("attention", variant, "long")
    mask = script["window_mask"](56, run.set["reach"], torch.device("cpu"))
    middle = mask[56 * 28 + 28].view(56, 56)
    answer[variant] = [int(middle.sum()), int(middle[28].sum()), bool(run.variant.get("published"))]
print(json.dumps(answer))
"""
    assert ask(program) == {
        "window-sdpa": [81, 9, False],
        "window-flex": [81, 9, True],
        "window-5x5-sdpa": [25, 5, False],
    }


def test_transformer_engine_is_held_to_its_fused_backend_before_it_is_loaded(
    ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine/__init__.py").write_text("")
    (tmp_path / "transformer_engine/pytorch.py").write_text("""
import os
seen = {name: value for name, value in os.environ.items() if name.startswith("NVTE_")}
class DotProductAttention:
    def __init__(self, *args, **settings):
        self.settings = settings
""")
    program = """
script, run = loaded("attention", "transformer-engine")
script["attention_function"](run, None)
import transformer_engine.pytorch
print(json.dumps(transformer_engine.pytorch.seen))
"""
    wanted = {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "1", "NVTE_UNFUSED_ATTN": "0"}
    assert ask(program) == wanted
