// Which requests of a batch read the same blocks, found in the block tables themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_batch.h"

namespace rs {

struct SharedChunk {
  int32_t chunk;
  std::vector<int32_t> reqs;  // at least two, ascending
};

// The full chunks that several of `candidates` read from the same blocks, in ascending order.
//
// Only common beginnings are found: requests that differ in a chunk are not compared beyond it. A
// radix tree shares nothing else, and so the search ends at the first chunk where nothing is shared.
std::vector<SharedChunk> find_shared_chunks(const AttentionBatch& batch,
                                            const std::vector<int32_t>& candidates);

}  // namespace rs
