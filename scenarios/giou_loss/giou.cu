// Generalised IoU loss of padded boxes, and its gradient: one block a sample, one box a thread.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

constexpr int kThreads = 256;

template <typename T>
struct alignas(4 * sizeof(T)) Box {  // one load a box: a warp reads its boxes in whole lines
  T x1, y1, x2, y2;
};

template <typename T, typename P>
__device__ __forceinline__ Box<T> widened(Box<P> box) {
  return {static_cast<T>(box.x1), static_cast<T>(box.y1), static_cast<T>(box.x2), static_cast<T>(box.y2)};
}

__device__ __forceinline__ void opaque(float& x) { asm volatile("" : "+f"(x)); }
__device__ __forceinline__ void opaque(double& x) { asm volatile("" : "+d"(x)); }

template <typename T>
__device__ __forceinline__ T atLeastZero(T x) { return x < T(0) ? T(0) : x; }

// One axis: three lengths, and what they add to the gradient by its lower and upper edge.
template <typename T>
struct Axis {
  T own, shared, hull;  // lengths, not negative
  bool ownOpen, sharedOpen, hullOpen, lowInside, highInside;
  __device__ Axis(T low, T high, T targetLow, T targetHigh) {
    lowInside = low > targetLow;
    highInside = high < targetHigh;
    const T ownRaw = high - low;
    const T sharedRaw = (highInside ? high : targetHigh) - (lowInside ? low : targetLow);
    const T hullRaw = (highInside ? targetHigh : high) - (lowInside ? targetLow : low);
    own = atLeastZero(ownRaw);
    shared = atLeastZero(sharedRaw);
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

// Returns 1 - GIoU; what is not used of it and of the gradient, the compiler leaves out.
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

// The sum of a value over all threads of the block; only thread 0 gets it.
template <typename T>
__device__ T blockSum(T value) {
  __shared__ T warps[kThreads / 32];
  __syncthreads();  // the shared memory may be in use by the sum before
  for (int lanes = warpSize / 2; lanes > 0; lanes /= 2) value += __shfl_down_sync(0xffffffffu, value, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return T(0);
  T total = T(0);
  for (int warp = 0; warp < kThreads / 32; ++warp) total += warps[warp];
  return total;
}

struct Sizes {
  int batch, boxes, work;  // work: how often the arithmetic is done
};

// Every block leaves the sum of its sample; the one that arrives last adds them up, always in the same order, and sets
// the ticket back for the next launch. One launch does it all.
template <typename P, typename T, bool kConditional>
__global__ void __launch_bounds__(kThreads) lossKernel(const Box<P>* predicted, const Box<T>* target, const int* counts,
                                                       T* sums, T* total, T* loss, unsigned* ticket, Sizes sizes,
                                                       T epsilon) {
  const size_t first = static_cast<size_t>(blockIdx.x) * sizes.boxes;
  const int count = counts[blockIdx.x];
  T sum = T(0);
  for (int box = threadIdx.x; box < sizes.boxes; box += kThreads) {
    if (kConditional && box >= count) break;
    Box<T> p = widened<T>(predicted[first + box]), unused;
    const Box<T> t = target[first + box];
    T one = T(0);
    for (int again = 0; again < sizes.work; ++again) {
      opaque(p.x1);  // so that the compiler does not see that each round computes the same
      one = giouLoss(p, t, epsilon, unused);
      opaque(one);
    }
    if (box < count) sum += one;
  }
  sum = blockSum(sum);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  sum = T(0);
  int boxes = 0;
  for (int sample = threadIdx.x; sample < sizes.batch; sample += kThreads) {
    sum += __ldcg(sums + sample);
    boxes += counts[sample];
  }
  sum = blockSum(sum);
  boxes = blockSum(boxes);
  if (threadIdx.x == 0) {
    *total = static_cast<T>(boxes > 1 ? boxes : 1);
    *loss = sum / *total;
    *ticket = 0;
  }
}

// Computes anew what the loss needed instead of having kept it: reading boxes again costs less than a gradient that is
// written, read, scaled and written again.
template <typename P, typename T, bool kConditional>
__global__ void __launch_bounds__(kThreads) gradientKernel(const Box<P>* predicted, const Box<T>* target,
                                                           const int* counts, const T* total, const T* outer,
                                                           Box<P>* gradients, Sizes sizes, T epsilon) {
  const size_t first = static_cast<size_t>(blockIdx.x) * sizes.boxes;
  const int count = counts[blockIdx.x];
  const T scale = *outer / *total;
  for (int box = threadIdx.x; box < sizes.boxes; box += kThreads) {
    Box<T> gradient{};
    if (!kConditional || box < count) {
      Box<T> p = widened<T>(predicted[first + box]);
      const Box<T> t = target[first + box];
      for (int again = 0; again < sizes.work; ++again) {
        opaque(p.x1);
        giouLoss(p, t, epsilon, gradient);
        opaque(gradient.x1);
      }
      const T valid = box < count ? scale : T(0);
      gradient = {gradient.x1 * valid, gradient.y1 * valid, gradient.x2 * valid, gradient.y2 * valid};
    }
    gradients[first + box] = {static_cast<P>(gradient.x1), static_cast<P>(gradient.y1),
                              static_cast<P>(gradient.x2), static_cast<P>(gradient.y2)};
  }
}

}  // namespace

// Both return CUDA's error; 0 = launched. The names end with the types of the predicted and of the target boxes.
#define GIOU_FUNCTIONS(NAME, P, T)                                                                                   \
  extern "C" int giou_loss_##NAME(const void* predicted, const void* target, const int* counts, void* sums,          \
                                  void* total, void* loss, void* ticket, int batch, int boxes, int work,             \
                                  double epsilon, int conditional, void* stream) {                                   \
    auto kernel = conditional ? lossKernel<P, T, true> : lossKernel<P, T, false>;                                    \
    kernel<<<batch, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(                                               \
        static_cast<const Box<P>*>(predicted), static_cast<const Box<T>*>(target), counts, static_cast<T*>(sums),    \
        static_cast<T*>(total), static_cast<T*>(loss), static_cast<unsigned*>(ticket), Sizes{batch, boxes, work},    \
        static_cast<T>(epsilon));                                                                                    \
    return cudaGetLastError();                                                                                       \
  }                                                                                                                  \
  extern "C" int giou_gradient_##NAME(const void* predicted, const void* target, const int* counts,                  \
                                      const void* total, const void* outer, void* gradients, int batch, int boxes,   \
                                      int work, double epsilon, int conditional, void* stream) {                     \
    auto kernel = conditional ? gradientKernel<P, T, true> : gradientKernel<P, T, false>;                            \
    kernel<<<batch, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(                                               \
        static_cast<const Box<P>*>(predicted), static_cast<const Box<T>*>(target), counts,                           \
        static_cast<const T*>(total), static_cast<const T*>(outer), static_cast<Box<P>*>(gradients),                 \
        Sizes{batch, boxes, work}, static_cast<T>(epsilon));                                                         \
    return cudaGetLastError();                                                                                       \
  }

GIOU_FUNCTIONS(float_float, float, float)
GIOU_FUNCTIONS(double_double, double, double)
GIOU_FUNCTIONS(bfloat16_float, __nv_bfloat16, float)
