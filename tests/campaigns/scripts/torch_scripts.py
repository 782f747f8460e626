# needs: torch
import copy, pickle, signal, sys, threading, warnings
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of(): return model(torch.randn(4, 8)).square().mean()
def train(steps=8):
    for _ in range(steps):
        optimizer.zero_grad(); loss = loss_of(); loss.backward(); optimizer.step()
    print(f"{loss.item():.6f}", flush=True)
#---
# name: torch: training
train()
print(threading.active_count())
#---
# name: torch: an optimizer in a hook of backward
each = {p: torch.optim.SGD([p], lr=.1) for p in model.parameters()}
def hook(p): each[p].step(); each[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(hook)
for _ in range(12): loss = loss_of(); loss.backward()
print(f"{loss.item():.6f}")
#---
# name: torch: an exception in backward
model[0].weight.register_hook(lambda grad: 1 / 0)
train()
#---
# name: torch: an exception in the optimizer
class Mine(torch.optim.SGD):
    def step(self, closure=None): raise RuntimeError("in step")
optimizer = Mine(model.parameters(), lr=.1)
try:
    train()
except RuntimeError:
    import traceback
    traceback.print_exc()
#---
# name: torch: an exception in a loader
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 5: raise ValueError("sample 5")
        return torch.zeros(8)
for batch in DataLoader(Data(), batch_size=2): optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
#---
# name: torch: a time-out in the loop
class TimeOut(Exception): pass
def handler(number, frame):
    # Not within PyTorch, which is not made for it.
    if frame.f_code.co_filename == __file__ or "/tuiprof/probe/" in frame.f_code.co_filename: raise TimeOut
signal.signal(signal.SIGALRM, handler)
caught = 0
for n in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, .003 + n * .0005, .003)
        while True: optimizer.zero_grad(); loss_of().backward(); optimizer.step()
    except TimeOut: caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
print(caught)
#---
# name: torch: a profiler of its own
from torch.profiler import profile, schedule
seen = []
with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=lambda p: seen.append(len(p.key_averages()))) as profiler:
    for _ in range(10):
        optimizer.zero_grad(); loss_of().backward(); optimizer.step(); profiler.step()
print(len(seen), seen[0] == seen[1], seen[0] > 10)
#---
# name: torch: a profile to a file
with torch.profiler.profile() as profiler: train(3)
profiler.export_chrome_trace("trace.json")
import json, os
print(sum(event.get("name", "").startswith("aten::linear") for event in json.load(open("trace.json"))["traceEvents"]))
os.remove("trace.json")
#---
# name: torch: loaders
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(32.).reshape(16, 2))
if __name__ == "__main__":
    for options in ({}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
        print([int(batch.sum()) for (batch,) in DataLoader(data, batch_size=4, **options)])
    train()
#---
# name: torch: an early end of a loader
from torch.utils.data import DataLoader, TensorDataset
for n, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=4, num_workers=2)):
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
    if n == 3: break
print("broke off")
#---
# name: torch: LBFGS
solver = torch.optim.LBFGS(model.parameters(), lr=.1)
x = torch.randn(4, 8)
def closure(): solver.zero_grad(); loss = model(x).square().mean(); loss.backward(); return loss
for _ in range(6): loss = solver.step(closure)
print(f"{loss.item():.5f}")
#---
# name: torch: copies and pickles
train()
again = pickle.loads(pickle.dumps(optimizer)); copied = copy.deepcopy(optimizer)
print(type(again).__name__, copied.state_dict()["param_groups"][0]["lr"], type(optimizer).step.__name__)
torch.save(model.state_dict(), "model.pt"); print(len(torch.load("model.pt")))
import os; os.remove("model.pt")
#---
# name: torch: signatures
import inspect
print(inspect.signature(torch.autograd.backward), inspect.signature(optimizer.step), torch.autograd.backward.__module__)
#---
# name: torch: an optimizer of its own
class Mine(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, {})
    def step(self, closure=None, *, scale=1.0):
        for group in self.param_groups:
            for p in group["params"]: p.data.sub_(.1 * scale * p.grad)
        return "stepped"
optimizer = Mine(model.parameters())
optimizer.zero_grad(); loss_of().backward(); print(optimizer.step(scale=.5)); train()
#---
# name: torch: gradients of gradients and checkpoints
from torch.utils.checkpoint import checkpoint
for _ in range(8):
    x = torch.randn(4, 8, requires_grad=True)
    y = checkpoint(model, x, use_reentrant=True).sum()
    y.backward(); optimizer.step(); optimizer.zero_grad()
[g] = torch.autograd.grad((x ** 3).sum(), x, create_graph=True); g.sum().backward()
print(x.grad is not None)
#---
# name: torch: warnings as errors
warnings.simplefilter("error")
train()
print(len(warnings.filters) > 0)
#---
# name: torch: anomaly detection
with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    train()
#---
# name: torch: two optimizers
other = torch.optim.Adam(model.parameters())
for _ in range(8):
    loss_of().backward(); optimizer.step(); optimizer.zero_grad(); loss_of().backward(); other.step(); other.zero_grad()
train(3)
#---
# name: torch: training in a thread
# differs: stderr: Kineto says that its profiler was not started in the thread that imported PyTorch
thread = threading.Thread(target=train); thread.start(); thread.join()
print(threading.active_count())
#---
# name: torch: processes that train
import torch.multiprocessing as mp
def work(rank): torch.manual_seed(rank); train(4)
if __name__ == "__main__":
    for _ in range(2): mp.start_processes(work, nprocs=1, start_method="fork")
#---
# name: torch: torchrun with gloo
# run: {python} -m torch.distributed.run --standalone --nproc-per-node 2 {script}
# differs: stderr: torchrun says times
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for _ in range(8): optimizer.zero_grad(); loss = loss_of(); loss.backward(); optimizer.step()
torch.distributed.barrier()
if not torch.distributed.get_rank(): print(f"{loss.item():.6f}")
torch.distributed.destroy_process_group()
#---
# name: torch: killed in the loop
import os
for _ in range(6): optimizer.zero_grad(); loss_of().backward(); optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
#---
# name: torch: closes all and trains on
import os
train(4)
os.closerange(3, 1024)
mine = [open(f"mine{n}", "w+") for n in range(250)]
train(30)
import time; time.sleep(.3); train(3)
print({os.fstat(file.fileno()).st_size for file in mine})
