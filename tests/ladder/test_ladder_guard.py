"""A ladder that was stopped goes on only with the code and the software that it was begun with."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from tuiprof.errors import SessionError
from tuiprof.ladder.plan import plan
from tuiprof.ladder.resuming import differences, sources
from tuiprof.ladder.runner import run
from tuiprof.ladder.scenarios import find_ladder
from tuiprof.ladder.state import LadderMeta, LadderRun, create
from tuiprof.resources import shipped
from tuiprof.session.run.interpreter import Facts, facts

FILES = {
    "toy.py": "import json\nimport helpers.timing\nfrom helpers import data\n\ndef late():\n    import extra\n",
    "toy.toml": '[tool.tuiprof]\nname = "toy"\nvariants = [{ name = "a", needs = { packages = ["pytest>=1"] } }]\n',
    "toy/kernel.cu": "// a kernel\n",
    "helpers/__init__.py": "",
    "helpers/timing.py": "from . import clock\nfrom .deep.est import thing\n",
    "helpers/clock.py": "",
    "helpers/data.py": "",
    "helpers/deep/__init__.py": "",
    "helpers/deep/est.py": "thing = 1\n",
    "extra.py": "import toy\n",  # in a circle
    "unused.py": "",
}
USED = sorted(set(FILES) - {"unused.py"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "toys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "toys"


def planned(folder: Path, have: Facts | None = None) -> LadderMeta:
    return plan(find_ladder("toy", [folder]), have or facts(sys.executable), rounds=1)


def test_every_file_that_a_script_is_made_of_is_watched(folder: Path) -> None:
    assert sorted(sources(folder / "toy.py")) == USED


def test_what_a_shipped_ladder_shares_with_others_is_watched() -> None:
    found = sources(shipped("scenarios") / "attention.py")
    assert {"attention.py", "common/__init__.py", "common/vit.py", "common/training.py"} <= set(found)
    assert "metrics.py" not in found
    assert "giou_loss/giou.cu" in sources(shipped("scenarios") / "giou_loss.py")


@pytest.mark.parametrize("name", USED)
def test_a_change_in_any_of_them_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    ladder = create(tmp_path, planned(folder))
    (folder / name).write_text(FILES[name] + "\n", encoding="utf-8")
    with pytest.raises(SessionError, match=f"{name} has changed, since {ladder.id} was started") as caught:
        list(run(LadderRun(ladder.path)))
    assert "tuiprof ladder toy" in caught.value.remedy


def test_files_that_come_and_go_are_named(folder: Path) -> None:
    meta = planned(folder)
    (folder / "helpers/clock.py").unlink()
    (folder / "toy/other.cu").write_text("", encoding="utf-8")
    (folder / "unused.py").write_text("changed = True\n", encoding="utf-8")
    said = differences(meta, facts(sys.executable))
    assert said == [f"{folder / 'helpers/clock.py'} was removed", f"{folder / 'toy/other.cu'} was added"]


def test_other_software_and_another_gpu_are_named(folder: Path) -> None:
    have = facts(sys.executable)
    meta = planned(folder, msgspec.structs.replace(have, gpus=(("NVIDIA H200", "9.0"),)))
    assert meta.software["pytest"] == pytest.__version__
    newer = {**have.distributions, "pytest": "99.0"}
    said = differences(meta, msgspec.structs.replace(have, distributions=newer, version="3.99.0"))
    assert said == [
        f"python was {have.version} and is 3.99.0",
        "GPU was NVIDIA H200 and is missing",
        f"pytest was {pytest.__version__} and is 99.0",
    ]


def test_a_ladder_of_an_earlier_tuiprof_is_held_to_its_script_alone(folder: Path) -> None:
    meta = msgspec.structs.replace(planned(folder), sources={}, software={})
    (folder / "extra.py").write_text("changed = True\n", encoding="utf-8")
    assert differences(meta, facts(sys.executable)) == []
    (folder / "toy.py").write_text("changed = True\n", encoding="utf-8")
    assert differences(meta, facts(sys.executable)) == [f"{folder / 'toy.py'} has changed"]
