from marks import train
import os, sys
def work():
    return sum(range(1000))
#---
# name: coverage
# run: sh -c "{python} -m coverage run --include=script.py script.py && {python} -m coverage report; rm -f .coverage"
# needs: coverage
# fast: yes
train()
print(work())
if len(sys.argv) > 5:
    print("never")
#---
# name: coverage of all
# run: sh -c "{python} -m coverage run script.py && {python} -m coverage report --omit='*/tuiprof/*'; rm -f .coverage"
# needs: coverage
train()
print(work())
#---
# name: cProfile of its own functions
# fast: yes
import cProfile, pstats
profiler = cProfile.Profile()
profiler.enable(); train(); work(); work(); profiler.disable()
stats = pstats.Stats(profiler).stats
print(sorted((key[2], value[0]) for key, value in stats.items() if key[0] == __file__))
#---
# name: cProfile to a file
# run: sh -c "{python} -m cProfile -o out.prof script.py && {python} -c \"import pstats; print(any('work' in key for key in pstats.Stats('out.prof').stats))\"; rm -f out.prof"
train(); work()
#---
# name: settrace
lines = []
def tracer(frame, event, arg):
    if frame.f_code.co_filename == __file__:
        lines.append((event, frame.f_lineno - first))
        return tracer
first = sys._getframe().f_lineno
import threading
threading.settrace(tracer); sys.settrace(tracer)
train(); work()
sys.settrace(None)
print(lines)
#---
# name: setprofile
calls = []
sys.setprofile(lambda frame, event, arg: calls.append(event) if frame.f_code.co_filename == __file__ else None)
train(); work()
sys.setprofile(None)
print(calls)
#---
# name: faulthandler on a time-out
# differs: stderr: a dump of all threads names the probe's, too
import faulthandler
faulthandler.dump_traceback_later(.1, exit=False)
train(); 
#---
# name: faulthandler of this thread
import faulthandler
train()
faulthandler.dump_traceback(all_threads=False)
#---
# name: unittest
import unittest
class Test(unittest.TestCase):
    def test_it(self):
        train()
        self.assertEqual(work(), 499500)
if __name__ == "__main__":
    unittest.main(verbosity=0, exit=False)
    print("over")
# differs: stderr: unittest says how long it took
#---
# name: pdb from a pipe
# run: {python} -m pdb {script}
# stdin: b work\nc\np 1 + 1\nw\nc\nq\n
train(2)
print(work())
#---
# name: pdb in a terminal
# tty: yes
# run: {python} -m pdb {script}
# stdin: b work\nc\np 40 + 2\nc\nq\n
train(2)
print(work())
#---
# name: breakpoint
# tty: yes
# stdin: p work()\nc\n
train(2)
breakpoint()
print("went on")
#---
# name: tracemalloc of its own
import tracemalloc
tracemalloc.start()
kept = [bytes(1000) for _ in range(100)]
train()
own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)]).statistics("filename")
print(len(own), own[0].count >= 100)
#---
# name: doctest
import doctest
def double(x):
    """
    >>> double(2)
    4
    """
    train()
    return 2 * x
print(doctest.testmod())
#---
# name: a low recursion limit
# differs: stderr: the probe cannot be loaded within so few calls, and says so
sys.setrecursionlimit(60)
def deep(n):
    train(1, .05)
    return deep(n + 1)
try:
    deep(0)
except RecursionError:
    print("too deep")
train()
#---
# name: gc
import gc
gc.disable(); gc.set_threshold(1, 1, 1)
train()
print(gc.get_threshold(), gc.isenabled(), gc.garbage)
