from marks import train
import os, signal, sys, threading
train()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); os.kill(os.getpid(), signal.SIGUSR1)
print(sys.version_info[:2], int(signal.sigwait({signal.SIGUSR1})), threading.enumerate())
os.closerange(3, 1024)
mine = [open(f"mine{n}", "w+") for n in range(250)]
train(3, .4)
print({os.fstat(file.fileno()).st_size for file in mine})
pid = os.fork()
train()
if pid: print(os.waitpid(pid, 0)[1])
else: os._exit(0)
sys.exit(3)
#---
# name: Python 3.9
# python: 3.9
# fast: yes
#---
# name: Python 3.10
# python: 3.10
#---
# name: Python 3.11
# python: 3.11
#---
# name: Python 3.12
# python: 3.12
#---
# name: Python 3.13
# python: 3.13
# fast: yes
#---
# name: Python 3.14
# python: 3.14
