// What the operator for GpSimd uses of Neuron's headers, on a CPU: tensors of float, and 16 KiB of memory for a core.
#pragma once
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
namespace torch {
struct Accessor {
  float* data; size_t numel;
  template <typename T> void tensor_to_tcm(T* tcm, size_t offset, size_t count) {
    assert(offset + count <= numel); std::memcpy(tcm, data + offset, count * sizeof(T)); }
  template <typename T> void tcm_to_tensor(T* tcm, size_t offset, size_t count) {
    assert(offset + count <= numel); std::memcpy(data + offset, tcm, count * sizeof(T)); }
};
struct Tensor {
  float* data; size_t count;
  size_t numel() const { return count; }
  Accessor tcm_accessor() const { return {data, count}; }
};
namespace neuron {
inline void* tcm_malloc(size_t bytes) { return bytes <= 16384 ? std::malloc(bytes) : nullptr; }
inline void tcm_free(void* memory) { std::free(memory); }
}
}
