from marks import train
import sys
train()
#---
# name: sitecustomize
# run: sh -c "mkdir s && echo 'import sys; sys.mine = __file__.rsplit(chr(47))[-1], __name__' > s/sitecustomize.py && PYTHONPATH=$PYTHONPATH:s {python} script.py; rm -r s"
# fast: yes
print(sys.mine)
import sitecustomize
print(sitecustomize.__spec__.name, sitecustomize.sys is sys)
#---
# name: sitecustomize that raises
# run: sh -c "mkdir s && echo 'raise ValueError(1)' > s/sitecustomize.py && PYTHONPATH=$PYTHONPATH:s {python} script.py; rm -r s"
# differs: stderr: Python names the file that raised, through the probe's that ran it
#---
# name: sitecustomize in a package
# run: sh -c "mkdir -p s/sitecustomize && echo 'import sys; sys.mine = __path__ is not None' > s/sitecustomize/__init__.py && PYTHONPATH=$PYTHONPATH:s {python} script.py; rm -r s"
print(sys.mine)
#---
# name: usercustomize
# python: 3.12
# run: sh -c "v=$({python} -c 'import sys; print(sys.version_info[1])') && mkdir -p u/lib/python3.$v/site-packages && echo 'import sys; sys.mine = 1' > u/lib/python3.$v/site-packages/usercustomize.py && PYTHONUSERBASE=$PWD/u {python} script.py; rm -r u"
print(sys.mine)
#---
# name: a module named as one of the probe's
# run: sh -c "for m in log steps capture threads requests lines; do echo \"print('mine', __name__)\" > $m.py; done; {python} script.py"
import log, steps, capture, threads, requests, lines
print(log.__file__.rsplit("/")[-1])
#---
# name: a module named as one of Python's
# run: sh -c "echo 'print(1)' > statistics.py && {python} script.py"
import statistics
print(statistics.__file__.rsplit("/")[-1])
#---
# name: a finder of its own
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "made_up":
            print("asked")
sys.meta_path.insert(0, Finder())
try:
    import made_up
except ModuleNotFoundError as error:
    print(error)
#---
# name: reload
import importlib, marks
print(importlib.reload(marks) is marks)
