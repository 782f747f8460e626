from marks import train
import atexit, os, sys
train()
#---
# name: an exception
# fast: yes
def inner(): raise RuntimeError("out of luck")
inner()
#---
# name: a chain of exceptions
try:
    {}["x"]
except KeyError as error:
    raise ValueError("second") from error
#---
# name: exit with a status
sys.exit(42)
#---
# name: exit with words
sys.exit("words")
#---
# name: exit with none
sys.exit(None)
#---
# name: exit in atexit
atexit.register(lambda: (print("atexit"), sys.exit(3)))
#---
# name: an exception in atexit
atexit.register(lambda: 1 / 0)
#---
# name: the order of atexit
for n in range(3): atexit.register(print, "atexit", n)
#---
# name: an excepthook
sys.excepthook = lambda kind, value, trace: print("hook", kind.__name__, value)
raise KeyError("x")
#---
# name: an exception that says nothing
class Odd(Exception):
    def __str__(self): raise RuntimeError
raise Odd
#---
# name: SystemExit of a subclass
class Leave(SystemExit): pass
raise Leave(11)
#---
# name: a syntax error
exec("def (")
#---
# name: __del__ at the end
class Late:
    def __del__(self): print("deleted")
late = Late()
#---
# name: steps in atexit
atexit.register(train)
print("registered")
#---
# name: a warning as an error
import warnings
warnings.simplefilter("error"); warnings.warn("mine")
