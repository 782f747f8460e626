"""Steps where the user says they are: ``--step-at FILE:LINE`` and ``--step-function MODULE:NAME``.

The script's file is not modified. The module with the line or function is compiled with one additional call, at the
same line numbers; nothing else changes, and the bytecode is not cached. The main script is not imported: for it, a
path hook claims that the file is an archive with a ``__main__``. This works the same on every version of Python.
What is called is a global of that module too, so that it is pickled with functions that are pickled by value
(cloudpickle).

``--step-at``: a step ends each time the statement at the line has run; for a loop, after each iteration.
``--step-function``: each time the function returns.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import takewhile
from operator import getitem
from time import monotonic_ns

TYPE_CHECKING = False  # without the import, which would double the start-up time of every Python
if TYPE_CHECKING:
    from typing import Any, Callable

AT, FUNCTION = "TUIPROF_STEP_AT", "TUIPROF_STEP_FUNCTION"
GIVEN = 10  # of sources.py, which is not loaded before the script has come to its first step
_ENDED, _BEGINS, _COUNTED = "__tuiprof_step_ended__", "__tuiprof_step_begins__", "__tuiprof_counted__"
_AS_SCRIPT, _GIVEN = "__tuiprof_as_script__", "__tuiprof_given__"
CALLED: list[Any] = []  # what the script calls at steps
#: Flags of code, as in ``inspect``. Functions with one of the last (asynchronous generators) stay as they are.
_GENERATOR, _COROUTINE, _UNCOUNTED = 0x20, 0x80, 0x100 | 0x200


def install(runtime: Callable[[], Any]) -> None:
    """Wait for the import of the named module, if there is one; ``runtime`` loads the probe when a step ends."""
    at, function = os.environ.get(AT, ""), os.environ.get(FUNCTION, "")
    if not at and not function:
        return
    given = _Given(at, function, runtime)

    # Plain functions: torch.compile can call such after a graph instead of breaking it.
    def ended() -> None:
        given.ended()

    def begins(again: bool) -> None:
        given.begins(again)

    def count(function: Any) -> Any:
        return counted(function, ended)

    CALLED.extend((ended, begins))
    names = {_ENDED: ended, _BEGINS: begins, _COUNTED: count, _AS_SCRIPT: _as_script, _GIVEN: given}
    vars(builtins).update(names)
    get_code = SourceFileLoader.get_code

    def get_code_with_steps(loader: Any, name: str) -> Any:
        if given.is_meant(loader.path, name):
            code = given.compile(loader.path)
            if code is not None:
                return code
        return get_code(loader, name)

    SourceFileLoader.get_code = get_code_with_steps  # type: ignore[method-assign,assignment]
    sys.path_hooks.append(given.importer_of_main)


class _Given:
    """The location where steps end, and the function called there."""

    def __init__(self, at: str, function: str, runtime: Callable[[], Any]) -> None:
        self._runtime = runtime
        file, _, line = at.rpartition(":")
        self._file = os.path.realpath(file) if file else ""
        self._line = int(line) if line.isdecimal() else 0
        self._module, _, self._function = function.partition(":")
        self._main_seen = False
        self._hook: Any = None
        self._begun = False

    def is_meant(self, path: str, name: str) -> bool:
        """Whether a module holds the line, or defines the function."""
        if self._function and name == self._module:
            return True
        file = self._file
        return (
            bool(file) and os.path.basename(path) == os.path.basename(file) and os.path.realpath(path) == file
        )

    def compile(self, path: str, is_main: bool = False) -> Any:
        """Return a module's code with the calls; None = let Python compile it and report its errors."""
        try:
            with open(path, "rb") as file:
                tree = ast.parse(file.read(), path)
        except (OSError, SyntaxError, ValueError):
            return None
        if self._function:
            found = _count_function(tree, self._function.split("."))
            what = f"--step-function: {path} does not define {self._function} at its top level"
        else:
            found = _count_line(tree, self._line)
            what = f"--step-at: there is no statement at line {self._line} of {path}"
        if not found:
            self._note(what)
            return None
        before = [f"{_AS_SCRIPT}(globals())"] if is_main else []
        if not self._function:
            before.append(f"{_ENDED}, {_BEGINS} = {_ENDED}, {_BEGINS}")
        index = len(list(takewhile(_comes_first, tree.body)))
        tree.body[index:index] = ast.parse("\n".join(before)).body
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    # -- the script itself ----------------------------------------------------------------------------------

    def importer_of_main(self, path: str) -> Any:
        """Return, as a path hook, whether a file is the one that Python was started with and contains the steps.

        Raises:
            ImportError: It is not.
        """
        meant = self._module in ("__main__", _stem(path)) if self._function else self.is_meant(path, "")
        if self._main_seen or not meant or not os.path.isfile(path):
            raise ImportError
        if os.path.abspath(path) not in map(os.path.abspath, _command()):
            raise ImportError  # a multiprocessing child imports its parent's script
        code = self.compile(path, is_main=True)
        if code is None:
            raise ImportError
        self._main_seen = True
        return _Main(os.path.abspath(path), path, code)

    # -- called by the script -------------------------------------------------------------------------------

    def ended(self) -> None:
        """End a step."""
        self._begun = False
        self._end()

    def begins(self, again: bool) -> None:
        """Note the start of an iteration or the end of the loop, which ends the previous iteration."""
        before, self._begun = self._begun, again
        if before:
            self._end()

    def _end(self) -> None:
        t = monotonic_ns()
        hook = self._hook
        try:
            if hook is None:
                runtime = self._runtime()
                name = "--step-function" if self._function else "--step-at"
                hook = self._hook = runtime.hook(name), runtime.steps, runtime.changed
            if hook[0].on and not hook[2].made:
                hook[1].end(GIVEN, t)
        except Exception:
            if hook is None:
                raise
            hook[0].failed()

    def __reduce__(self) -> Any:
        """Let cloudpickle write a function for another process, where it ends that one's steps, if it has any."""
        namespace: Any = type(sys.implementation)
        return getattr, (builtins, _GIVEN, namespace(ended=monotonic_ns, begins=bool))

    def _note(self, text: str) -> None:
        """Report an error, in the log and on stderr."""
        self._runtime().note("bad", text)
        sys.stderr.write(f"tuiprof: {text}\n")


