"""What all tests share: an environment that is theirs alone, and examples that are the same on every machine."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from forked import ForkedPython

with contextlib.suppress(ImportError):  # a GPU machine needs no more than pytest and torch
    from hypothesis import HealthCheck, settings

    # A check of a change must not fail by chance: the same examples in every run, whatever the load. To look for
    # others: `pytest --hypothesis-profile explore`.
    settings.register_profile(
        "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("explore", deadline=None, max_examples=2000)
    settings.load_profile("same")

# Hundreds of interpreters are started; as where tuiprof is installed, its modules are compiled once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: Variables that speak to the tests themselves; the last is how pytest-textual-snapshot tells its workers a folder.
_TO_TESTS = frozenset(
    (
        *(
            "TUIPROF_TEST_JAX_PYTHON",
            "TUIPROF_JAX_PYTHON",
            "TUIPROF_INTEROP_PYTHON",
            "TUIPROF_UPDATE_GOLDENS",
        ),
        "TEXTUAL_SNAPSHOT_TEMPDIR",
    )
)
#: Of the caller's shell, terminal and cluster job; what tests look at must not depend on them.
_FOREIGN = ("TUIPROF_", "TEXTUAL", "LC_", "SLURM_", "OMPI_", "PMI_", "GIT_")
_FOREIGN_NAMES = frozenset(
    (
        *(
            "NO_COLOR",
            "FORCE_COLOR",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "COLUMNS",
            "LINES",
            "TMUX",
            "STY",
            "LANGUAGE",
        ),
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONSTARTUP", "PYTHONWARNINGS"),
    )
)
_FOLDERS = ("CONFIG", "DATA", "STATE", "CACHE")
#: How many times its own limit a test may take before its process is ended.
_PATIENCE = 2
#: Of a test where no configuration is read (`-c /dev/null`, on a GPU machine without the plugins), seconds.
_LIMIT_S = 180
#: The error stream of this process, which `pytest` puts aside while a test runs.
_ERRORS = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this process, and all that it starts, an environment of its own; its user's files stay out of it."""
    # Started in the background, what it starts would ignore Ctrl-C too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        foreign = name.startswith(_FOREIGN) and not name.startswith("TUIPROF_BENCH_")
        if name in _FOREIGN_NAMES or (foreign and name not in _TO_TESTS):
            del os.environ[name]
    with contextlib.suppress(ImportError):
        from platformdirs import user_cache_dir

        # Kept from run to run: compiling takes minutes.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(user_cache_dir("tuiprof"), "compiled"))
    config.stash[_ERRORS] = os.dup(2)
    place = Path(tempfile.mkdtemp(prefix="tuiprof-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    os.environ.update({f"XDG_{kind}_HOME": str(place / kind.lower()) for kind in _FOLDERS})
    os.environ.update({"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "TZ": "UTC"})
    time.tzset()
    # `python` is the interpreter that runs the tests, also where no environment, or another one, is active.
    os.environ["PATH"] = os.pathsep.join(
        (os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))
    )
    if sys.prefix != sys.base_prefix:
        os.environ["VIRTUAL_ENV"] = sys.prefix


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let Polars have one thread in each worker: all cores are taken, and more would wait for each other there."""
    if not hasattr(session.config, "workerinput"):
        return
    os.environ["POLARS_MAX_THREADS"] = "1"
    with contextlib.suppress(ImportError):
        import polars

        polars.thread_pool_size()  # which begins it
    del os.environ["POLARS_MAX_THREADS"]  # what is started is as it is for a user


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what stays for good: PyTorch, all test modules and every test.

    And let it run less often: by default a third of the time of the tests of the screens is collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Write every stack and end this process where a test hangs, so that the other tests are still run.

    The alarm of pytest-timeout raises where Python happens to be. An event loop keeps what is raised in one of its
    callbacks, and what the test leaves behind may wait for ever once it has been raised.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker is not None else item.config.getini("timeout") or _LIMIT_S)
    faulthandler.dump_traceback_later(_PATIENCE * limit_s, exit=True, file=item.config.stash[_ERRORS])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material beside the checkout; a clone elsewhere has none."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip("the folder shared/ is not beside this checkout")
    return path


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedPython]:
    """Runs scripts where PyTorch has been imported already."""
    yield from _forked(tmp_path_factory, "torch._dynamo")  # which every optimizer imports


@pytest.fixture(scope="session")
def forked_jax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedPython]:
    """Runs scripts where JAX has been imported already, and nothing of it was used."""
    yield from _forked(tmp_path_factory, "jax")


def _forked(factory: pytest.TempPathFactory, module: str) -> Iterator[ForkedPython]:
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has one of its own below it
    python = ForkedPython(folder / module, module)
    yield python
    python.close()


@pytest.fixture(autouse=True)
def _defects_surface(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what tuiprof would report as unavailable, because it failed, fail the test."""
    if request.node.get_closest_marker("defects") is None:
        for name in ("tuiprof.analyses", "tuiprof.advice", "tuiprof.telemetry", "tuiprof.formats.registry"):
            if (module := sys.modules.get(name)) is not None:
                monkeypatch.setattr(module, "describe", _raise)


def _raise(error: BaseException) -> str:
    raise AssertionError("a part of tuiprof failed") from error
