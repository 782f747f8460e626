"""The command line of every ladder, made from the ladder's own header. Standard library only.

A ladder script begins with a PEP 723 comment block whose ``[tool.tuiprof]`` table tells the story: the variants, what
each changes, what it needs, and what was published. ``main`` reads that block, so a script runs alone and says the
same as ``tuiprof`` does when it lists it.

Exit status: 0 done · 1 crashed · 2 wrong usage · 3 the numbers differ from the baseline's · 77 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from common import needs

if TYPE_CHECKING:
    from common.check import Check

WRONG_NUMBERS, CANNOT_RUN = 3, 77
EXIT_STATUS = f"""\
Exit status: 0 done · 1 crashed · 2 wrong usage · {WRONG_NUMBERS} wrong numbers · {CANNOT_RUN} cannot run here.
The last line of the output is JSON: {{"tuiprof_result": …}}."""
RELAUNCHED = "SCENARIO_RELAUNCHED"  # set in the environment of a script that was started by its launcher


class Timed(Protocol):
    """What was timed: a training loop, or a kernel."""

    def result(self, price: float | None = None) -> dict[str, Any]:
        """Say it, and return it as fields of the result line; ``price`` is in dollars an hour, None = unknown."""


@dataclass
class Run:
    """One run of one variant, as asked for on the command line.

    Attributes:
        ladder: The ladder's header.
        variant: The variant's entry in it.
        preset: Name of the preset in use, never ``"fit"``.
        size: The preset's sizes (image, batch, …).
        set: What the variant sets, by name.
        steps: Steps in all, warm-up included.
        warmup: First steps, which are not measured.
        price: Dollars an hour of the machine; None = not given.
        check: Compare with the baseline first.
        seed: Seed of weights and data.
    """

    ladder: dict[str, Any]
    variant: dict[str, Any]
    preset: str
    size: SimpleNamespace
    set: dict[str, Any]
    steps: int
    warmup: int
    price: float | None
    check: bool
    seed: int

    @property
    def name(self) -> str:
        """``ladder:variant``."""
        return f"{self.ladder['name']}:{self.variant['name']}"

    @property
    def baseline(self) -> str:
        """Name of the variant that this one is compared with."""
        return self.variant.get("baseline", self.ladder["baseline"])

    def of(self, variant: str) -> Run:
        """Return this run with another variant of the ladder, for example its baseline."""
        entry = _variant(self.ladder, variant)
        return replace(self, variant=entry, set=entry.get("set", {}))

    def shortened(self, steps: int) -> Run:
        """Return this run with fewer steps, none of them warm-up, for a check."""
        return replace(self, steps=steps, warmup=0)


def header(script: str | Path) -> dict[str, Any]:
    """Read the ``[tool.tuiprof]`` table from a script's PEP 723 block; raise ValueError when it has none."""
    block: list[str] = []
    for line in Path(script).read_text(encoding="utf-8").splitlines():
        if line == "# /// script":
            block = [""]
        elif line == "# ///" and block:
            block_table = tomllib.loads("\n".join(block))
            ladder = block_table["tool"]["tuiprof"]
            pep723 = {"dependencies": block_table["dependencies"], "python": block_table["requires-python"]}
            return {**ladder, "needs": {**ladder.get("needs", {}), **pep723}}
        elif block:
            block.append(line[2:])
    raise ValueError(f"{script} has no '# /// script' block")


