from marks import train
import os, sys, threading, time
#---
# name: waits until its threads are gone
# fast: yes
train()
thread = threading.Thread(target=time.sleep, args=(.1,)); thread.start()
while threading.active_count() > 1: time.sleep(.01)
print(threading.enumerate())
#---
# name: steps in a thread
thread = threading.Thread(target=train); thread.start(); thread.join()
print(threading.active_count())
#---
# name: a daemon thread at the end
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
train()
print("over")
#---
# name: a thread that outlives the main one
def late():
    time.sleep(.3); print("late")
threading.Thread(target=late).start()
train(3, .05)
#---
# name: an exception in a thread
threading.excepthook = lambda args: print("hook", args.exc_type.__name__)
def fail(): train(); raise KeyError(1)
thread = threading.Thread(target=fail); thread.start(); thread.join()
#---
# name: thread local
local = threading.local(); local.x = 1
train()
print(local.x, threading.current_thread().name, threading.main_thread() is threading.current_thread())
#---
# name: a small stack
threading.stack_size(256 * 1024)
train()
print(threading.stack_size())
#---
# name: a timer
timer = threading.Timer(.1, lambda: print("tick")); timer.start()
train(); timer.join()
#---
# name: asyncio
import asyncio
async def main():
    for _ in range(5):
        train(1, .01); await asyncio.sleep(.02)
    return await asyncio.to_thread(threading.active_count)
print(asyncio.run(main(), debug=False))
#---
# name: a pool of threads
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    print(sorted(pool.map(lambda n: (train(1, .01), n)[1], range(5))))
print(threading.active_count())
