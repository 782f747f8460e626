from marks import train
import os, sys, time
train(3, .2)
#---
# name: closerange
# fast: yes
os.closerange(3, 1024)
files = [open(f"mine{n}.txt", "w+") for n in range(250)]
train(3, .3)
for file in files: file.write("mine"); file.flush()
train(3, .3)
print({open(file.name).read() for file in files})
#---
# name: its files on every descriptor
mine = os.open("mine.txt", os.O_RDWR | os.O_CREAT)
for number in range(3, 300):
    if number != mine: os.dup2(mine, number)
train(3, .3)
print(os.fstat(mine).st_size)
#---
# name: the lowest descriptor
print(os.open("x", os.O_RDWR | os.O_CREAT), os.dup(1))
#---
# name: files that it writes
os.makedirs("out/deep")
for n in range(5):
    with open(f"out/deep/{n}.bin", "wb") as file: file.write(bytes([n]) * 1000)
#---
# name: a change of folder
os.mkdir("there"); os.chdir("there")
train(); open("here.txt", "w").write("x")
print(os.path.basename(os.getcwd()))
#---
# name: umask
print(oct(os.umask(0o22))); train()
#---
# name: temporary files
import tempfile
with tempfile.TemporaryDirectory(dir=".") as folder: train(); print(len(os.listdir(folder)))
#---
# name: locks
import fcntl
with open("lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB); train(); print("locked")
#---
# name: pickles
import pickle, copy
class Thing: x = 1
print(len(pickle.dumps({"a": [1, 2]})), copy.deepcopy({"a": [1]}))
#---
# name: sqlite
import sqlite3
with sqlite3.connect("db.sqlite") as base: base.execute("create table t (x)"); base.execute("insert into t values (1)")
train(); print(base.execute("select * from t").fetchall())
#---
# name: mmap
import mmap
with open("m", "w+b") as file:
    file.truncate(4096); view = mmap.mmap(file.fileno(), 4096); train(); view[:2] = b"hi"; view.flush(); print(view[:2])
#---
# name: sockets
import socket
a, b = socket.socketpair(); a.send(b"x"); train(); print(b.recv(1))
#---
# name: select over its descriptors
import select
reader, writer = os.pipe(); os.write(writer, b"x"); train()
print(select.select([reader], [], [], 1)[0] == [reader])
