"""On a real NVIDIA GPU: captures leave little behind and harm nothing. The tables are printed (``-s``).

Needs only pytest, torch and this checkout::

    PYTHONPATH=. python -m pytest -c /dev/null --rootdir=. -q -s tests/probe/test_after_capture_on_gpu.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_captures_leave_little_behind_and_harm_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        pytest.skip("no CUDA device")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
    import after_capture

    rows = after_capture.measure(tmp_path)
    assert not [row for row in rows if row.wrong]
