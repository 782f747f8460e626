from marks import train
import os, subprocess, sys, time
#---
# name: multiprocessing fork
# fast: yes
import multiprocessing
def work(n): train(3, .1); print("work", n, flush=True); sys.exit(n)
if __name__ == "__main__":
    train()
    context = multiprocessing.get_context("fork")
    for n in range(3):
        process = context.Process(target=work, args=(n,)); process.start(); process.join(); print(process.exitcode, flush=True)
#---
# name: multiprocessing spawn
# fast: yes
import multiprocessing
def work(n): train(3, .1); print("work", n, flush=True); sys.exit(n)
if __name__ == "__main__":
    train()
    context = multiprocessing.get_context("spawn")
    for n in range(2):
        process = context.Process(target=work, args=(n,)); process.start(); process.join(); print(process.exitcode, flush=True)
#---
# name: multiprocessing forkserver
import multiprocessing
def work(n): train(3, .1); print("work", n, flush=True); sys.exit(n)
if __name__ == "__main__":
    train()
    context = multiprocessing.get_context("forkserver")
    for n in range(2):
        process = context.Process(target=work, args=(n,)); process.start(); process.join(); print(process.exitcode, flush=True)
#---
# name: a pool
import multiprocessing
def work(n): train(2, .02); return n * n
if __name__ == "__main__":
    train()
    with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(work, range(6)))
#---
# name: a pool that is spawned
import concurrent.futures, multiprocessing
def work(n): train(2, .02); return n * n
if __name__ == "__main__":
    train()
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool: print(list(pool.map(work, range(4))))
#---
# name: a manager and a queue
import multiprocessing
def work(queue): train(2, .05); queue.put("x")
if __name__ == "__main__":
    queue = multiprocessing.Queue(); process = multiprocessing.Process(target=work, args=(queue,)); process.start()
    train(); print(queue.get()); process.join()
    with multiprocessing.Manager() as manager: shared = manager.dict(a=1); print(dict(shared))
#---
# name: fork
train()
for n in range(3):
    pid = os.fork()
    if not pid:
        train(2, .1); os._exit(n)
    print(os.waitpid(pid, 0)[1] >> 8, flush=True)
#---
# name: fork inside a step
train(3)
pid = os.fork()
train(3)
if pid: os.waitpid(pid, 0)
print("parent" if pid else "child", flush=True)
#---
# name: fork before the first step
pid = os.fork()
train()
if pid: os.waitpid(pid, 0)
print("parent" if pid else "child", flush=True)
#---
# name: wait for any child
train()
pids = [subprocess.Popen(["true"]).pid for _ in range(3)]
print(sorted(os.wait()[0] for _ in pids) == sorted(pids))
try: os.wait()
except ChildProcessError: print("none left")
#---
# name: execv
# fast: yes
if len(sys.argv) < 2:
    train(); sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, __file__, "again"])
train(); print("again", sys.argv[1:])
#---
# name: execve with another environment
if len(sys.argv) < 2:
    train(); sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, __file__, "again"], {"A": "1", "PATH": os.environ["PATH"]})
print(sorted(name for name in os.environ if name != "LC_CTYPE"))
#---
# name: execvp of another program
train(); sys.stdout.flush()
os.execvp("sh", ["sh", "-c", "echo from sh; exit 9"])
#---
# name: _exit
# fast: yes
train(); print("said", flush=True); os._exit(7)
#---
# name: _exit in a child of subprocess
train()
done = subprocess.run([sys.executable, "-c", "from marks import train; import os; train(); os._exit(6)"])
print(done.returncode)
#---
# name: a daemon
train()
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 256)
for _ in range(3): os.open(os.devnull, os.O_RDWR)
train()
with open("daemon.txt", "w") as file: file.write("done")
os._exit(0)
#---
# name: a process that goes on
train()
subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
# differs: left: what a recorded script leaves behind is left alone or stopped by the recorder, as its page says
#---
# name: descriptors handed to a child
reader, writer = os.pipe(); os.set_inheritable(writer, True)
train()
subprocess.run([sys.executable, "-c", f"import os; os.write({writer}, b'hi')"], pass_fds=[writer])
print(os.read(reader, 2))
#---
# name: descriptors that a child finds
train()
code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists('/proc/self/fd/' + n)))"
subprocess.run([sys.executable, "-S", "-c", code], close_fds=False)
#---
# name: posix_spawn
train()
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {})
print(os.waitpid(pid, 0)[1] >> 8)
#---
# name: system and popen
train()
print(os.system("exit 3") >> 8, os.popen("echo hi").read())
#---
# name: preexec_fn
train()
print(subprocess.run(["sh", "-c", "umask"], preexec_fn=lambda: os.umask(0o77), capture_output=True).stdout)
#---
# name: nice and limits
import resource
os.nice(3); train()
print(os.nice(0) >= 3, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0)