class _Main:
    """The importer of the script's path: finds only ``__main__``."""

    def __init__(self, path: str, entry: str, code: Any) -> None:
        self._path, self._entry, self._code = path, entry, code

    def find_spec(self, name: str, _target: Any = None) -> ModuleSpec | None:
        """Return the spec of ``__main__``."""
        if name != "__main__":
            return None
        spec = ModuleSpec(name, self, origin=self._path)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def get_code(self, _name: str) -> Any:
        """Return code that first sets up the module and ``sys.path`` as for a script."""
        for index, entry in enumerate(sys.path):
            if entry == self._entry:
                folder = os.path.dirname(os.path.realpath(self._path))
                safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
                sys.path[index : index + 1] = [] if safe else [folder]
                break
        sys.path_importer_cache.pop(self._entry, None)
        return self._code

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: Any) -> None:
        """Run it as a module."""
        exec(self._code, vars(module))


def _as_script(variables: dict[str, Any]) -> None:
    """Set up a module like a script that Python runs."""
    variables.update(
        __spec__=None, __package__=None, __loader__=SourceFileLoader("__main__", variables["__file__"])
    )


def _comes_first(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring or an import that must be the first."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _command() -> list[str]:
    known: list[str] | None = getattr(sys, "orig_argv", None)
    if known is not None:
        return known
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")]
    except OSError:
        return []


# -- counted functions ------------------------------------------------------------------------------------


def counted(function: Any, end: Callable[[], None]) -> Any:
    """Return a wrapper of a function that calls ``end`` each time it has returned."""
    return _wrapped(function, end) if isinstance(function, type(_wrapped)) else _Counted(function, end)


class _Counted:
    """Wraps a callable that is not a Python function, such as a jitted one, and counts its calls."""

    def __init__(self, function: Any, end: Callable[[], None]) -> None:
        self.__wrapped__ = function
        self._tuiprof_end = end

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        result = self.__wrapped__(*args, **kwargs)
        self._tuiprof_end()
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind it to an object of the class that it is in, if it can be bound."""
        bind = getattr(type(self.__wrapped__), "__get__", None)
        return self if bind is None else _Counted(bind(self.__wrapped__, instance, owner), self._tuiprof_end)

    def __getattr__(self, name: str) -> Any:
        """Return the callable's own attribute."""
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> Any:
        """Copy and pickle the callable alone."""
        return getitem, ((self.__wrapped__,), 0)


def _wrapped(function: Any, end: Callable[[], None]) -> Any:
    from functools import wraps

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        end()
        return result

    @wraps(function)
    def counted_generator(*args: Any, **kwargs: Any) -> Any:
        result = yield from function(*args, **kwargs)
        end()
        return result

    @wraps(function)
    async def counted_coroutine(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        end()
        return result

    flags = function.__code__.co_flags
    if flags & _UNCOUNTED:
        return function
    return counted_coroutine if flags & _COROUTINE else counted_generator if flags & _GENERATOR else counted


# -- inserted code ---------------------------------------------------------------------------------------


def _call(name: str, like: ast.stmt, *arguments: ast.expr) -> ast.Expr:
    """Return a call as a statement, at the source location of another one."""
    call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), list(arguments), []))
    for node in ast.walk(call):
        ast.copy_location(node, like)
    return call


