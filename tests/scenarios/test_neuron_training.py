"""What each variant of neuron-training sets before Neuron's software is loaded, and what it asks of it.

Neuron's software runs on AWS's accelerators alone. Here modules of the same names stand for it, which compute on the
CPU and write down how they were called; the scripts themselves are as shipped, but for the folder of devices.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPython

from tuiprof.ladder.scenarios import find_ladder
from tuiprof.resources import shipped

pytestmark = pytest.mark.timeout(300)

BF16 = "--auto-cast all --auto-cast-type bf16"
O3 = "--model-type transformer --optlevel 3 --target inf2"
# Variant → what it sets in the environment, and batches an execution.
EXPECTED: dict[str, tuple[dict[str, str], int]] = {
    "baseline": ({}, 1),
    "workers-1": ({}, 1),
    "batch-8": ({}, 1),
    "amp-bf16": ({"NEURON_CC_FLAGS": "--auto-cast=none"}, 1),
    "xla-use-bf16": ({"XLA_USE_BF16": "1"}, 1),
    "model-bf16": ({}, 1),
    "batches-per-execution": ({"XLA_USE_BF16": "1"}, 10),
    "auto-cast-bf16": ({"NEURON_CC_FLAGS": BF16}, 10),
    "auto-cast-fp8": ({"NEURON_CC_FLAGS": "--auto-cast all --auto-cast-type fp8_e4m3"}, 10),
    "transformer-o3": ({"XLA_USE_BF16": "1", "NEURON_CC_FLAGS": O3}, 10),
    "auto-cast-o3": ({"NEURON_CC_FLAGS": f"{BF16} {O3}"}, 10),
    "openxla": ({"NEURON_CC_FLAGS": BF16}, 1),
}
SDK = {
    "torch_neuronx.py": """
import json, os
names = ("XLA_USE_BF16", "NEURON_CC_FLAGS")
print("environment", json.dumps({name: os.environ[name] for name in names if name in os.environ}))
""",
    "torch_xla/__init__.py": "",
    "torch_xla/core/__init__.py": "",
    "torch_xla/core/xla_model.py": """
import torch
from torch._dynamo.backends import registry
registry.list_backends()  # PyTorch has a backend of this name, which wants the real torch_xla
registry._COMPILER_FNS["openxla"] = lambda graph, inputs: graph.forward
def xla_device():
    return torch.device("cpu")
def optimizer_step(optimizer):
    optimizer.step()
""",
    "torch_xla/distributed/__init__.py": "",
    "torch_xla/distributed/xla_backend.py": "",
    "torch_xla/distributed/parallel_loader.py": """
class MpDeviceLoader:
    def __init__(self, loader, device, batches_per_execution=1):
        self.loader = loader
        print("batches an execution", batches_per_execution)
    def __len__(self):
        return len(self.loader)
    def __iter__(self):
        return iter(self.loader)
