from marks import train
import sys
train()
print("flags", sys.flags.optimize, sys.flags.isolated, sys.flags.dev_mode, __debug__, sys.argv, __name__)
assert False or not __debug__ or True
#---
# name: -O
# run: {python} -O {script} one two
# fast: yes
#---
# name: -OO
# run: {python} -OO {script}
def documented(): "text"
print(documented.__doc__)
#---
# name: -X dev
# run: {python} -X dev {script}
open("left-open.txt", "w").write("x")
#---
# name: -X dev -W error
# run: {python} -X dev -W error {script}
#---
# name: -X utf8
# run: {python} -X utf8 {script}
print("grüße", sys.stdout.encoding, sys.getfilesystemencoding())
#---
# name: -X frozen_modules=off
# run: {python} -X frozen_modules=off {script}
#---
# name: -X int_max_str_digits
# run: {python} -X int_max_str_digits=0 {script}
print(len(str(10 ** 5000)))
#---
# name: -X tracemalloc
# run: {python} -X tracemalloc=3 {script}
import tracemalloc
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
#---
# name: -X faulthandler
# run: {python} -X faulthandler {script}
import faulthandler
print(faulthandler.is_enabled())
#---
# name: -B -s -q -bb
# run: {python} -B -s -q -bb {script}
#---
# name: -u
# run: {python} -u {script}
sys.stdout.write("a"); sys.stderr.write("b")
#---
# name: -i
# run: {python} -i {script}
# stdin: print('typed', 1 + 1)\nexit(5)\n
#---
# name: -W always
# run: {python} -W always {script}
import warnings
warnings.warn("mine"); warnings.warn("mine", DeprecationWarning)
#---
# name: -P
# run: {python} -P -c "import sys; sys.path.append('.'); exec(open('script.py').read())"
#---
# name: -x
# run: {python} -x {script}
