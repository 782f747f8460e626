"""Scenario headers: what is read, what is refused and where, and what can run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tuiprof.errors import UsageProblem
from tuiprof.ladder.availability import Missing, availability, satisfies
from tuiprof.ladder.scenarios import command, find, ladders, scan
from tuiprof.session.run.interpreter import Facts
from tuiprof.telemetry import Device

HEADER = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.5"]
#
# [tool.tuiprof]
# name = "mine"
# title = "my own ladder"
# [tool.tuiprof.presets.small]
# note = "small"
# [[tool.tuiprof.variants]]
# name = "slow"
# [[tool.tuiprof.variants]]
# name = "fast"
# note = "on a GPU"
# needs = { device = "cuda", capability = ">=9.0", packages = ["Flash_Attn>=3"] }
# published = [{ text = "2.5 ms", value = 2.5, unit = "ms" }]
# ///
raise SystemExit("reading a header must not run the script")
"""
FACTS = Facts(
    python="/env/bin/python",
    version="3.12.3",
    implementation="cpython",
    prefix="/env",
    distributions={"torch": "2.11.0+cu130", "flash-attn": "3.0.1"},
    torch_cuda=True,
    gpus=(("NVIDIA H200", "9.0"),),
    nvcc="",
    cxx="/usr/bin/g++",
    cpu="",
    cores=4,
    numa_nodes=1,
    libraries=frozenset(),
)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(HEADER, encoding="utf-8")
    (tmp_path / "other.py").write_text(
        "# /// script\n# dependencies = []\n# ///\nprint(1)\n", encoding="utf-8"
    )
    (tmp_path / "plain.py").write_text("print(2)\n", encoding="utf-8")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    return tmp_path


def test_a_user_ladder_is_found_beside_the_shipped_ones(mine: Path) -> None:
    names = [ladder.name for ladder in ladders([mine])]
    assert names == sorted(names)
    assert {"mine", "metrics"} <= set(names)
    fast = find("mine:fast", [mine])
    assert (fast.baseline, fast.note, fast.published[0].value) == ("slow", "on a GPU", 2.5)
    assert find("mine", [mine]).name == "slow"
    assert command(fast, "small", 7) == (
        *(str(mine / "mine.py"), "--variant", "fast", "--preset", "small", "--steps", "7"),
    )


def test_a_ladder_may_have_its_own_command_line(tmp_path: Path) -> None:
    own = '# command = [["--mode={variant}"], ["-n", "{steps}"], ["--quiet"]]\n# [tool.tuiprof.presets.small]'
    (tmp_path / "own.py").write_text(HEADER.replace("# [tool.tuiprof.presets.small]", own), encoding="utf-8")
    variant = find("mine:slow", [tmp_path])
    assert command(variant)[1:] == ("--mode=slow", "--quiet")
    assert command(variant, steps=3)[1:] == ("--mode=slow", "-n", "3", "--quiet")


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ('name = "mine"', "name = mine", 7, "Invalid value"),
        ('name = "mine"', "", 6, "required field `name`"),
        ('note = "on a GPU"', 'notes = "on a GPU"', 13, "unknown field `notes`"),
        ('note = "on a GPU"', 'builds_on = "slw"', 13, "'slw', which is not a variant"),
        ('name = "fast"', 'name = "slow"', 13, "two variants 'slow'"),
        ('title = "my own ladder"', 'baseline = "none"', 8, "'none' is not one of its variants"),
        ('">=9.0"', '"~9"', 13, "'~9' is not a version specifier"),
        ('title = "my own ladder"', 'command = [["-v", "{varant}"]]', 8, "did you mean {variant}?"),
        ("value = 2.5", 'value = "2.5"', 13, "Expected `float | null`"),
        ("# ///\nraise", "raise", 18, "is not closed"),
    ],
)
def test_a_broken_header_is_named_with_its_line_and_hides_nothing(
    mine: Path, old: str, new: str, line: int, what: str
) -> None:
    broken = mine / "broken.py"
    broken.write_text(HEADER.replace(old, new), encoding="utf-8")
    (mine / "mine.py").unlink()
    scanned = scan([mine])
    assert {"metrics", "attention"} <= {ladder.name for ladder in scanned.ladders}
    (problem,) = scanned.problems
    assert problem.message.startswith(f"{broken}:{line}: ")
    assert what in problem.message
    with pytest.raises(UsageProblem, match=r"broken\.py"):
        find("broken:slow", [mine])
    with pytest.raises(UsageProblem, match="no scenario 'my-sums'") as caught:
        find("my-sums", [mine])  # which may be what it is called
    assert f"not read: {broken}:{line}: " in caught.value.remedy


