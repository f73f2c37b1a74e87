#include "draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "checks.h"
#include "elementwise.h"
#include "rows.h"
#include "variants.h"

namespace rs {
namespace {

// Temperatures below this are greedy.
constexpr float kMinTemperature = 1e-5f;

// Weights that are summed together before the one to pick is searched among them.
constexpr int64_t kSpan = 256;

struct Rule {
  float temperature, min_p;
  int64_t top_k;
  double top_p, u;
};

struct Weighted {
  float weight;
  int32_t id;
};

// The heavier first, of equals the lower id.
bool is_before(const Weighted& a, const Weighted& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

// Weights lie in [0, 1]. Their upper bits grow with them, so that these tell them apart to a 32nd of
// an octave.
constexpr int kBucketShift = 18;
constexpr int kNumBuckets = (0x3f800000 >> kBucketShift) + 1;

int bucket_of(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  return static_cast<int>(bits >> kBucketShift);
}

// Memory of one thread, kept from row to row.
struct Scratch {
  std::vector<float> weights;
  std::vector<double> spans, buckets;
  std::vector<Weighted> members;
};

thread_local Scratch t_scratch;

// The first of `count` running sums that exceeds u of the total; where rounding leaves none, the
// last that grows. At least one value is above 0, none below.
template <class ValueAt>
int64_t first_above(int64_t count, double bound, ValueAt value_at) {
  double sum = 0.0;
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = value_at(i);
    sum += value;
    if (value > 0.0) last = i;
    if (sum > bound) return i;
  }
  return last;
}

// In one fixed order, as eight sums side by side: one alone would wait for each addition.
template <class ValueAt>
double sum_of(int64_t count, ValueAt value_at) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += value_at(i + lane);
  for (int64_t lane = 0; i < count; ++i, ++lane) sums[lane] += value_at(i);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The id at u of the total. Sums of spans first.
int64_t pick(const std::vector<float>& weights, double u, std::vector<double>& spans) {
  const auto size = static_cast<int64_t>(weights.size());
  const int64_t num_spans = (size + kSpan - 1) / kSpan;
  spans.resize(num_spans);
  for (int64_t span = 0; span < num_spans; ++span) {
    const int64_t first = span * kSpan, count = std::min(kSpan, size - first);
    spans[span] = sum_of(count, [&](int64_t i) { return double{weights[first + i]}; });
  }
  const auto span_at = [&](int64_t span) { return spans[span]; };
  const double bound = u * sum_of(num_spans, span_at);
  const int64_t span = first_above(num_spans, bound, span_at);
  const double before = sum_of(span, span_at);
  const int64_t first = span * kSpan, count = std::min(kSpan, size - first);
  return first + first_above(count, bound - before,
                             [&](int64_t i) { return double{weights[first + i]}; });
}

// What a weight counts for in a limit: top_k counts ids, top_p what they weigh.
struct EachOne {
  static double of(float) { return 1.0; }
};
struct ItsWeight {
  static double of(float weight) { return weight; }
};

// Clears all but the heaviest weights: the fewest that together reach `limit`. Those below `least`
// are known not to be among them.
//
// One pass sums up by bucket, heavier buckets are kept whole, and only the members of the one in
// which the limit is reached are sorted.
template <class Count>
void keep_heaviest(std::vector<float>& weights, float least, double limit, Scratch& scratch) {
  std::vector<double>& buckets = scratch.buckets;
  buckets.assign(kNumBuckets, 0.0);
  for (const float weight : weights)
    if (weight >= least && weight > 0.0f) buckets[bucket_of(weight)] += Count::of(weight);
  int bucket = kNumBuckets - 1;
  double sum = 0.0;
  for (; bucket > 0 && sum + buckets[bucket] < limit; --bucket) sum += buckets[bucket];

  std::vector<Weighted>& members = scratch.members;
  members.clear();
  for (size_t i = 0; i < weights.size(); ++i)
    if (bucket_of(weights[i]) == bucket) members.push_back({weights[i], static_cast<int32_t>(i)});
  std::sort(members.begin(), members.end(), is_before);
  Weighted last{0.0f, -1};
  for (const Weighted& member : members) {
    last = member;
    sum += Count::of(member.weight);
    if (sum >= limit) break;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool is_kept = weights[i] > last.weight ||
                         (weights[i] == last.weight && static_cast<int32_t>(i) <= last.id);
    weights[i] = is_kept ? weights[i] : 0.0f;
  }
}

void clear_below(std::vector<float>& weights, float least) {
  for (float& weight : weights) weight = weight >= least ? weight : 0.0f;
}

int64_t draw_row(const float* logits, int64_t size, const Rule& rule) {
  const ElementwiseKernels& kernels = *variant().elementwise;
  const int64_t best = kernels.argmax(logits, size);
  if (!std::isfinite(logits[best]))
    return std::isinf(logits[best]) && logits[best] < 0 ? kNothingLeft : kNotFinite;
  if (rule.temperature < kMinTemperature) return best;

  Scratch& scratch = t_scratch;
  std::vector<float>& weights = scratch.weights;
  weights.resize(size);
  kernels.weigh(logits, size, logits[best], rule.temperature, weights.data());
  if (rule.min_p > 0.0f) clear_below(weights, rule.min_p);
  if (rule.top_k > 0 && rule.top_k < size)
    keep_heaviest<EachOne>(weights, 0.0f, static_cast<double>(rule.top_k), scratch);
  if (rule.top_p < 1.0) {
    const double total = sum_of(size, [&](int64_t i) { return double{weights[i]}; });
    // What weighs less than an equal part of what is left out is left out too: all of that weighs
    // less together. A little is allowed for rounding.
    const double part = (1.0 - rule.top_p) * total / static_cast<double>(size);
    keep_heaviest<ItsWeight>(weights, static_cast<float>(0.999 * part), rule.top_p * total,
                             scratch);
  }
  return pick(weights, rule.u, scratch.spans);
}

void check(const Checks& checks, const View& logits, int64_t rows, int64_t limit,
           const DrawRules& rules, const View& out_ids) {
  checks.array("logits", logits, {DType::float32}, {-1, -1});
  checks.array("temperature", rules.temperature, {DType::float32}, {-1});
  checks.array("min_p", rules.min_p, {DType::float32}, {-1});
  checks.array("top_k", rules.top_k, {DType::int64}, {-1});
  checks.array("top_p", rules.top_p, {DType::float64}, {-1});
  checks.array("u", rules.u, {DType::float64}, {-1});
  checks.array("out_ids", out_ids, {DType::int64}, {-1});
  for (const View* each : {&logits, &rules.temperature, &rules.min_p, &rules.top_k, &rules.top_p,
                           &rules.u, &out_ids})
    if (rows < 0 || rows > each->shape[0])
      checks.refuse(std::to_string(rows) + " rows asked for, got " + each->describe());
  if (limit < 1 || limit > logits.shape[1])
    checks.refuse("limit must be 1 to " + std::to_string(logits.shape[1]) + ", got " +
                  std::to_string(limit));
}

template <class T>
T at(const View& view, int64_t row) {
  return *view.row<const T>(row);
}

}  // namespace

void draw(const View& logits, int64_t rows, int64_t limit, const DrawRules& rules,
          const View& out_ids) {
  check(Checks("draw"), logits, rows, limit, rules, out_ids);
  for_rows(rows, limit, [&](int64_t row) {
    const Rule rule{.temperature = at<float>(rules.temperature, row),
                    .min_p = at<float>(rules.min_p, row),
                    .top_k = at<int64_t>(rules.top_k, row),
                    .top_p = at<double>(rules.top_p, row),
                    .u = at<double>(rules.u, row)};
    *out_ids.row<int64_t>(row) = draw_row(logits.row<const float>(row), limit, rule);
  });
}

}  // namespace rs
