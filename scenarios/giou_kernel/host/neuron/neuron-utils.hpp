// Which core of how many runs the operator, and where its result goes.
#pragma once
#include <torch/torch.h>
extern torch::Tensor destination;
extern uint32_t core, cores;
inline torch::Tensor get_dst_tensor() { return destination; }
inline uint32_t get_cpu_id() { return core; }
inline uint32_t get_cpu_count() { return cores; }