def main(
    script: str,
    train: Callable[[Run], Timed],
    check: Callable[[Run], Check],
    launcher: Callable[[Run], list[str]] | None = None,
) -> int:
    """Run one ladder script.

    Args:
        script: The script's ``__file__``.
        train: Trains one variant (or calls a kernel) and returns what was timed.
        check: Compares one variant's numbers with its baseline's.
        launcher: Returns the launcher that the variant is to be started by, as arguments to Python
            (``["-m", "torch.distributed.run", …]``); empty = none.

    Returns:
        The exit status.
    """
    ladder = header(script)
    options = _parser(script, ladder).parse_args()
    variant = _variant(ladder, options.variant)
    lacks = needs.missing({**ladder.get("needs", {}), **variant.get("needs", {})})
    if lacks:
        return cannot_run(f"{ladder['name']}:{variant['name']}", lacks)
    run = _run(ladder, variant, options)
    if launcher and RELAUNCHED not in os.environ and (start := launcher(run)):
        return relaunch([sys.executable, *start, os.path.abspath(script), *sys.argv[1:]])
    if os.environ.get("RANK", "0") != "0":
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end; rank 0 speaks for all
    try:
        return _measure(run, {"ladder": ladder["name"], "variant": variant["name"]}, train, check)
    except CannotRun as error:
        return cannot_run(run.name, [(error.reason, error.remedy)])
    except ImportError as error:  # without the folder, its name finds the script itself
        path = Path(script)
        if (error.name or "").split(".")[0] != path.stem:
            raise
        lack = f"{path.name} was copied without the folder {path.stem}, which lies beside the original"
        return cannot_run(run.name, [(lack, f"copy it to {path.parent.absolute()}")])


