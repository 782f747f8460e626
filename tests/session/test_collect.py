"""Collecting sessions of other hosts: rsync with an ssh that runs what it is told on this machine, host by host."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.session.host_parts import MS, S, goes_on, part
from tests.session.session_logs import append, line
from tests.waiting import running, until
from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.collecting import Remote
from tuiprof.session.live.hosts import host_states
from tuiprof.session.live.listing import list_sessions
from tuiprof.session.live.replay import read_fold
from tuiprof.session.run.control import arm, disarm, request_capture, request_stop
from tuiprof.session.store.folders import find_session
from tuiprof.session.store.meta import TriggerRequest
from tuiprof.session.store.status import Collected, read_collected, write_collected
from tuiprof.system import process

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync here")

#: As ssh: options, host, command. A host is a folder, in which its sessions lie; one with a file "down" is not reached.
_SSH = """
    import os, subprocess, sys
    arguments = iter(sys.argv[2:])
    for word in arguments:
        if word == "-l":
            next(arguments)
        elif word == "-O":
            sys.exit(0)
        elif not word.startswith("-"):
            host = word
            break
        elif word == "--":
            host = next(arguments)
            break
    host = host.rpartition("@")[2]
    home = os.path.join(sys.argv[1], host)
    with open(os.path.join(sys.argv[1], "asked"), "a") as asked:
        asked.write(host + chr(10))
    if not os.path.isdir(home) or os.path.exists(os.path.join(home, "down")):
        sys.exit(f"ssh: connect to host {host} port 22: Connection refused")
    command = " ".join(arguments)
    if os.path.exists(os.path.join(home, "forged")) and "tuiprof-sessions" in command:
        sys.stdout.write(open(os.path.join(home, "forged")).read())
        sys.exit(0)
    environment = {**os.environ, "TUIPROF_SESSIONS": os.path.join(home, "sessions"), "HOME": home}
    sys.exit(subprocess.run(["sh", "-c", command], env=environment).returncode)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Return the folder that holds one folder a host."""
    (tmp_path / "hosts").mkdir()
    (tmp_path / "ssh.py").write_text(textwrap.dedent(_SSH))
    return tmp_path / "hosts"


def command(hosts: Path, *arguments: str) -> list[str]:
    """Return a call of the verb."""
    ssh = f"{sys.executable} {hosts.parent / 'ssh.py'} {hosts}"
    root = str(hosts.parent / "here")
    return [sys.executable, "-m", "tuiprof", "--sessions", root, "collect", "--ssh", ssh, *arguments]


def collect(hosts: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the verb to its end."""
    return subprocess.run(
        command(hosts, *arguments), capture_output=True, text=True, timeout=120, check=False
    )


