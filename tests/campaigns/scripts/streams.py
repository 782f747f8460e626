from marks import train
import os, sys
train()
#---
# name: stdin from a pipe
# stdin: one\ntwo\nthree
# fast: yes
print(sys.stdin.isatty(), [line for line in sys.stdin])
#---
# name: input
# stdin: me\n
print(input("name? "))
#---
# name: input at the end of the data
print(input("name? "))
#---
# name: stdin in a terminal
# tty: yes
# stdin: me\n
# fast: yes
print(sys.stdin.isatty(), sys.stdout.isatty(), input("name? "))
#---
# name: the size of a terminal
# tty: yes
import shutil
print(shutil.get_terminal_size(), os.ttyname(0).startswith("/dev/pts"))
#---
# name: getpass in a terminal
# tty: yes
# stdin: secret\n
import getpass
print(len(getpass.getpass()))
#---
# name: bytes
sys.stdout.buffer.write(bytes(range(256))); sys.stdout.flush()
#---
# name: a megabyte
sys.stdout.write("x" * (1 << 20)); sys.stderr.write("y" * (1 << 20))
#---
# name: broken text
print("\udcff".encode("utf-8", "surrogateescape") + b"\x1b[31m")
#---
# name: closed streams
sys.stdout.close()
sys.stderr.close()
#---
# name: closed descriptors of the streams
print("said", flush=True)
os.close(1); os.close(2)
train()
os._exit(0)
#---
# name: streams of its own
import io
sys.stdout = io.StringIO(); print("caught"); caught = sys.stdout.getvalue(); sys.stdout = sys.__stdout__
train(); print(caught)
#---
# name: redirected descriptors
kept = os.dup(1)
os.dup2(os.open("out.txt", os.O_WRONLY | os.O_CREAT), 1)
train(); os.system("echo to a file")
os.dup2(kept, 1); os.system("echo to stdout")
#---
# name: logging
import logging
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(threadName)s %(message)s")
logging.debug("debugged"); train(); logging.error("failed")
#---
# name: a progress bar
for n in range(20): sys.stderr.write(f"\r{n}"); sys.stderr.flush()
train()
