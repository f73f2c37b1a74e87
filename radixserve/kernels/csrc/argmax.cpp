#include "argmax.h"

#include <cmath>

#include "checks.h"
#include "elementwise.h"
#include "rows.h"
#include "variants.h"

namespace rs {

void argmax(const View& logits, int64_t rows, int64_t limit, const View& out_ids,
            const View& out_finite) {
  const Checks checks("argmax");
  checks.array("logits", logits, {DType::float32}, {-1, -1});
  checks.array("out_ids", out_ids, {DType::int64}, {-1});
  checks.array("out_finite", out_finite, {DType::uint8}, {-1});
  for (const View* each : {&logits, &out_ids, &out_finite})
    if (rows < 0 || rows > each->shape[0])
      checks.refuse(std::to_string(rows) + " rows asked for, got " + each->describe());
  if (limit < 1 || limit > logits.shape[1])
    checks.refuse("limit must be 1 to " + std::to_string(logits.shape[1]) + ", got " +
                  std::to_string(limit));
  const ElementwiseKernels& kernels = *variant().elementwise;
  for_rows(rows, limit, [&](int64_t row) {
    const int64_t best = kernels.argmax(logits.row<const float>(row), limit);
    out_ids.as<int64_t>()[row * out_ids.strides[0]] = best;
    out_finite.as<uint8_t>()[row * out_finite.strides[0]] =
        std::isfinite(logits.row<const float>(row)[best]) ? 1 : 0;
  });
}

}  // namespace rs