class CannotRun(Exception):
    """What a variant needs is installed and still cannot do its work here; only trying tells.

    Args:
        reason: Why.
        remedy: What to do; may be empty.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def _measure(
    run: Run, result: dict[str, Any], train: Callable[[Run], Timed], check: Callable[[Run], Check]
) -> int:
    """Check and train as asked, and report; return the exit status."""
    result["preset"] = run.preset
    if run.check:
        checked = check(run)
        result["check"] = checked.result()
        print(checked, flush=True)
        if not checked.ok:
            print(f"{run.name} does not compute what {checked.baseline} computes", file=sys.stderr)
            report(result)
            return WRONG_NUMBERS
    if run.steps:
        result |= train(run).result(run.price)
    report(result)
    return 0


def cannot_run(name: str, lacks: list[tuple[str, str]]) -> int:
    """Say why a variant cannot run here, and return the exit status for that."""
    for reason, remedy in lacks:
        print(f"{name} cannot run here: {reason}" + (f" — {remedy}" if remedy else ""), file=sys.stderr)
    report({"unavailable": [{"reason": reason, "remedy": remedy} for reason, remedy in lacks]})
    return CANNOT_RUN


def report(result: dict[str, Any]) -> None:
    """Print the machine-readable last line; JSON has no word for what is not a number, so that becomes null."""
    plain = json.loads(json.dumps({"tuiprof_result": result}), parse_constant=lambda _: None)
    print(json.dumps(plain), flush=True)


def relaunch(command: list[str]) -> int:
    """Run the script again under a launcher, and pass its output on.

    The launchers put a prefix before each line and lose the exit status; the last line tells it.

    Args:
        command: The launcher's command line, which ends with the script's own.

    Returns:
        The exit status of the script.
    """
    result: dict[str, Any] | None = None
    # run_cpu looks for libraries in VIRTUAL_ENV, which is not set where an environment was not activated.
    environment = {"VIRTUAL_ENV": sys.prefix, **os.environ, RELAUNCHED: "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launched:
        for line in launched.stdout:
            line = re.sub(r"^\[[^\]]*\]:\s?", "", line)
            print(line, end="", flush=True)
            if line.startswith('{"tuiprof_result"'):
                result = json.loads(line)["tuiprof_result"]
    if result is None:
        return launched.returncode or 1
    if result.get("unavailable"):
        return CANNOT_RUN
    return 0 if result.get("check", {}).get("ok", True) else WRONG_NUMBERS


def _variant(ladder: dict[str, Any], name: str) -> dict[str, Any]:
    return next(variant for variant in ladder["variants"] if variant["name"] == name)


def _run(ladder: dict[str, Any], variant: dict[str, Any], options: argparse.Namespace) -> Run:
    preset = options.preset
    if preset == "fit":
        preset = variant.get("preset", "paper") if _has_accelerator(ladder, variant) else "smoke"
    size = SimpleNamespace(**ladder["presets"][preset])
    steps = size.steps if options.steps is None else options.steps
    warmup = min(size.warmup, steps // 2) if options.warmup is None else options.warmup
    if steps and warmup >= steps:
        print(f"--warmup {warmup} leaves none of {steps} steps to measure", file=sys.stderr)
        raise SystemExit(2)
    changes = dict(variant.get("set", {}))
    for name in ("batch", "workers"):
        if (number := getattr(options, name)) is None:
            continue
        if name not in changes and not hasattr(size, name):
            print(f"--{name}: {ladder['name']} has none in the preset {preset}", file=sys.stderr)
            raise SystemExit(2)
        setattr(size, name, number)
        if name in changes:  # the flag wins over the variant too
            changes[name] = number
    return Run(
        ladder, variant, preset, size, changes, steps, warmup, options.price, options.check, options.seed
    )


def _has_accelerator(ladder: dict[str, Any], variant: dict[str, Any]) -> bool:
    wanted = {**ladder.get("needs", {}), **variant.get("needs", {})}
    names = [re.match(r"[\w.-]+", name)[0] for name in (*wanted["dependencies"], *wanted.get("packages", []))]
    packages = set(names) - set(wanted.get("without", []))
    if wanted.get("device") == "cpu":
        return False
    if wanted.get("device") in needs.DEVICES:
        return True  # else it could not run here
    if "torch_xla" in packages:
        return needs.tpu_visible() or needs.neuron_visible()
    if "torch" in packages:
        import torch

        return torch.cuda.is_available()
    if "jax" in packages:
        import jax

        return jax.default_backend() != "cpu"
    return False


def _parser(script: str, ladder: dict[str, Any]) -> argparse.ArgumentParser:
    width = min(shutil.get_terminal_size().columns, 100)
    story = (_wrapped(text, width) for text in (ladder["title"], ladder["story"], _reference(ladder)))
    presets = (_entry(name, preset["note"], width) for name, preset in ladder["presets"].items())
    variants = (_entry(each["name"], _describe(each, ladder), width) for each in ladder["variants"])
    parser = argparse.ArgumentParser(
        prog=f"python {os.path.relpath(script)}",
        description="\n\n".join(story),
        epilog="\n".join(
            ["presets:", *presets, "", "variants:", *variants, "", _wrapped(EXIT_STATUS, width)]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [variant["name"] for variant in ladder["variants"]]
    parser.add_argument(
        "--variant",
        choices=names,
        default=ladder["baseline"],
        metavar="NAME",
        help="see below; without one the baseline",
    )
    parser.add_argument(
        "--preset",
        choices=["fit", *ladder["presets"]],
        default="fit",
        help="the size, see below; fit: the real one on an accelerator, smoke elsewhere",
    )
    parser.add_argument("--steps", type=_count, metavar="N", help="steps in all, warm-up included; 0 = none")
    parser.add_argument("--warmup", type=_count, metavar="N", help="first steps, not measured")
    parser.add_argument("--batch", type=_positive, metavar="N", help="batch size instead of the preset's")
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="data-loader workers instead of the preset's"
    )
    parser.add_argument("--price", type=float, metavar="USD", help="dollars an hour, for samples per dollar")
    parser.add_argument("--check", action="store_true", help="first compare the numbers with the baseline's")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and data")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def _reference(ladder: dict[str, Any]) -> str:
    reference = ladder["reference"]
    return f"Published figures are from {reference['hardware']}, {reference['software']}; they were not measured here."


def _describe(variant: dict[str, Any], ladder: dict[str, Any]) -> str:
    """Return what a variant does, what it is one change of or compared with, and what was published for it."""
    facts = []
    if "builds_on" in variant:
        facts.append(f"changes {variant['builds_on']}")
    if variant["name"] == variant.get("baseline", ladder["baseline"]):
        facts.append("baseline")
    elif "baseline" in variant and variant["baseline"] != variant.get("builds_on"):
        facts.append(f"compared with {variant['baseline']}")
    if figures := "; ".join(figure["text"] for figure in variant.get("published", [])):
        facts.append(f"published: {figures}")
    return variant["note"] + (f"  [{'; '.join(facts)}]" if facts else "")


def _entry(name: str, text: str, width: int) -> str:
    return f"  {name}\n" + textwrap.indent(_wrapped(text, width - 6), "      ")


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text.strip(), width, break_on_hyphens=False)
