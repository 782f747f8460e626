from marks import train
import os, sys
train()
#---
# name: its environment
print(sorted(name for name in os.environ if name not in ("TUIPROF_SESSION", "PYTHONPATH", "TUIPROF_CAMPAIGN_CASE", "LC_CTYPE")))
print(os.environ.get("TEARDOWN_CUPTI"), os.environ.get("KINETO_LOG_LEVEL"))
#---
# name: what is added to its environment
# differs: stdout: the probe is found through PYTHONPATH and TUIPROF_SESSION
print(sorted(name for name in os.environ if name.startswith(("PYTHON", "TUIPROF"))))
#---
# name: where modules are looked for
# differs: stdout: the folder of the probe is on sys.path, and its finders are on sys.meta_path
print(sys.path, sys.meta_path)
#---
# name: all threads of the process
# differs: stdout: the probe writes its log in a thread, which threading does not know but the system does
print(len(os.listdir("/proc/self/task")))
#---
# name: all descriptors of the process
# differs: stdout: the probe's log is open, at a number from 200 on
print(os.listdir("/proc/self/fd"))
#---
# name: a cleared environment
import subprocess
os.environ.clear()
train()
print(subprocess.run([sys.executable, "-c", "import os; print(sorted(name for name in os.environ if name != 'LC_CTYPE'))"], capture_output=True).stdout)
#---
# name: locale and time zone
import locale, time
locale.setlocale(locale.LC_ALL, "C"); os.environ["TZ"] = "Asia/Tokyo"; time.tzset()
train(); print(time.strftime("%H", time.gmtime(0)), time.strftime("%H", time.localtime(0)), locale.getlocale())
#---
# name: random numbers
import random
random.seed(1); train(); print(random.random(), hash((1, 2)))
#---
# name: how it was started
print(sys.argv, os.path.basename(sys.argv[0]), __file__, getattr(sys, "orig_argv", [])[1:])
#---
# name: integers and floats
sys.setswitchinterval(.001); train(); print(sys.getswitchinterval(), sys.float_info.dig)
#---
# name: contextvars
import contextvars
v = contextvars.ContextVar("v", default=0); v.set(3); train(); print(v.get(), len(contextvars.copy_context()))
#---
# name: warnings filters
import warnings
before = list(warnings.filters); train(); print(warnings.filters == before, warnings.showwarning.__module__)
#---
# name: hooks of the interpreter
train()
print(sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
#---
# name: audit hooks
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event.startswith("mine") else None)
sys.audit("mine.event"); train(); print(seen)
