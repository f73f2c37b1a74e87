#include "huge_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace rs {
namespace {

[[maybe_unused]] constexpr size_t kHugePage = size_t{2} << 20;

[[maybe_unused]] size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// The sanitizer watches the ends of what comes from the heap, not of what is mapped.
HugeBuffer::HugeBuffer(size_t num_bytes) : num_bytes_(num_bytes), mapped_bytes_(num_bytes) {
  data_ = new (std::align_val_t{64}) std::byte[num_bytes]();
}

HugeBuffer::~HugeBuffer() { ::operator delete[](data_, std::align_val_t{64}); }

#else

HugeBuffer::HugeBuffer(size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  mapped_bytes_ = round_up(num_bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  // mmap aligns to small pages only: ask for one huge page more and give back both ends.
  const size_t slack = mapped_bytes_ >= kHugePage ? kHugePage : 0;
  void* const mapped = mmap(nullptr, mapped_bytes_ + slack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const start = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(start);
  const size_t before = slack == 0 ? 0 : round_up(address, kHugePage) - address;
  data_ = start + before;
  if (before > 0) munmap(start, before);
  if (slack > before) munmap(data_ + mapped_bytes_, slack - before);
#ifdef MADV_HUGEPAGE
  if (slack > 0) madvise(data_, mapped_bytes_ / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
}

#endif

}  // namespace rs
