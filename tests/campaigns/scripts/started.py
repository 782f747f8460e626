from marks import train
import os, sys
train()
#---
# name: -c
# run: {python} -c "from marks import train; import sys; train(); print(sys.argv, __name__)" a b
#---
# name: -m
# run: {python} -m script x
print(sys.argv[1:], __name__, __spec__.name)
#---
# name: a package with -m
# run: sh -c "mkdir -p pack && cp script.py pack/__main__.py && {python} -m pack && rm -r pack"
print(__package__, __name__)
#---
# name: a folder
# run: sh -c "mkdir -p app && cp script.py app/__main__.py && cp marks.py app && {python} app && rm -r app"
print(os.path.basename(sys.path[0]) or sys.path[0], __name__)
#---
# name: zipapp
# run: sh -c "mkdir app && cp script.py app/__main__.py && cp marks.py app && {python} -m zipapp app -o app.pyz && rm -r app && {python} app.pyz 1 2; s=$?; rm app.pyz; exit $s"
# fast: yes
print(sys.argv[1:], __loader__.__class__.__name__)
sys.exit(4)
#---
# name: read from stdin
# run: sh -c "{python} - a < script.py"
print(sys.argv, sys.stdin.read())
#---
# name: shebang
# run: sh -c "printf '#!{python}\n' | cat - script.py > run && chmod +x run && ./run; s=$?; rm run; exit $s"
raise SystemExit("with words")
#---
# name: runpy
if __name__ == "__main__":
    import runpy
    print(sorted(key for key in runpy.run_path("script.py", run_name="inner") if key == "train"))
#---
# name: a link
# run: sh -c "ln -s script.py link.py && {python} link.py; rm link.py"
print(os.path.basename(__file__))
#---
# name: in a folder of its own
# run: sh -c "mkdir sub && cd sub && {python} ../script.py; cd .. && rmdir sub"
print(os.path.basename(os.getcwd()), os.path.basename(sys.path[0]))
#---
# name: a virtual environment
# run: sh -c "{python} -m venv --without-pip env && env/bin/python script.py; rm -r env"
print(sys.prefix != sys.base_prefix, os.path.basename(sys.executable))
