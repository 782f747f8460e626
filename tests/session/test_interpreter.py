"""Which interpreters are found on a home directory and a PATH of our own, and what is said of one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tuiprof.errors import LaunchError
from tuiprof.session.run import interpreter, interpreter_facts
from tuiprof.session.run.interpreter import find_interpreters


def fake_python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_facts_of_our_own_interpreter() -> None:
    facts = interpreter.facts(sys.executable)
    assert facts.version == ".".join(map(str, sys.version_info[:3]))
    assert facts.prefix == sys.prefix
    assert facts.distribution("polars") == version("polars")
    assert facts.distribution("pytest_Timeout") == version("pytest-timeout")
    assert facts.distribution("no-such-package") is None
    assert 1 <= facts.cores <= (os.cpu_count() or 1)
    assert facts.numa_nodes >= 1
    assert f"Python {facts.version}" in facts.sentence


def test_facts_are_remembered_until_refreshed(tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    facts = interpreter.facts(env)
    assert facts.prefix == str(env)
    assert facts.distribution("torch") is None
    assert not facts.torch_cuda
    (site,) = env.glob("lib/python3*/site-packages")
    (site / "torch-2.9.1+cu128.dist-info").mkdir()
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "lib" / "libtorch_cuda.so").touch()
    # What the environment prints on its own must not be mistaken for the answer.
    (site / "sitecustomize.py").write_text("print('tuiprof-facts: {}'); print('hello')", encoding="utf-8")
    assert interpreter.facts(env) is facts
    anew = interpreter.facts(env, refresh=True)
    assert anew.distribution("torch") == "2.9.1+cu128"
    assert anew.torch_cuda


def test_modules_of_the_current_directory_do_not_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert interpreter.facts(sys.executable, refresh=True).version


def test_no_such_interpreter(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no interpreter"):
        interpreter.facts(tmp_path / "python")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("printf 'no \\033[31mgood\\n' >&2; exit 3", r"inspected: no \[31mgood"),
        ("exit 0", "exit status 0"),
        ("echo 'tuiprof-facts:{\"version\": 1}'", "invalid answer"),
    ],
)
def test_an_interpreter_that_gives_no_answer(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        interpreter.facts(fake_python(tmp_path / "python", body))
    assert "\x1b" not in str(caught.value)


def test_an_interpreter_that_hangs(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"did not answer within 0\.3 s"):
        interpreter.facts(fake_python(tmp_path / "python", "exec sleep 20"), timeout_s=0.3)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["a", "b", "c"]),
        ("", []),
        ("1", ["b"]),
        ("2,0", ["c", "a"]),
        ("0,-1,1", ["a"]),
        ("GPU-22,0", ["b", "a"]),
        ("7,0", []),
        ("GPU-", []),
    ],
)
def test_gpus_are_those_that_cuda_would_see(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, names: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    found = [("GPU-11", ("a", "9.0")), ("GPU-22", ("b", "9.0")), ("GPU-33", ("c", "9.0"))]
    assert [name for name, _ in interpreter_facts.visible(found)] == names


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="there is no system Python")
def test_another_python() -> None:
    facts = interpreter.facts("/usr/bin/python3")
    said = subprocess.run(
        ["/usr/bin/python3", "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert facts.version == said.stdout.strip()


def python(folder: Path, name: str = "python", target: Path | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if target is None:
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    else:
        path.symlink_to(target)
    return path


def test_environments_conda_pyenv_and_path_are_found_once_each(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    base = python(home / ".pyenv" / "versions" / "3.12.1" / "bin")
    active = python(tmp_path / "active" / "bin", target=base)
    beside = python(project / ".venv" / "bin", target=base)
    conda = python(tmp_path / "conda" / "train" / "bin")
    on_path = python(tmp_path / "bin", "python3")
    environment = python(tmp_path / "train-env" / "bin", target=on_path)
    (tmp_path / "train-env" / "pyvenv.cfg").touch()
    python(tmp_path / "bin", "python", target=on_path)  # the same one by another name
    python(home / ".pyenv" / "shims")
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{conda.parent.parent}\n/gone\n")
    (tmp_path / "broken" / "bin").mkdir(parents=True)
    (tmp_path / "broken" / "bin" / "python").write_text("not executable")
    path = [
        home / ".pyenv" / "shims",
        tmp_path / "train-env" / "bin",
        tmp_path / "broken" / "bin",
        tmp_path / "bin",
        tmp_path / "bin",
        tmp_path / "x",
    ]
    env = {"VIRTUAL_ENV": str(active.parent.parent), "PATH": os.pathsep.join(map(str, path))}

    found = [(one.path, one.origin) for one in find_interpreters(project, env, home)]

    assert found == [
        (active, "active environment"),
        (beside, ".venv in project"),
        (conda, "conda train"),
        (environment, "PATH: train-env"),
        (tmp_path / "bin" / "python", f"PATH: {tmp_path / 'bin'}"),
        (base, "pyenv 3.12.1"),
        (Path(sys.executable), "tuiprof's own"),
    ]
