// What the operator for GpSimd computes, and which pairs each of its cores takes. Nothing of the SDK in here.
#pragma once

#include <cstddef>

namespace giou {

struct Range {
  size_t first, count;
};

// Divides pairs among cores as evenly as they go: the first cores take one more each.
inline Range pairsOf(size_t core, size_t cores, size_t pairs) {
  const size_t least = pairs / cores, more = pairs % cores;
  return {core * least + (core < more ? core : more), least + (core < more ? 1 : 0)};
}

inline float least(float a, float b) { return a < b ? a : b; }
inline float most(float a, float b) { return a > b ? a : b; }

inline float area(float x1, float y1, float x2, float y2) { return most(x2 - x1, 0.f) * most(y2 - y1, 0.f); }

// Writes the scores of pairs of boxes x1 y1 x2 y2.
inline void scorePairs(const float* first, const float* second, float* scores, size_t pairs, float epsilon) {
  for (size_t pair = 0; pair < pairs; ++pair) {
    const float* a = first + 4 * pair;
    const float* b = second + 4 * pair;
    const float shared = area(most(a[0], b[0]), most(a[1], b[1]), least(a[2], b[2]), least(a[3], b[3]));
    const float hull = area(least(a[0], b[0]), least(a[1], b[1]), most(a[2], b[2]), most(a[3], b[3]));
    const float both = area(a[0], a[1], a[2], a[3]) + area(b[0], b[1], b[2], b[3]) - shared;
    scores[pair] = shared / (both + epsilon) - (hull - both) / (hull + epsilon);
  }
}

}  // namespace giou