def _count_line(tree: ast.Module, line: int) -> bool:
    """Put the calls at a line; return whether there is a statement."""
    best: tuple[list[ast.stmt], ast.stmt] | None = None
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            for statement in block if isinstance(block, list) else ():
                if not isinstance(statement, ast.stmt) or not statement.lineno <= line <= _last(statement):
                    continue
                if best is None or statement.lineno >= best[1].lineno:
                    best = block, statement  # type: ignore[assignment]
    if best is None:
        return False
    block, statement = best
    index = block.index(statement)
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        statement.body.insert(0, _call(_BEGINS, statement.body[0], ast.Constant(True)))
        block.insert(index + 1, _call(_BEGINS, statement, ast.Constant(False)))
    elif isinstance(statement, (ast.Return, ast.Raise, ast.Break, ast.Continue)) or hasattr(
        statement, "body"
    ):
        block.insert(index, _call(_ENDED, statement))
    else:
        block.insert(index + 1, _call(_ENDED, statement))
    return True


def _last(statement: ast.stmt) -> int:
    """Return the last line of a statement; for a compound statement, of its header."""
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        return max(statement.lineno, int(body[0].lineno) - 1)
    return statement.end_lineno or statement.lineno


def _count_function(tree: ast.Module, names: list[str]) -> bool:
    """Insert the call after each definition of a function; return whether there is one."""
    blocks: list[list[ast.stmt]] = [tree.body]
    for name in names[:-1]:
        classes = [node for block in blocks for node in _statements(block) if isinstance(node, ast.ClassDef)]
        blocks = [node.body for node in classes if node.name == name]
    found = False
    for block in blocks:
        found = _count_in(block, names[-1]) or found
    return found


def _statements(block: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a block and of the ``if`` and ``try`` in it."""
    found = []
    for statement in block:
        found.append(statement)
        for inner in _inner(statement):
            found += _statements(inner)
    return found


def _inner(statement: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(statement, (ast.If, ast.Try, ast.With)):
        return [
            getattr(statement, name)
            for name in ("body", "orelse", "finalbody")
            if getattr(statement, name, None)
        ]
    return []


def _count_in(block: list[ast.stmt], name: str) -> bool:
    found = False
    for index in range(len(block) - 1, -1, -1):
        statement = block[index]
        for inner in _inner(statement):
            found = _count_in(inner, name) or found
        if _defines(statement, name):
            found = True
            call = ast.Call(ast.Name(_COUNTED, ast.Load()), [ast.Name(name, ast.Load())], [])
            assign = ast.Assign([ast.Name(name, ast.Store())], call)
            for node in ast.walk(assign):
                ast.copy_location(node, statement)
            block.insert(index + 1, assign)
    return found


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return statement.name == name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