def test_of_two_ladders_of_one_name_the_first_counts(mine: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.py"
    second.write_text(HEADER.replace("my own ladder", "another"), encoding="utf-8")
    scanned = scan([mine])
    assert [ladder.title for ladder in scanned.ladders if ladder.name == "mine"] == ["my own ladder"]
    (problem,) = scanned.problems
    assert problem.message == f"{second}:7: {mine / 'mine.py'} also defines a ladder 'mine'"


def test_a_changed_header_is_read_anew(mine: Path) -> None:
    assert find("mine:slow", [mine]).note == ""
    script = mine / "mine.py"
    script.write_text(
        HEADER.replace('name = "slow"', 'name = "slow"\n# note = "now with a note"'), encoding="utf-8"
    )
    assert find("mine:slow", [mine]).note == "now with a note"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("metrisc", "did you mean metrics?"),
        ("metrics:naiv", "did you mean metrics:naive?"),
        ("zzz", "there are attention, cpu-training"),
    ],
)
def test_an_unknown_name_says_what_was_meant(text: str, remedy: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        find(text)
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2


def test_an_unknown_preset_says_what_was_meant() -> None:
    with pytest.raises(UsageProblem, match="did you mean smoke"):
        command(find("metrics:naive"), preset="smok")


def test_what_is_missing_is_said_with_a_remedy_each(mine: Path) -> None:
    fast = find("mine:fast", [mine])
    assert availability(fast, FACTS) is None

    def reasons(**changes: object) -> tuple[tuple[str, str], ...]:
        answer = availability(fast, msgspec.structs.replace(FACTS, **changes))
        assert isinstance(answer, Missing)
        return answer.reasons

    assert reasons(version="3.9.2")[0][0] == "needs Python >=3.10, this is 3.9.2"
    assert reasons(gpus=(("NVIDIA L4", "8.9"),))[0][0] == (
        "needs a GPU of compute capability >=9.0, NVIDIA L4 has 8.9"
    )
    assert reasons(gpus=())[0][0] == "needs an NVIDIA GPU, and none is visible"
    assert (
        reasons(torch_cuda=False)[0][0] == "needs an NVIDIA GPU, and torch 2.11.0+cu130 is built without CUDA"
    )
    assert reasons(distributions={"torch": "2.4.1", "flash-attn": "3"})[0] == (
        "needs torch >=2.5, 2.4.1 is installed",
        "pip install 'torch>=2.5', or uv run --with 'torch>=2.5'",
    )
    assert reasons(distributions={"torch": "2.11"}) == (
        ("Flash_Attn is not installed", "pip install 'Flash_Attn>=3', or uv run --with 'Flash_Attn>=3'"),
    )
    nothing = availability(fast, msgspec.structs.replace(FACTS, distributions={}, gpus=()))
    assert isinstance(nothing, Missing)
    assert nothing.reason == "torch is not installed; Flash_Attn is not installed"


def test_devices_that_only_telemetry_sees(tmp_path: Path) -> None:
    text = HEADER.replace('device = "cuda"', 'device = "neuron"').replace("capability", "remedy")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    fast = find("mine:fast", [tmp_path])
    assert isinstance(availability(fast, FACTS), Missing)
    assert availability(fast, FACTS, [Device("nc0", "neuron", "NeuronCore")]) is None


@pytest.mark.parametrize(
    ("have", "wanted", "meets"),
    [
        ("2.13.0+cpu", ">=2.5", True),
        ("2.5", ">=2.5.0", True),
        ("2.10.1", ">=2.9,<2.11", True),
        ("2.8.0", ">=2.8,<2.9", True),
        ("2.9.0", ">=2.8,<2.9", False),
        ("10.0", "<10.0", False),
        ("1.0rc1", "==1.0", True),
        ("3.12.3", "", True),
        ("3", "!=3.0.0", False),
    ],
)
def test_versions_compare_as_numbers(have: str, wanted: str, meets: bool) -> None:
    assert satisfies(have, wanted) is meets
