// Generalised IoU loss of padded boxes, with its gradient, in one pass: one block a sample, one box a thread.
#include <cuda_runtime.h>

namespace {

constexpr int kThreads = 256;

template <typename T>
struct alignas(16) Box {  // 16-byte loads: a warp reads its boxes in whole lines
  T x1, y1, x2, y2;
};

__device__ __forceinline__ void opaque(float& x) { asm volatile("" : "+f"(x)); }
__device__ __forceinline__ void opaque(double& x) { asm volatile("" : "+d"(x)); }

template <typename T>
__device__ __forceinline__ T atLeastZero(T x) { return x < T(0) ? T(0) : x; }

// What one axis adds to the gradients of the three areas, for its lower and upper edge.
template <typename T>
struct Axis {
  T own, shared, hull;  // lengths, not negative
  bool ownOpen, sharedOpen, hullOpen, lowInside, highInside;
  __device__ Axis(T low, T high, T targetLow, T targetHigh) {
    lowInside = low > targetLow;
    highInside = high < targetHigh;
    const T ownRaw = high - low;
    const T sharedRaw = (highInside ? high : targetHigh) - (lowInside ? low : targetLow);
    own = atLeastZero(ownRaw);
    shared = atLeastZero(sharedRaw);
    const T hullRaw = (highInside ? targetHigh : high) - (lowInside ? targetLow : low);
    hull = atLeastZero(hullRaw);
    ownOpen = ownRaw >= T(0);
    sharedOpen = sharedRaw >= T(0);
    hullOpen = hullRaw >= T(0);
  }
  // dOwn, dShared, dHull: gradients of the loss by the three lengths of this axis.
  __device__ void gradient(T dOwn, T dShared, T dHull, T& low, T& high) const {
    dOwn = ownOpen ? dOwn : T(0);
    dShared = sharedOpen ? dShared : T(0);
    dHull = hullOpen ? dHull : T(0);
    low = -dOwn - (lowInside ? dShared : dHull);
    high = dOwn + (highInside ? dShared : dHull);
  }
};

template <typename T>
__device__ __forceinline__ T giouLoss(Box<T> p, Box<T> t, T epsilon, Box<T>& gradient) {
  const Axis<T> x(p.x1, p.x2, t.x1, t.x2), y(p.y1, p.y2, t.y1, t.y2);
  const T shared = x.shared * y.shared, hull = x.hull * y.hull;
  const T both = x.own * y.own + atLeastZero(t.x2 - t.x1) * atLeastZero(t.y2 - t.y1) - shared;
  const T perBoth = T(1) / (both + epsilon), perHull = T(1) / (hull + epsilon);
  const T dBoth = shared * perBoth * perBoth - perHull;
  const T dShared = -perBoth - dBoth;  // the union shrinks as the intersection grows
  const T dHull = (both + epsilon) * perHull * perHull;
  x.gradient(dBoth * y.own, dShared * y.shared, dHull * y.hull, gradient.x1, gradient.x2);
  y.gradient(dBoth * x.own, dShared * x.shared, dHull * x.hull, gradient.y1, gradient.y2);
  return T(1) - shared * perBoth + (hull - both) * perHull;
}

template <typename T, bool kConditional>
__global__ void __launch_bounds__(kThreads) giouKernel(const Box<T>* predicted, const Box<T>* target,
                                                       const int* counts, Box<T>* gradients, T* sums, int boxes,
                                                       T epsilon, int work) {
  const size_t first = static_cast<size_t>(blockIdx.x) * boxes;
  const int count = counts[blockIdx.x];
  T sum = T(0);
  for (int box = threadIdx.x; box < boxes; box += kThreads) {
    Box<T> gradient{};
    if (!kConditional || box < count) {
      Box<T> p = predicted[first + box];
      const Box<T> t = target[first + box];
      T loss = T(0);
      for (int again = 0; again < work; ++again) {
        opaque(p.x1);  // so that the compiler does not see that each round computes the same
        loss = giouLoss(p, t, epsilon, gradient);
        opaque(loss);
      }
      if (kConditional || box < count) {
        sum += loss;
      } else {
        gradient = Box<T>{};
      }
    }
    if (gradients != nullptr) gradients[first + box] = gradient;
  }
  for (int lanes = warpSize / 2; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  __shared__ T warps[kThreads / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    T total = T(0);
    for (int warp = 0; warp < kThreads / 32; ++warp) total += warps[warp];
    sums[blockIdx.x] = total;
  }
}

template <typename T>
int launch(const void* predicted, const void* target, const int* counts, void* gradients, void* sums, int batch,
           int boxes, double epsilon, int work, int conditional, cudaStream_t stream) {
  auto kernel = conditional ? giouKernel<T, true> : giouKernel<T, false>;
  kernel<<<batch, kThreads, 0, stream>>>(static_cast<const Box<T>*>(predicted), static_cast<const Box<T>*>(target),
                                         counts, static_cast<Box<T>*>(gradients), static_cast<T*>(sums), boxes,
                                         static_cast<T>(epsilon), work);
  return cudaGetLastError();
}

}  // namespace

extern "C" {

int giou_float(const void* predicted, const void* target, const int* counts, void* gradients, void* sums, int batch,
               int boxes, double epsilon, int work, int conditional, void* stream) {
  return launch<float>(predicted, target, counts, gradients, sums, batch, boxes, epsilon, work, conditional,
                       static_cast<cudaStream_t>(stream));
}

int giou_double(const void* predicted, const void* target, const int* counts, void* gradients, void* sums, int batch,
                int boxes, double epsilon, int work, int conditional, void* stream) {
  return launch<double>(predicted, target, counts, gradients, sums, batch, boxes, epsilon, work, conditional,
                        static_cast<cudaStream_t>(stream));
}
}
