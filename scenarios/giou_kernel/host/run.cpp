// Runs the operator for GpSimd as one core of several, on memory of the caller.
#include "../gpsimd.cpp"
torch::Tensor destination;
uint32_t core, cores;
extern "C" void run(float* a, float* b, float* scores, size_t pairs, uint32_t number, uint32_t of, double epsilon) {
  destination = {scores, pairs}; core = number; cores = of;
  giou_scores({a, 4 * pairs}, {b, 4 * pairs}, epsilon);
}