""",
}


@pytest.fixture
def scenarios(tmp_path: Path) -> Path:
    """The scripts, on a machine that shows a Neuron device."""
    copy = tmp_path / "scenarios"
    shutil.copytree(shipped("scenarios"), copy)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/neuron0").touch()
    text = (copy / "common/needs.py").read_text(encoding="utf-8")
    assert 'Path("/dev")' in text
    (copy / "common/needs.py").write_text(
        text.replace('Path("/dev")', f'Path("{tmp_path}/dev")'), encoding="utf-8"
    )
    return copy


def install(site: Path, **versions: str) -> None:
    """Put packages, and the modules that stand for them, where Python looks."""
    for name, version in versions.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, content in SDK.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(content)


def command(scenarios: Path, variant: str, *flags: str) -> list[str]:
    return [str(scenarios / "neuron_training.py"), "--variant", variant, "--preset", "smoke", *flags]


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)}


def run(scenarios: Path, site: Path, variant: str, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *command(scenarios, variant, *flags)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment(site))


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["tuiprof_result"]
    return found


def test_every_published_option_is_a_variant() -> None:
    names = [variant.name for variant in find_ladder("neuron-training").variants]
    assert names == [*EXPECTED, "native", "native-compiled"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", EXPECTED)
def test_variant_sets_its_environment_and_trains(scenarios: Path, tmp_path: Path, variant: str) -> None:
    install(tmp_path / "site", torch_neuronx="2.7.0.2", torch_xla="2.7.0", neuronx_cc="2.20.1")
    done = run(scenarios, tmp_path / "site", variant, "--steps", "3", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    environment, execution = EXPECTED[variant]
    said = [line for line in done.stdout.splitlines() if line.startswith(("environment", "batches"))]
    assert said[0] == f"environment {json.dumps(environment)}"
    assert set(said[1:]) == {f"batches an execution {execution}"}
    summary = result(done)
    assert summary["check"]["ok"]
    assert summary["batch"] == (16 if variant in ("baseline", "workers-1") else 8) * execution


def test_flags_of_the_user_are_kept(scenarios: Path, tmp_path: Path, forked: ForkedPython) -> None:
    install(tmp_path / "site", torch_neuronx="2.9.0.2", torch_xla="2.9.0", neuronx_cc="2.22.0")
    script, *arguments = command(scenarios, "auto-cast-bf16", "--steps", "2")
    flags = {"NEURON_CC_FLAGS": "--verbose info"}
    code, out, err = forked.run(
        Path(script), *arguments, env=environment(tmp_path / "site") | flags, cwd=tmp_path
    )
    assert code == 0, out + err
    assert f'environment {{"NEURON_CC_FLAGS": "--verbose info {BF16}"}}' in out


@pytest.mark.parametrize(
    ("have", "variant", "reason", "remedy"),
    [
        # What PyPI has under the names, which holds no software.
        ("1.0", "baseline", "needs torch-neuronx >=2.1,<2.10, 1.0 is installed", "pip.repos.neuron"),
        ("1.0", "native", "needs torch-neuronx >=2.13, 1.0 is installed", "pip.repos.neuron"),
        # TorchNeuron has the same name, and no PyTorch/XLA.
        ("2.13.3.0", "baseline", "needs torch-neuronx >=2.1,<2.10, 2.13.3.0 is installed", "2.9.*"),
        ("2.9.0.2", "native", "needs torch-neuronx >=2.13, 2.9.0.2 is installed", ">=2.13"),
        ("2.9.0.2", "xla-use-bf16", "needs torch-neuronx >=2.1,<2.8, 2.9.0.2 is installed", "model-bf16"),
    ],
)
def test_which_software_it_has_to_be(
    scenarios: Path, tmp_path: Path, have: str, variant: str, reason: str, remedy: str
) -> None:
    install(tmp_path / "site", torch_neuronx=have, torch_xla="2.7.0", neuronx_cc="2.20.1")
    done = run(scenarios, tmp_path / "site", variant)
    assert done.returncode == 77
    (lack,) = result(done)["unavailable"]
    assert lack["reason"] == reason
    assert remedy in lack["remedy"]


def test_a_process_for_each_core(scenarios: Path, tmp_path: Path) -> None:
    """At the published size the script starts itself again, once a core, through PyTorch's launcher."""
    install(tmp_path / "site", torch_neuronx="2.7.0.2", torch_xla="2.7.0", neuronx_cc="2.20.1")
    ask = (
        "import sys; sys.path.insert(0, sys.argv[1]); import neuron_training as n; from common import scenario as s;"
        "r = s._run(*(l := s.header(n.__file__), s._variant(l, 'transformer-o3')), s._parser(n.__file__, l)"
        ".parse_args(['--preset', 'paper'])); print(n.launcher(r)); import os; print(os.environ['NEURON_CC_FLAGS'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", ask, str(scenarios)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "'torch.distributed.run', '--standalone', '--nproc-per-node=2'" in done.stdout
    assert "--optlevel 3" in done.stdout
