import sys
print("isolated", sys.flags.isolated, sys.flags.no_site, sys.flags.ignore_environment)
#---
# name: -I
# run: {python} -I {script}
# fast: yes
#---
# name: -S
# run: {python} -S {script}
# fast: yes
#---
# name: -E
# run: {python} -E {script}
#---
# name: -I -S -O
# run: {python} -I -S -O {script}
#---
# name: -s -S -E
# run: {python} -s -S -E {script}