def contents(folder: Path, without: Sequence[str] = ()) -> dict[str, bytes]:
    """Return the files of a folder by their paths in it."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in without}


@needs_rsync
def test_what_two_hosts_recorded_becomes_one_run_here(hosts: Path) -> None:
    first = part(hosts / "node1" / "sessions", "node1", [0], capture="traces/a.pt.trace.json")
    second = part(hosts / "node2" / "sessions", "node2", [1], ahead_ns=7 * S)
    (first.path / "traces" / "a.pt.trace.json").write_text("{}")
    done = collect(hosts, "node1", "me@node2", "--every", "0.1")
    assert done.returncode == 0, done.stderr
    here = hosts.parent / "here"
    for session, host in ((first, "node1"), (second, "node2")):
        copied = contents(here / f"{session.id}.{host}", without=["collected.json"])
        assert copied == contents(session.path)
    run = find_session(here, "last")
    assert [rank.label for rank in read_fold(run).ranks] == ["rank0 on node1", "rank1 on node2"]
    assert [summary.state for summary in list_sessions(here)] == ["finished"]
    assert [path.name for path in run.all_traces()] == ["a.pt.trace.json"]


@needs_rsync
def test_a_run_that_grows_is_followed_to_its_end_and_requests_reach_its_host(hosts: Path) -> None:
    there = goes_on(part(hosts / "node1" / "sessions", "node1", [0], ended=False))
    part(hosts / "node2" / "sessions", "node2", [1])
    here = hosts.parent / "here"
    with running(
        command(hosts, "node1", "node2", "--every", "0.1"), stderr=subprocess.PIPE, text=True
    ) as process_:
        until(lambda: len(list_sessions(here)) == 1 and list_sessions(here)[0].parts, "both hosts")
        run = find_session(here, "last")
        name = request_capture(run, 3, 50)
        asked = there.control / f"capture-{name}.json"
        until(asked.exists, "the request")
        assert json.loads(asked.read_text())["at"] == 50
        trigger = there.control / "trigger-slow.json"
        arm(run, TriggerRequest("slow", above_ns=MS))
        until(trigger.exists, "the trigger")
        disarm(run, "slow")
        until(lambda: not trigger.exists(), "the trigger's end")
        append(there, "rank0", line("step", n=40, at=there.meta.mono_ns + 9 * S, dur=MS))
        until(lambda: len(read_fold(run).ranks[0].steps) == 41, "the step")
        append(there, "recorder", line("end", at=there.meta.mono_ns + 10 * S, code=0))
        _, said = process_.communicate(timeout=60)
        assert process_.returncode == 0, said
    assert run.status().state == "finished"
    assert read_collected(run.path).collector is None  # type: ignore[union-attr]


@needs_rsync
def test_a_host_that_is_not_reached_holds_up_nobody_and_is_taken_up_again(hosts: Path) -> None:
    first = goes_on(part(hosts / "node1" / "sessions", "node1", [0], ended=False))
    goes_on(part(hosts / "node2" / "sessions", "node2", [1], ended=False))
    here = hosts.parent / "here"
    down = hosts / "node2" / "down"
    with running(
        command(hosts, "node1", "node2", "--every", "0.1"), stderr=subprocess.PIPE, text=True
    ) as process_:
        until(lambda: len(list_sessions(here)) == 1 and list_sessions(here)[0].parts, "both hosts")
        down.touch()
        run = find_session(here, "last")

        def of_second() -> str:
            return host_states(run, read_fold(run))[1].lost

        until(lambda: "Connection refused" in of_second(), of_second)
        append(first, "rank0", line("step", n=40, at=first.meta.mono_ns + 9 * S, dur=MS))
        until(lambda: len(read_fold(run).ranks[0].steps) == 41, "a step of the other host")
        request_capture(run, 3, 50, id="one")
        assert [(it.control / "capture-one.json").exists() for it in run.parts] == [True, False]
        down.unlink()
        until(lambda: not of_second(), of_second)
        process_.send_signal(signal.SIGINT)
        _, said = process_.communicate(timeout=60)
    assert process_.returncode == 0, said
    assert "node2: ssh: connect to host node2 port 22: Connection refused" in said
    assert "node2: reached again" in said
    states = host_states(run, read_fold(run))
    assert all("no collector is running: tuiprof collect" in host.lost for host in states)
    with pytest.raises(SessionError, match="has ended"):
        request_capture(run, 3, 50)


@pytest.mark.parametrize(
    "name",
    [
        "-oProxyCommand=touch pwned",
        "--rsync-path=x",
        "a b",
        "node;touch x",
        "$(touch x)",
        "me@-x",
        "n/x",
        "",
        "a\n-b",
    ],
)
def test_a_name_that_is_no_host_never_reaches_ssh(hosts: Path, name: str) -> None:
    done = collect(hosts, "--", name)
    assert done.returncode == 2
    assert "is not the name of a host" in done.stderr
    assert not (hosts / "asked").exists()


@needs_rsync
def test_a_folder_there_that_looks_like_options_or_commands_is_a_folder(hosts: Path) -> None:
    odd = hosts / "-e touch pwned; $(touch pwned)"
    session = part(odd, "node1", [0])
    (hosts / "node1").mkdir()
    done = collect(hosts, f"node1:{odd}", "--once")
    assert done.returncode == 0, done.stderr
    assert (hosts.parent / "here" / f"{session.id}.node1" / "session.json").exists()
    assert not list(hosts.parent.rglob("pwned"))


@needs_rsync
@pytest.mark.parametrize(
    "listed",
    ["20260101T000000Z-../../../x", "../20260101T000000Z-x", "20260101T000000Z-a b", "-x", "\x1b[31m"],
)
def test_a_host_cannot_choose_where_its_files_go(hosts: Path, listed: str) -> None:
    (hosts / "evil").mkdir()
    (hosts / "evil" / "forged").write_text(f"\ntuiprof-sessions\n/tmp\n{listed}\n")
    done = collect(hosts, "evil", "--once")
    assert done.returncode == SessionError.exit_code
    assert "has no session yet" in done.stderr
    assert not list((hosts.parent / "here").glob("*"))


@needs_rsync
def test_links_of_a_host_are_not_copied(hosts: Path) -> None:
    session = part(hosts / "node1" / "sessions", "node1", [0])
    (session.path / "traces" / "a.pt.trace.json").symlink_to("/etc/passwd")
    (session.path / "stdout.log").symlink_to("/etc/passwd")
    os.mkfifo(session.log / "rank7.jsonl")
    assert collect(hosts, "node1", "--once").returncode == 0
    copy = hosts.parent / "here" / f"{session.id}.node1"
    assert sorted(contents(copy)) == [
        "collected.json",
        "log/rank0.jsonl",
        "log/recorder.jsonl",
        "session.json",
    ]


@needs_rsync
def test_a_copy_never_takes_the_place_of_something_else(hosts: Path) -> None:
    session = part(hosts / "node1" / "sessions", "node1", [0])
    mine = hosts.parent / "here" / f"{session.id}.node1"
    mine.mkdir(parents=True)
    (mine / "session.json").write_text("mine")
    done = collect(hosts, "node1", "--once")
    assert done.returncode == SessionError.exit_code
    assert "is not a copy of node1" in done.stderr
    assert (mine / "session.json").read_text() == "mine"


@needs_rsync
def test_what_was_noted_here_of_a_copy_stays(hosts: Path) -> None:
    session = part(hosts / "node1" / "sessions", "node1", [0])
    assert collect(hosts, "node1", "--once").returncode == 0
    labels = hosts.parent / "here" / f"{session.id}.node1" / "labels.json"
    labels.write_text("mine")
    (session.path / "labels.json").write_text("theirs, and longer")
    assert collect(hosts, "node1", "--once").returncode == 0
    assert labels.read_text() == "mine"


@needs_rsync
def test_output_counts_that_keep_their_size_are_copied(hosts: Path) -> None:
    session = part(hosts / "node1" / "sessions", "node1", [0])
    for content in ("1111", "2222"):
        (session.control / "output.json").write_text(content)
        assert collect(hosts, "node1", "--once").returncode == 0
        copy = hosts.parent / "here" / f"{session.id}.node1"
        assert (copy / "control" / "output.json").read_text() == content


def test_the_processes_of_a_copy_are_never_taken_for_ones_of_this_machine(tmp_path: Path) -> None:
    session = part(tmp_path, "node1", [0], ended=False)
    own = process.identify(os.getpid())
    assert own is not None
    who = process.Processes(own, own, process.pid_namespace())
    (session.control / "process.json").write_bytes(msgspec.json.encode(who))
    assert session.status().state == "running"
    started = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        target = process.identify(started.pid)
        assert target is not None
        who = process.Processes(process.ProcessId(1, "dead"), target, process.pid_namespace())
        (session.control / "process.json").write_bytes(msgspec.json.encode(who))
        copied = Collected("node1", "/x", every_s=1.0, collector=own, pid_namespace=process.pid_namespace())
        write_collected(session.path, copied)
        request_stop(session, firm=True)
        assert (session.control / "stop.json").exists()
        started.terminate()
        assert started.wait() == -signal.SIGTERM  # the first signal that came
    finally:
        started.kill()


def test_missing_programs_are_said(hosts: Path, tmp_path: Path) -> None:
    part(hosts / "node1" / "sessions", "node1", [0])
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": str(tmp_path / "bin")}
    done = subprocess.run(
        command(hosts, "node1"), capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 2
    assert re.search(r"rsync is not installed\n.*apt install rsync", done.stderr), done.stderr
    with pytest.raises(UsageProblem, match="ssh-of-nobody is not installed"):
        Remote.parse("node1", "ssh-of-nobody").check()


def test_ports_and_keys_are_options_of_the_users_ssh() -> None:
    remote = Remote.parse("me@[fe80::1%eth0]:~/runs", "ssh -p 2222")
    assert (remote.host, remote.root, remote.ssh, remote.name) == (
        "me@[fe80::1%eth0]",
        "~/runs",
        ("ssh", "-p", "2222"),
        "fe80-1-eth0",
    )
    with pytest.raises(UsageProblem, match="cannot be read"):
        Remote.parse("node1", "ssh 'x")


@pytest.mark.parametrize(
    ("code", "errors", "said"),
    [
        (
            255,
            "@@@@@\nWARNING\nme@node1: Permission denied (publickey).",
            "node1 refuses: me@node1: Permission denied",
        ),
        (255, "mux_client: read from master failed: Broken pipe", "node1: the connection was lost"),
        (
            127,
            "sh: 1: rsync: not found\nrsync: connection unexpectedly closed",
            "rsync is not installed on node1",
        ),
        (11, "rsync: [receiver] write failed: No space left on device (28)\nrsync error: x", "No space left"),
        (
            12,
            "ssh: connect to host node1 port 22: No route to host\nrsync error: (code 255)",
            "No route to host",
        ),
        (2, "", "node1: ended with status 2"),
    ],
)
def test_why_a_host_is_not_reached_is_said_in_one_line(code: int, errors: str, said: str) -> None:
    message, _ = Remote.parse("node1")._why(code, errors)
    assert said in message
    assert "\n" not in message
