"""Finds modules that a step calls again on the same inputs, as a decoder that projects its memory in each iteration.

In the step before a capture, which is in no figure, ``nn.Module._call_impl`` notes the tensors that each module is
called on. If some module has two calls on the same ones, it stays wrapped, and the capture marks the calls of such
modules with their line; else it is restored before the capture begins. Nothing is written to a module, as hooks would
be, which scripts copy and pickle.

Where ``torch.compile`` has been used nothing is wrapped, as it would compile the wrapper too. If it is used for the
first time meanwhile, everything is restored before it begins: what it compiles depends on this method. Its modules take
the method that they find when they are imported for the original, so they must have been (optimizers import them, and
the profiler of newer versions does).
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from contextlib import AbstractContextManager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable

from ..isolation import OWN_FILES, leave_out, raised_by_signal_handler
from ..steps.put_off import NO_CALL
from .model_calls import SAME, ModelCalls

if TYPE_CHECKING:
    from ..runtime import Runtime

#: Range in which the inputs of a call are compared; ``tuiprof/analyses/shared/model_calls.py`` knows it.
PROBE_RANGE = "tuiprof.inputs"
_MAX_CALLS = 50_000  # that are noted
#: Calls inside each other that are wrapped: a module that calls itself may need all the frames that Python allows.
_MAX_DEPTH = 32
#: File of the wrapper's frames: ``warnings`` counts no frames of importlib for a ``stacklevel``, and knows its files
#: by two words of their names.
_UNCOUNTED = f"{OWN_FILES}importlib._bootstrap/module_calls.py"


class ModuleCalls:
    """The calls of modules in the step before a capture, and in the capture."""

    def __init__(self, runtime: Runtime, torch: Any, compiling: Callable[[], bool]) -> None:
        self._torch, self._steps, self._calls = torch, runtime.steps, ModelCalls(torch, parts=True)
        self._compiling = compiling
        self._wrapper: Any = None  # what is in the place of ``nn.Module._call_impl``; None = nothing
        self._compiler: Any = None  # has to call :attr:`_before_it_compiles`; None = nothing has
        self._before_it_compiles = self._restore  # each access creates a new bound method
        #: The memory of the first input of each call by the module and the inputs; None = calls are not noted.
        self._seen: dict[tuple[int, ...], weakref.ref[Any]] | None = None
        self._repeated: dict[int, weakref.ref[Any]] = {}  # modules, by id
        self._inside: set[int] = set()  # threads that run a call on the same inputs
        self._left_out = OWN_FILES, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

    def watch(self) -> None:
        """Note the calls of the step that begins, until :meth:`start`."""
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        if self._wrapper is not None or counters is None or counters.get("frames"):
            return
        self._compiler = getattr(sys.modules["torch._dynamo"], "callback_handler", None)
        if self._compiler is not None:
            self._compiler.register_start_callback(self._before_it_compiles)
        self._seen = {}
        module = self._torch.nn.Module
        module._call_impl = self._wrapper = self._wrapped(module._call_impl)

    def start(self) -> None:
        """Mark the calls of the modules that were found, until :meth:`stop`."""
        self._seen = None
        if not self._repeated:
            self.stop()

    def stop(self) -> None:
        """Restore everything; harmless if nothing was replaced."""
        self._restore()
        compiler, self._compiler = self._compiler, None
        # The script may have removed all.
        if compiler is not None and self._before_it_compiles in compiler.start_callbacks:
            compiler.remove_start_callback(self._before_it_compiles)

    def _restore(self, *_: Any) -> None:
        """Restore ``nn.Module``, unless the script has wrapped it too."""
        wrapper, self._wrapper, self._seen, self._repeated = self._wrapper, None, None, {}
        module = self._torch.nn.Module
        if wrapper is not None and vars(module).get("_call_impl") is wrapper:
            module._call_impl = wrapper.__wrapped__

    def _wrapped(self, original: Any) -> Any:
        compiling = self._compiling
        depths: dict[int, int] = {}  # by thread

        @functools.wraps(original)
        def _call_impl(module: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(module, *args, **kwargs)
            thread = get_ident()
            depth = depths.get(thread, 0)
            depths[thread] = depth + 1
            try:
                if depth > _MAX_DEPTH:
                    self._restore()
                looks = self._seen is not None or id(module) in self._repeated
                looks = looks and self._wrapper is _call_impl  # else the script has kept it
                if not looks or (mark := self._mark(module, args, kwargs)) is None:
                    return original(module, *args, **kwargs)
                with mark:
                    return original(module, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                depths[thread] = depth

        wrapper: Any = _call_impl
        wrapper.__code__ = wrapper.__code__.replace(co_filename=_UNCOUNTED)
        # When the script compiles a whole module, it is what this calls that is compiled.
        skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
        if skip is not None:
            for function in (wrapper, self._mark, self._note):
                skip(function.__code__)
        return wrapper

    def _mark(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[None] | None:
        """Return what marks a call in the trace, or None."""
        # Read once: the capture may end in another thread. Checkpointing calls modules again in the backward pass.
        seen, range_of, known = self._seen, self._steps.range, self._repeated.get(id(module))
        if self._steps.call() != NO_CALL:
            return None
        try:
            if seen is not None:
                self._note(seen, module, args, kwargs)
            elif known is not None and known() is module and range_of and get_ident() not in self._inside:
                with range_of(PROBE_RANGE):
                    learning = self._torch.is_grad_enabled()
                    name = self._calls.name(module, args, kwargs, learning, self._steps.n)
                    mark = range_of(f"{name}, at {self._line(sys._getframe(2))}")
                return _Marked(mark, self._inside) if name.endswith(SAME) else mark
        except Exception as error:  # tensors and modules of any kind
            if raised_by_signal_handler(error):
                raise
        return None

    def _note(
        self,
        seen: dict[tuple[int, ...], weakref.ref[Any]],
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        first: Any = args[0] if args else next(iter(kwargs.values()), None)
        if type(first) not in self._calls.kinds or len(seen) >= _MAX_CALLS:
            return
        # An input that is gone may have left its id to another one.
        call = (id(module), *map(id, args), *map(id, kwargs.values()))
        with self._torch._C.DisableTorchFunction():  # modes of the script see nothing of it
            memory = first.untyped_storage()
        before = seen.get(call)
        if before is None or before() is not memory:
            seen[call] = weakref.ref(memory)
        else:
            self._repeated[id(module)] = weakref.ref(module)

    def _line(self, frame: Any) -> str:
        """Return the line that makes a call, outside of PyTorch, as those of waits are written."""
        while frame.f_code.co_filename.startswith(self._left_out) and frame.f_back is not None:
            frame = frame.f_back
        code = frame.f_code
        return f"{code.co_filename}:{frame.f_lineno} {getattr(code, 'co_qualname', code.co_name)}"


class _Marked:
    """The range of a call, in which ``inside`` has the thread."""

    def __init__(self, range_: AbstractContextManager[None], inside: set[int]) -> None:
        self._range, self._inside, self._thread = range_, inside, get_ident()

    def __enter__(self) -> None:
        self._range.__enter__()
        self._inside.add(self._thread)

    def __exit__(self, *error: Any) -> None:
        self._inside.discard(self._thread)
        self._range.__exit__(*error)
