from marks import train
import os, signal, sys, threading, time
#---
# name: sigwait
# fast: yes
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
train()
for number in (signal.SIGUSR1, signal.SIGTERM): os.kill(os.getpid(), number)
print(sorted(int(signal.sigwait({signal.SIGUSR1, signal.SIGTERM})) for _ in range(2)))
#---
# name: setitimer
# fast: yes
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, .02, .02)
while len(ticks) < 10: train(3, .01)
signal.setitimer(signal.ITIMER_REAL, 0)
print("ticked")
#---
# name: a time-out by a handler that raises
class TimeOut(Exception): pass
def handler(*_): raise TimeOut
signal.signal(signal.SIGALRM, handler)
caught = 0
train(1, 0)
for n in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, .0005 + n * .0001, .1)
        while True: train(1, 0)
    except TimeOut: caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
print(caught)
#---
# name: ctrl-c
signal.signal(signal.SIGINT, signal.default_int_handler)
train()
try:
    os.kill(os.getpid(), signal.SIGINT); time.sleep(5)
except KeyboardInterrupt:
    print("interrupted")
#---
# name: ctrl-c that nobody catches
signal.signal(signal.SIGINT, signal.default_int_handler)
train()
os.kill(os.getpid(), signal.SIGINT); time.sleep(5)
#---
# name: killed by SIGTERM
train(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
#---
# name: killed by SIGKILL
train(); os.kill(os.getpid(), signal.SIGKILL); time.sleep(5)
#---
# name: abort
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
train(); os.abort()
#---
# name: a segmentation fault
import ctypes, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
train(); ctypes.string_at(0)
#---
# name: SIGUSR1 handled
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(frame.f_code.co_name))
train()
os.kill(os.getpid(), signal.SIGUSR1)
print(got)
#---
# name: pause
signal.signal(signal.SIGUSR1, lambda *_: None)
train()
threading.Timer(.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
signal.pause(); print("went on")
#---
# name: a wakeup descriptor
reader, writer = os.pipe(); os.set_blocking(writer, False)
signal.set_wakeup_fd(writer); signal.signal(signal.SIGUSR1, lambda *_: None)
train()
os.kill(os.getpid(), signal.SIGUSR1)
print(os.read(reader, 10) == bytes([signal.SIGUSR1]))
#---
# name: the mask of a child
import subprocess
train()
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
subprocess.run(["grep", "SigBlk", "/proc/self/status"])
#---
# name: handlers
train()
print([str(signal.getsignal(number)) for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR2, signal.SIGCHLD, signal.SIGALRM)])
#---
# name: SIGPIPE
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
train()
reader, writer = os.pipe(); os.close(reader)
os.write(writer, b"x")
#---
# name: timers of processor time
class TimeOut(Exception): pass
def handler(*_): raise TimeOut
signal.signal(signal.SIGPROF, handler)
train()
signal.setitimer(signal.ITIMER_PROF, .05)
try:
    while True: train(1, 0)
except TimeOut: print("used up")
#---
# name: SIGCHLD
ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
train()
pid = os.fork()
if not pid: os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if hasattr(os, "waitstatus_to_exitcode") else 3, len(ended))
