// Memory of the simulated device, its counters, and what it tells Python.
//
// A device pointer lies in a range that nobody may read or write: the host that follows one dies of SIGSEGV. Kernels find
// the bytes at the same offset of a second range. Fresh and freed memory is filled with 0xff: NaN in every float type.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "streams.h"

namespace sim {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr size_t kArena = size_t(1) << 36;
constexpr size_t kPage = 512;  // what CUDA's allocator rounds up to
constexpr int kPoison = 0xff;

struct Counts {  // in this order for Python
  std::atomic<int64_t> kernels{0}, kernel_bytes{0}, uploads{0}, upload_bytes{0}, downloads{0}, download_bytes{0};
  std::atomic<int64_t> allocated{0}, peak{0}, reserved{0}, allocations{0};
};

inline Counts counts;
inline int device_count = 1;
inline thread_local int current_device = 0;
inline size_t capacity = kArena;
inline void (*on_event)(const char* kind, const char* name) = nullptr;

inline void tell(const char* kind, const char* name) {
  if (on_event) on_event(kind, name);
}

struct Block {
  size_t offset, room, nbytes;
  History history;
};

class Arena {
 public:
  static Arena& get() {
    static Arena* arena = new Arena;
    return *arena;
  }

  char* real(const void* pointer) const {
    return real_ + (static_cast<const char*>(pointer) - guarded_);
  }

  bool owns(const void* pointer) const {
    return pointer >= guarded_ && pointer < guarded_ + kArena;
  }

  c10::DataPtr allocate(size_t nbytes) {
    const c10::Device device(kType, current_device);
    if (nbytes == 0) return {nullptr, nullptr, &release, device};
    std::lock_guard<std::mutex> hold(mutex_);
    const size_t room = (nbytes + kPage - 1) / kPage * kPage;
    TORCH_CHECK_WITH(OutOfMemoryError, counts.allocated + nbytes <= capacity, "simulated device out of memory: ",
                     nbytes, " bytes asked for, ", counts.allocated, " of ", capacity, " in use");
    auto& free = free_[room];
    size_t offset = end_;
    if (free.empty()) {
      TORCH_CHECK_WITH(OutOfMemoryError, end_ + room <= kArena, "the simulated device's arena is full");
      end_ += room;
      counts.reserved += room;
    } else {
      offset = free.back();
      free.pop_back();
    }
    std::memset(real_ + offset, kPoison, room);
    counts.allocations++;
    counts.allocated += nbytes;
    if (counts.allocated > counts.peak) counts.peak = counts.allocated.load();
    auto* block = new Block{offset, room, nbytes, {}};
    Order::get().allocated(block->history);
    return {guarded_ + offset, block, &release, device};
  }

 private:
  Arena() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* real = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, flags, -1, 0);
    void* guarded = mmap(nullptr, kArena, PROT_NONE, flags, -1, 0);
    TORCH_CHECK(real != MAP_FAILED && guarded != MAP_FAILED, "no address space for the simulated device");
    real_ = static_cast<char*>(real);
    guarded_ = static_cast<char*>(guarded);
  }

  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    if (!block) return;
    Order::get().freed(block->history);
    Arena& arena = get();
    std::lock_guard<std::mutex> hold(arena.mutex_);
    std::memset(arena.real_ + block->offset, kPoison, block->room);
    arena.free_[block->room].push_back(block->offset);
    counts.allocated -= block->nbytes;
    delete block;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<size_t>> free_;  // by room
  size_t end_ = 0;
  char *real_, *guarded_;
};

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    return Arena::get().allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(Arena::get().real(to), Arena::get().real(from), count);
  }
};

// Pinned host memory is plain memory that is known to be pinned.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    char* data = new char[nbytes ? nbytes : 1];
    std::lock_guard<std::mutex> hold(mutex);
    ranges[data] = nbytes;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  static void release(void* data) {
    std::lock_guard<std::mutex> hold(mutex);
    ranges.erase(static_cast<char*>(data));
    delete[] static_cast<char*>(data);
  }
  static bool holds(const void* pointer) {
    std::lock_guard<std::mutex> hold(mutex);
    auto after = ranges.upper_bound(const_cast<char*>(static_cast<const char*>(pointer)));
    if (after == ranges.begin()) return false;
    --after;
    return pointer < after->first + after->second;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
  inline static std::mutex mutex;
  inline static std::map<char*, size_t> ranges;
};

inline DeviceAllocator device_allocator;
inline PinnedAllocator pinned_allocator;

}  // namespace sim
