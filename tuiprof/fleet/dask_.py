"""Batches on Dask distributed workers: on many machines, or local processes."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.fleet.gather import Batch, run_batch

if TYPE_CHECKING:
    from tuiprof.fleet.summary import Summary

#: Batches queued in the scheduler per worker, besides the running one.
_AHEAD: Final = 2
#: Timeout for the scheduler, s.
_PATIENCE_S: Final = 10
#: One thread per worker, as on processes: there is one worker per core.
_ENVIRONMENT: Final = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: For workers started locally or by ssh. Dask samples the stacks of a worker 100 times per second, which takes half
#: the processor time of reading a trace, and wakes every process 50 times per second to time its event loop.
_SETTINGS: Final = {
    "distributed.nanny.pre-spawn-environ": _ENVIRONMENT,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
_HOST: Final = re.compile(r"(?:(?P<user>[\w.-]+)@)?[A-Za-z0-9_][A-Za-z0-9_.-]*(?::(?P<port>\d{1,5}))?")
_REMEDY: Final = "pip install 'tuiprof[dask]'"
_RESUME: Final = (
    "completed work is kept: run the same command again once it is back, or without --on to continue here"
)
_DIED: Final = "the Dask workers that read it died, usually because memory ran out"


class Dask:
    """The workers of a scheduler.

    Args:
        address: Address of the scheduler, as ``tcp://host:8786``; empty = a cluster on this machine.
        workers: Workers of a cluster on this machine, or on each host.
        hosts: Hosts on which workers are started by ssh, ``[user@]host[:port]``; the first also runs the scheduler.
        task: The function that a worker runs on a batch.

    Raises:
        TuiprofError: Dask is not installed, the scheduler does not answer, or has no workers.
        UsageProblem: A worker runs another version of tuiprof, or none can be started by ssh.
    """

    def __init__(
        self,
        address: str = "",
        workers: int = 0,
        task: Callable[[Batch], Summary] = run_batch,
        hosts: Sequence[str] = (),
    ) -> None:
        try:
            import dask
            import distributed
        except ImportError:
            raise UsageProblem("Dask is not installed", _REMEDY) from None
        # Hide the workers' log messages about closed connections.
        for name in (
            "distributed",
            "distributed.worker",
            "distributed.nanny",
            "distributed.client",
            "distributed.deploy.ssh",
            "tornado",
        ):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._closing = contextlib.ExitStack()
        self._task = task
        self._address = address or ", ".join(hosts) or "the cluster on this machine"
        with contextlib.ExitStack() as opened:
            opened.enter_context(dask.config.set(_SETTINGS))
            if address:
                target: Any = address
            elif hosts:
                target = opened.enter_context(_by_ssh(hosts, workers))
            else:
                target = opened.enter_context(
                    distributed.LocalCluster(
                        n_workers=workers,
                        threads_per_worker=1,
                        processes=True,
                        dashboard_address=None,
                        silence_logs=logging.CRITICAL,
                    )
                )
            try:
                self._client = opened.enter_context(
                    distributed.Client(target, timeout=_PATIENCE_S, set_as_default=False)
                )
            except (OSError, TimeoutError, ValueError) as error:
                raise UsageProblem(
                    f"no Dask scheduler responds at {address}", "start one: dask scheduler"
                ) from error
            self._compare_versions()
            self._closing = opened.pop_all()

    def _compare_versions(self) -> None:
        """Check that all workers have the tuiprof of this client.

        Raises:
            UsageProblem: There is no worker, one lacks tuiprof, or has another version.
        """
        found: dict[str, Any] = self._client.run(_version, on_error="return")
        if not found:
            raise UsageProblem(
                f"the Dask scheduler at {self._address} has no workers",
                "start some: dask worker ADDRESS --nthreads 1",
            )
        own = _version()
        for worker, said in found.items():
            if said != own:
                what = f"tuiprof {said}" if isinstance(said, str) else "no importable tuiprof"
                raise UsageProblem(
                    f"the Dask worker {worker} has {what}, this client has {own}",
                    f"pip install tuiprof=={own} on every worker",
                )
        self.workers = sum(self._client.nthreads().values())

    @property
    def name(self) -> str:
        """Description for display."""
        return f"{self.workers} Dask workers of {self._address}"

    def close(self) -> None:
        """Disconnect from the scheduler, or stop the local cluster."""
        with contextlib.suppress(Exception):  # a lost scheduler cannot be closed
            self._closing.close()

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Summary]]:
        """Process batches; yields each with its summary, in order of completion.

        Dask reassigns the batches of a dead worker. A batch that killed several workers is read file by file; a file
        that then kills another worker becomes a row with this reason.

        Raises:
            TuiprofError: The scheduler is lost.
        """
        import distributed
        from distributed.comm import CommClosedError

        from tuiprof.fleet.summary import unreadable

        waiting = iter(batches)
        done = distributed.as_completed(loop=self._client.loop)
        under_way: dict[str, Batch] = {}

        def hand_over(batch: Batch) -> None:
            future = self._client.submit(self._task, batch, pure=False)
            under_way[future.key] = batch
            done.add(future)

        try:
            for _ in range(self.workers * (1 + _AHEAD)):
                if (batch := next(waiting, None)) is not None:
                    hand_over(batch)
            while under_way:
                future = next(done)
                batch = under_way.pop(future.key)
                try:
                    summary = future.result()
                except distributed.KilledWorker:
                    if len(batch) > 1:
                        for file in batch:
                            hand_over((file,))
                    else:
                        file = batch[0]
                        yield batch, unreadable(file.number, file.path, file.rank, file.size, _DIED)
                else:
                    yield batch, summary
                del future  # the worker may forget it
                if (following := next(waiting, None)) is not None:
                    hand_over(following)
        except (
            CommClosedError,
            distributed.client.FutureCancelledError,
            distributed.client.ClosedClientError,
            StopIteration,
            OSError,
            TimeoutError,
        ) as error:
            raise TuiprofError(f"the Dask scheduler of {self._address} is lost", _RESUME) from error


def _version() -> str:
    """Return the version of tuiprof where this runs."""
    from tuiprof import __version__

    return __version__


def _by_ssh(hosts: Sequence[str], workers: int) -> contextlib.AbstractContextManager[Any]:
    """Start a scheduler on the first host and workers on each, by ssh; they end with the context.

    The hosts need the Python of this process under the same path. User, port and keys are those of ``~/.ssh/config``.

    Raises:
        UsageProblem: asyncssh is not installed, or a host cannot be reached.
    """
    import distributed

    if importlib.util.find_spec("asyncssh") is None:
        raise UsageProblem("asyncssh is not installed, which Dask needs for ssh", "pip install asyncssh")
    options = [_connection(host) for host in hosts]
    names = [host.rpartition("@")[2].partition(":")[0] for host in hosts]
    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
    try:
        cluster: contextlib.AbstractContextManager[Any] = distributed.SSHCluster(
            [names[0], *names],
            connect_options=[options[0], *options],
            worker_options={"nthreads": 1, "n_workers": max(1, workers), "env": _ENVIRONMENT},
            scheduler_options={"port": 0, "dashboard": False},
            remote_python=sys.executable,
        )
    except Exception as error:  # errors of asyncssh, possibly wrapped by Dask
        raise UsageProblem(
            f"no Dask workers could be started on {', '.join(hosts)}: {str(error)[:300]}",
            f"try ssh {names[0]} {sys.executable} -m distributed.cli.dask_worker --help",
        ) from error
    return cluster


def _connection(host: str) -> dict[str, Any]:
    """Return the asyncssh connection options of a host; raises UsageProblem if it is not ``[user@]host[:port]``."""
    match = _HOST.fullmatch(host)
    if match is None:
        raise UsageProblem(
            f"{host!r} is not the name of a host", "for example --on ssh://node1,me@node2:2222"
        )
    found: dict[str, Any] = {}
    if match["user"]:
        found["username"] = match["user"]
    if match["port"]:
        found["port"] = int(match["port"])
    return found
