// `HugeBuffer`: zeroed memory in huge pages, for what is read from end to end again and again.
#pragma once

#include <cstddef>

namespace rs {

// Aligned to 2 MiB where it is that large, to a page else. Whole huge pages are asked for as such;
// the rest of the last one stays in small pages, so that nothing is rounded up.
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t num_bytes);  // throws std::bad_alloc
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t num_bytes_ = 0;
  size_t mapped_bytes_ = 0;
};

}  // namespace rs
