// Generalised IoU scores of pairs of boxes: one pair a thread, one 16-byte load a box, one store. No torch in here, so
// that it is compiled in seconds.
#include <cuda_runtime.h>

namespace {

__device__ __forceinline__ float area(float x1, float y1, float x2, float y2) {
  return fmaxf(x2 - x1, 0.f) * fmaxf(y2 - y1, 0.f);
}

__global__ void __launch_bounds__(256)
    giouScores(const float4* __restrict__ first, const float4* __restrict__ second, float* __restrict__ scores,
               int pairs, float epsilon) {
  const int pair = blockIdx.x * blockDim.x + threadIdx.x;
  if (pair >= pairs) return;
  const float4 a = first[pair], b = second[pair];  // x y z w = x1 y1 x2 y2
  const float shared = area(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fminf(a.z, b.z), fminf(a.w, b.w));
  const float hull = area(fminf(a.x, b.x), fminf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
  const float both = area(a.x, a.y, a.z, a.w) + area(b.x, b.y, b.z, b.w) - shared;
  scores[pair] = shared / (both + epsilon) - (hull - both) / (hull + epsilon);
}

}  // namespace

// Returns CUDA's error; 0 = launched.
int launchGiouScores(const float* first, const float* second, float* scores, int pairs, float epsilon, void* stream) {
  constexpr int kThreads = 256;
  if (pairs == 0) return 0;
  giouScores<<<(pairs + kThreads - 1) / kThreads, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      reinterpret_cast<const float4*>(first), reinterpret_cast<const float4*>(second), scores, pairs, epsilon);
  return static_cast<int>(cudaGetLastError());
}
