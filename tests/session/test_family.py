"""What a script leaves behind in the process table: nothing that was to be ended, and nothing to be collected."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans can be adopted on Linux only")


def _adopting(code: str, *arguments: object) -> str:
    """Run code in a process that inherits the orphans of what it starts, and return what it prints."""
    begin = "from tuiprof.session.run.supervisor import become_subreaper\nbecome_subreaper()\n"
    command = [sys.executable, "-c", begin + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_ended_just_before_the_end_is_collected(tmp_path: Path) -> None:
    # Strays are looked for every 2 s: the first one takes the look, the second ends between it and the script's end.
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            def stray():
                reading, writing = os.pipe()
                if os.fork() == 0:
                    os.setsid()
                    pid = os.fork()
                    if pid:
                        os.write(writing, b"%d" % pid)
                    os._exit(0)
                os.wait()
                return int(os.read(reading, 20))
            first = stray()
            while os.path.exists(f"/proc/{first}"):  # until it has been collected
                time.sleep(0.01)
            second = stray()
            while " Z " not in open(f"/proc/{second}/stat").read():
                time.sleep(0.01)
            """
        )
    )
    told = _adopting(
        """
        import os, sys
        from pathlib import Path
        from tuiprof.session.run.launch import LaunchSpec, start, wait
        from tuiprof.session.store.status import processes
        session = start(LaunchSpec((sys.argv[1],), root=Path(sys.argv[2]), python=sys.executable))
        print(wait(session, 30))
        own = processes(session).supervisor.pid
        os.waitpid(own, 0)
        try:
            print("also left to init:", os.wait())
        except ChildProcessError:
            print("nothing is left")
        """,
        script,
        tmp_path / "sessions",
    )
    assert told.splitlines() == ["finished", "nothing is left"]


def test_a_process_that_the_last_signal_missed_is_sent_it_again() -> None:
    told = _adopting(
        """
        import os, subprocess
        from tuiprof.session.run.supervisor import Shutdown, ProcessTree
        script = "setsid sh -c 'echo ready; exec sleep 60' & wait"
        leader = subprocess.Popen(["sh", "-c", script], process_group=0, stdout=subprocess.PIPE)
        leader.stdout.readline()
        class BeingBorn(ProcessTree):
            looks = 0
            def members(self):
                self.looks += 1
                return super().members() if self.looks > 1 else []
        family = BeingBorn(leader.pid)
        shutdown = Shutdown(family, (0.0, 0.0))
        shutdown.begin(9, 0.0)
        leader.wait()
        print(len(ProcessTree(leader.pid).members()))
        shutdown.advance(0.1)
        shutdown.advance(60.0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert told.splitlines() == ["1", "-9"]
